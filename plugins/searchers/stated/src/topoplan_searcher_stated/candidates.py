"""The best plans so far, in columns: estimated thousands at a time, of which few become plans with names.

shapes of a family (equal tp, cp, ep, etp) ─► bound of each ─► those that may be among the best, the fastest first
shape × schedule × layers ─► the first step that saves enough memory ─► the best of each shape
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan_searcher_stated.estimates import BALANCED, EVEN, LIGHT, Estimates, PlanColumns, Prices, shape_of
from topoplan_searcher_stated.grid import SCHEDULES, data_degrees, ladders
from topoplan_searcher_stated.layers import text_of
from topoplan_searcher_stated.settings import Settings, without_idle_zero

__all__ = ["Candidates", "families"]

#: Plans of the same degrees and micro-batch that are kept.
_OF_SHAPE = 2


class _Row(NamedTuple):
    """A plan that fits, and its estimate."""

    seconds: float
    memory: float


class Candidates:
    """Plans that were estimated, and the best of them by name.

    Args:
        estimates: of the problem.
        usable: bytes of a device.
        runs: whether the trainers of the problem run a plan.
        n_devices: of the problem.

    Attributes:
        best: the plans that fit and are kept, with their estimates.
        smallest: the plan that takes the least memory, whether it fits or not, and how much.
        estimated: how many plans were estimated.
    """

    def __init__(
        self, estimates: Estimates, usable: float, runs: Callable[[Settings], bool] | None, n_devices: int
    ) -> None:
        self._estimates, self._usable, self._runs, self._n_devices = estimates, usable, runs, n_devices
        self.best: dict[Settings, _Row] = {}
        self.smallest: tuple[float, Settings] | None = None
        self.estimated = 0
        self._known: dict[Settings, float] = {}
        self._of_degrees: dict[Settings, list[tuple[float, Settings]]] = {}

    @property
    def seconds(self) -> float:
        """Seconds of the fastest plan that fits; infinite if none does."""
        return min((row.seconds for row in self.best.values()), default=math.inf)

    def ranking(self) -> list[Settings]:
        """Return the plans that are kept, the fastest first; of equal ones that which was found first."""
        return sorted(self.best, key=lambda plan: self.best[plan].seconds)

    def bounds(self, shapes: Sequence[Settings]) -> F64:
        """(S,) seconds that no plan of each shape is faster than, whatever its schedule and its layers."""
        return self._estimates.bounds([attrs.evolve(shape_of(shape), zero=0, recompute="none") for shape in shapes])

    def add_shapes(self, shapes: Sequence[Settings]) -> None:
        """Estimate all schedules and layers of shapes, each with the first steps that save enough memory."""
        several = [len(ladders(shape, data_degrees(shape, self._n_devices)[1])) > 1 for shape in shapes]
        pipelines = np.array([shape.pp > 1 for shape in shapes])
        number = np.arange(len(shapes))
        columns = [np.array([number, np.zeros(len(shapes)), np.full(len(shapes), EVEN)], dtype=np.int64)]
        for schedule in range(len(SCHEDULES)):
            for layers in (EVEN, BALANCED):
                if (schedule, layers) != (0, EVEN) and pipelines.any():
                    rows = number[pipelines]
                    columns.append(np.array([rows, np.full(len(rows), schedule), np.full(len(rows), layers)]))
        plans = PlanColumns(*np.concatenate(columns, axis=1))
        for which, ladder in enumerate(ladders(Settings(), 2)):
            if which and not any(several):
                continue
            chosen = np.array(several)[plans.shape] if which else np.ones(len(plans.shape), dtype=bool)
            too_large = self._climb(shapes, PlanColumns(*(column[chosen] for column in plans)), ladder)
            if not self._estimates.named_layers:  # blocks are unequal: one may have most of the weights
                light = (too_large.layers == BALANCED) & pipelines[too_large.shape]
                rows = PlanColumns(*(column[light] for column in too_large))
                self._climb(shapes, rows._replace(layers=np.full(len(rows.shape), LIGHT)), ladder)

    def _climb(self, shapes: Sequence[Settings], plans: PlanColumns, ladder: Sequence[tuple[int, str]]) -> PlanColumns:
        """Estimate plans step by step until they fit; sharing optimizer state is tried even for those that do.

        Returned are plans that do not fit.
        """
        unfit = plans
        for zero, recompute in ladder:
            if not len(plans.shape):
                break
            saving = [attrs.evolve(shape, zero=zero, recompute=recompute) for shape in shapes]
            prices = self._estimates.prices(saving, SCHEDULES, (), plans)
            fits = self._take(saving, SCHEDULES, (), plans, prices)
            remain = np.isfinite(prices.seconds)
            unfit = PlanColumns(*(column[remain & ~fits] for column in plans))
            if zero:  # nothing but activations shrinks from here on
                remain &= ~fits & (prices.resting <= self._usable)
            plans = PlanColumns(*(column[remain] for column in plans))
        return unfit

    def add(self, plans: Sequence[Settings]) -> list[float]:
        """Estimate some plans; return their seconds, infinite for those that do not fit or cannot be built."""
        unknown = [plan for plan in dict.fromkeys(plans) if plan not in self._known]
        if unknown:
            shapes, schedules, texts = (
                list(dict.fromkeys(each))
                for each in zip(*((shape_of(plan), plan.schedule, plan.layers) for plan in unknown), strict=True)
            )
            rows = [
                (shapes.index(shape_of(plan)), schedules.index(plan.schedule), texts.index(plan.layers))
                for plan in unknown
            ]
            columns = PlanColumns(*np.array(rows, dtype=np.int64).T)
            prices = self._estimates.prices(shapes, schedules, texts, columns)
            fits = self._take(shapes, schedules, texts, columns, prices)
            seconds = np.where(fits, prices.seconds, np.inf).tolist()
            self._known |= dict(zip(unknown, seconds, strict=True))
        return [self._known[plan] for plan in plans]

    def layers(self, plan: Settings) -> tuple[str, ...]:
        """Return layers of chunks of a plan: equally many if that goes, and such that the slowest chunk is fastest."""
        columns = PlanColumns(np.zeros(2, np.int64), np.zeros(2, np.int64), np.array([EVEN, BALANCED]))
        prices = self._estimates.prices([shape_of(plan)], [plan.schedule], (), columns)
        built = np.isfinite(prices.seconds)
        texts = (
            self._text(row[row >= 0].tolist(), number)
            for row, number in zip(prices.layers[built], columns.layers[built].tolist(), strict=True)
        )
        return tuple(dict.fromkeys(texts))

    def _text(self, layers: Sequence[int], number: int) -> str:
        """Return layers of chunks as a plan says them; what it means where they are left out is not said."""
        equal = len(set(layers)) == 1 if self._estimates.named_layers else number == EVEN
        return "" if equal or len(layers) == 1 else text_of(layers)

    def _take(
        self,
        shapes: Sequence[Settings],
        schedules: Sequence[str],
        texts: Sequence[str],
        plans: PlanColumns,
        prices: Prices,
    ) -> np.ndarray:
        """Keep the best of some plans; return which of them fit and run."""
        built = np.isfinite(prices.seconds)
        self.estimated += int(built.sum())
        fits = built & (prices.memory <= self._usable)

        def name(row: int) -> Settings:
            layers, number = prices.layers[row], int(plans.layers[row])
            text = texts[number] if number >= 0 else self._text(layers[layers >= 0].tolist(), number)
            shape: Settings = shapes[plans.shape[row]]
            plan = attrs.evolve(shape, schedule=schedules[plans.schedule[row]], layers=text)
            return without_idle_zero(plan, self._n_devices)

        if self._runs is not None:
            for row in np.flatnonzero(fits).tolist():
                fits[row] = self._runs(name(row))
        if built.any() and not self.best:
            row = int(np.where(built, prices.memory, np.inf).argmin())
            if self.smallest is None or prices.memory[row] < self.smallest[0]:
                self.smallest = float(prices.memory[row]), name(row)
        rows = np.flatnonzero(fits)
        for row in rows[np.argsort(prices.seconds[rows], kind="stable")].tolist():
            self._keep(row, plans, shapes, prices, name)
        return fits

    def _keep(
        self,
        row: int,
        plans: PlanColumns,
        shapes: Sequence[Settings],
        prices: Prices,
        name: Callable[[int], Settings],
    ) -> None:
        """Keep a plan if it is one of the best of its degrees."""
        shape = shapes[plans.shape[row]]
        names = ("tp", "cp", "ep", "etp", "pp", "micro_batch")
        degrees = Settings(**{name: getattr(shape, name) for name in names})
        members, seconds = self._of_degrees.setdefault(degrees, []), float(prices.seconds[row])
        if len(members) == _OF_SHAPE and seconds >= members[-1][0]:
            return
        plan = name(row)
        if plan in self.best:
            return
        self.best[plan] = _Row(seconds, float(prices.memory[row]))
        members.append((seconds, plan))
        members.sort(key=lambda pair: pair[0])
        if len(members) > _OF_SHAPE:
            del self.best[members.pop()[1]]


def families(shapes: Sequence[Settings]) -> Iterator[list[Settings]]:
    """Go through groups of shapes whose units are on one mesh, in the order in which the first of each comes."""
    members: dict[tuple[int, ...], list[Settings]] = {}
    for shape in shapes:
        members.setdefault((shape.tp, shape.cp, shape.ep, shape.etp), []).append(shape)
    yield from members.values()
