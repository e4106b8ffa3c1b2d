"""The search: which fabric to change, how, and what to keep."""

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

    Goes on from the state that it was last given, and keeps a fabric that is not slower.  Fabrics with switches, and
    those that are rebuilt between phases, it leaves alone.
    """

    def __init__(self, options: Relink, problem: Problem, rng: np.random.Generator) -> None:
        self._options, self._cluster, self._rng = options, problem.cluster, rng
        self._at: Trial | None = None
        self._wiring: _Wiring | None = None
        self._turns = options.every - 1

    def adopt(self, trial: Trial) -> None:
        """Go on from another state."""
        self._at, self._wiring = trial, None

    def ask(self) -> Sequence[Candidate]:
        """Propose one change of the fabric; nothing where there is none to make."""
        self._turns += 1
        if self._at is None or self._turns < self._options.every:
            return []
        self._turns = 0
        base = self._at.state
        if base.fabric.n_switches or base.fabric.phases is not None:
            return []
        fabric = next((moved for _ in range(_TRIES) if (moved := self._moved(self._at)) is not None), None)
        if fabric is None:
            return []
        if base.fabric.routes is not None:
            fabric = rebalanced(fabric, self._at.demand())
        return [Candidate(base=base, fabric=fabric, cutoff_seconds=math.nextafter(self._at.cost, math.inf))]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Keep what is not slower."""
        for trial in trials:
            if self._at is None or trial.cost <= self._at.cost:
                self._at, self._wiring = trial, None

    def _moved(self, trial: Trial) -> Fabric | None:
        """Return a fabric that differs by one move; None where the move that was drawn does not exist."""
        fabric, rng = trial.state.fabric, self._rng
        wiring = self._wiring = self._wiring or _Wiring.of(trial, self._cluster.interfaces)
        if wiring.steps and rng.random() < self._options.rings:
            most = int(self._cluster.interfaces.min()) // 2
            steps = moves.change_steps(fabric.n_hosts, wiring.steps, most, rng)
            if steps is None:
                return None
            detours = bool(rng.random() < 0.5)
            construction = construct(
                self._cluster,
                trial.demand(),
                rules="paper",
                paths=fabric.max_paths,
                rng=rng,
                detours=detours,
                steps=steps,
            )
            return attrs.evolve(construction, name=fabric.name)
        kind = rng.random()
        if kind < 0.15:
            count = moves.add_link(wiring.count, wiring.free, rng)
        elif kind < 0.3:
            count = moves.move_end(wiring.count, wiring.loose, wiring.free, rng)
        else:
            wish = wiring.wish if kind < 0.7 else np.zeros_like(wiring.wish)
            count = moves.cross_links(wiring.count, wiring.loose, wish, rng)
        if count is None or (not fabric.rings and hops(count + wiring.one_way).max() >= fabric.n_hosts):
            return None
        construction = fabric_of(self._cluster, count + wiring.one_way, dict(fabric.rings), fabric.max_paths)
        return attrs.evolve(construction, name=fabric.name)


@attrs.frozen(kw_only=True, eq=False)
class _Wiring:
    """A fabric as moves see it.

    Attributes:
        count, one_way: (n, n) two-way links, and those that have no counterpart.
        loose: (n, n) two-way links that no ring needs.
        free: (n,) free interfaces.
        wish: (n, n) bytes times the hops that a direct link would save.
        steps: of the rings that have links of their own; empty where rings cannot be changed.
    """

    count: I64
    one_way: I64
    loose: I64
    free: I64
    wish: F64
    steps: moves.Steps

    @classmethod
    def of(cls, trial: Trial, interfaces: I32) -> _Wiring:
        fabric, demand = trial.state.fabric, trial.demand()
        n = fabric.n_hosts
        links = np.zeros((n, n), dtype=np.int64)
        links[fabric.link_src, fabric.link_dst] = fabric.link_count
        count = np.minimum(links, links.T)
        one_way = links - count
        used = count.sum(axis=1) + np.maximum(one_way.sum(axis=0), one_way.sum(axis=1))
        needed = np.minimum(count, moves.links_of_rings(n, fabric.rings))
        matrix = traffic(demand, n).matrix if fabric.rings else neighbour_bytes(demand, n)
        whole = not one_way.any() and n in fabric.rings and int(interfaces.min()) > 1
        return cls(
            count=count,
            one_way=one_way,
            loose=count - needed,
            free=interfaces - used,
            wish=matrix * np.maximum(hops(links) - 1, 0),
            steps=moves.steps_of(n, fabric.rings) if whole else {},
        )
