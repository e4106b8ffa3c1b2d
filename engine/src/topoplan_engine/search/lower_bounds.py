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
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.search.protocol import Candidate, State
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.pieces import EdgePiece, OperatorPiece, messages

__all__ = ["Floors", "LinkSeconds"]

#: (task graph, fabric, cluster) -> (n, E) seconds that the messages of each of its operators (column ``op``) surely
#: keep each link busy, in any order.
LinkSeconds = Callable[[TaskGraph, Fabric, Cluster], F64]

#: Relative slack: sums are taken in another order than a simulator takes them, which may also round run times.
_SLACK = 1e-6
#: Differences after which sums are taken anew.
_REFRESH = 200
#: Rows kept before the oldest half is dropped.
_KEPT = 10_000


class _Sums(NamedTuple):
    """What all pieces of a state sum to, and how many differences ago that was summed.

    Attributes:
        devices: (2, D) seconds of compute and bytes of memory of every device.
        links: (E,) seconds of every link.
    """

    state: State
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
        self._devices: dict[int, tuple[OperatorPiece, F64]] = {}
        self._links: dict[tuple[int, int], tuple[OperatorPiece | EdgePiece, Fabric, F64]] = {}
        self._sums: dict[int, _Sums] = {}

    def floor(self, candidate: Candidate, state: State) -> float:
        """Return seconds that ``candidate``, which describes ``state``, costs at least; 0 on a new fabric.

        Links are left out when devices and memory alone make it large enough.
        """
        base, lowering, fabric = candidate.base, self._lowering, state.fabric
        if fabric is not base.fabric:
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
        if floor >= candidate.beat:
            return floor
        changed += [(lowering.edge(before, edge), lowering.edge(after, edge)) for edge in lowering.edges_at(ops)]
        self._price_links([piece for pair in changed for piece in pair], fabric)
        links = sums.links.copy()
        for one, other in changed:
            if one is not other:
                links -= self._links[id(one), id(fabric)][2]
                links += self._links[id(other), id(fabric)][2]
        _keep(self._sums, id(state), _Sums(state, devices, links, sums.age + 1))
        return max(floor, float((links.max() + penalty) * (1 - _SLACK)))

    def _of_state(self, state: State) -> _Sums:
        kept = self._sums.get(id(state))  # which holds the state, so that its identity stays its own
        if kept is None or kept.age >= _REFRESH:
            taskgraph, cluster = self._lowering.lower(state.strategy), self._lowering.cluster
            devices = np.stack([_compute(taskgraph), self._lowering.memory(state.strategy)])
            links = self._link_seconds(taskgraph, state.fabric, cluster).sum(axis=0)
            kept = _Sums(state, devices, links, 0)
            _keep(self._sums, id(state), kept)
        return kept

    def _of_devices(self, piece: OperatorPiece) -> F64:
        kept = self._devices.get(id(piece))
        if kept is None:
            count = self._lowering.cluster.n_devices
            both = (piece.forward + piece.backward, piece.memory)
            row = np.stack([np.bincount(piece.devices, values, count).astype(np.float64) for values in both])
            kept = (piece, row)
            _keep(self._devices, id(piece), kept)
        return kept[1]

    def _price_links(self, pieces: list[OperatorPiece | EdgePiece], fabric: Fabric) -> None:
        """Find the seconds (E,) of every link for the pieces for which they are not kept."""
        if len(self._links) >= _KEPT:
            self._links.clear()
        new = list({id(piece): piece for piece in pieces if (id(piece), id(fabric)) not in self._links}.values())
        if new:
            cluster = self._lowering.cluster
            rows = self._link_seconds(messages(new, cluster.n_devices), fabric, cluster)
            for k, piece in enumerate(new):
                row = rows[k] if k < len(rows) else np.zeros(rows.shape[1])
                self._links[id(piece), id(fabric)] = (piece, fabric, row)


def _keep(rows: dict[Any, Any], key: Any, row: Any) -> None:
    if len(rows) >= _KEPT:
        for old in list(rows)[: _KEPT // 2]:
            del rows[old]
    rows[key] = row


def _compute(taskgraph: TaskGraph) -> F64:
    """(D,) seconds of compute on each device."""
    runs = taskgraph.device >= 0
    return np.bincount(taskgraph.device[runs], taskgraph.seconds[runs], taskgraph.n_devices).astype(np.float64)
