"""Long lists of equal values as runs, ``{"runs": [[count, value], ...]}``: columns of devices in large plans.

Write: `packed` takes plain values, and returns them with runs in place of the lists that get much shorter so.  Read:
`unpacked` gives the lists back.
"""

from __future__ import annotations

import itertools
from typing import Any

from topoplan import TopoplanError

__all__ = ["packed", "unpacked"]

#: Values of the shortest list that is packed, and how many times shorter it gets at least.
_SHORTEST, _SHORTER = 1024, 8
#: Values of the longest list that is unpacked.
_LONGEST = 1 << 27


def packed(document: Any) -> Any:
    """Return plain values with runs in place of long lists.

    >>> packed({"speed": [1.0] * 5000, "host": [0, 1]})
    {'speed': {'runs': [[5000, 1.0]]}, 'host': [0, 1]}
    """
    if isinstance(document, dict):
        return {key: packed(part) for key, part in document.items()}
    if not isinstance(document, list):
        return document
    if len(document) < _SHORTEST or isinstance(document[0], list | dict):
        return [packed(part) if isinstance(part, list | dict) else part for part in document]
    runs = [[sum(1 for _ in equal), first] for first, equal in itertools.groupby(document)]
    return {"runs": runs} if len(runs) * _SHORTER <= len(document) else document


def unpacked(document: Any, place: str) -> Any:
    """Return plain values with lists in place of runs.

    Args:
        document: plain values.
        place: of them, for messages.

    Raises:
        TopoplanError: runs are no pairs of a count and a value, or too many.

    >>> unpacked({"speed": {"runs": [[3, 1.0], [1, 2.0]]}}, "$")
    {'speed': [1.0, 1.0, 1.0, 2.0]}
    """
    if isinstance(document, dict):
        if document.keys() == {"runs"}:
            return _list_of(document["runs"], place)
        return {key: unpacked(part, f"{place}.{key}") for key, part in document.items()}
    if isinstance(document, list) and document and isinstance(document[0], list | dict):
        return [unpacked(part, f"{place}[{number}]") for number, part in enumerate(document)]
    return document


def _list_of(runs: Any, place: str) -> list[Any]:
    def is_run(run: Any) -> bool:
        return isinstance(run, list) and len(run) == 2 and type(run[0]) is int and run[0] > 0

    if not isinstance(runs, list) or not all(map(is_run, runs)):
        raise TopoplanError(f"{place}.runs: expected pairs of a count, above 0, and a value")
    if sum(run[0] for run in runs) > _LONGEST:
        raise TopoplanError(f"{place}.runs: more than {_LONGEST:,} values")
    return [part for count, first in runs for part in itertools.repeat(first, count)]
