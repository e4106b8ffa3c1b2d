"""The slow, exact counterpart of `topoplan_engine.lowering.refine`: colours are nested tuples, numbered anew in each
round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from topoplan_engine.lowering.refine import Columns

__all__ = ["part_classes"]


def part_classes(columns: Columns, n_devices: int) -> list[int]:
    """Return the class of each part, classes numbered by their first members."""
    n = len(columns.device)
    colours = _numbered(columns.hash.tolist())
    groups = [
        columns.group_parts[columns.part_ptr[g] : columns.part_ptr[g + 1]].tolist()
        for g in range(len(columns.group_hash))
    ]
    pairs = list(zip(columns.src.tolist(), columns.dst.tolist(), columns.pair_hash.tolist(), strict=True))
    while True:
        lists: list[list[int]] = [[] for _ in range(n_devices)]
        places = []
        for part in range(n):
            on = lists[columns.device[part]]
            places.append(len(on))
            on.append(colours[part])
        met: dict[int, list[Hashable]] = defaultdict(list)
        for g, members in enumerate(groups):
            inside = tuple(sorted(colours[part] for part in members))
            for part in members:
                met[part].append(("all-reduce", int(columns.group_hash[g]), inside))
        for a, b, label in pairs:
            met[a].append(("to", label, colours[b]))
            met[b].append(("from", label, colours[a]))
        found = [
            (colours[part], places[part], tuple(lists[columns.device[part]]), tuple(sorted(met[part], key=repr)))
            for part in range(n)
        ]
        new = _numbered(found)
        if max(new) == max(colours):
            return new
        colours = new


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
