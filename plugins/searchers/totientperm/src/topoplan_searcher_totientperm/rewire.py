"""The search: decides when to build new fabrics, and which ones to propose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan import Candidate, Demand, Fabric, Problem, Search, Trial
from topoplan_directconnect.construct import construct, rebalanced, rule_pairs
from topoplan_searcher_totientperm import TotientPerm
from topoplan_searcher_totientperm.memo import Memo

__all__ = ["Rewire", "splits_around"]


class Rewire(Search):
    """Search along the network axis; see `topoplan.search.protocol.Search`.

    With ``after=best`` it proposes all its fabrics if the best state has changed and it was asked at least ``every``
    times since its last proposal (the first time at once).  In the next turn it proposes other shares of the traffic on
    the paths of the best fabric.  With ``after=accepted`` it proposes one of its fabrics for each accepted move, in
    turn, and passes a better state to the strategy searcher.
    """

    reached: Trial | None = None

    def __init__(self, options: TotientPerm, problem: Problem, rng: np.random.Generator) -> None:
        self._options = options
        self._cluster = problem.cluster
        self._rng = rng
        self._memo = Memo()
        self._best: Trial | None = None
        self._changed = self._rewired = False
        self._turns = options.every
        self._next = 0

    @property
    def follows(self) -> bool:
        """Whether it builds a fabric for each accepted move."""
        return self._options.after == "accepted"

    def ask(self) -> Sequence[Candidate]:
        """Propose the best state on new fabrics, or nothing if it is too early."""
        self._turns += 1
        if self._best is None:
            return []
        if self._rewired:
            self._rewired = False
            fabric = self._best.state.fabric
            if not isinstance(fabric, Fabric):  # every phase has its own shares
                return []
            return self._candidates_on([rebalanced(fabric, self._best.demand())])
        if not self._changed or (not self.follows and self._turns < self._options.every):
            return []
        self._turns = 0
        self._changed = False
        demand = self._best.demand()
        ways = self._ways(demand)
        if self.follows:
            ways = [ways[self._next % len(ways)]]
            self._next += 1
        else:
            self._rewired = self._options.routes == "balanced" and bool(demand.matrix.any())
        return self._candidates_on([self._build(demand, *way) for way in ways])

    def _ways(self, demand: Demand) -> list[tuple[int, bool]]:
        """Return the wirings to try: pairs of interfaces for rings, and whether direct links weigh detours."""
        rules = self._options.rules
        rule = rule_pairs(self._cluster, demand, rules)
        if rules != "paper":
            return [(rule, False)]
        widest = int(self._cluster.interfaces.min()) // 2
        return list(itertools.product(splits_around(rule, widest, self._options.splits), (False, True)))

    def _build(self, demand: Demand, pairs: int, detours: bool) -> Fabric:
        assert self._best is not None
        fabric = self._best.state.fabric
        paths, switching = fabric.links.max_paths, fabric.switching

        def build() -> Fabric:
            fabric = construct(
                self._cluster,
                demand,
                rules=self._options.rules,
                paths=paths,
                rng=self._rng,
                pairs=pairs,
                detours=detours,
            )
            return fabric if fabric.switching == switching else attrs.evolve(fabric, switching=switching)

        return self._memo.of(demand, (paths, pairs, detours), build)

    def _candidates_on(self, fabrics: Sequence[Fabric]) -> list[Candidate]:
        """Propose the state on each of the fabrics that differ from its own and from those before."""
        assert self._best is not None
        base = self._best.state
        keys, name = {base.fabric.key}, base.fabric.name
        candidates = []
        for fabric in fabrics:
            key = _key_by_name(fabric, name)
            if key not in keys:
                keys.add(key)
                candidates.append(Candidate(base=base, fabric=fabric, cutoff_seconds=self._best.cost))
        return candidates

    def tell(self, trials: Sequence[Trial]) -> None:
        """Keep the best fabric."""
        self.reached = None
        for trial in trials:
            if self._best is None or trial.cost < self._best.cost:
                self._best = trial
                self.reached = trial if self.follows else None

    def adopt(self, trial: Trial) -> None:
        """Continue from another state; a new fabric alone is no reason to build further ones."""
        unchanged = self._best is not None and trial.state.strategy is self._best.state.strategy
        self._best = trial
        if not unchanged:
            self._changed, self._rewired = True, False


def _key_by_name(fabric: Fabric, name: str) -> bytes:
    """Return the key of a fabric by another name, so that equal fabrics of different topologies are equal."""
    return (fabric if fabric.name == name else attrs.evolve(fabric, name=name)).key


def splits_around(rule: int, widest: int, count: int) -> list[int]:
    """Return up to ``count`` numbers of ring pairs in 1 .. ``widest``: nearest to the rule first, lower ones first."""
    return sorted(range(1, widest + 1), key=lambda pairs: (abs(pairs - rule), pairs))[:count] or [rule]
