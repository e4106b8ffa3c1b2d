"""Algorithms of collectives as moves: rules for kinds of collectives, and for shapes of groups.

A rule is a kind of collective and a shape (``""`` for all groups); its algorithms are those that need nothing but
links, ``auto``, of which the fastest runs for each group and size, and those that NVSwitches have.  NVLink SHARP came
with the NVSwitches of Hopper (NVIDIA H100 Tensor Core GPU Architecture, 2022); older ones do not add.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from topoplan import Cluster, StagedStrategy, Strategy
from topoplan.arrays import I32
from topoplan.model.machine import HostNode

__all__ = ["KINDS", "algorithm_names", "communicators", "kinds_of", "text_of_rules"]

#: Collectives whose algorithms are moved.
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
#: Those that NVSwitches sum or copy, and the devices whose switches do.
_IN_SWITCHES = ("all-reduce", "all-gather", "reduce-scatter")
_ADDING = ("h100", "h200", "h800", "h20", "gh200", "b100", "b200", "b300", "gb200", "gb300")
#: Axes along which programs of ``stated`` send no all-to-alls.
_WITHOUT_ALL_TO_ALLS = {"dp", "shard", "tp", "kv"}
#: Axes of groups that sum gradients of weights which all of them have.
_OF_DATA = ("dp", "shard", "ep", "ep-cp", "cp")


def algorithm_names(kind: str, cluster: Cluster) -> str:
    """Return what may run a kind of collective on a machine, as a rule has it.

    >>> from topoplan import Cluster
    >>> algorithm_names("all-reduce", Cluster.uniform(n_hosts=2))
    'auto'
    """
    return "auto+nvls" if kind in _IN_SWITCHES and _adds_in_switches(cluster) else "auto"


def _adds_in_switches(cluster: Cluster) -> bool:
    """Say whether devices are joined by NVSwitches that add: their kind has them, and their host has a switch."""
    kinds = {preset.lower().split("-")[0] for preset in cluster.device_preset}
    return kinds <= {*_ADDING} and cluster.host is not None and HostNode.SWITCH in cluster.host.nodes


def kinds_of(strategy: Strategy) -> tuple[str, ...]:
    """Return the kinds of collectives that a strategy may have: all-to-alls are those of experts and positions."""
    axes = (
        {axis for stage in strategy.stages for axis in stage.mesh.axes}
        if isinstance(strategy, StagedStrategy)
        else set()
    )
    return KINDS if axes - _WITHOUT_ALL_TO_ALLS else KINDS[:-1]


def communicators(strategy: Strategy, cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Return the shapes of the groups of a strategy (hosts x members in each), and the axes of such groups.

    Groups lie along one axis of a mesh, or along all that data are cut along.  Strategies without programs have none.
    """
    shapes: dict[str, list[str]] = {}
    for stage in strategy.stages if isinstance(strategy, StagedStrategy) and not strategy.is_placed else ():
        mesh = stage.mesh
        grid = mesh.devices.reshape(mesh.sizes)
        several = [axis for axis, size in enumerate(mesh.sizes) if size > 1]
        data = [axis for axis in several if mesh.axes[axis] in _OF_DATA]
        for axes in [*([axis] for axis in several), *([data] if len(data) > 1 else [])]:
            group = grid[tuple(slice(None) if axis in axes else 0 for axis in range(grid.ndim))].ravel()
            names = shapes.setdefault(_shape(group, cluster), [])
            name = "+".join(mesh.axes[axis] for axis in axes)
            names += [] if name in names else [name]
    return {shape: tuple(names) for shape, names in shapes.items() if shape}


def _shape(group: I32, cluster: Cluster) -> str:
    """Return hosts x members in each; empty where hosts have unequal numbers of them."""
    _, counts = np.unique(cluster.device_host[group], return_counts=True)
    return f"{len(counts)}x{counts[0]}" if (counts == counts[0]).all() else ""


def text_of_rules(rules: Iterable[tuple[str, str]], names: dict[str, str], shapes: Sequence[str]) -> str:
    """Return rules as a candidate's ``collectives`` has them; a kind with a rule for every shape has a single one.

    Args:
        rules: kinds of collectives, and shapes of groups.
        names: algorithms of each kind.
        shapes: of all groups.

    >>> text_of_rules([("all-reduce", "1x8"), ("all-gather", "1x8"), ("all-gather", "4x1")],
    ...               dict.fromkeys(KINDS, "auto"), ["1x8", "4x1"])
    'all-reduce@1x8=auto;all-gather=auto'
    """
    chosen, parts = [*rules], []
    for kind in KINDS:
        of_kind = [shape for each, shape in chosen if each == kind]
        if of_kind and (len(of_kind) >= len(shapes) or "" in of_kind):
            parts.append(f"{kind}={names[kind]}")
        else:
            parts += [f"{kind}@{shape}={names[kind]}" for shape in of_kind]
    return ";".join(parts)
