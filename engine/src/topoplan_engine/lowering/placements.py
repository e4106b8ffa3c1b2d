"""Lowering of placed strategies: the whole batch at once, devices run what is ready."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from topoplan.arrays import F64
from topoplan.model.problem import Demand
from topoplan.model.recording import MemoryUse
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.csr import indptr
from topoplan_engine.lowering.build import build_taskgraph
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.optimizer_steps import priced_steps, with_optimizer_steps

if TYPE_CHECKING:
    from topoplan_engine.lowering.symmetry.quotient import Symmetry

__all__ = ["PlacementLowering", "placement_demand"]


class PlacementLowering:
    """Lowers the placements of strategies; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def __init__(self, fragments: FragmentCache) -> None:
        self._fragments = fragments

    def lower(self, strategy: Strategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        table = self._fragments.part_table(strategy.placements)
        taskgraph = build_taskgraph(table, self._fragments.op_names, self._fragments.cluster.n_devices)
        steps = priced_steps(self._fragments, strategy.placements)
        if all(seconds is None for seconds in steps):
            return taskgraph
        return with_optimizer_steps(taskgraph, self._fragments, strategy.placements, steps)

    def symmetry(self, strategy: Strategy) -> Symmetry | None:
        """Return the classes of parts that nothing tells apart if all devices are alike; None with optimizer steps."""
        from topoplan_engine.lowering.symmetry.quotient import Symmetry
        from topoplan_engine.lowering.symmetry.refinement import equitable_partition, initial_colors

        fragments = self._fragments
        if any(seconds is not None for seconds in priced_steps(fragments, strategy.placements)):
            return None  # classes know nothing of them
        table = fragments.part_table(strategy.placements)
        graph = initial_colors(table, fragments.op_class, fragments.edge_class)
        return Symmetry(table, equitable_partition(graph, fragments.cluster.n_devices))

    def memory(self, strategy: Strategy) -> F64:
        """Return the (D,) bytes that each device holds: the memory of all its parts."""
        fragments = self._fragments.operators(strategy.placements)
        return np.bincount(
            np.concatenate([fragment.devices for fragment in fragments]),
            weights=np.concatenate([fragment.memory for fragment in fragments]),
            minlength=self._fragments.cluster.n_devices,
        ).astype(np.float64)

    def memory_use(self, strategy: Strategy) -> MemoryUse:
        """Return the same bytes by their use, rounded to whole bytes."""
        from topoplan_engine.lowering.memory import TensorBytes, placed_memory_use

        fragments = self._fragments.operators(strategy.placements)
        return placed_memory_use(strategy, fragments, TensorBytes(self._fragments.graph), self.memory(strategy))

    def demand(self, strategy: Strategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        return placement_demand(self._fragments, strategy, ())


def placement_demand(fragments: FragmentCache, strategy: Strategy, repeated: Collection[int]) -> Demand:
    """Return what parts and the edges between them ask of the network; ``repeated`` edges send their messages twice."""
    ops, edges = fragments.operators(strategy.placements), fragments.all_edges(strategy.placements)
    host, n_hosts = fragments.cluster.device_host, fragments.cluster.n_hosts
    group_bytes: dict[bytes, float] = {}  # by the hosts of the group
    for op in ops:
        ends = np.cumsum(op.device_counts).tolist()
        for count, end, size in zip(op.device_counts.tolist(), ends, op.group_bytes.tolist(), strict=True):
            members = np.unique(host[op.group_devices[end - count : end]])
            if len(members) > 1:
                key = members.astype(np.int32).tobytes()
                group_bytes[key] = group_bytes.get(key, 0.0) + size
    groups = [np.frombuffer(key, dtype=np.int32) for key in group_bytes]
    once, repeats = np.zeros((2, n_hosts * n_hosts))
    for number, edge in enumerate(edges):
        source, target = host[edge.devices].astype(np.int64)
        remote = source != target
        source, target, size = source[remote], target[remote], edge.size[remote].astype(np.float64)
        traffic = np.bincount(source * n_hosts + target, weights=size, minlength=n_hosts * n_hosts)
        once += traffic
        if number in repeated:
            repeats += traffic
    forward, second = once.reshape(n_hosts, n_hosts), repeats.reshape(n_hosts, n_hosts)
    return Demand(
        group_ptr=indptr([len(group) for group in groups]),
        group_members=np.concatenate(groups) if groups else [],
        group_bytes=list(group_bytes.values()),
        matrix=forward + second + forward.T,  # gradients go back the same way
        forward=forward,  # repeated messages are sent again in the backward pass
    )
