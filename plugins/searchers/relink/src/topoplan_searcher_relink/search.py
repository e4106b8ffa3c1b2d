"""The search: draws a move, builds the new fabric, and accepts it unless it is slower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from topoplan import Candidate, Fabric, Problem, Search, Trial
from topoplan.arrays import F64, I32, I64
from topoplan_directconnect.construct import construct, fabric_of, rebalanced
from topoplan_directconnect.matching import hops
from topoplan_directconnect.traffic import neighbour_bytes, traffic
from topoplan_searcher_relink import moves

if TYPE_CHECKING:
    from topoplan_searcher_relink import Relink

__all__ = ["RelinkSearch"]

#: Draws before a turn is passed.
_TRIES = 8


class RelinkSearch(Search):
    """Search along the network axis; see `topoplan.search.protocol.Search`.

    It continues from the last adopted state and accepts a fabric that is not slower.  It ignores fabrics with switches
    and reconfigurable fabrics.
    """

    def __init__(self, options: Relink, problem: Problem, rng: np.random.Generator) -> None:
        self._options, self._cluster, self._rng = options, problem.cluster, rng
        self._current: Trial | None = None
        self._wiring: _Wiring | None = None
        self._turns = options.every - 1

    def adopt(self, trial: Trial) -> None:
        """Continue from another state."""
        self._current, self._wiring = trial, None

    def ask(self) -> Sequence[Candidate]:
        """Propose one change of the fabric, or nothing if no move was found."""
        self._turns += 1
        if self._current is None or self._turns < self._options.every:
            return []
        self._turns = 0
        base = self._current.state.fabric
        if not isinstance(base, Fabric) or base.n_switches:
            return []
        fabric = next(
            (neighbour for _ in range(_TRIES) if (neighbour := self._draw_move(self._current, base)) is not None), None
        )
        if fabric is None:
            return []
        fabric = attrs.evolve(fabric, name=base.name, switching=base.switching, node_names=base.node_names)
        if base.routes is not None:
            fabric = rebalanced(fabric, self._current.demand())
        return [
            Candidate(
                base=self._current.state, fabric=fabric, cutoff_seconds=math.nextafter(self._current.cost, math.inf)
            )
        ]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Accept a fabric that is not slower."""
        for trial in trials:
            if self._current is None or trial.cost <= self._current.cost:
                self._current, self._wiring = trial, None

    def _draw_move(self, trial: Trial, fabric: Fabric) -> Fabric | None:
        """Return a fabric that differs from the trial's by one move; None where the move drawn does not exist."""
        rng = self._rng
        wiring = self._wiring = self._wiring or _Wiring.of(trial, fabric, self._cluster.interfaces)
        if wiring.steps and rng.random() < self._options.rings:
            most = int(self._cluster.interfaces.min()) // 2
            steps = moves.change_steps(fabric.n_hosts, wiring.steps, most, rng)
            if steps is None:
                return None
            detours = bool(rng.random() < 0.5)
            return construct(
                self._cluster,
                trial.demand(),
                rules="paper",
                paths=fabric.max_paths,
                rng=rng,
                detours=detours,
                steps=steps,
            )
        kind = rng.random()
        if kind < 0.15:
            count = moves.add_link(wiring.count, wiring.free, rng)
        elif kind < 0.3:
            count = moves.move_end(wiring.count, wiring.movable, wiring.free, rng)
        else:
            savings = wiring.savings if kind < 0.7 else np.zeros_like(wiring.savings)
            count = moves.cross_links(wiring.count, wiring.movable, savings, rng)
        if count is None or (not fabric.rings and hops(count + wiring.one_way).max() >= fabric.n_hosts):
            return None
        return fabric_of(self._cluster, count + wiring.one_way, dict(fabric.rings), fabric.max_paths)


@attrs.frozen(kw_only=True, eq=False)
class _Wiring:
    """A fabric in the form that moves need.

    Attributes:
        count, one_way: (n, n) two-way links, and those that have no counterpart.
        movable: (n, n) two-way links that no ring needs.
        free: (n,) free interfaces.
        savings: (n, n) bytes times the hops that a direct link would save.
        steps: of the rings with their own links; empty if rings cannot be changed.
    """

    count: I64
    one_way: I64
    movable: I64
    free: I64
    savings: F64
    steps: moves.Steps

    @classmethod
    def of(cls, trial: Trial, fabric: Fabric, interfaces: I32) -> _Wiring:
        demand, n = trial.demand(), fabric.n_hosts
        links = np.zeros((n, n), dtype=np.int64)
        links[fabric.link_src, fabric.link_dst] = fabric.link_count
        count = np.minimum(links, links.T)
        one_way = links - count
        n_used = count.sum(axis=1) + np.maximum(one_way.sum(axis=0), one_way.sum(axis=1))
        ring_links = np.minimum(count, moves.links_of_rings(n, fabric.rings))
        matrix = traffic(demand, n).matrix if fabric.rings else neighbour_bytes(demand, n)
        has_spanning_ring = not one_way.any() and n in fabric.rings and int(interfaces.min()) > 1
        return cls(
            count=count,
            one_way=one_way,
            movable=count - ring_links,
            free=interfaces - n_used,
            savings=matrix * np.maximum(hops(links) - 1, 0),
            steps=moves.steps_of(n, fabric.rings) if has_spanning_ring else {},
        )
