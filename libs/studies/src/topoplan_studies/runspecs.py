"""From a study to its runs: one `Experiment` for every model, network, setting and seed.

What makes networks comparable, equal interfaces or equal cost, is the matter of `clusters`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import attrs

from topoplan.errors import TopoplanError
from topoplan.plugin.components import Searcher, Topology
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Choice, Experiment, build_cluster
from topoplan_engine.host_models import at_machine
from topoplan_engine.located import located, locating
from topoplan_engine.options import ClusterOptions
from topoplan_studies.clusters import Settings, Target, cluster_of
from topoplan_studies.prices import Prices
from topoplan_studies.study import BATCH, DEVICES, MACHINE, Model, Network, Planner, Study, number

__all__ = ["RunSpec", "all_measured", "run_specs"]


@attrs.frozen(kw_only=True)
class RunSpec:
    """One run of a study.

    Attributes:
        model, network, planner: names in the study; no network where the model is a problem that has one.
        settings: the values of what varies.
        experiment: what is run.
        target: the cost that the network should have; None if the study sets none.
    """

    model: str
    network: str
    settings: Settings
    experiment: Experiment
    target: Target | None = None
    planner: str = ""

    def __str__(self) -> str:
        where = "".join(f", {key} {number(value)}" for key, value in self.settings.items())
        planner = f" by {self.planner}" if self.planner else ""
        network = f" on {self.network}" if self.network else ""
        return f"{self.model}{network}{planner}{where}, seed {self.experiment.run.seed}"


def run_specs(study: Study, host: Host, prices: Prices, measures: Path | None) -> list[RunSpec]:
    """Unroll a study: models, then settings, then networks, then planners, then seeds.

    Args:
        study: what to run.
        host: where components come from.
        prices: for networks that have to cost as much as others; a catalogue holds parts that exist only.
        measures: folder with the measurement files that models name; None leaves these to the study's estimator.

    Raises:
        TopoplanError: a component or file is missing, or a network cannot be built or priced.
    """
    if study.problems:
        return _of_problems(study, host)
    for network in study.networks:  # a setting is made for all networks together
        with _of_network(network):
            network.choice.find(host, Topology)
    specs = []
    clusters: dict[tuple[str, tuple[float | str, ...]], tuple[ClusterOptions, Network, Target | None]] = {}
    for model, settings in itertools.product(study.models, _settings(study)):
        batch = cast("int | None", settings.get(BATCH, model.batch_size))
        estimator = _estimator(study, model, batch, measures)
        for network in study.networks:
            key = (network.name, tuple(value for name, value in settings.items() if name != BATCH))
            if key not in clusters:
                clusters[key] = _cluster(study, network, settings, host, prices)
            cluster, scaled, target = clusters[key]
            for planner, seed in itertools.product(study.planners, study.seeds):
                experiment = Experiment(
                    model=_model(model, cluster, host),
                    cluster=cluster,
                    topology=scaled.choice,
                    estimator=estimator,
                    simulator=study.simulator,
                    searchers=_searchers(planner, network.name, network.choice, host),
                    run=attrs.evolve(study.run, batch_size=batch, seed=seed),
                )
                specs.append(
                    RunSpec(
                        model=model.name,
                        network=network.name,
                        planner=planner.name,
                        settings=settings,
                        experiment=experiment,
                        target=target,
                    )
                )
    return specs


def _of_problems(study: Study, host: Host) -> list[RunSpec]:
    """Unroll a study of benchmark problems: problems, then planners, then seeds."""
    specs = []
    for problem, planner in itertools.product(study.problems, study.planners):
        searchers = _searchers(planner, problem.name, problem.setting.topology, host)
        for seed in study.seeds:
            setting_run = problem.setting.run
            run = attrs.evolve(study.run, batch_size=setting_run.batch_size, precision=setting_run.precision, seed=seed)
            experiment = attrs.evolve(problem.setting, searchers=searchers, run=run)
            specs.append(
                RunSpec(model=problem.name, network="", planner=planner.name, settings={}, experiment=experiment)
            )
    return specs


def _model(model: Model, cluster: ClusterOptions, host: Host) -> Choice:
    """Return a model with options that follow the number of devices."""
    if DEVICES not in model.choice.options.values():
        return model.choice
    count = build_cluster(cluster, host).n_devices
    options = {key: count if value == DEVICES else value for key, value in model.choice.options.items()}
    return attrs.evolve(model.choice, options=options)


def _cluster(
    study: Study, network: Network, settings: Settings, host: Host, prices: Prices
) -> tuple[ClusterOptions, Network, Target | None]:
    """Return what `cluster_of` does; its errors name the network and the setting."""
    cluster, source = study.cluster, study.file
    if MACHINE in settings:
        place = [machine.name for machine in study.machines].index(str(settings[MACHINE]))
        cluster, source = study.machines[place].cluster, f"{study.file}: machine[{place}]" if study.file else ""
    with locating(source):
        at_machine(cluster, host)
    study = attrs.evolve(study, cluster=cluster)
    with _of_network(network, settings):
        return cluster_of(study, network, settings, host, prices)


@contextmanager
def _of_network(network: Network, settings: Settings | None = None) -> Iterator[None]:
    """Let errors name the network and the setting."""
    try:
        yield
    except TopoplanError as error:
        where = "".join(f", {key} {number(value)}" for key, value in (settings or {}).items())
        text = str(error).removeprefix(f"{network.choice.source}: ")
        raise located(TopoplanError(f"network {network.name!r}{where}: {text}"), network.choice.source) from None


def _settings(study: Study) -> Iterator[Settings]:
    for values in itertools.product(*study.vary.values()):
        yield dict(zip(study.vary, values, strict=True))


def all_measured(study: Study, measures: Path | None) -> bool:
    """Say whether operators of every model are priced by measurements."""
    return all(_measured(model, measures) is not None for model in study.models)


def _measured(model: Model, measures: Path | None) -> Choice | None:
    """Return a model's measurements; None if it has none, or names a file and there is no folder of measurements."""
    missing = model.measured is not None and "file" in model.measured.options and measures is None
    return None if missing else model.measured


def _estimator(study: Study, model: Model, batch: int | None, measures: Path | None) -> Choice | None:
    """Return what prices a model's operators: its measurements, or the study's estimator."""
    measured = _measured(model, measures)
    if measured is None:
        return study.estimator
    options = dict(measured.options)
    for key, value in options.items():
        if isinstance(value, str) and "{" + BATCH + "}" in value:
            if batch is None:
                raise located(
                    TopoplanError(f"model {model.name!r}: measured: {value!r} needs a {BATCH}"), measured.source
                )
            options[key] = value.replace("{" + BATCH + "}", str(batch))
    if measures is not None and "file" in options:
        path = measures / str(options["file"])
        if not path.is_file():
            missing = TopoplanError(f"model {model.name!r}: no file {path} (--measures names the folder that has it)")
            raise located(missing, measured.source)
        options["file"] = str(path)
    return attrs.evolve(measured, options=options)


def _searchers(planner: Planner, where: str, topology: Choice, host: Host) -> tuple[Choice, ...]:
    """Return the searchers for a network: without those of the network axis if it cannot be rewired."""
    rewirable = topology.find(host, Topology).follows_demand
    searchers = tuple(
        choice for choice in planner.searchers if choice.find(host, Searcher).axis != "network" or rewirable
    )
    if not searchers:
        raise TopoplanError(f"network {where!r}: cannot be rewired and needs a searcher of strategies, e.g. mcmc")
    return searchers
