"""From a figure to its runs: one `Experiment` for every model, network, variation and seed.

Two rules make networks comparable:

- *Equal interfaces.*  ``degree`` and ``interface-bandwidth-gbps`` say what a host has, and every network uses all of
  it.  Where the figure does not say ``degree``, all networks have that of `interfaces_unless_given`.
- *Equal cost.*  A network that has to cost as much as another one is built at the figure's bandwidth, priced, and
  made faster or slower until it costs the same (`topoplan.prices.affordable`).  One of switches then has one
  interface a host, as fast as the money buys.  What a network that follows demand costs is taken from the fabric that
  it builds for no demand at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np

from topoplan.comparing.figure import BATCH, Figure, Model, Network, number
from topoplan.components import Kind, Searcher, Topology, TopologyContext
from topoplan.errors import TopoplanError
from topoplan.experiment import Choice, ClusterOptions, Experiment, RunOptions, build_cluster, interfaces_unless_given
from topoplan.fabric import Fabric
from topoplan.host import Host
from topoplan.interfaces import built
from topoplan.prices import Item, Prices, affordable, bill, cost

__all__ = ["Cell", "all_measured", "cells"]

At = Mapping[str, float]


@attrs.frozen(kw_only=True)
class Cell:
    """One run of a figure.

    Attributes:
        model, network: names in the figure.
        at: the values of what varies.
        experiment: what is run.
    """

    model: str
    network: str
    at: At
    experiment: Experiment

    def __str__(self) -> str:
        where = "".join(f", {key} {number(value)}" for key, value in self.at.items())
        return f"{self.model} on {self.network}{where}, seed {self.experiment.run.seed}"


def cells(figure: Figure, host: Host, prices: Prices, measures: Path | None) -> list[Cell]:
    """Unroll a figure: models, then variations, then networks, then seeds.

    Args:
        figure: what to run.
        host: where components come from.
        prices: for networks that have to cost as much as others.
        measures: folder with the measurement files that models name; None leaves these to the figure's estimator.

    Raises:
        TopoplanError: a component or file is missing, or a cost cannot be met.
    """
    found = []
    speeds: dict[tuple[str, tuple[float, ...]], ClusterOptions] = {}
    for model, at in itertools.product(figure.models, _variations(figure)):
        batch = cast("int | None", at.get(BATCH, model.batch_size))
        estimator = _estimator(figure, model, batch, measures)
        for network in figure.networks:
            key = (network.name, tuple(value for name, value in at.items() if name != BATCH))
            if key not in speeds:
                speeds[key] = _cluster(figure, network, at, host, prices)
            for seed in figure.seeds:
                experiment = Experiment(
                    model=model.choice,
                    cluster=speeds[key],
                    topology=network.choice,
                    estimator=estimator,
                    simulator=figure.simulator,
                    searchers=_searchers(figure, network, host),
                    run=RunOptions(
                        batch_size=batch,
                        budget=figure.budget,
                        seed=seed,
                        keep=figure.keep,
                        draws=figure.draws,
                        precision=figure.precision,
                        precision_speedup=figure.precision_speedup,
                        optimizer=figure.optimizer,
                    ),
                )
                found.append(Cell(model=model.name, network=network.name, at=at, experiment=experiment))
    return found


def _variations(figure: Figure) -> Iterator[At]:
    for values in itertools.product(*figure.vary.values()):
        yield dict(zip(figure.vary, values, strict=True))


def all_measured(figure: Figure, measures: Path | None) -> bool:
    """Say whether operators of every model are priced by measurements."""
    return all(_measured(model, measures) is not None for model in figure.models)


def _measured(model: Model, measures: Path | None) -> Choice | None:
    """Return a model's measurements, where it has some and they are at hand: files are, where their folder is given."""
    missing = model.measured is not None and "file" in model.measured.options and measures is None
    return None if missing else model.measured


def _estimator(figure: Figure, model: Model, batch: int | None, measures: Path | None) -> Choice | None:
    """Return what prices a model's operators: its measurements, or the figure's estimator."""
    measured = _measured(model, measures)
    if measured is None:
        return figure.estimator
    options = dict(measured.options)
    for key, value in options.items():
        if isinstance(value, str) and "{" + BATCH + "}" in value:
            if batch is None:
                raise TopoplanError(f"model {model.name!r}: measured: {value!r} needs a {BATCH}")
            options[key] = value.replace("{" + BATCH + "}", str(batch))
    if measures is not None and "file" in options:
        path = measures / str(options["file"])
        if not path.is_file():
            raise TopoplanError(f"model {model.name!r}: no file {path} (--measures names the folder that has it)")
        options["file"] = str(path)
    return Choice(measured.name, options)


def _searchers(figure: Figure, network: Network, host: Host) -> tuple[Choice, ...]:
    """Leave out searchers of the network axis where the network cannot be rewired."""
    rewirable = cast("Topology", host.get(Kind.TOPOLOGY, network.choice.name)).follows_demand
    chosen = tuple(
        choice
        for choice in figure.searchers
        if rewirable or cast("Searcher", host.get(Kind.SEARCHER, choice.name)).axis == "strategy"
    )
    if not chosen:
        raise TopoplanError(
            f"network {network.name!r}: cannot be rewired and needs a searcher of strategies, e.g. mcmc"
        )
    return chosen


def _cluster(figure: Figure, network: Network, at: At, host: Host, prices: Prices) -> ClusterOptions:
    """Return the cluster of a network at a variation, as fast as its cost allows."""
    options = _options(figure, at, host)
    if network.costs_as is None:
        _build(network, options, host)  # what it refuses is said before anything runs
        return options
    other = next(candidate for candidate in figure.networks if candidate.name == network.costs_as)
    budget = cost(_parts(other, options, host), prices)
    options = _on_one_interface(network, options, host)
    try:
        return _faster(options, affordable(_parts(network, options, host), prices, budget))
    except TopoplanError as error:
        where = "".join(f", {key} {number(value)}" for key, value in at.items())
        raise TopoplanError(f"network {network.name!r}{where}: cannot cost as {other.name!r}: {error}") from None


def _options(figure: Figure, at: At, host: Host) -> ClusterOptions:
    """Return the cluster at a variation, the same for all networks."""
    changes: dict[str, Any] = {key.replace("-", "_"): value for key, value in at.items() if key != BATCH}
    topologies = [cast("Topology", host.get(Kind.TOPOLOGY, network.choice.name)) for network in figure.networks]
    return interfaces_unless_given(attrs.evolve(figure.cluster, **changes), topologies)


def _on_one_interface(network: Network, options: ClusterOptions, host: Host) -> ClusterOptions:
    """Return the cluster with the bandwidth of a host on one interface, where the network's switches can do with it."""
    assert options.degree is not None
    if not cast("Topology", host.get(Kind.TOPOLOGY, network.choice.name)).switched:
        return options
    one = _faster(attrs.evolve(options, degree=1, hosts=_regrouped(options)), options.degree)
    try:
        _build(network, one, host)
    except TopoplanError:
        return options
    return one


def _parts(network: Network, options: ClusterOptions, host: Host) -> tuple[Item, ...]:
    fabric, topology = _build(network, options, host)
    return bill(fabric, topology.switching)


def _build(network: Network, options: ClusterOptions, host: Host) -> tuple[Fabric, Topology]:
    component, chosen = host.make(Kind.TOPOLOGY, network.choice.name, network.choice.options)
    topology = cast("Topology", component)
    context = TopologyContext(cluster=build_cluster(options), demand=None, rng=np.random.default_rng(0))
    return built(topology, chosen, context), topology


def _regrouped(options: ClusterOptions) -> tuple[Any, ...]:
    """Give groups of hosts that state a number of interfaces one, as many times as fast in proportion to the others."""
    assert options.degree is not None
    groups = []
    for group in options.hosts:
        own = group.degree or options.degree
        speed = (group.interface_bandwidth_gbps or options.interface_bandwidth_gbps) * own / options.degree
        groups.append(attrs.evolve(group, degree=1, interface_bandwidth_gbps=speed))
    return tuple(groups)


def _faster(options: ClusterOptions, factor: float) -> ClusterOptions:
    """Return a cluster whose interfaces are ``factor`` times as fast, to nine digits."""

    def times(gbps: float) -> float:
        return float(f"{gbps * factor:.9g}")

    groups = tuple(
        group
        if group.interface_bandwidth_gbps is None
        else attrs.evolve(group, interface_bandwidth_gbps=times(group.interface_bandwidth_gbps))
        for group in options.hosts
    )
    return attrs.evolve(options, interface_bandwidth_gbps=times(options.interface_bandwidth_gbps), hosts=groups)
