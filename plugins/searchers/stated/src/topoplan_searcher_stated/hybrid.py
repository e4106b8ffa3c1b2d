"""Searches hybrid plans: combinations of degrees, micro-batch, schedule, ZeRO and recomputation.

grid of settings ─► `estimates`: seconds and memory by formulas ─► the fastest that fit, simulated one by one
└─► settings next to the best: layout, schedules, ...
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from topoplan import Candidate, Problem, Search, State, Strategy, TopoplanError, Trial, stop_if_wanted
from topoplan_searcher_stated import Hybrid
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.degrees import degrees_of, divisors, words_of
from topoplan_searcher_stated.estimates import Estimates
from topoplan_searcher_stated.settings import Settings

__all__ = ["HybridSearch"]

#: Largest micro-batch of a data parallel device that is tried.
_LARGEST_MICRO_BATCH = 16
#: Plans that are estimated in one turn.
_TURN = 16
_LAYOUTS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "dp-tp-cp-ep-pp", "pp-tp-cp-ep-dp")


class HybridSearch(Search):
    """Proposes plans in the order of their estimates, then those next to the best one."""

    def __init__(self, options: Hybrid, problem: Problem) -> None:
        self._options, self._problem = options, problem
        self._estimates = Estimates(problem)
        self._grid: Iterator[Settings] = self._settings()
        self._estimated: list[tuple[bool, float, Settings]] = []
        self._queue: list[Settings] | None = None
        self._tried: dict[Settings, float] = {}
        self._plan_of: dict[bytes, Settings] = {}
        self._asked: list[Settings] = []
        self._best: tuple[float, Settings] | None = None

    @property
    def plans(self) -> bool:
        """Whether the grid is still being estimated."""
        return self._queue is None

    def ask(self) -> Sequence[Candidate]:
        """Estimate some plans; after the last one propose plans one by one."""
        if self.state is None:
            return []
        if self._queue is None:
            self._estimate()
        if self._queue is None:
            return []
        while self._queue:
            settings = self._queue.pop(0)
            if settings in self._tried:
                continue
            self._tried[settings] = float("inf")
            try:
                strategy, _ = strategy_of(settings, self._problem.graph, self._problem.cluster.n_devices)
            except TopoplanError:  # heads, positions or channels do not divide
                continue
            self._plan_of[strategy.key] = settings
            self._asked = [settings]
            return [Candidate(base=State(strategy, self.state.fabric))]
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the price of the last proposal; what lies next to a new best is tried next."""
        for settings, trial in zip(self._asked, trials, strict=False):
            self._tried[settings] = trial.cost
            if trial.fits and (self._best is None or trial.cost < self._best[0]):
                self._best = trial.cost, settings
            if not self._queue and self._best is not None:
                self._queue = [each for each in self._next_to(self._best[1]) if each not in self._tried]
        self._asked = []

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return the plan in the words of ``--plan``, and how many were estimated and simulated."""
        settings = self._plan_of.get(strategy.key) if strategy is not None else self._best and self._best[1]
        if settings is None:
            return None
        degrees = degrees_of(settings, self._problem.graph, self._problem.cluster.n_devices)
        return {
            "plan": words_of(settings, degrees),
            "micro_batches": degrees.micro_batches,
            "plans_estimated": len(self._estimated),
            "plans_simulated": sum(cost < float("inf") for cost in self._tried.values()),
        }

    def _estimate(self) -> None:
        """Estimate the next plans of the grid; when there are no more, order all."""
        settings = list(itertools.islice(self._grid, _TURN))
        usable = float(self._problem.cluster.usable_memory.min())
        for plan in settings:
            stop_if_wanted()
            with contextlib.suppress(TopoplanError):  # an operator has no such cut
                estimate = self._estimates.of(plan)
                self._estimated.append((estimate.memory > usable, estimate.seconds, plan))
        if not settings:
            self._estimated.sort(key=lambda row: row[:2])
            self._queue = [plan for _, _, plan in self._estimated[: self._options.shortlist]]

    def _settings(self) -> Iterator[Settings]:
        """Go through all plans that go together."""
        n_devices, batch = self._problem.cluster.n_devices, self._problem.graph.batch_size
        layers = max(1, self._estimates.n_layers)
        for tensor, ranks in itertools.product(divisors(n_devices), divisors(n_devices)):
            if n_devices % (tensor * ranks) or layers % ranks:
                continue
            data = n_devices // (tensor * ranks)
            for micro_batch in divisors(batch):
                if micro_batch > _LARGEST_MICRO_BATCH or batch % (data * micro_batch):
                    continue
                for schedule in self._schedules(ranks, layers, batch // (data * micro_batch)):
                    for recompute, zero in itertools.product(("none", "full"), (0, 1) if data > 1 else (0,)):
                        yield Settings(
                            tp=tensor,
                            pp=ranks,
                            micro_batch=micro_batch,
                            schedule=schedule,
                            recompute=recompute,
                            zero=zero,
                        )

    def _schedules(self, ranks: int, layers: int, micro_batches: int) -> Iterator[str]:
        yield "1f1b"
        if ranks > 1 and micro_batches % ranks == 0:
            for chunks in divisors(layers // ranks):
                if 1 < chunks <= 4:
                    yield f"interleaved:{chunks}"

    def _next_to(self, best: Settings) -> Iterator[Settings]:
        """Go through plans that differ from the best one in one setting."""
        for layout in _LAYOUTS:
            yield attrs.evolve(best, layout=layout)
        if best.pp > 1:
            for schedule in ("zb-h1", "zbv", "1f1b", "gpipe", "interleaved:2", "interleaved:4"):
                yield attrs.evolve(best, schedule=schedule)
        for factor in (2, 0.5):
            size = best.micro_batch * factor
            if size >= 1 and size == int(size):
                yield attrs.evolve(best, micro_batch=int(size))
        for zero in (0, 1, 2, 3):
            yield attrs.evolve(best, zero=zero)
        for recompute in ("none", "selective", "full"):
            yield attrs.evolve(best, recompute=recompute)
        for sequence in (True, False):
            if best.tp > 1:
                yield attrs.evolve(best, sp=sequence)
