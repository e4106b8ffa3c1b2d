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
    in_turn = graph.in_turn.tolist() or [False] * len(pairs)
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
        there: dict[tuple[int, int], list[Hashable]] = defaultdict(list)
        back: dict[tuple[int, int], list[Hashable]] = defaultdict(list)
        for (a, b, label), waits in zip(pairs, in_turn, strict=True):
            if waits:
                there[graph.device[a], graph.device[b]].append((colors[a], colors[b], label))
                back[graph.device[b], graph.device[a]].append((colors[a], colors[b], label))
        for (a, b, label), waits in zip(pairs, in_turn, strict=True):
            ways = ((graph.device[a], graph.device[b]), (graph.device[b], graph.device[a]))
            channels = tuple((tuple(there[way]), tuple(back[way])) for way in ways) if waits else ()
            met[a].append(("to", label, channels, colors[b]))
            met[b].append(("from", label, channels, colors[a]))
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
