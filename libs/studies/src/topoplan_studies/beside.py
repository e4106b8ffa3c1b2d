"""Published values beside results: the value of a setting, its error, and the order of what is compared."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from topoplan_engine.reporting.tables import Column, markdown_table, markdown_text
from topoplan_studies.published import COLUMNS
from topoplan_studies.results import NetworkResult, by_setting
from topoplan_studies.study import Study, number

__all__ = ["PublishedValues", "breakdown_beside", "order_sentence", "times_beside"]

_OURS: Mapping[str, Callable[[NetworkResult], float]] = {
    "iteration-time": lambda result: result.time.median,
    "computation": lambda result: result.breakdown["computation_s"],
    "communication": lambda result: result.breakdown["communication_s"],
    "overlap": lambda result: result.breakdown["overlap_ratio"],
    "memory": lambda result: result.memory / 1e9,
}


@attrs.frozen
class PublishedValues:
    """The published values of a study: (model, label, values of what varies) -> column -> value."""

    values: Mapping[tuple[Any, ...], Mapping[str, float | str]]

    @classmethod
    def of(cls, study: Study) -> PublishedValues:
        """Put the values of a study in the order of its settings."""
        settings = list(itertools.product(*study.vary.values()))
        values: dict[tuple[Any, ...], dict[str, float | str]] = {}
        for table in study.published:
            for column, listed in table.values.items():
                for setting, value in zip(settings, listed, strict=True):
                    values.setdefault((table.model, table.of, setting), {})[column] = value
        return cls(values)

    def value(self, result: NetworkResult, column: str) -> float | str | None:
        """Return the published value of a result, the reason why there is none, or None if nothing is said."""
        key = (result.model, result.label, tuple(result.settings.values()))
        return self.values.get(key, {}).get(column)

    def error(self, result: NetworkResult, column: str = "iteration-time") -> float | None:
        """Return how far a result is above the published value, as a share of it."""
        value = self.value(result, column)
        return _OURS[column](result) / value - 1 if isinstance(value, float | int) and value else None

    def cell(self, result: NetworkResult, column: str) -> str:
        """Return our value, and in brackets the published one and the error."""
        value, error = self.value(result, column), self.error(result, column)
        errors = [] if column == "overlap" or error is None else [_percent(error)]
        return f"{_text(_OURS[column](result), column)} ({', '.join([_text(value, column), *errors])})"

    def columns(self) -> list[Column[NetworkResult]]:
        """Return, for each column that is published, the published value and the error."""
        listed = {column for values in self.values.values() for column in values}
        return [
            column
            for name in COLUMNS
            if name in listed
            for column in (self._published(name), *([] if name == "overlap" else [self._error(name)]))
        ]

    def _published(self, name: str) -> Column[NetworkResult]:
        return Column(f"published {name.replace('-', ' ')}", lambda result: _text(self.value(result, name), name))

    def _error(self, name: str) -> Column[NetworkResult]:
        return Column(f"error of {name.replace('-', ' ')}", lambda result: _percent(self.error(result, name)))


def times_beside(study: Study, results: Sequence[NetworkResult]) -> str:
    """Return a Markdown table of iteration times: ours, published, error, for each setting; empty if none are."""
    if not any("iteration-time" in table.values for table in study.published):
        return ""
    published = PublishedValues.of(study)
    rows = []
    for compared in by_setting(results):
        first = next(iter(compared.values()))
        cells = [markdown_text(text) for text in (first.model, *map(number, first.settings.values()))]
        rows.append(cells + [markdown_text(published.cell(compared[name], "iteration-time")) for name in study.labels])
    return markdown_table(
        ["model", *study.vary, *(f"{markdown_text(name)}, s (published)" for name in study.labels)], rows
    )


def breakdown_beside(study: Study, results: Sequence[NetworkResult]) -> str:
    """Return a Markdown table of the other columns that are published; empty if there are none."""
    published = PublishedValues.of(study)
    listed = {column for values in published.values.values() for column in values}
    columns = [column for column in COLUMNS if column in listed and column != "iteration-time"]
    if not columns:
        return ""
    rows = [
        [
            *(markdown_text(text) for text in (result.model, *map(number, result.settings.values()), result.label)),
            *(markdown_text(published.cell(result, column)) for column in columns),
        ]
        for result in results
    ]
    headers = [", ".join(filter(None, (column, COLUMNS[column]))) + " (published)" for column in columns]
    return markdown_table(["model", *study.vary, "planner", *headers], rows)


def order_sentence(study: Study, results: Sequence[NetworkResult]) -> str:
    """Say how many pairs stand in the published order, how often the fastest is the same, and how large errors are."""
    published = PublishedValues.of(study)
    order, settings, fastest = Counter[str](), 0, 0
    errors, impossible = list[float](), 0
    for compared in by_setting(results):
        points = []
        for result in compared.values():
            value = published.value(result, "iteration-time")
            if isinstance(value, float | int):
                points.append((float(value), result.time.median))
                errors.append(abs(result.time.median / value - 1))
                impossible += result.bound > value
        for (first, first_ours), (second, second_ours) in itertools.combinations(points, 2):
            same = "same" if (first < second) == (first_ours < second_ours) else "other"
            order["equal" if first_ours == second_ours else same] += 1
        if len(points) > 1:
            settings += 1
            fastest += min(points)[1] <= min(ours for _, ours in points)
    if not errors:
        return ""
    errors.sort()
    text = (
        f"Of {order.total()} pairs at the same setting, {order['same']} are in the published order, "
        f"{order['other']} in the other one, and {order['equal']} are equal here. The fastest is the published one at "
        f"{fastest} of {settings} settings. Times differ from the published ones by {errors[len(errors) // 2]:.0%} in "
        f"the median and {errors[-1]:.0%} at most."
    )
    if impossible:
        text += (
            f" {impossible} of {len(errors)} published times are below the lower bound of the plan here: on this "
            "network and with these operator times, no schedule of it is as fast."
        )
    return text


def _text(value: float | str | None, name: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.1%}" if name == "overlap" else f"{value:.2f}" if name == "memory" else f"{value:.4f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:+.0%}"
