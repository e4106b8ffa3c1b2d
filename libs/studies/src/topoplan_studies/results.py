"""Runs of several seeds as one result, with what the network costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import attrs

from topoplan_studies.clusters import Target
from topoplan_studies.prices import Basis, Item, Prices, cost
from topoplan_studies.runspecs import RunSpec
from topoplan_studies.study import label, number

__all__ = ["NetworkResult", "Spread", "by_setting", "network_results"]


@attrs.frozen
class Spread:
    """What several seeds gave."""

    least: float
    median: float
    most: float


@attrs.frozen(kw_only=True)
class NetworkResult:
    """What the runs of one model on one network at one setting gave.

    Attributes:
        model, network, settings: which; ``settings`` holds the values of what varies.
        time: seconds per iteration, over the seeds; if the plans of some seeds fit into memory, over these only.
        exposed, bound, fabric_bound, tax, compute, memory, capacity: of the run in the middle (the lower one of two):
            exposed communication, lower bound of the plan, lower bound of its strategy on any wiring of the interfaces
            (None for switches), bandwidth tax, compute of the busiest device (seconds), bytes on the fullest device
            and what it holds.
        breakdown: what a device does in that run (`topoplan_engine.simulation.breakdown`), as JSON has it.
        planner: empty if the study compares networks alone.
        label: what is compared, as `topoplan_studies.study.label` names it.
        fits, lacks: whether the plan of that run fits into memory, and if not what it lacks; plans that fit go first.
        interfaces, used, gbps: of a host, those of them that the network uses, and the bandwidth of each.
        most: interfaces of a host, and the bandwidth of each, where hosts that differ have more.
        cost: of the network, in the prices' currency.
        hosts_cost: of the hosts, without the network; None where a device has no price.
        target: the cost that the network should have; None if the study sets none.
        basis: what the price of its worst part rests on.
        runs: the runs, by seed.
    """

    model: str
    network: str
    settings: Mapping[str, float | str]
    time: Spread
    exposed: float
    bound: float
    fabric_bound: float | None
    tax: float | None
    compute: float
    memory: float
    capacity: float
    interfaces: int
    used: int
    gbps: float
    cost: float
    target: Target | None
    basis: Basis
    runs: tuple[Mapping[str, Any], ...]
    breakdown: Mapping[str, float] = attrs.field(factory=dict)
    most: tuple[int, float] | None = None
    planner: str = ""
    label: str = attrs.field()
    fits: bool = True
    lacks: str = ""
    hosts_cost: float | None = None

    @label.default
    def _network(self) -> str:
        return self.network

    @property
    def setting(self) -> str:
        """The model and the values of what varies, as people write it."""
        return ", ".join([self.model, *(f"{key} {number(value)}" for key, value in self.settings.items())])

    @property
    def links(self) -> str:
        """What a host has and the network uses of it: ``4 x 25``, or ``1 of 4 x 25``; of several ``8 x 200..400``."""
        used = f"{self.used} of " if self.used < self.interfaces else ""
        count, rate = self.most or (self.interfaces, self.gbps)
        counts = "..".join(dict.fromkeys([f"{self.interfaces}", f"{count}"]))
        rates = "..".join(dict.fromkeys([f"{self.gbps:.4g}", f"{rate:.4g}"]))
        return f"{used}{counts} x {rates}"

    @property
    def total_cost(self) -> float:
        """What network and hosts cost together; the network alone where hosts have no price."""
        return self.cost + (self.hosts_cost or 0.0)

    @property
    def time_cost(self) -> float:
        """Median iteration time times total cost: what is paid for each iteration per second."""
        return self.time.median * self.total_cost


def network_results(
    specs: Sequence[RunSpec], values: Sequence[Mapping[str, Any]], prices: Prices
) -> list[NetworkResult]:
    """Put the seeds of each model, network and setting together, in the order of the run specifications.

    Networks whose plans do not fit into memory come after those of the same model and setting that do.

    Args:
        specs: the runs.
        values: what `topoplan_studies.measure.measure` returned for each of them.
        prices: of the networks' parts.

    Raises:
        TopoplanError: a part of a network has no price.
    """
    groups: dict[tuple[Any, ...], list[tuple[RunSpec, Mapping[str, Any]]]] = {}
    for spec, run in zip(specs, values, strict=True):
        groups.setdefault((spec.model, *spec.settings.values(), spec.network, spec.planner), []).append((spec, run))
    one_network = len({spec.network for spec in specs}) == 1
    results = [_network_result(group, prices, one_network) for group in groups.values()]
    settings = {setting: number for number, setting in enumerate(dict.fromkeys(result.setting for result in results))}
    return sorted(results, key=lambda result: (settings[result.setting], not result.fits))


def by_setting(results: Sequence[NetworkResult]) -> list[dict[str, NetworkResult]]:
    """Return, for each model and setting in the order of the results, what is compared by its label."""
    settings: dict[tuple[object, ...], dict[str, NetworkResult]] = {}
    for result in results:
        settings.setdefault((result.model, *result.settings.values()), {})[result.label] = result
    return list(settings.values())


def _network_result(group: list[tuple[RunSpec, Mapping[str, Any]]], prices: Prices, one_network: bool) -> NetworkResult:
    spec = group[0][0]
    runs = [{"seed": seeded.experiment.run.seed, **run} for seeded, run in group]
    by_time = sorted([run for run in runs if run["fits"]] or runs, key=lambda run: run["iteration_time_s"])
    middle = by_time[(len(by_time) - 1) // 2]
    times = [run["iteration_time_s"] for run in by_time]
    parts = [Item(*item) for item in middle["parts"]]
    return NetworkResult(
        model=spec.model,
        network=spec.network,
        planner=spec.planner,
        label=label("" if one_network and spec.planner else spec.network, spec.planner),
        settings=spec.settings,
        time=Spread(times[0], median(times), times[-1]),
        exposed=middle["exposed_communication_s"],
        bound=middle["lower_bound_s"],
        fabric_bound=middle["fabric_lower_bound_s"],
        tax=middle["bandwidth_tax"],
        compute=middle["bounds"]["device"],
        memory=middle["memory_bytes"],
        capacity=middle["memory_capacity_bytes"],
        breakdown=middle.get("time_breakdown", {}),
        fits=middle["fits"],
        lacks=middle["lacks"],
        interfaces=middle["interfaces"],
        used=middle["interfaces_used"],
        gbps=middle["interface_bandwidth_gbps"],
        most=tuple(middle["most_interfaces"]) if "most_interfaces" in middle else None,
        cost=cost(parts, prices),
        hosts_cost=prices.hosts(middle["devices"]),
        target=spec.target,
        basis=max((prices.basis(item.part, item.gbps) for item in parts), default=Basis.LISTED),
        runs=tuple(runs),
    )
