"""From a figure to its runs: one `Experiment` for every model, network, variation and seed.

Two rules make networks comparable:

- *Equal interfaces.*  ``degree`` and ``interface-bandwidth-gbps`` say what a host has: d interfaces of B each.  A
  topology that uses fewer, as a tree uses one, gets all of them bundled: one interface of d B.
- *Equal cost.*  A network that has to cost as much as another one is built at the figure's bandwidth, priced, and
  made faster or slower until it costs the same (`topoplan.prices.affordable`).  What a network that follows demand
  costs is taken from the fabric that it builds for no demand at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np

from topoplan.cluster import Cluster
from topoplan.comparing.figure import BATCH, Figure, Model, Network, number
from topoplan.components import Kind, Searcher, Topology, TopologyContext
from topoplan.errors import TopoplanError
from topoplan.experiment import Choice, ClusterOptions, Experiment, RunOptions, build_cluster
from topoplan.fabric import Fabric
from topoplan.host import Host
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
    """Return the cluster of a network at a variation, bundled and as fast as its cost allows."""
    options, parts = _bundled(figure, network, at, host)
    if network.costs_as is None:
        return options
    other = next(candidate for candidate in figure.networks if candidate.name == network.costs_as)
    budget = cost(_bundled(figure, other, at, host)[1], prices)
    try:
        return _faster(options, affordable(parts, prices, budget))
    except TopoplanError as error:
        where = "".join(f", {key} {number(value)}" for key, value in at.items())
        raise TopoplanError(f"network {network.name!r}{where}: cannot cost as {other.name!r}: {error}") from None


def _bundled(figure: Figure, network: Network, at: At, host: Host) -> tuple[ClusterOptions, tuple[Item, ...]]:
    """Return the cluster with all bandwidth of a host on the interfaces that the topology uses, and its bill."""
    changes: dict[str, Any] = {key.replace("-", "_"): value for key, value in at.items() if key != BATCH}
    options = attrs.evolve(figure.cluster, **changes)
    fabric, topology = _build(network, options, host)
    degree = int(build_cluster(options).interfaces.min())
    used = _used(fabric)
    if 0 < used < degree:
        options = _faster(attrs.evolve(options, degree=used, hosts=_regrouped(options, used)), degree / used)
        fabric, topology = _build(network, options, host)
    return options, bill(fabric, topology.switching)


def _build(network: Network, options: ClusterOptions, host: Host) -> tuple[Fabric, Topology]:
    component, chosen = host.make(Kind.TOPOLOGY, network.choice.name, network.choice.options)
    topology = cast("Topology", component)
    cluster: Cluster = build_cluster(options)
    return topology.build(chosen, TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))), topology


def _used(fabric: Fabric) -> int:
    """Return the interfaces that the host with the most of them uses."""
    sides = (fabric.link_src, fabric.link_dst)
    count = [np.bincount(side, fabric.link_count, minlength=fabric.n_nodes)[: fabric.n_hosts].max() for side in sides]
    return int(max(count))


def _regrouped(options: ClusterOptions, used: int) -> tuple[Any, ...]:
    """Give groups of hosts that state a number of interfaces the one that is used, at their summed bandwidth."""
    groups = []
    for group in options.hosts:
        own = group.degree or options.degree
        speed = (group.interface_bandwidth_gbps or options.interface_bandwidth_gbps) * own / options.degree
        groups.append(attrs.evolve(group, degree=used, interface_bandwidth_gbps=speed))
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
