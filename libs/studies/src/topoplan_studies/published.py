"""What others measured of the things that a study compares, to stand beside its results.

A table ``[[published]]`` of a study names a model and what is compared (``of``), and lists values in the order of the
study's settings (the last thing that varies changes fastest).  A text in place of a number says why there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from topoplan.errors import TopoplanError, nearest, printable, shown

__all__ = ["COLUMNS", "Published", "published_from"]

#: What may be listed, and its unit: empty for ratios.
COLUMNS = {"iteration-time": "s", "computation": "s", "communication": "s", "overlap": "", "memory": "GB"}


@attrs.frozen(kw_only=True)
class Published:
    """Published values of one model under one of the things that are compared.

    Attributes:
        model, of: which.
        values: column -> a value for each setting, or the reason why there is none.
    """

    model: str
    of: str
    values: dict[str, tuple[float | str, ...]]


def published_from(
    tables: Sequence[Any], *, models: Sequence[str], labels: Collection[str], settings: int, where: str
) -> tuple[Published, ...]:
    """Read the tables; each list has a value for each of ``settings`` settings.

    Raises:
        TopoplanError: a table that names something else, or has another number of values.
    """
    return tuple(
        _published(table, models, labels, settings, f"{where}: published[{i}]") for i, table in enumerate(tables)
    )


def _published(table: Any, models: Sequence[str], labels: Collection[str], settings: int, where: str) -> Published:
    if not isinstance(table, dict):
        raise TopoplanError(f"{where}: must be a table [[published]]")
    for key, names in (("model", models), ("of", labels)):
        if not isinstance(table.get(key), str) or printable(table[key]) not in names:
            name = table.get(key, "")
            raise TopoplanError(f"{where}: {key}: no {shown(name)}{nearest(str(name), names)}")
    values: dict[str, tuple[float | str, ...]] = {}
    for key, listed in table.items():
        if key in ("model", "of"):
            continue
        if key not in COLUMNS:
            raise TopoplanError(f"{where}: no key {shown(key)}{nearest(key, ('model', 'of', *COLUMNS))}")
        if not isinstance(listed, list) or len(listed) != settings:
            raise TopoplanError(f"{where}: {key}: expected {settings} values, one a setting, got {shown(listed)}")
        for value in listed:
            if not isinstance(value, str) and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise TopoplanError(f"{where}: {key}: expected numbers, or a text where none is, got {shown(value)}")
        values[key] = tuple(printable(value) if isinstance(value, str) else value for value in listed)
    return Published(model=printable(table["model"]), of=printable(table["of"]), values=values)
