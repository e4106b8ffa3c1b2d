"""Runs of several seeds as one row, with what the network costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import attrs

from topoplan_studies.cells import RunSpec
from topoplan_studies.clusters import Target
from topoplan_studies.prices import Basis, Item, Prices, cost
from topoplan_studies.study import number

__all__ = ["Row", "Spread", "rows_of"]


@attrs.frozen
class Spread:
    """What several seeds gave."""

    least: float
    median: float
    most: float


@attrs.frozen(kw_only=True)
class Row:
    """One model on one network at one variation.

    Attributes:
        model, network, at: which; ``at`` holds the values of what varies.
        time: seconds per iteration, over the seeds; where the plans of some fit, over these.
        exposed, bound, fabric_bound, tax, compute, memory, capacity: of the run in the middle (the lower one of two):
            exposed communication, lower bound of the plan, lower bound of its strategy on any wiring of the interfaces
            (None for switches), bandwidth tax, compute of the busiest device (seconds), bytes on the fullest device
            and what it holds.
        fits, lacks: whether the plan of that run fits into memory, and if not what it lacks; plans that fit go first.
        interfaces, used, gbps: of a host, those of them that the network uses, and the bandwidth of each.
        cost: of the network, in the prices' currency.
        target: what that stands beside; None where the network stands for itself.
        basis: what the price of its worst part rests on.
        runs: the runs, by seed.
    """

    model: str
    network: str
    at: Mapping[str, float]
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
    fits: bool = True
    lacks: str = ""

    @property
    def place(self) -> str:
        """The model and the values of what varies, as people write it."""
        return ", ".join([self.model, *(f"{key} {number(value)}" for key, value in self.at.items())])

    @property
    def links(self) -> str:
        """What a host has and the network uses of it: ``4 x 25``, or ``1 of 4 x 25``."""
        taken = f"{self.used} of " if self.used < self.interfaces else ""
        return f"{taken}{self.interfaces} x {self.gbps:.4g}"

    @property
    def time_cost(self) -> float:
        """Median iteration time times cost: what the network costs for each iteration per second."""
        return self.time.median * self.cost


def rows_of(cells: Sequence[RunSpec], results: Sequence[Mapping[str, Any]], prices: Prices) -> list[Row]:
    """Put the seeds of each model, network and variation together, in the order of the cells.

    Networks whose plans do not fit into memory come after those of the same model and variation that do.

    Raises:
        TopoplanError: a part of a network has no price.
    """
    groups: dict[tuple[Any, ...], list[tuple[RunSpec, Mapping[str, Any]]]] = {}
    for cell, result in zip(cells, results, strict=True):
        groups.setdefault((cell.model, *cell.at.values(), cell.network), []).append((cell, result))
    rows = [_row(group, prices) for group in groups.values()]
    places = {place: number for number, place in enumerate(dict.fromkeys(row.place for row in rows))}
    return sorted(rows, key=lambda row: (places[row.place], not row.fits))


def _row(group: list[tuple[RunSpec, Mapping[str, Any]]], prices: Prices) -> Row:
    cell = group[0][0]
    runs = [{"seed": one.experiment.run.seed, **result} for one, result in group]
    results = [run for run in runs if run["fits"]] or runs
    ordered = sorted(results, key=lambda run: run["iteration_time_s"])
    middle = ordered[(len(ordered) - 1) // 2]
    times = [run["iteration_time_s"] for run in ordered]
    parts = [Item(*item) for item in middle["parts"]]
    return Row(
        model=cell.model,
        network=cell.network,
        at=cell.at,
        time=Spread(times[0], median(times), times[-1]),
        exposed=middle["exposed_communication_s"],
        bound=middle["lower_bound_s"],
        fabric_bound=middle["fabric_lower_bound_s"],
        tax=middle["bandwidth_tax"],
        compute=middle["bounds"]["device"],
        memory=middle["memory_bytes"],
        capacity=middle["memory_capacity_bytes"],
        fits=middle["fits"],
        lacks=middle["lacks"],
        interfaces=middle["interfaces"],
        used=middle["interfaces_used"],
        gbps=middle["interface_bandwidth_gbps"],
        cost=cost(parts, prices),
        target=cell.target,
        basis=max((prices.basis(item.part, item.gbps) for item in parts), default=Basis.LISTED),
        runs=tuple(runs),
    )
