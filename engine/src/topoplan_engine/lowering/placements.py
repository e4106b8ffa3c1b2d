"""Lowering of placed strategies: the whole batch at once, devices run what is ready."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.problem import Demand
from topoplan.model.recording import MemoryUse
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Timeline
from topoplan_engine.csr import indptr
from topoplan_engine.interrupt import check_size
from topoplan_engine.lowering.alone import alone_bytes, alone_peak, is_alone, training_data_bytes
from topoplan_engine.lowering.build import build_taskgraph
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.fragments import EdgeFragment, OperatorFragment
from topoplan_engine.lowering.gradient_peaks import gradient_bytes, rises
from topoplan_engine.lowering.lower import StrategyLowering
from topoplan_engine.lowering.memory import Peak, TensorBytes, placed_activations, placed_memory_use
from topoplan_engine.lowering.memory_levels import Activations
from topoplan_engine.lowering.optimizer_steps import priced_steps, with_optimizer_steps
from topoplan_engine.lowering.passes import without_gradients
from topoplan_engine.lowering.pieces import Pieces

if TYPE_CHECKING:
    from topoplan_engine.lowering.parts import PartTable
    from topoplan_engine.lowering.symmetry.class_key import ClassKeys
    from topoplan_engine.lowering.symmetry.quotient import Symmetry

__all__ = ["PlacedLowering", "PlacementLowering"]


def _n_tasks(table: PartTable) -> int:
    """Return how many tasks the parts of a table have: two passes, all-reduces, and transfers there and back."""
    return 2 * len(table.device) + len(table.group_bytes) + 2 * len(table.src)


class PlacedLowering(StrategyLowering):
    """Memory of strategies whose operators are placed one by one, with an order of passes or without."""

    def __init__(self, fragments: FragmentCache) -> None:
        self._fragments = fragments

    @functools.cached_property
    def _tensor_bytes(self) -> TensorBytes:
        return TensorBytes(self._fragments.graph)

    @abstractmethod
    def peak(self, strategy: Any) -> Peak:
        """Return the peak of the bytes that each device holds: all its parts', and gradients of activations."""

    def _operators(self, strategy: Any) -> list[OperatorFragment]:
        """Return the fragments of all operators."""
        return self._fragments.operators(strategy.placements)

    def memory(self, strategy: Any) -> F64:
        """Return the (D,) bytes that each device holds at most."""
        return self.peak(strategy).total

    def memory_use(self, strategy: Any) -> MemoryUse:
        """Return the same bytes by their use, rounded to whole bytes."""
        return placed_memory_use(strategy, self._operators(strategy), self._tensor_bytes, self.peak(strategy))

    def activations(self, strategy: Any, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time."""
        use, operators = self.memory_use(strategy), self._operators(strategy)
        return placed_activations(taskgraph, timeline, strategy, use, operators, self._fragments)


class PlacementLowering(PlacedLowering):
    """Lowers the placements of strategies; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def __init__(self, fragments: FragmentCache, pieces: Pieces) -> None:
        super().__init__(fragments)
        self._pieces = pieces

    def lower(self, strategy: Strategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        table = self._pieces.table(strategy)
        check_size(_n_tasks(table))
        taskgraph = build_taskgraph(table, self._fragments.op_names, self._fragments.cluster.n_devices)
        steps = priced_steps(self._fragments, strategy.placements)
        if not all(seconds is None for seconds in steps):
            taskgraph = with_optimizer_steps(taskgraph, self._fragments, strategy.placements, steps)
        passes = self._fragments.passes
        return taskgraph if passes.everything else without_gradients(taskgraph, table, passes)

    def n_tasks(self, strategy: Strategy) -> int:
        """Return how many tasks `lower` makes, but for steps of the optimizer and what is not trained.

        Parts are not joined: operators and edges of one form have what is counted in common.
        """
        fragments, placements = self._fragments, strategy.placements
        groups = sum(len(fragments.placed_groups(op, each).nbytes) for op, each in enumerate(placements))
        transfers = sum(
            len(fragments.transfers_of(edge, placements[u], placements[v]).src)
            for edge, (_, u, v) in enumerate(fragments.edge_ends)
        )
        return 2 * sum(each.parts for each in placements) + groups + 2 * transfers

    def class_key(self, strategy: Strategy, in_turn_bytes: int) -> int | None:
        """Return a number that is equal for strategies of one class; None if there is no `symmetry`."""
        return None if self._is_irregular(strategy) else self.class_keys.of(strategy, in_turn_bytes)

    @functools.cached_property
    def class_keys(self) -> ClassKeys:
        """Keys of strategies without optimizer steps."""
        from topoplan_engine.lowering.symmetry.class_key import ClassKeys

        return ClassKeys(self._fragments, self._pieces)

    def symmetry(self, strategy: Strategy, in_turn_bytes: int) -> Symmetry | None:
        """Return the classes of parts that nothing tells apart, see `StrategyLowering`.

        None with optimizer steps, and where not everything is trained.
        """
        if self._is_irregular(strategy):
            return None
        self._pieces.make_room()
        return self.symmetry_of_numbers(self._pieces.numbers(strategy), in_turn_bytes)

    def symmetry_of_numbers(self, numbers: I64, in_turn_bytes: int) -> Symmetry | None:
        """Return the same of a strategy, not irregular, whose fragments have these numbers (`Pieces.numbers`)."""
        from topoplan_engine.lowering.symmetry.classes import equitable_partition
        from topoplan_engine.lowering.symmetry.known_devices import partition_of_devices
        from topoplan_engine.lowering.symmetry.quotient import Symmetry

        fragments, table = self._fragments, self._pieces.table_of_numbers(numbers)
        device_color = self.class_keys.device_colors(numbers, in_turn_bytes)
        what = (table, fragments.op_class, fragments.edge_class, device_color, in_turn_bytes)
        classes = partition_of_devices(*what) or equitable_partition(*what)
        return None if classes is None else Symmetry(table, classes, fragments.op_class)

    def _is_irregular(self, strategy: Strategy) -> bool:
        """Whether classes do not describe the tasks: devices have steps of the optimizer, or train not all."""
        fragments = self._fragments
        if not fragments.passes.everything:
            return True
        steps = priced_steps(fragments, strategy.placements) if fragments.optimizer_costs else []
        return any(seconds is not None for seconds in steps)

    def resting_memory(self, strategy: Strategy) -> F64:
        """Return the (D,) bytes of all parts of each device, without gradients that come and go."""
        fragments = self._fragments.operators(strategy.placements)
        if is_alone(self._fragments.graph, self._fragments.cluster):
            parts = alone_bytes(self._fragments.graph, fragments)
            return np.array([float(parts.resting.sum() + parts.kept.sum())])
        return np.bincount(
            np.concatenate([fragment.devices for fragment in fragments]),
            weights=np.concatenate([fragment.memory for fragment in fragments]),
            minlength=self._fragments.cluster.n_devices,
        ).astype(np.float64)

    def holds_gradients(self, strategy: Strategy) -> bool:
        """Return whether gradients of activations are counted."""
        fragments = self._fragments.operators(strategy.placements)
        return any(fragment.gradients is not None for fragment in fragments)

    def peak(self, strategy: Strategy) -> Peak:
        """Return the peak of the bytes that each device holds: all its parts', and gradients of activations."""
        resting, n_devices = self.resting_memory(strategy), self._fragments.cluster.n_devices
        fragments = self._fragments.operators(strategy.placements)
        gradients = gradient_bytes(fragments)
        if is_alone(self._fragments.graph, self._fragments.cluster):
            graph = self._fragments.graph
            fullest = alone_peak(
                alone_bytes(graph, fragments), self._fragments.gradient_order, training_data_bytes(graph)
            )
            return Peak(
                *(np.array([nbytes]) for nbytes in (fullest.total, fullest.gradients, fullest.weight_gradients))
            )
        if gradients is None:
            return Peak(resting, np.zeros(n_devices))
        devices = np.concatenate([fragment.devices for fragment in fragments])
        freed = np.concatenate(
            [
                fragment.memory - fragment.kept if fragment.kept is not None else np.zeros(len(fragment.memory))
                for fragment in fragments
            ]
        )
        op_ptr = indptr([len(fragment.devices) for fragment in fragments], np.int32)
        rise = rises(self._fragments.gradient_order, op_ptr, devices, gradients, freed, n_devices)
        return Peak(resting + rise, rise)

    def demand(self, strategy: Strategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        edges = self._fragments.all_edges(strategy.placements)
        forward = self._traffic(edges)
        trained = self._fragments.passes.everything
        backward = forward if trained else self._traffic([edge for edge in edges if edge.gradient])
        groups = (
            (np.frombuffer(hosts, dtype=np.int32), size)
            for op in self._fragments.operators(strategy.placements)
            for hosts, size in zip(self._fragments.hosts_of_groups(op), op.group_bytes.tolist(), strict=True)
        )
        return _hosts_demand(groups, forward, backward)

    def _traffic(self, edges: Sequence[EdgeFragment]) -> F64:
        devices = np.concatenate([np.zeros((2, 0), np.int32), *(edge.devices for edge in edges)], axis=1)
        nbytes = np.concatenate([np.zeros(0, np.int64), *(edge.size for edge in edges)])
        return _traffic_between(self._fragments.cluster, devices, nbytes)


def _hosts_demand(groups: Iterable[tuple[I32, int]], forward: F64, backward: F64) -> Demand:
    """Return what all-reduces and messages ask of the network.

    Args:
        groups: the hosts of each all-reduce, ascending, and its bytes.
        forward: (n_hosts, n_hosts) bytes from host to host in the forward pass (`_traffic_between`).
        backward: those of them whose gradients go back.
    """
    group_bytes: dict[bytes, float] = {}  # by the hosts of the group
    for hosts, size in groups:
        if len(hosts) > 1:
            key = hosts.astype(np.int32).tobytes()
            group_bytes[key] = group_bytes.get(key, 0.0) + size
    members = [np.frombuffer(key, dtype=np.int32) for key in group_bytes]
    return Demand(
        group_ptr=indptr([len(row) for row in members]),
        group_members=np.concatenate(members) if members else [],
        group_bytes=list(group_bytes.values()),
        matrix=forward + backward.T,  # gradients go back the same way
        forward=forward,
    )


def _traffic_between(cluster: Cluster, devices: I32, nbytes: I64) -> F64:
    """(n_hosts, n_hosts) bytes from host to host, of messages between (2, n) devices; inside a host none counts."""
    n_hosts = cluster.n_hosts
    source, target = cluster.device_host[devices].astype(np.int64)
    traffic = np.bincount(source * n_hosts + target, nbytes.astype(np.float64), n_hosts * n_hosts)
    np.fill_diagonal(matrix := traffic.astype(np.float64, copy=False).reshape(n_hosts, n_hosts), 0.0)
    return matrix
