"""Which pipelines are worth simulating: those of the dynamic program, and those that they must not be worse than.

`plans_of` runs `topoplan_searcher_pipeline.dynamic` for every number of micro-batches and every order of passes,
beginning with what the *baselines* take: data parallelism, straight pipelines (equally many devices for each
stage) and the plans of HPGO.  All are played under every schedule (`topoplan_searcher_pipeline.play`) and sorted by
what they take.
"""

from __future__ import annotations

import bisect
import functools
import heapq
from collections.abc import Callable, Iterable, Iterator

import attrs
import numpy as np

from topoplan.model.schedule import ScheduleKind
from topoplan_pipeline_planning.layers import Layers
from topoplan_pipeline_planning.machine import RELEASED
from topoplan_pipeline_planning.machine import Machine as HpgoMachine
from topoplan_pipeline_planning.planning import shortlist
from topoplan_pipeline_planning.straight import straight_pipeline
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.dynamic import ORDERS, Found, Task, pipelines
from topoplan_searcher_pipeline.machine import Devices, Machine, Moves, moves_of
from topoplan_searcher_pipeline.plans import Pipeline, Planned, Whole, planned, whole_of

__all__ = ["Planner", "baselines", "orders_of"]

#: Pipelines of the dynamic program that are played; how many at least; and how much slower than the best, by the
#: latency model, they may be beyond that.
_PLAYED, _ENOUGH, _SLOWER = 64, 12, 1.3
#: No pipeline has more stages.
_MOST_STAGES = 32


def orders_of(schedule: str) -> tuple[ScheduleKind, ...]:
    """Return the schedules that are tried."""
    return ORDERS if schedule == "any" else (ScheduleKind(schedule),)


@attrs.frozen(kw_only=True, eq=False)
class Planner:
    """What is planned for.

    Attributes:
        columns, machine: the model and the machine.
        sizes: devices that a stage may have.
        kinds: schedules that are tried.
        micro_batch: samples of the smallest micro-batch.
        recompute: stages that do not fit may run their forward passes twice.
    """

    columns: Columns
    machine: Machine
    sizes: tuple[int, ...]
    kinds: tuple[ScheduleKind, ...]
    micro_batch: int
    recompute: bool
    _known: dict[Pipeline, Whole | None] = attrs.field(factory=dict, init=False)

    @property
    def micro_batches(self) -> list[int]:
        """All numbers of micro-batches, ascending."""
        samples = self.columns.samples
        small = [size for size in range(1, int(samples**0.5) + 1) if samples % size == 0]
        counts = sorted({*small, *(samples // size for size in small)})
        return [count for count in counts if samples // count >= self.micro_batch]

    def whole(self, pipeline: Pipeline) -> Whole | None:
        """Return what the stages of a pipeline take; summed once for each pipeline."""
        if pipeline not in self._known:
            self._known[pipeline] = whole_of(pipeline, self.columns, self.machine)
        return self._known[pipeline]

    def play(self, pipeline: Pipeline, kind: ScheduleKind, count: int, cutoff: float = np.inf) -> Planned | None:
        """Play a pipeline under a schedule; see `planned`."""
        whole = self.whole(pipeline)
        if whole is None or count * max(pipeline.sizes) > self.columns.samples:
            return None
        return planned(pipeline, whole, kind, count, self.machine.memory, recompute=self.recompute, cutoff=cutoff)

    def shape(self, pipeline: Pipeline) -> tuple[object, ...]:
        """Return what pipelines have in common that differ in the names of equal hosts alone."""
        hosts = sorted(zip(self.machine.kinds, zip(*pipeline.counts, strict=True), strict=True))
        return (pipeline.cuts, *hosts)

    def schedules(self, pipeline: Pipeline) -> list[tuple[ScheduleKind, int]]:
        """Return the schedules that a pipeline may have, with the most promising number of micro-batches first."""
        widest = max(pipeline.sizes)
        counts = [count for count in self.micro_batches if count * widest <= self.columns.samples]
        if len(pipeline.cuts) == 1:  # nothing to wait for: the fewer the better
            return [(self.kinds[0], count) for count in counts]
        return [(kind, count) for count in counts[::-1] for kind in self.kinds]

    def fastest(self, pipeline: Pipeline, cutoff: float = np.inf) -> Planned | None:
        """Play a pipeline under every schedule; return the fastest plan of less than ``cutoff`` seconds."""
        best = None
        for kind, count in self.schedules(pipeline):
            plan = self.play(pipeline, kind, count, cutoff)
            if plan is not None and plan.seconds < cutoff:
                best, cutoff = plan, plan.seconds
        return best

    def plans_of(self, best: float) -> list[Planned]:
        """Return plans of the dynamic program, the fastest first, given the seconds of the best baseline."""
        candidates: dict[tuple[Pipeline, int, ScheduleKind], float] = {}
        moves = moves_of(self.machine, self.sizes)
        for count in self._wide():
            for order in self._planned_orders():
                for candidate in self._dynamic(moves, order, count, best):
                    best = min(best, candidate.seconds)
                    candidates[Pipeline(candidate.cuts, candidate.counts), count, order] = candidate.seconds
        plans: list[Planned] = []
        tried: set[tuple[Pipeline, ScheduleKind, int]] = set()
        for (pipeline, count, order), seconds in heapq.nsmallest(_PLAYED, candidates.items(), key=lambda item: item[1]):
            if len(plans) >= _ENOUGH and seconds > plans[0].seconds * _SLOWER:
                break
            kinds = (ScheduleKind.ZERO_BUBBLE, ScheduleKind.ONE_F_ONE_B)
            for kind in kinds if order in kinds else (order,):
                for fewer in (count, count // 2, count // 4):  # a longer last pass hides more of the all-reduces
                    if kind in self.kinds and fewer in self.micro_batches and (pipeline, kind, fewer) not in tried:
                        tried.add((pipeline, kind, fewer))
                        plan = self.play(pipeline, kind, fewer, plans[0].seconds * _SLOWER if plans else np.inf)
                        if plan is not None:
                            bisect.insort(plans, plan, key=_seconds)
        return plans

    def _planned_orders(self) -> list[ScheduleKind]:
        """Return the orders to plan for: what is best under ZB-H1 is nearly so under 1F1B, which it is made of."""
        either = ScheduleKind.ONE_F_ONE_B if ScheduleKind.ZERO_BUBBLE in self.kinds else None
        return [kind for kind in self.kinds if kind is not either]

    def _dynamic(self, moves: Moves, order: ScheduleKind, count: int, best: float) -> Iterable[Found]:
        samples = self.columns.samples // count
        task = Task(self.columns, moves, count, samples, order, self.machine.memory, self.recompute)
        return pipelines(task, best, min(self.machine.n_devices, self.columns.n_cuts - 1, _MOST_STAGES))

    def _wide(self) -> list[int]:
        """For each greatest number of devices of a stage, the most micro-batches: fewer only make longer gaps."""
        samples, counts = self.columns.samples, self.micro_batches
        widths = self.columns.replicas.tolist()
        return sorted({max((c for c in counts if c * width <= samples), default=1) for width in widths})


def _seconds(plan: Planned) -> float:
    return plan.seconds


def baselines(
    layers_of: Callable[[], Layers], machine: Machine, samples: int
) -> Iterator[tuple[str, Callable[[], Iterator[Pipeline]]]]:
    """Yield what plans must not be worse than: the name that reports give it, and what makes its pipelines.

    Args:
        layers_of: makes the same states as those of the columns; called when they are needed.
        machine: what is planned for.
        samples: of the batch.
    """
    hpgo = HpgoMachine(host=tuple(machine.host.tolist()), bandwidths=RELEASED)
    count = machine.n_devices
    layers = functools.cache(layers_of)

    def straight() -> Iterator[Pipeline]:
        for stages in range(2, min(count, layers().count) + 1):
            if count % stages == 0 and (equal := straight_pipeline(layers(), hpgo, stages, count // stages)):
                yield _pipeline(equal.starts, equal.devices, machine)

    def released() -> Iterator[Pipeline]:
        for plan in shortlist(layers(), hpgo, samples):
            yield _pipeline([s.start for s in plan.stages], [s.devices for s in plan.stages], machine)

    everything = tuple(np.bincount(machine.host).tolist())
    yield "data_parallel", lambda: iter([Pipeline((0,), (everything,))])
    yield "straight", straight
    yield "hpgo", released


def _pipeline(starts: Iterable[int], devices: Iterable[Devices], machine: Machine) -> Pipeline:
    return Pipeline(tuple(starts), tuple(tuple(machine.counts(each).tolist()) for each in devices))
