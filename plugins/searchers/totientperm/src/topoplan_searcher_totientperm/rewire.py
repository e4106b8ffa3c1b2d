"""When to wire the fabric anew, and which fabrics to propose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from topoplan import Candidate, Fabric, Problem, Trial
from topoplan_searcher_totientperm import TotientPermOptions
from topoplan_topology_topoopt.construct import construct, rule_pairs

__all__ = ["Rewire", "splits_around"]


class Rewire:
    """Search along the network axis; see `topoplan.search.Search`.

    It proposes when the state that it was last given or reached has changed and it was asked at least
    ``every`` times since it last proposed; the first time it proposes at once.
    """

    def __init__(self, options: TotientPermOptions, problem: Problem, rng: np.random.Generator) -> None:
        self._options = options
        self._cluster = problem.cluster
        self._rng = rng
        self._best: Trial | None = None
        self._changed = False
        self._turns = options.every

    def ask(self) -> Sequence[Candidate]:
        """Propose the best strategy on fabrics made for it; nothing while it is not yet time."""
        self._turns += 1
        if self._best is None or not self._changed or self._turns < self._options.every:
            return []
        self._turns = 0
        self._changed = False
        base, demand = self._best.state, self._best.demand()
        rule = rule_pairs(self._cluster, demand, self._options.rules)
        widest = int(self._cluster.interfaces.min()) // 2
        splits = [rule] if self._options.rules == "released" else splits_around(rule, widest, self._options.splits)
        candidates: list[Candidate] = []
        for pairs, detours in itertools.product(splits, (False, True)):
            fabric = construct(
                self._cluster,
                demand,
                rules=self._options.rules,
                paths=base.fabric.max_paths,
                rng=self._rng,
                pairs=pairs,
                detours=detours,
            )
            known = [base.fabric, *(candidate.fabric for candidate in candidates)]
            if not any(other is not None and _same_wires(fabric, other) for other in known):
                candidates.append(Candidate(base=base, fabric=fabric, beat=self._best.cost))
        return candidates

    def tell(self, trials: Sequence[Trial]) -> None:
        """Keep the best fabric."""
        for trial in trials:
            if self._best is None or trial.cost < self._best.cost:
                self._best = trial

    def adopt(self, trial: Trial) -> None:
        """Go on from another strategy."""
        self._best = trial
        self._changed = True


def splits_around(rule: int, widest: int, count: int) -> list[int]:
    """Return up to ``count`` numbers of ring pairs in 1 .. ``widest``, nearest to the rule first, fewer before more."""
    return sorted(range(1, widest + 1), key=lambda pairs: (abs(pairs - rule), pairs))[:count] or [rule]


def _same_wires(a: Fabric, b: Fabric) -> bool:
    """Say whether two fabrics have the same links, rings and paths."""
    return (
        np.array_equal(a.link_src, b.link_src)
        and np.array_equal(a.link_dst, b.link_dst)
        and np.array_equal(a.link_bandwidth, b.link_bandwidth)
        and dict(a.rings) == dict(b.rings)
        and a.routes == b.routes
    )
