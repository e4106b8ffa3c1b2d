"""What came of a study: as a table, and as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from topoplan_engine.reporting.tables import Column, RowTable
from topoplan_studies.beside import PublishedValues
from topoplan_studies.hypotheses import HypothesisTest
from topoplan_studies.notes import differs, mark, notes
from topoplan_studies.prices import Prices
from topoplan_studies.published import COLUMNS
from topoplan_studies.results import NetworkResult, Spread
from topoplan_studies.study import Study, number

__all__ = ["StudyReport", "as_json", "cost_of", "milliseconds", "money", "spread", "study_table"]

#: Spreads narrower than this share of the median are not shown.
_NARROW = 0.002


@attrs.frozen(kw_only=True, repr=False)
class StudyReport:
    """What came of a study.

    Attributes:
        study: what was compared.
        results: of each network at each setting.
        tests: of the study's hypotheses.
        prices: that costs are of.
        measured: operators were priced by measurements.
    """

    study: Study
    results: Sequence[NetworkResult]
    tests: Sequence[HypothesisTest]
    prices: Prices
    measured: bool

    def __repr__(self) -> str:
        return f"<StudyReport: {self.study.title}, {len(self.results)} results>"

    def _repr_html_(self) -> str:
        return study_table(self).html(self.study.title)


def study_table(report: StudyReport) -> RowTable[NetworkResult]:
    """Return a row for each result, with what a device does if planners are compared, and published values."""
    planned = report.study.compares_planners

    def setting(key: str) -> Column[NetworkResult]:
        return Column(key, lambda result: number(result.settings[key]), names_rows=True)

    return RowTable(
        [
            Column("model", lambda result: result.model, names_rows=True),
            *map(setting, report.study.vary),
            Column("network", lambda result: result.network, names_rows=True),
            *([Column[NetworkResult]("planner", _planner, names_rows=True)] if planned else []),
            Column("Gbps a host", lambda result: result.links + mark(result), said_once=True),
            Column("iteration time", lambda result: spread(result.time) + ("" if result.fits else " (DOES NOT FIT)")),
            Column("exposed", lambda result: milliseconds(result.exposed)),
            *(_BREAKDOWN if planned else []),
            *PublishedValues.of(report.study).columns(),
            Column("lower bound", lambda result: milliseconds(result.bound)),
            Column("any wiring", lambda result: _or_dash(result.fabric_bound, milliseconds)),
            Column("tax", lambda result: _or_dash(result.tax, "{:.2f}".format)),
            Column(f"network ({report.prices.currency})", cost_of),
            Column(
                f"hosts ({report.prices.currency})", lambda result: _or_dash(result.hosts_cost, money), said_once=True
            ),
            Column(f"time x cost ({report.prices.currency} s)", lambda result: _four(result.time_cost)),
        ],
        report.results,
    )


def _planner(result: NetworkResult) -> str:
    return result.planner


#: What a device does (`topoplan_engine.simulation.breakdown`).
_BREAKDOWN = [
    Column[NetworkResult]("computation", lambda result: milliseconds(result.breakdown["computation_s"])),
    Column[NetworkResult]("communication", lambda result: milliseconds(result.breakdown["communication_s"])),
    Column[NetworkResult]("overlap", lambda result: f"{result.breakdown['overlap_ratio']:.1%}"),
]


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def cost_of(result: NetworkResult) -> str:
    """Return the cost, and its ratio to the cost that it should have, if the two differ."""
    if result.target is None or not differs(result):
        return money(result.cost)
    return f"{money(result.cost)} ({result.cost / result.target.cost:.2f}x)"


def spread(time: Spread) -> str:
    """Return the median, and the extremes if they differ from it."""
    text = milliseconds(time.median)
    if time.most - time.least <= _NARROW * time.median:
        return text
    return f"{text} ({milliseconds(time.least, '')}..{milliseconds(time.most, '')})"


def milliseconds(seconds: float, unit: str = " ms") -> str:
    """Return a time in milliseconds with four digits."""
    return f"{_four(max(seconds * 1e3, 0.0))}{unit}"


def _four(value: float) -> str:
    """Return a number with four digits, of which at most four behind the point."""
    digits = max(0, 3 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{min(digits, 4)}f}"


def money(value: float) -> str:
    """Return an amount of money without cents."""
    return f"{value:,.0f}"


def as_json(report: StudyReport) -> dict[str, Any]:
    """Return everything as plain values."""
    study, prices = report.study, report.prices
    return {
        "figure": study.name,
        "title": study.title,
        "source": study.source,
        "budget": study.run.budget,
        "seeds": list(study.seeds),
        "precision": study.run.precision,
        "measured": report.measured,
        "prices": {
            "file": prices.name,
            "currency": prices.currency,
            "assumptions": prices.assumed(),
            "catalogue": prices.whole,
            "devices": prices.devices_of or None,
        },
        "notes": notes(report.results, prices),
        "rows": [{**_result(result), **_published(result, PublishedValues.of(study))} for result in report.results],
        "claims": [_test(test) for test in report.tests],
    }


def _result(result: NetworkResult) -> dict[str, Any]:
    return {
        "model": result.model,
        "network": result.network,
        "planner": result.planner or None,
        "at": dict(result.settings),
        "iteration_time_s": attrs.asdict(result.time),
        "exposed_communication_s": result.exposed,
        "time_breakdown": dict(result.breakdown),
        "lower_bound_s": result.bound,
        "fabric_lower_bound_s": result.fabric_bound,
        "bandwidth_tax": result.tax,
        "fits": result.fits,
        "lacks": result.lacks or None,
        "memory_bytes": result.memory,
        "memory_capacity_bytes": result.capacity,
        "interfaces": result.interfaces,
        "interfaces_used": result.used,
        "interface_bandwidth_gbps": result.gbps,
        "network_cost": result.cost,
        "hosts_cost": result.hosts_cost,
        "total_cost": result.total_cost,
        "priced": result.basis.name.lower(),
        "equal_cost": _equal_cost(result),
        "time_cost": result.time_cost,
        "runs": [dict(run) for run in result.runs],
    }


def _published(result: NetworkResult, published: PublishedValues) -> dict[str, Any]:
    """Return the published values of a result, if there are any, and the error of its time."""
    values = {column: published.value(result, column) for column in COLUMNS}
    values = {column: value for column, value in values.items() if value is not None}
    return {"published": values, "error": published.error(result)} if values else {}


def _equal_cost(result: NetworkResult) -> dict[str, Any] | None:
    """Return the cost that the network should have, whether it has it, and the reason if not."""
    if result.target is None:
        return None
    equal = not differs(result)
    return {
        "network": result.target.network,
        "cost": result.target.cost,
        "equal": equal,
        "reason": None if equal else result.target.reason,
    }


def _test(test: HypothesisTest) -> Mapping[str, Any]:
    return {
        "claim": test.hypothesis.says,
        "faster": test.hypothesis.faster,
        "slower": test.hypothesis.slower,
        "holds": test.count("holds"),
        "equal": test.count("equal"),
        "fails": test.count("fails"),
        "mean_ratio": test.mean,
        "places": [
            {
                "model": comparison.faster.model,
                "at": dict(comparison.faster.settings),
                "ratio": comparison.ratio,
                "outcome": comparison.outcome,
                **({"causes": list(comparison.causes)} if comparison.outcome == "fails" else {}),
            }
            for comparison in test.comparisons
        ],
    }
