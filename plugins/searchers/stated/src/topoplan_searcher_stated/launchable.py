"""Which hybrid plans the trainers of a problem run: asked once for all plans that differ in numbers alone.

What a trainer cannot run is a kind of parallelism, a schedule, or something that is shared or recomputed, and seldom a
degree.  So the first plan of each form is built and asked for.  One of a form that passes may still be refused, by the
evaluator, which asks for every proposal.
"""

from __future__ import annotations

import attrs

from topoplan import Problem, TopoplanError
from topoplan_searcher_stated.construct import Rules, strategy_of
from topoplan_searcher_stated.settings import Settings

__all__ = ["Launchable", "rules_for"]


class Launchable:
    """Says which plans the trainers of a problem run: all, where it has none.

    Attributes:
        grads: in which bytes trainers sum gradients, of the words of a plan.
        sp: False where they run tensor axes without sequence parallelism alone.
    """

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self._problem, self._rules = problem, rules
        self._runs: dict[Settings, bool] = {}
        in_slices = Settings(zero=3)
        wide = not self.runs(in_slices) and self.runs(attrs.evolve(in_slices, grads="fp32"))
        self.grads = "fp32" if wide else in_slices.grads
        in_columns = Settings(tp=2, grads=self.grads)
        without_sequence = not self.runs(in_columns) and self.runs(attrs.evolve(in_columns, sp=False))
        self.sp = False if without_sequence else in_columns.sp

        restriction = problem.restriction
        contexts = [Settings(cp=2, grads=self.grads, zero=zero, sp=self.sp) for zero in (0, 1, 3)]
        self._pipelines = restriction is None or restriction.pipelines is not None
        self._contexts = any(map(self.runs, contexts))

    def may_run(self, shape: Settings) -> bool:
        """Return whether they run pipelines and parts of contexts at all, where a plan has some."""
        return (shape.pp == 1 or self._pipelines) and (shape.cp == 1 or self._contexts)

    def runs(self, plan: Settings) -> bool:
        """Return whether they run a plan; False for one that cannot be built."""
        restriction, graph, cluster = self._problem.restriction, self._problem.graph, self._problem.cluster
        if restriction is None:
            return True
        form = _form(plan, cluster.n_devices)
        if form not in self._runs:
            try:
                strategy, _ = strategy_of(plan, graph, cluster.n_devices, self._rules)
            except TopoplanError:  # others of the form may have degrees that go together
                return False
            self._runs[form] = not restriction.refusal(graph, cluster, strategy)
        return self._runs[form]


def _form(plan: Settings, n_devices: int) -> Settings:
    """Return a plan without its numbers: each degree is 1 or 2."""
    data = n_devices // (plan.tp * plan.cp * plan.pp)
    return attrs.evolve(
        plan,
        tp=min(plan.tp, 2),
        cp=min(plan.cp, 2),
        ep=min(plan.ep, 2),
        pp=min(plan.pp, 2),
        dp=min(data, 2),
        micro_batch=1,
        schedule=plan.schedule.partition(":")[0],
        layers="",
        layout="",
    )


def rules_for(problem: Problem) -> Rules:
    """Return how operators are cut: tensor axes leave tables whole where the trainers run no other plan.

    DeepSpeed's AutoTP does in training.
    """
    rules = Rules(problem.graph)
    if problem.restriction is None:
        return rules
    whole = Rules(problem.graph, whole_tables=True)
    cut_tables, whole_tables = Launchable(problem, rules), Launchable(problem, whole)
    some = [Settings(tp=2, grads=whole_tables.grads, sp=sp) for sp in (None, False)]
    return whole if not any(map(cut_tables.runs, some)) and any(map(whole_tables.runs, some)) else rules
