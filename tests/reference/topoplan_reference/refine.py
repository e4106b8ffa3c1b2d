"""The slow, exact counterpart of `topoplan_engine.lowering.symmetry.refinement`: colors are nested tuples.

They are numbered anew in each round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from topoplan_engine.lowering.symmetry.refinement import ColoredGraph

__all__ = ["part_classes"]


def part_classes(graph: ColoredGraph, n_devices: int) -> list[int]:
    """Return the class of each part, classes numbered by their first members."""
    n = len(graph.device)
    colors = _numbered(graph.part_color.tolist())
    groups = [
        graph.group_parts[graph.part_ptr[g] : graph.part_ptr[g + 1]].tolist() for g in range(len(graph.group_color))
    ]
    pairs = list(zip(graph.src.tolist(), graph.dst.tolist(), graph.pair_color.tolist(), strict=True))
    while True:
        lists: list[list[int]] = [[] for _ in range(n_devices)]
        places = []
        for part in range(n):
            on = lists[graph.device[part]]
            places.append(len(on))
            on.append(colors[part])
        met: dict[int, list[Hashable]] = defaultdict(list)
        for g, members in enumerate(groups):
            inside = tuple(sorted(colors[part] for part in members))
            for part in members:
                met[part].append(("all-reduce", int(graph.group_color[g]), inside))
        for a, b, label in pairs:
            met[a].append(("to", label, colors[b]))
            met[b].append(("from", label, colors[a]))
        classes = [
            (colors[part], places[part], tuple(lists[graph.device[part]]), tuple(sorted(met[part], key=repr)))
            for part in range(n)
        ]
        new = _numbered(classes)
        if max(new) == max(colors):
            return new
        colors = new


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
