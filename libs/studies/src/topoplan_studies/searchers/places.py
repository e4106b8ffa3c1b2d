"""Runs of a study by place and searcher: a place is a model on a network at a setting, or a benchmark problem.

Data flow: `places_of` takes the run specifications of a study and what `topoplan_studies.measure` returned for each;
`comparison` makes a `Comparison` of it: for each place what the seeds of each searcher are like and which differences
are significant, and over all places ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan_studies.measure import REFUSED
from topoplan_studies.runspecs import RunSpec
from topoplan_studies.searchers.statistics import (
    Ranking,
    Summary,
    best_after,
    holm,
    paired_test,
    ranking,
    summary,
)
from topoplan_studies.study import number

__all__ = ["Comparison", "Pair", "Place", "SearcherRuns", "comparison", "places_of"]


@attrs.frozen(kw_only=True)
class SearcherRuns:
    """The runs of one searcher at one place, one for each seed.

    Attributes:
        label: of the searcher, or of the searchers that take turns.
        runs: as `topoplan_studies.measure.measure_searchers` returns them, with ``seed``.
    """

    label: str
    runs: tuple[Mapping[str, Any], ...]

    @property
    def times(self) -> list[float]:
        """Seconds per iteration of each seed's plan, the mean over draws; infinite where none fits."""
        return [run["iteration_time_s"] if run["fits"] else float("inf") for run in self.runs]

    @property
    def refusal(self) -> str:
        """What the searcher says that refuses the problem; empty if it does not."""
        return next((run[REFUSED] for run in self.runs if REFUSED in run), "")

    @property
    def too_large(self) -> int:
        """Candidates of all seeds that were too large to price."""
        return sum(run.get("too_large", 0) for run in self.runs)

    @property
    def summary(self) -> Summary:
        """What the times are like."""
        return summary(self.times)

    @property
    def middle_cost(self) -> float:
        """Cost at the end of the search in the middle (the lower one of two), as the search priced it."""
        return float(median_low(run["history"][-1][-1] for run in self.runs))

    def histories(self, column: int) -> list[F64]:
        """Return (k, 2) rows (evaluations for column 0, seconds for column 1; best cost) of each seed."""
        return [np.array(run["history"], dtype=np.float64)[:, [column, -1]] for run in self.runs]

    def curve(self, column: int, grid: F64) -> F64:
        """(3, n) lower quartile, median and upper quartile over seeds of the best cost at each point of a grid."""
        costs = np.stack([best_after(history, grid) for history in self.histories(column)])
        return np.quantile(costs, [0.25, 0.5, 0.75], axis=0, method="nearest")

    def evaluations_to(self, cost: float) -> list[float]:
        """Evaluations after which each seed's best cost is this at most; infinite for one that does not get there."""
        counts = []
        for run, history in zip(self.runs, self.histories(0), strict=True):
            rows = np.flatnonzero((history[:, 1] <= cost) & (REFUSED not in run))
            counts.append(float(history[rows[0], 0]) if len(rows) else float("inf"))
        return counts


@attrs.frozen(kw_only=True)
class Pair:
    """Two searchers at one place: by how much the median times differ, and the corrected p of their test."""

    first: str
    second: str
    ratio: float
    p: float | None


@attrs.frozen(kw_only=True)
class Place:
    """A model on a network at a setting, or a benchmark problem.

    Attributes:
        name: as tables show it.
        searchers: their runs, in the study's order.
        pairs: of searchers; chances are corrected for the pairs of this place.
        best_known, bound: seconds, of a benchmark problem; None elsewhere.
    """

    name: str
    searchers: tuple[SearcherRuns, ...]
    pairs: tuple[Pair, ...]
    best_known: float | None = None
    bound: float | None = None

    def gap(self, time: float) -> float | None:
        """Return by which share a time is above the best known one; None where none is known."""
        return None if self.best_known is None else time / self.best_known - 1


@attrs.frozen(kw_only=True)
class Comparison:
    """Searchers side by side.

    Attributes:
        labels: the searchers; others are compared with the first.
        places: where they were run.
        ranking: over places.
        ratios: (S,) geometric mean over places of median times, the first searcher's being 1.
    """

    labels: tuple[str, ...]
    places: tuple[Place, ...]
    ranking: Ranking
    ratios: F64


def places_of(
    specs: Sequence[RunSpec], values: Sequence[Mapping[str, Any]], best: Mapping[str, tuple[float, float]]
) -> tuple[Place, ...]:
    """Put runs together.

    Args:
        specs: the runs.
        values: what `topoplan_studies.measure.measure_searchers` returned for each of them.
        best: benchmark problem -> its best known time and its lower bound, in seconds.
    """
    networks = len({spec.network for spec in specs})
    varying = {key for spec in specs for key in spec.settings if len({s.settings[key] for s in specs}) > 1}
    runs: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for spec, run in zip(specs, values, strict=True):
        where = "".join(f", {key} {number(value)}" for key, value in spec.settings.items() if key in varying)
        name = spec.model + (f" on {spec.network}" if spec.network and networks > 1 else "") + where
        of_place = runs.setdefault(name, {})
        of_place.setdefault(spec.planner, []).append({"seed": spec.experiment.run.seed, **run})
    places = []
    for name, by_searcher in runs.items():
        searchers = tuple(SearcherRuns(label=label, runs=tuple(of)) for label, of in by_searcher.items())
        best_time, bound = best.get(name, (None, None))
        places.append(Place(name=name, searchers=searchers, pairs=_pairs(searchers), best_known=best_time, bound=bound))
    return tuple(places)


def comparison(places: Sequence[Place]) -> Comparison:
    """Compare searchers over places, at each of which all of them were run."""
    labels = tuple(runs.label for runs in places[0].searchers)
    medians = np.array([[runs.summary.median for runs in place.searchers] for place in places])
    with np.errstate(invalid="ignore"):
        logarithms = np.log(medians / medians[:, :1])
    return Comparison(
        labels=labels,
        places=tuple(places),
        ranking=ranking(medians),
        ratios=np.exp(logarithms.mean(axis=0)),
    )


def _pairs(searchers: Sequence[SearcherRuns]) -> tuple[Pair, ...]:
    pairs = list(itertools.combinations(searchers, 2))
    chances = holm([paired_test(runs.times, versus.times) for runs, versus in pairs])
    return tuple(
        Pair(
            first=runs.label,
            second=versus.label,
            ratio=versus.summary.median / runs.summary.median,
            p=p,
        )
        for (runs, versus), p in zip(pairs, chances, strict=True)
    )
