"""`compare_searchers`: searchers side by side in a notebook, as ``topoplan compare --searchers`` does it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.plugin.components import Searcher
from topoplan.plugin.host import Host
from topoplan_engine.executors import executor_from
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.keywords import Model, experiment_of
from topoplan_engine.search.setup import named
from topoplan_studies.command import searcher_report
from topoplan_studies.in_process import InProcess
from topoplan_studies.problems import BenchmarkProblem
from topoplan_studies.runspecs import RunSpec
from topoplan_studies.searchers.report import SearcherReport
from topoplan_studies.study import Planner, Study

__all__ = ["compare_searchers"]

#: What is compared: a searcher by name or itself, or several that take turns.
Compared = str | Choice | Searcher | type[Searcher] | Sequence[str | Choice | Searcher | type[Searcher]]


def compare_searchers(
    models: Model | BenchmarkProblem | Sequence[Model | BenchmarkProblem],
    searchers: Sequence[Compared],
    *,
    seeds: Sequence[int] = tuple(range(1, 11)),
    runs: Path | str | None = None,
    jobs: int = 1,
    executor: str = "",
    host: Host | None = None,
    **options: Any,
) -> SearcherReport:
    """Run every searcher on every model with every seed, and say what may be said of the differences.

    Args:
        models: as `topoplan.optimize` takes them, or benchmark problems (`topoplan_studies.problems`).
        searchers: what is compared, the first one being what others are compared with: names, searchers themselves, or
            lists of those that take turns.  A searcher need be in no package.
        seeds: a run for each.
        runs: folder that keeps finished runs; None to keep none.  Not for components given themselves, since their code
            may change while their name stays.
        jobs: worker processes; one job at a time runs in this process.
        executor: where runs run, as ``--executor`` names it; unless given, on this machine.
        host: where components come from; all installed plugins unless given.
        options: of all runs, as `topoplan.optimize` has them; benchmark problems take those of runs alone.

    Raises:
        TopoplanError: something is wrong, or cannot be run.
    """
    host = host or Host.discover()
    several = list(models) if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    experiments = [(_name(model), _experiment(model, options, host, keeps=runs is not None)) for model in several]
    planners = [_planner(searcher, host, keeps=runs is not None) for searcher in searchers]
    for kind, names in (("models", [name for name, _ in experiments]), ("searchers", [p.name for p in planners])):
        if not names or len(set(names)) < len(names):
            raise TopoplanError(f"compare_searchers: {kind}: {names} must be one or more different ones")
    specs = _specs(experiments, planners, seeds)
    study = _study(experiments[0][1], planners, seeds)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory()) if runs is None else runs
        where = executor_from(executor or "processes", jobs) if executor or jobs > 1 else InProcess()
        return searcher_report(study, specs, host, Path(folder), where)


def _specs(
    experiments: Sequence[tuple[str, Experiment]], planners: Sequence[Planner], seeds: Sequence[int]
) -> list[RunSpec]:
    """Unroll models, then searchers, then seeds."""
    return [
        RunSpec(
            model=name,
            network="",
            planner=planner.name,
            settings={},
            experiment=attrs.evolve(
                experiment, searchers=planner.searchers, run=attrs.evolve(experiment.run, seed=seed)
            ),
        )
        for name, experiment in experiments
        for planner in planners
        for seed in seeds
    ]


def _study(experiment: Experiment, planners: Sequence[Planner], seeds: Sequence[int]) -> Study:
    """Return a study that says what was compared."""
    return Study(
        name="searchers",
        title="searchers side by side",
        source="",
        seeds=tuple(seeds),
        run=experiment.run,
        models=(),
        networks=(),
        cluster=experiment.cluster,
        vary={},
        estimator=None,
        simulator=experiment.simulator,
        planners=tuple(planners),
        compares_searchers=True,
    )


def _name(model: Model | BenchmarkProblem) -> str:
    if isinstance(model, str):
        return model
    return str(getattr(model, "name", None) or type(model).__name__)


def _experiment(model: Model | BenchmarkProblem, options: Any, host: Host, *, keeps: bool) -> Experiment:
    """Return the experiment of a model, by names alone, and let the host know the components that were given."""
    if not isinstance(model, BenchmarkProblem):
        experiment = experiment_of(model, **options)
        choices = (experiment.topology, experiment.estimator, experiment.simulator)
        # The name of a graph has a digest of it, so its runs can be kept.
        by_name = choices if isinstance(model, OperatorGraph) else (experiment.model, *choices)
        for choice in filter(None, by_name):
            _check_packaged(choice, host, keeps=keeps)
        return named(host, experiment)
    run = experiment_of("any", **options).run
    setting_run = model.setting.run
    return attrs.evolve(
        model.setting, run=attrs.evolve(run, batch_size=setting_run.batch_size, precision=setting_run.precision)
    )


def _planner(searcher: Compared, host: Host, *, keeps: bool) -> Planner:
    """Return searchers that take turns under one name; those that the host does not know are added to it."""
    several = searcher if isinstance(searcher, Sequence) and not isinstance(searcher, str) else [searcher]
    choices = Experiment(model="any", searchers=tuple(several)).searchers
    return Planner(
        name="+".join(map(_label, choices)),
        searchers=tuple(_added(choice, host, keeps=keeps) for choice in choices),
    )


def _label(choice: Choice) -> str:
    words = ",".join(f"{key.replace('_', '-')}={value}" for key, value in choice.options.items())
    return f"{choice.name}:{words}" if words else choice.name


def _added(choice: Choice, host: Host, *, keeps: bool) -> Choice:
    """Return a choice by name alone, and let the host know the component that it had."""
    if choice.component is None:
        return choice
    _check_packaged(choice, host, keeps=keeps)
    host.add(choice.component)
    return attrs.evolve(choice, component=None)


def _check_packaged(choice: Choice, host: Host, *, keeps: bool) -> None:
    """Raise if runs are kept of a component that is in no package."""
    component = choice.component
    if keeps and component is not None and component not in host.components(component.kind):
        raise TopoplanError(
            f"compare_searchers: runs: {component.kind.value} {choice.name!r} is in no package: its code may change "
            "while it has one name (leave runs out)"
        )
