"""When to wire the fabric anew, and which fabrics to propose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from topoplan import Candidate, Demand, Fabric, Problem, Search, Trial
from topoplan_directconnect.construct import construct, rebalanced, rule_pairs
from topoplan_searcher_totientperm import TotientPerm
from topoplan_searcher_totientperm.memo import Memo

__all__ = ["Rewire", "splits_around"]


class Rewire(Search):
    """Search along the network axis; see `topoplan.search.protocol.Search`.

    After new bests, it proposes all its fabrics, when the state that it was last given or reached has changed and it
    was asked at least ``every`` times since it last proposed, the first time at once; and in the next turn other
    shares of the traffic on the paths of the best of them.  After accepted moves, it proposes one of its
    fabrics for each, taking them in turn, and offers what is better to the strategy searcher.
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
        """Whether it wires for accepted moves."""
        return self._options.after == "accepted"

    def ask(self) -> Sequence[Candidate]:
        """Propose the state that it goes on from on fabrics made for it; nothing while it is not yet time."""
        self._turns += 1
        if self._best is None:
            return []
        if self._rewired:
            self._rewired = False
            if self._best.state.fabric.phases is not None:  # each of which has its own shares
                return []
            return self._on([self._rebalanced(self._best)])
        if not self._changed or (not self.follows and self._turns < self._options.every):
            return []
        self._turns = 0
        self._changed = False
        demand, paths = self._best.demand(), self._best.state.fabric.max_paths
        ways = self._ways(demand)
        if self.follows:
            ways = [ways[self._next % len(ways)]]
            self._next += 1
        else:
            self._rewired = self._options.routes == "balanced" and bool(demand.matrix.any())
        return self._on([self._wired(demand, paths, *way) for way in ways])

    def _ways(self, demand: Demand) -> list[tuple[int, bool]]:
        """Return the wirings to try: pairs of interfaces for rings, and whether direct links go by detours."""
        rules = self._options.rules
        rule = rule_pairs(self._cluster, demand, rules)
        if rules != "paper":
            return [(rule, False)]
        widest = int(self._cluster.interfaces.min()) // 2
        return list(itertools.product(splits_around(rule, widest, self._options.splits), (False, True)))

    def _wired(self, demand: Demand, paths: int, pairs: int, detours: bool) -> Fabric:
        def build() -> Fabric:
            return construct(
                self._cluster,
                demand,
                rules=self._options.rules,
                paths=paths,
                rng=self._rng,
                pairs=pairs,
                detours=detours,
            )

        return self._memo.of(demand, (paths, pairs, detours), build)

    def _rebalanced(self, trial: Trial) -> Fabric:
        return self._memo.one(rebalanced(trial.state.fabric, trial.demand()))

    def _on(self, fabrics: Sequence[Fabric]) -> list[Candidate]:
        """Propose the state on each of the fabrics that differ from its own and from those before."""
        assert self._best is not None
        base = self._best.state
        fabric_ids = {id(base.fabric), id(self._memo.one(base.fabric))}
        candidates = []
        for fabric in fabrics:
            if id(fabric) not in fabric_ids:
                fabric_ids.add(id(fabric))
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
        """Go on from another strategy, or from another fabric for the one that it has: no reason to wire anew."""
        unchanged = self._best is not None and trial.state.strategy is self._best.state.strategy
        self._best = trial
        if not unchanged:
            self._changed, self._rewired = True, False


def splits_around(rule: int, widest: int, count: int) -> list[int]:
    """Return up to ``count`` numbers of ring pairs in 1 .. ``widest``, nearest to the rule first, fewer before more."""
    return sorted(range(1, widest + 1), key=lambda pairs: (abs(pairs - rule), pairs))[:count] or [rule]
