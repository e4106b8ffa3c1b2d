"""Lowering of placed strategies: the whole batch at once, devices run what is ready."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from topoplan.arrays import F64
from topoplan.model.memory import MemoryUse
from topoplan.model.problem import Demand
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.lowering.fragments import Fragments
from topoplan_engine.lowering.join import taskgraph_of

if TYPE_CHECKING:
    from topoplan_engine.lowering.fold import Alike

__all__ = ["PlacementLowering", "placement_demand"]


class PlacementLowering:
    """Lowers the placements of strategies; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def __init__(self, fragments: Fragments) -> None:
        self._fragments = fragments

    def lower(self, strategy: Strategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        fragments = self._fragments
        return taskgraph_of(fragments.joined(strategy.placements), fragments.op_names, fragments.cluster.n_devices)

    def alike(self, strategy: Strategy) -> Alike:
        """Find what nothing tells apart in the iteration, if all devices are alike."""
        from topoplan_engine.lowering.fold import Alike, parts_of
        from topoplan_engine.lowering.refine import classes

        fragments = self._fragments
        joined = fragments.joined(strategy.placements)
        columns = parts_of(joined, fragments.op_class, fragments.edge_class)
        return Alike(joined, classes(columns, fragments.cluster.n_devices))

    def memory(self, strategy: Strategy) -> F64:
        """Return the (D,) bytes that each device holds: what all its parts keep."""
        pieces = self._fragments.operators(strategy.placements)
        return np.bincount(
            np.concatenate([piece.devices for piece in pieces]),
            weights=np.concatenate([piece.memory for piece in pieces]),
            minlength=self._fragments.cluster.n_devices,
        ).astype(np.float64)

    def memory_use(self, strategy: Strategy) -> MemoryUse:
        """Return the same by what it is for, in whole bytes."""
        from topoplan_engine.lowering.memory import Slices, divided

        pieces = self._fragments.operators(strategy.placements)
        return divided(strategy, pieces, Slices(self._fragments.graph), self.memory(strategy))

    def demand(self, strategy: Strategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        return placement_demand(self._fragments, strategy, ())


def placement_demand(fragments: Fragments, strategy: Strategy, repeated: Collection[int]) -> Demand:
    """Return what parts and the edges between them ask of the network; ``repeated`` edges send their messages twice."""
    ops, edges = fragments.operators(strategy.placements), fragments.all_edges(strategy.placements)
    host, n_hosts = fragments.cluster.device_host, fragments.cluster.n_hosts
    sums: dict[bytes, float] = {}
    for piece in ops:
        ends = np.cumsum(piece.device_counts).tolist()
        for count, end, size in zip(piece.device_counts.tolist(), ends, piece.group_bytes.tolist(), strict=True):
            members = np.unique(host[piece.group_devices[end - count : end]])
            if len(members) > 1:
                key = members.astype(np.int32).tobytes()
                sums[key] = sums.get(key, 0.0) + size
    groups = [np.frombuffer(key, dtype=np.int32) for key in sums]
    sent, again = np.zeros((2, n_hosts * n_hosts))
    for number, edge in enumerate(edges):
        source, target = host[edge.devices].astype(np.int64)
        apart = source != target
        source, target, size = source[apart], target[apart], edge.size[apart].astype(np.float64)
        moved = np.bincount(source * n_hosts + target, weights=size, minlength=n_hosts * n_hosts)
        sent += moved
        if number in repeated:
            again += moved
    forward, repeat = sent.reshape(n_hosts, n_hosts), again.reshape(n_hosts, n_hosts)
    return Demand(
        group_ptr=np.concatenate(([0], np.cumsum([len(g) for g in groups]))),
        group_members=np.concatenate(groups) if groups else [],
        group_bytes=list(sums.values()),
        matrix=forward + repeat + forward.T,  # gradients go back the same way
        forward=forward,  # what is repeated is sent again in the backward pass
    )
