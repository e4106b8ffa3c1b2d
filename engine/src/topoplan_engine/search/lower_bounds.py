"""Lower bounds on the cost of a candidate, computed from cached fragments before lowering and simulation.

A device computes its parts one after the other, a link carries its messages one after the other, and exceeded memory
costs its penalty.  These are sums over operators and edges, so that those of a candidate follow from those of its base
by the difference of the fragments that changed.  The largest of them is a lower bound on the cost.  If the search
passes a cutoff, most candidates are rejected at this point.

Data flow: `IncrementalLowerBound.of` asks `Lowering` for the fragments that a candidate changes and the simulator for
the seconds that each of them keeps each link busy, and caches both by fragment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64
from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.search.protocol import Candidate, State
from topoplan_engine.cache import LruCache
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.fragments import EdgeFragment, FragmentKey, OperatorFragment, messages

__all__ = ["IncrementalLowerBound", "LinkSeconds"]

#: (task graph, fabric, cluster) -> (n, E) seconds for which the messages of each of its operators (column ``op``) are
#: guaranteed to keep each link busy, in any order.
LinkSeconds = Callable[[TaskGraph, AnyFabric, Cluster], F64]

_Fragment = OperatorFragment | EdgeFragment

#: Relative slack: sums are taken in another order than a simulator takes them, which may also round run times.
_SLACK = 1e-6
#: Differences after which sums are taken anew.
_REFRESH = 200
#: Entries of each cache.
_ENTRIES = 10_000


class _Sums(NamedTuple):
    """Sums over all fragments of a state, and how many differences ago they were taken anew.

    Attributes:
        devices: (2, D) seconds of compute and bytes of memory of every device.
        links: (E,) seconds of every link.
    """

    devices: F64
    links: F64
    age: int


class IncrementalLowerBound:
    """Lower bounds on the costs of candidates of one problem, with one simulator.

    Args:
        lowering: of the problem.
        link_seconds: of the simulator.
        penalty: (D,) bytes used -> seconds.
    """

    def __init__(self, lowering: Lowering, link_seconds: LinkSeconds, penalty: Callable[[F64], float]) -> None:
        self._lowering, self._link_seconds, self._penalty = lowering, link_seconds, penalty
        self._device_rows: LruCache[FragmentKey, F64] = LruCache(_ENTRIES)
        self._link_rows: LruCache[tuple[FragmentKey, bytes], F64] = LruCache(_ENTRIES)
        self._sums: LruCache[bytes, _Sums] = LruCache(_ENTRIES)

    def of(self, candidate: Candidate, state: State) -> float:
        """Return a lower bound on the cost of ``candidate``, which describes ``state``, in seconds; 0 on a new fabric.

        Links are left out if devices and memory alone reach the cutoff.
        """
        base, lowering, fabric = candidate.base, self._lowering, state.fabric
        if fabric.key != base.fabric.key:
            return 0.0
        sums = self._sums_of(base)
        before, after, ops = base.strategy, state.strategy, candidate.placements
        devices = sums.devices.copy()
        changes: list[tuple[_Fragment, _Fragment]] = []
        for op in ops:
            old, new = lowering.operator(before, op), lowering.operator(after, op)
            devices += self._device_row(new) - self._device_row(old)
            changes.append((old, new))
        penalty = self._penalty(devices[1] * (1 - _SLACK))
        bound = float((devices[0].max() + penalty) * (1 - _SLACK))
        if bound >= candidate.cutoff_seconds:
            return bound
        changes += [(lowering.edge(before, edge), lowering.edge(after, edge)) for edge in lowering.edges_at(ops)]
        changes = [(removed, added) for removed, added in changes if removed.key != added.key]
        rows = self._link_rows_of([fragment for change in changes for fragment in change], fabric)
        links = sums.links.copy()
        for removed, added in changes:
            links -= rows[removed.key]
            links += rows[added.key]
        self._sums.put(state.strategy.key + fabric.key, _Sums(devices, links, sums.age + 1))
        return max(bound, float((links.max() + penalty) * (1 - _SLACK)))

    def _sums_of(self, state: State) -> _Sums:
        key = state.strategy.key + state.fabric.key
        sums = self._sums.find(key)
        if sums is None or sums.age >= _REFRESH:
            taskgraph, cluster = self._lowering.lower(state.strategy), self._lowering.cluster
            devices = np.stack([_compute_seconds(taskgraph), self._lowering.memory(state.strategy)])
            links = self._link_seconds(taskgraph, state.fabric, cluster).sum(axis=0)
            sums = self._sums.put(key, _Sums(devices, links, 0))
        return sums

    def _device_row(self, fragment: OperatorFragment) -> F64:
        """(2, D) seconds of compute and bytes of memory of one fragment."""
        row = self._device_rows.find(fragment.key)
        if row is None:
            count = self._lowering.cluster.n_devices
            columns = (fragment.forward + fragment.backward, fragment.memory)
            row = np.stack([np.bincount(fragment.devices, column, count).astype(np.float64) for column in columns])
            self._device_rows.put(fragment.key, row)
        return row

    def _link_rows_of(self, fragments: list[_Fragment], fabric: AnyFabric) -> dict[FragmentKey, F64]:
        """Return the (E,) seconds of every link for each fragment; those that are not cached are priced together."""
        rows: dict[FragmentKey, F64] = {}
        missing: dict[FragmentKey, _Fragment] = {}
        for fragment in fragments:
            row = self._link_rows.find((fragment.key, fabric.key))
            if row is None:
                missing[fragment.key] = fragment
            else:
                rows[fragment.key] = row
        if missing:
            cluster = self._lowering.cluster
            seconds = self._link_seconds(messages(list(missing.values()), cluster.n_devices), fabric, cluster)
            for number, key in enumerate(missing):
                row = seconds[number] if number < len(seconds) else np.zeros(seconds.shape[1])
                rows[key] = self._link_rows.put((key, fabric.key), row)
        return rows


def _compute_seconds(taskgraph: TaskGraph) -> F64:
    """(D,) seconds of compute on each device."""
    computes = taskgraph.device >= 0
    return np.bincount(taskgraph.device[computes], taskgraph.seconds[computes], taskgraph.n_devices).astype(np.float64)
