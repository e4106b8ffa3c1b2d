"""Plans for trainers: which ones an experiment asks for, what they run, and which searchers keep to that.

``--for`` names trainers, and so does every file of a trainer that is to be written.  An exporter says which trainer
runs its files (`topoplan.Exporter.trainer`) and what that runs (`topoplan.Exporter.restriction`).  `restriction_of`
puts the restrictions together for the `topoplan.Problem`; `launchable` leaves searchers out that do not keep to one,
and puts the planners that a portfolio brings along in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan.errors import TopoplanError, calling, expect, nearest, shown
from topoplan.model.problem import Problem
from topoplan.model.restriction import Restriction
from topoplan.plugin.components import Exporter, Searcher, Topology
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Choice, Experiment, build_cluster, interfaces_unless_given
from topoplan_engine.search.common_restriction import AllOf
from topoplan_engine.search.companions import BringsCompanions

__all__ = ["for_no_trainer", "launchable", "recorded_trainers", "restricted", "restriction_of", "trainers_of"]


def trainers_of(host: Host, experiment: Experiment) -> tuple[str, ...]:
    """Return the trainers that plans are for: those that ``--for`` names, then those of files to write; each once.

    Raises:
        TopoplanError: no installed exporter writes for a trainer of that name.
    """
    exporters = _exporters(host) if experiment.run.trainers else {}
    named = [word.strip() for text in experiment.run.trainers for word in text.split(",") if word.strip()]
    if experiment.run.trainers and not named:
        names = ", ".join(sorted(exporters))
        raise TopoplanError(f"--for {shown(experiment.run.trainers[0])}: names no trainer (have: {names})")
    for name in named:
        if name not in exporters:
            raise TopoplanError(
                f"--for {shown(name)}: no exporter writes for a trainer of this name{nearest(name, exporters)}"
            )
    written = [host.get(Exporter, choice.name) for choice, _ in experiment.outputs]
    return tuple(dict.fromkeys([*named, *(exporter.trainer for exporter in written if exporter.trainer)]))


def _restriction(exporter: Exporter) -> Restriction | None:
    """Return what the trainer of an exporter's files runs.

    Raises:
        PluginError: the exporter raised something else, or returned something else.
    """
    who = str(getattr(exporter, "who", f"exporter {exporter.name!r}"))
    with calling(f"{who}: restriction"):
        restriction = exporter.restriction()
    expect(restriction, Restriction | None, f"{who}: restriction", "a Restriction or None")
    return restriction


def restriction_of(host: Host, experiment: Experiment) -> Restriction | None:
    """Return what all trainers of an experiment run; None where plans are for none in particular.

    A file alone limits no searchers that cannot keep to it: users who name them may get no file.

    Raises:
        TopoplanError: a trainer is not known, or no strategy is run by all of them.
    """
    if not (names := trainers_of(host, experiment)):
        return None
    restrictions = [
        restriction
        for exporter in _asked(host, experiment, names)
        if (restriction := _restriction(host.make(Exporter, exporter.name, {}))) is not None
    ]
    keeps = [host.get(Searcher, choice.name) for choice in experiment.searchers]
    named = any(searcher.restrictable for searcher in keeps) or experiment.run.trainers
    if not restrictions or not named:
        return None
    restriction = AllOf(restrictions) if len(restrictions) > 1 else restrictions[0]
    if not restriction.meshes and restriction.pipelines is None:
        raise TopoplanError(f"{restriction.name}: no plan is run by all of them (ask for files of each by itself)")
    return restriction


def restricted(host: Host, experiment: Experiment, problem: Problem) -> Problem:
    """Return the problem with what all trainers of an experiment run.

    Raises:
        TopoplanError: a trainer that ``--for`` names is not known, or has no such model, or no strategy is run by all.
    """
    exporters = _exporters(host) if experiment.run.trainers else {}
    for name in trainers_of(host, experiment) if exporters else ():
        if name in exporters and (why := host.make(Exporter, exporters[name].name, {}).refuses_problem(problem, None)):
            raise TopoplanError(f"--for {name}: {why}")
    return attrs.evolve(problem, restriction=restriction_of(host, experiment))


def launchable(host: Host, experiment: Experiment) -> tuple[Experiment, str]:
    """Leave out searchers that do not keep to what trainers run.

    Returns:
        The experiment, and a line that says what is searched; the experiment as it is and no line where plans are for
        no trainer.

    Raises:
        TopoplanError: no searcher is left, or a trainer, a searcher or an option is unknown or wrong.
    """
    names = trainers_of(host, experiment)
    if not names:
        return experiment, ""
    asked = attrs.evolve(experiment, run=attrs.evolve(experiment.run, trainers=names))
    restriction = restriction_of(host, asked)
    if restriction is None:
        return experiment, ""
    searchers: list[Choice] = []
    left_out: list[str] = []
    for choice in experiment.searchers:
        searcher = choice.make(host, Searcher)
        if searcher.axis == "network" or searcher.restrictable:
            searchers.append(choice)
            continue
        left_out.append(choice.name)
        if isinstance(searcher, BringsCompanions):
            present = {named.name for named in (*searchers, *experiment.searchers)}
            searchers += [planner for planner in _planners(host, experiment, searcher) if planner.name not in present]
    if all(host.get(Searcher, choice.name).axis == "network" for choice in searchers):
        if not experiment.run.trainers:
            return experiment, f"{' and '.join(left_out)} cannot keep to what {restriction.name} runs (-s spmd can)"
        able = sorted(
            searcher.name
            for searcher in host.components(Searcher)
            if searcher.axis != "network" and searcher.restrictable
        )
        raise TopoplanError(
            f"searcher {' and '.join(left_out)}: cannot keep to what {restriction.name} runs (these can: "
            f"{', '.join(able) or 'none that is installed'})"
        )
    line = f"searched with {' and '.join(choice.name for choice in searchers)} for what {restriction.name} runs"
    if left_out:
        line += f", in place of {' and '.join(left_out)}, which would propose other plans, too"
    return attrs.evolve(experiment, searchers=tuple(searchers)), line


def recorded_trainers(host: Host, experiment: Experiment) -> dict[str, list[str] | None]:
    """Return what limits a search to plans for trainers, as provenances have it: ``--for``, and exporters of files."""
    names = dict.fromkeys(choice.name for choice, _ in experiment.outputs)
    files = [name for name in names if host.get(Exporter, name).trainer]
    return {"trainers": [*experiment.run.trainers] or None, "files_for_trainers": files or None}


def for_no_trainer(experiment: Experiment) -> Experiment:
    """Return the same experiment without trainers: its plan is the fastest of all."""
    return attrs.evolve(experiment, outputs=(), run=attrs.evolve(experiment.run, trainers=()))


def _exporters(host: Host) -> dict[str, type[Exporter]]:
    """Return the first exporter of each trainer, by the trainer's name."""
    exporters: dict[str, type[Exporter]] = {}
    for exporter in host.components(Exporter):
        if exporter.trainer:
            exporters.setdefault(exporter.trainer, exporter)
    return exporters


def _asked(host: Host, experiment: Experiment, trainers: Sequence[str]) -> list[type[Exporter]]:
    """Return the exporters of an experiment's files for each trainer, the first one of those without a file.

    What a trainer runs and what each of its formats says are not the same: TOML names no file with an order of passes.
    """
    written = dict.fromkeys(host.get(Exporter, choice.name) for choice, _ in experiment.outputs)
    first = _exporters(host)
    return [
        exporter
        for name in trainers
        for exporter in [each for each in written if each.trainer == name] or [first[name]]
    ]


def _planners(host: Host, experiment: Experiment, searcher: BringsCompanions) -> Sequence[Choice]:
    """Return the companions of a portfolio that keep to a restriction, and those that search the network."""
    topology = experiment.topology.make(host, Topology)
    cluster = build_cluster(interfaces_unless_given(experiment.cluster, [topology]), host)
    installed = {component.name: component for component in host.components(Searcher)}

    def able(n_devices: int) -> list[Choice]:
        return [
            attrs.evolve(choice, is_companion=True)
            for choice in searcher.companions(topology, n_devices)
            if choice.name in installed
            and (installed[choice.name].axis == "network" or installed[choice.name].restrictable)
        ]

    planners = able(cluster.n_devices)
    # It may leave planners out on many devices, where it has strategies of its own; here it has none.
    return planners if any(installed[choice.name].axis != "network" for choice in planners) else able(1)
