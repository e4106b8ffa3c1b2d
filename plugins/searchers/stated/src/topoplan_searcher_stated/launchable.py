"""Which hybrid plans the trainers of a problem run: asked once for all plans that differ in numbers alone.

What a trainer cannot run is a kind of parallelism, a schedule, or something that is shared or recomputed, and seldom a
degree.  So the first plan of each form is built and asked for.  One of a form that passes may still be refused, by the
evaluator, which asks for every proposal.
"""

from __future__ import annotations

import functools

import attrs

from topoplan import Problem, TopoplanError
from topoplan_searcher_stated.construct import Rules, strategy_of
from topoplan_searcher_stated.settings import Settings

__all__ = ["Launchable", "launchable_for", "rules_for"]


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
        self._pipelines = restriction is None or restriction.pipelines is not None

    @functools.cached_property
    def _contexts(self) -> bool:
        """Whether they run parts of contexts; asked only where a shape has some, for a plan takes long to be built."""
        return any(self.runs(Settings(cp=2, grads=self.grads, zero=zero, sp=self.sp)) for zero in (0, 1, 3))

    def may_run(self, shape: Settings) -> bool:
        """Return whether they run pipelines and parts of contexts at all, where a plan has some."""
        return (shape.pp == 1 or self._pipelines) and (shape.cp == 1 or self._contexts)

    @property
    def runs_columns(self) -> bool:
        """Whether they run tensor axes, with sequence parallelism or without."""
        return any(self.runs(Settings(tp=2, grads=self.grads, sp=sp)) for sp in (None, False))

    def runs(self, plan: Settings) -> bool:
        """Return whether they run a plan; False for one that cannot be built.  Whether it is sound is not asked."""
        restriction, graph, cluster = self._problem.restriction, self._problem.graph, self._problem.cluster
        if restriction is None:
            return True
        form = _form(plan, cluster.n_devices)
        if form not in self._runs:
            try:
                strategy, _ = strategy_of(plan, graph, cluster.n_devices, self._rules, sound=False)
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


def launchable_for(problem: Problem) -> tuple[Rules, Launchable]:
    """Return how operators are cut, and what trainers run of it.

    Tensor axes leave tables whole where the trainers run no other plan: DeepSpeed's AutoTP does in training.
    """
    rules = Rules(problem.graph)
    launchable = Launchable(problem, rules)
    if problem.restriction is None or launchable.runs_columns:
        return rules, launchable
    whole_rules = Rules(problem.graph, whole_tables=True)
    whole = Launchable(problem, whole_rules)
    return (whole_rules, whole) if whole.runs_columns else (rules, launchable)


def rules_for(problem: Problem) -> Rules:
    """Return how operators are cut; see `launchable_for`."""
    return Rules(problem.graph) if problem.restriction is None else launchable_for(problem)[0]
