"""Searchers side by side: tables for a terminal, plain values for JSON, and in words what the numbers are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from topoplan_engine.reporting.tables import Column, RowTable
from topoplan_studies.searchers.places import Comparison, Pair, Place, SearcherRuns
from topoplan_studies.searchers.statistics import CONFIDENCE, SIGNIFICANT, least_p, least_rank_p, seeds_needed
from topoplan_studies.study import Study
from topoplan_studies.tables import milliseconds

__all__ = ["SearcherReport", "as_json", "notes", "places_table", "ranks_table"]

#: Points of a curve in JSON.
_POINTS = 40


@attrs.frozen(kw_only=True)
class SearcherReport:
    """What came of a study that compares searchers."""

    study: Study
    comparison: Comparison

    def _repr_html_(self) -> str:
        """Show both tables in a notebook."""
        places, ranks = places_table(self), ranks_table(self)
        html = _html(places.headers, [places.cells(row) for row in places.rows])
        return html + (_html(ranks.headers, [ranks.cells(row) for row in ranks.rows]) if ranks.rows else "")


@attrs.frozen
class _Row:
    """One searcher at one place."""

    place: Place
    runs: SearcherRuns
    first: SearcherRuns

    @property
    def pair(self) -> Pair | None:
        """Its comparison with the first searcher; None for that one."""
        pairs = {(pair.first, pair.second): pair for pair in self.place.pairs}
        return pairs.get((self.first.label, self.runs.label))


def places_table(report: SearcherReport) -> RowTable[_Row]:
    """Return a row for each searcher at each place: time, spread, difference from the first searcher, gap."""
    comparison = report.comparison
    first = comparison.labels[0]
    several, of_set = len(comparison.labels) > 1, any(place.best_known for place in comparison.places)
    versus: list[Column[_Row]] = [
        Column(f"vs {first}", lambda row: "1.000" if row.pair is None else _ratio(row.pair.ratio)),
        Column("p", lambda row: "-" if row.pair is None else _chance(row.pair.p)),
        Column(f"evals to {first}", _evaluations),
    ]
    gaps: list[Column[_Row]] = [
        Column("gap to best known", lambda row: _gap(row.place.gap(row.runs.summary.median))),
        Column("best of all seeds", lambda row: _gap(row.place.gap(row.runs.summary.least))),
    ]
    return RowTable(
        [
            Column("problem", lambda row: row.place.name, names_rows=True),
            Column("searcher", lambda row: row.runs.label, names_rows=True),
            Column("median", lambda row: _time(row.runs.summary.median)),
            Column("interval", lambda row: _span(row.runs.summary.interval.low, row.runs.summary.interval.high)),
            *(versus if several else []),
            *(gaps if of_set else []),
        ],
        [_Row(place, runs, place.searchers[0]) for place in comparison.places for runs in place.searchers],
    )


@attrs.frozen
class _Rank:
    """One searcher over all places."""

    label: str
    mean_rank: float
    ratio: float
    outcomes: tuple[int, int, int]
    evaluations: tuple[float, ...]


def ranks_table(report: SearcherReport) -> RowTable[_Rank]:
    """Return a row for each searcher: its rank, its time relative to the first one, and where it differs."""
    comparison = report.comparison
    first = comparison.labels[0]
    rows = [
        _Rank(
            label=label,
            mean_rank=float(comparison.ranking.mean_ranks[index]),
            ratio=float(comparison.ratios[index]),
            outcomes=_outcomes(comparison, label),
            evaluations=_evaluations_needed(comparison, index),
        )
        for index, label in enumerate(comparison.labels)
    ]
    return RowTable(
        [
            Column("searcher", lambda row: row.label, names_rows=True),
            Column("mean rank", lambda row: f"{row.mean_rank:.2f}"),
            Column(f"time vs {first}", lambda row: _ratio(row.ratio)),
            Column(
                "better, equal, worse", lambda row: "-" if row.label == first else "{}, {}, {}".format(*row.outcomes)
            ),
            Column(
                f"evals vs {first}",
                lambda row: _ratio(statistics.median_low(row.evaluations)) if row.evaluations else "-",
            ),
        ],
        rows if len(rows) > 1 else [],
    )


def notes(report: SearcherReport) -> list[str]:
    """Return in words what the numbers are, by which methods, and what they do not say."""
    study, comparison = report.study, report.comparison
    first, places = comparison.labels[0], comparison.places
    seeds, interval = len(study.seeds), places[0].searchers[0].summary.interval
    lines = [
        f"times: medians over {seeds} seeds of what plans take in the mean over draws of equal paths; interval: order "
        f"statistics, holds the median with {interval.coverage:.1%}"
    ]
    if len(comparison.labels) > 1:
        pairs = len(places[0].pairs)
        lines += [
            f"p: Wilcoxon's signed-rank test against {first}, two-sided, paired by seed"
            + (f", Holm's correction for the {pairs} pairs of a problem" if pairs > 1 else ""),
            f"evals to {first}: evaluations until the search in the middle has the cost at which {first}'s ends "
            "(seeds that get there)",
        ]
    lines += [
        f"{place.name}: {runs.label} has no plan and counts as the slowest: {runs.refusal}"
        for place in places
        for runs in place.searchers
        if runs.refusal
    ]
    lines += [
        f"{place.name}: {runs.too_large:,} candidates of {runs.label} were too large to price"
        for place in places
        for runs in place.searchers
        if runs.too_large
    ]
    lines += _too_few(seeds, len(places[0].pairs), interval.coverage)
    rank = comparison.ranking
    if len(comparison.labels) > 1 and len(places) > 1:
        chance = "-" if rank.p is None else _chance(rank.p)
        text = f"ranks: {rank.method}, p {chance}"
        if rank.critical_difference is not None:
            text += f"; mean ranks {rank.critical_difference:.2f} apart differ at {SIGNIFICANT:.0%}"
        lines.append(text)
        least_p = least_rank_p(len(places), len(comparison.labels))
        if least_p > SIGNIFICANT:
            lines.append(
                f"{len(places)} problems are too few for ranks to differ significantly: the least p is {least_p:.3g}"
            )
    limit = study.run.time_limit
    if limit is not None:
        lines.append(
            f"--time-limit {limit}: what a search reaches in it depends on the machine and what else runs there; "
            "with --budget the result is the same everywhere"
        )
    return lines


def _too_few(seeds: int, pairs: int, coverage: float) -> list[str]:
    """Say what so many seeds cannot show: an interval of 95 %, or a difference of any of the pairs."""
    lines = []
    if coverage < CONFIDENCE:
        lines.append(
            f"{seeds} seeds are too few for an interval of {CONFIDENCE:.0%}: {seeds_needed()} at least give it"
        )
    if pairs and least_p(seeds, pairs) > SIGNIFICANT:
        of = f" after the correction for {pairs} pairs" if pairs > 1 else ""
        lines.append(
            f"{seeds} seeds cannot show a significant difference: the least p{of} is {least_p(seeds, pairs):.4g}; "
            f"{seeds_needed(pairs)} seeds at least can"
        )
    return lines


def as_json(report: SearcherReport) -> dict[str, Any]:
    """Return everything as JSON values; what is not finite is None."""
    study, comparison = report.study, report.comparison
    rank = comparison.ranking
    return {
        "study": study.name,
        "title": study.title,
        "source": study.source,
        "seeds": list(study.seeds),
        "budget": None if study.run.ends_by_time_alone else study.run.budget,
        "time_limit": study.run.time_limit,
        "searchers": list(comparison.labels),
        "notes": notes(report),
        "problems": [_place_json(place) for place in comparison.places],
        "ranks": {
            "mean_rank": dict(zip(comparison.labels, rank.mean_ranks.tolist(), strict=True)),
            "time_ratio": {
                label: _finite(ratio)
                for label, ratio in zip(comparison.labels, comparison.ratios.tolist(), strict=True)
            },
            "method": rank.method,
            "p": rank.p,
            "critical_difference": rank.critical_difference,
        },
    }


def _place_json(place: Place) -> dict[str, Any]:
    target = place.searchers[0].middle_cost
    return {
        "problem": place.name,
        "best_known_s": place.best_known,
        "lower_bound_s": place.bound,
        "searchers": [
            {
                "searcher": runs.label,
                "iteration_time_s": {
                    key: _finite(value) if isinstance(value, float) else value
                    for key, value in attrs.asdict(runs.summary, recurse=False).items()
                    if key != "interval"
                },
                "interval": {key: _finite(value) for key, value in attrs.asdict(runs.summary.interval).items()},
                "gap": None if (gap := place.gap(runs.summary.median)) is None else _finite(gap),
                "evaluations_to_first": [_finite(count) for count in runs.evaluations_to(target)],
                "against_evaluations": _curve(runs, 0),
                **({"against_seconds": _curve(runs, 1)} if runs.histories(0) and _has_seconds(runs) else {}),
                "runs": [dict(run) for run in runs.runs],
            }
            for runs in place.searchers
        ],
        "pairs": [{**attrs.asdict(pair), "ratio": _finite(pair.ratio)} for pair in place.pairs],
    }


def _has_seconds(runs: SearcherRuns) -> bool:
    return len(runs.runs[0]["history"][0]) > 2


def _curve(runs: SearcherRuns, column: int) -> dict[str, list[float | None]]:
    """Return the best cost over evaluations or seconds, at points that are even on a logarithmic axis."""
    histories = runs.histories(column)
    start = max(min(float(history[history[:, 0] > 0, 0].min(initial=np.inf)) for history in histories), 1e-6)
    end = max(*(_end(run, column) for run in runs.runs), start)
    grid = np.geomspace(start, end, _POINTS)
    grid = np.unique(np.round(grid)) if column == 0 else grid
    lower, median, upper = (list(map(_finite, row)) for row in runs.curve(column, grid).tolist())
    name = "evaluations" if column == 0 else "seconds"
    return {name: grid.tolist(), "lower_quartile_s": lower, "median_s": median, "upper_quartile_s": upper}


def _end(run: Any, column: int) -> float:
    return float(run["evaluations"] if column == 0 else run["search_s"])


def _outcomes(comparison: Comparison, label: str) -> tuple[int, int, int]:
    """Count the places where a searcher is significantly better than the first, neither, or significantly worse."""
    better = worse = 0
    for place in comparison.places:
        for pair in place.pairs:
            if (pair.first, pair.second) == (comparison.labels[0], label) and pair.p is not None:
                better += pair.p <= SIGNIFICANT and pair.ratio < 1
                worse += pair.p <= SIGNIFICANT and pair.ratio > 1
    return better, len(comparison.places) - better - worse, worse


def _evaluations_needed(comparison: Comparison, index: int) -> tuple[float, ...]:
    """Return evaluations of a searcher to where the first one ends, over its own, of places where it finds anything."""
    shares = []
    for place in comparison.places:
        target = place.searchers[0].middle_cost
        first_count, count = (statistics.median_low(place.searchers[i].evaluations_to(target)) for i in (0, index))
        if first_count > 1 and np.isfinite(first_count):  # a search that ends where it starts has no such number
            shares.append(count / first_count)
    return tuple(shares)


def _evaluations(row: _Row) -> str:
    counts = row.runs.evaluations_to(row.first.middle_cost)
    seeds = sum(np.isfinite(count) for count in counts)
    median = statistics.median_low(counts)
    return f"{median:.0f} ({seeds})" if np.isfinite(median) else f"- ({seeds})"


def _time(seconds: float) -> str:
    return milliseconds(seconds) if np.isfinite(seconds) else "-"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "-"


def _chance(p: float | None) -> str:
    return "-" if p is None else f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def _gap(gap: float | None) -> str:
    return "-" if gap is None or not np.isfinite(gap) else f"{gap:+.2%}"


def _span(low: float, high: float) -> str:
    if not np.isfinite(low):
        return "no plan"
    return f"{milliseconds(low, '')}..{milliseconds(high, '')}" if high > low else "-"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _html(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from html import escape

    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
