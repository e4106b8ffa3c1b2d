"""The search: it builds the strategy of the system, and proposes it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from topoplan import Candidate, Problem, Search, State, Strategy
from topoplan_engine.program_strategies import program_of
from topoplan_engine.sharding.programs import reshards_of
from topoplan_searcher_baseline import Baseline
from topoplan_searcher_baseline.rules import RULES, strategy_of

__all__ = ["BaselineSearch"]


class BaselineSearch(Search):
    """Proposes one strategy and ignores its cost."""

    def __init__(self, options: Baseline, problem: Problem) -> None:
        self._rule, self._graph = options.rule, problem.graph
        self._strategy = strategy_of(options.rule, problem.graph, problem.cluster.n_devices)
        self._asked = False

    def ask(self) -> Sequence[Candidate]:
        """Propose the strategy, then nothing."""
        if self.state is None or self._asked:
            return []
        self._asked = True
        return [Candidate(base=State(self._strategy, self.state.fabric))]

    def report(self, strategy: Strategy | None) -> Mapping[str, Any]:
        """Return the rule, its source, and the collectives by kind before gradients share any."""
        counts: Counter[str] = Counter()
        for reshard in reshards_of(program_of(self._strategy), self._graph):
            counts.update(step.step.name for step in (*reshard.forward, *reshard.backward) if not step.free)
        return {
            "rule": self._rule,
            "source": RULES[self._rule].source,
            "collectives": dict(sorted(counts.items())),
        }
