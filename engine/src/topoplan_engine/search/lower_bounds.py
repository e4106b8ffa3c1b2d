"""What a candidate costs at least, told from kept pieces before anything is lowered or simulated.

A device computes what its parts take, a link carries what its pairs and rings send, memory that is exceeded costs
its penalty: sums over operators and edges, so that a candidate's follow from its base's by the difference of what
changed.  The largest of them is a floor under its cost.  A search that knows which time a candidate must beat
rejects most of its candidates here.

Data flow: `Floors.floor` asks `Lowering` for the pieces that a candidate changes and the simulator for the seconds
that a piece surely keeps each link busy, and keeps the answers by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.search.protocol import Candidate, State
from topoplan_engine.cache import LruCache
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.pieces import EdgePiece, FragmentKey, OperatorPiece, messages

__all__ = ["Floors", "LinkSeconds"]

#: (task graph, fabric, cluster) -> (n, E) seconds that the messages of each of its operators (column ``op``) surely
#: keep each link busy, in any order.
LinkSeconds = Callable[[TaskGraph, Fabric, Cluster], F64]

#: Relative slack: sums are taken in another order than a simulator takes them, which may also round run times.
_SLACK = 1e-6
#: Differences after which sums are taken anew.
_REFRESH = 200
#: Rows of each kind that are kept.
_KEPT = 10_000


class _Sums(NamedTuple):
    """What all pieces of a state sum to, and how many differences ago that was summed.

    Attributes:
        devices: (2, D) seconds of compute and bytes of memory of every device.
        links: (E,) seconds of every link.
    """

    devices: F64
    links: F64
    age: int


class Floors:
    """Floors under the costs of candidates of one problem, with one simulator.

    Args:
        lowering: of the problem.
        link_seconds: of the simulator.
        penalty: (D,) bytes used -> seconds.
    """

    def __init__(self, lowering: Lowering, link_seconds: LinkSeconds, penalty: Callable[[F64], float]) -> None:
        self._lowering, self._link_seconds, self._penalty = lowering, link_seconds, penalty
        self._devices: LruCache[FragmentKey, F64] = LruCache(_KEPT)
        self._links: LruCache[tuple[FragmentKey, bytes], F64] = LruCache(_KEPT)
        self._sums: LruCache[bytes, _Sums] = LruCache(_KEPT)

    def floor(self, candidate: Candidate, state: State) -> float:
        """Return seconds that ``candidate``, which describes ``state``, costs at least; 0 on a new fabric.

        Links are left out when devices and memory alone make it large enough.
        """
        base, lowering, fabric = candidate.base, self._lowering, state.fabric
        if fabric.key != base.fabric.key:
            return 0.0
        sums = self._of_state(base)
        before, after, ops = base.strategy, state.strategy, candidate.placements
        devices = sums.devices.copy()
        changed: list[tuple[OperatorPiece | EdgePiece, OperatorPiece | EdgePiece]] = []
        for op in ops:
            old, new = lowering.operator(before, op), lowering.operator(after, op)
            devices += self._of_devices(new) - self._of_devices(old)
            changed.append((old, new))
        penalty = self._penalty(devices[1] * (1 - _SLACK))
        floor = float((devices[0].max() + penalty) * (1 - _SLACK))
        if floor >= candidate.cutoff_seconds:
            return floor
        changed += [(lowering.edge(before, edge), lowering.edge(after, edge)) for edge in lowering.edges_at(ops)]
        changed = [(one, other) for one, other in changed if one.key != other.key]
        rows = self._of_links([piece for pair in changed for piece in pair], fabric)
        links = sums.links.copy()
        for one, other in changed:
            links -= rows[one.key]
            links += rows[other.key]
        self._sums.put(state.strategy.key + fabric.key, _Sums(devices, links, sums.age + 1))
        return max(floor, float((links.max() + penalty) * (1 - _SLACK)))

    def _of_state(self, state: State) -> _Sums:
        key = state.strategy.key + state.fabric.key
        kept = self._sums.find(key)
        if kept is None or kept.age >= _REFRESH:
            taskgraph, cluster = self._lowering.lower(state.strategy), self._lowering.cluster
            devices = np.stack([_compute(taskgraph), self._lowering.memory(state.strategy)])
            links = self._link_seconds(taskgraph, state.fabric, cluster).sum(axis=0)
            kept = self._sums.put(key, _Sums(devices, links, 0))
        return kept

    def _of_devices(self, piece: OperatorPiece) -> F64:
        row = self._devices.find(piece.key)
        if row is None:
            count = self._lowering.cluster.n_devices
            both = (piece.forward + piece.backward, piece.memory)
            row = np.stack([np.bincount(piece.devices, values, count).astype(np.float64) for values in both])
            self._devices.put(piece.key, row)
        return row

    def _of_links(self, pieces: list[OperatorPiece | EdgePiece], fabric: Fabric) -> dict[FragmentKey, F64]:
        """Return the (E,) seconds of every link for each fragment; those that are not kept are priced together."""
        rows: dict[FragmentKey, F64] = {}
        new: dict[FragmentKey, OperatorPiece | EdgePiece] = {}
        for piece in pieces:
            row = self._links.find((piece.key, fabric.key))
            if row is None:
                new[piece.key] = piece
            else:
                rows[piece.key] = row
        if new:
            cluster = self._lowering.cluster
            priced = self._link_seconds(messages(list(new.values()), cluster.n_devices), fabric, cluster)
            for k, key in enumerate(new):
                row = priced[k] if k < len(priced) else np.zeros(priced.shape[1])
                rows[key] = self._links.put((key, fabric.key), row)
        return rows


def _compute(taskgraph: TaskGraph) -> F64:
    """(D,) seconds of compute on each device."""
    runs = taskgraph.device >= 0
    return np.bincount(taskgraph.device[runs], taskgraph.seconds[runs], taskgraph.n_devices).astype(np.float64)
