"""The planner: it selects the pipelines to simulate, from the dynamic program and from the baselines.

`plans_of` runs `topoplan_searcher_pipeline.fastest` for every number of micro-batches and every schedule.  The
*baselines* give its first cutoff: data parallelism, straight pipelines (equally many devices for each stage) and the
plans of HPGO.  HPGO looks at devices one by one; on machines of more than `MOST_SINGLE`, or for models of so many
layers that this takes long, straight pipelines have consecutive devices, and are planned for their computation alone.
All pipelines are simulated stage by stage under every schedule (`topoplan_searcher_pipeline.stage_simulation`) and
sorted by their times.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import numpy as np

from topoplan.search.stopping import stop_if_wanted
from topoplan_pipeline_planning.layers import Layers
from topoplan_pipeline_planning.machine import RELEASED
from topoplan_pipeline_planning.machine import Machine as HpgoMachine
from topoplan_pipeline_planning.planning import shortlist
from topoplan_pipeline_planning.stages import MOST_MICRO_BATCHES
from topoplan_pipeline_planning.straight import straight_pipeline
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.dynamic import Task
from topoplan_searcher_pipeline.fastest import pipelines
from topoplan_searcher_pipeline.machine import MOST_SINGLE, Devices, Machine, paired_moves
from topoplan_searcher_pipeline.plans import (
    Pipeline,
    PipelineCosts,
    PipelinePlan,
    pipeline_costs,
    schedule_pipeline,
)
from topoplan_searcher_pipeline.rooms import ScheduleRoom
from topoplan_searcher_pipeline.selection import drop_others, reach, select
from topoplan_searcher_pipeline.stage_simulation import ORDERS

__all__ = ["Planner", "are_slow", "baselines", "orders_of"]

#: Pipelines of the dynamic program that stage simulation sees: at most, at least, and how much slower than the best (by
#: the latency model) those above the minimum may be.
_MOST, _ENOUGH, _SLOWER = 64, 12, 1.3
#: No pipeline of the dynamic program has more stages.
_MOST_STAGES = 32
#: Numbers of stages of straight pipelines on large machines, at most; and maxima of two stages that are taken for all
#: of them, each some nanoseconds, which models of thousands of layers exceed on hundreds of devices.
_MOST_STRAIGHT, _MOST_MAXIMA = 512, 500_000_000
#: Devices up to which HPGO's baselines take less time than the dynamic program, whose first cutoff they give.
_MOST_QUICK = 64


def orders_of(schedule: str) -> tuple[str, ...]:
    """Return the schedules to try."""
    return ORDERS if schedule == "any" else (schedule,)


@attrs.frozen(kw_only=True, eq=False)
class Planner:
    """Simulates pipelines stage by stage, for one model on one machine.

    Attributes:
        columns, machine: the model and the machine.
        sizes: possible numbers of devices of a stage.
        kinds: schedules to try.
        micro_batch: samples of the smallest micro-batch.
        recompute: stages that do not fit may run their forward passes twice.
    """

    columns: Columns
    machine: Machine
    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    micro_batch: int
    recompute: bool
    _cost_cache: dict[tuple[Pipeline, int], PipelineCosts | None] = attrs.field(factory=dict, init=False)
    _rooms: dict[tuple[int, ...], ScheduleRoom] = attrs.field(factory=dict, init=False)

    @functools.cached_property
    def micro_batches(self) -> list[int]:
        """All numbers of micro-batches that can be simulated, ascending."""
        samples = self.columns.samples
        small = [size for size in range(1, int(samples**0.5) + 1) if samples % size == 0]
        counts = sorted({*small, *(samples // size for size in small)})
        most = min(samples // self.micro_batch, MOST_MICRO_BATCHES)
        return [count for count in counts if count <= most]

    @functools.cached_property
    def least_stages(self) -> int:
        """The fewest stages that may fit: each device of a stage keeps the weights of the stage whole."""
        columns = self.columns
        priced = columns.unpriced[:, -1] == 0
        growth = np.diff(columns.kept[priced], axis=1, prepend=0.0)
        whole = float(growth.min(axis=0).sum()) if priced.any() else 0.0
        return max(1, math.ceil(whole / self.machine.memory))

    def costs_of(self, pipeline: Pipeline, micro_batches: int) -> PipelineCosts | None:
        """Return the costs of the stages of a pipeline that so many micro-batches pass (cached)."""
        columns = self.columns.at(micro_batches)
        key = pipeline, columns.micro_batches
        if key not in self._cost_cache:
            self._cost_cache[key] = pipeline_costs(pipeline, columns, self.machine)
        return self._cost_cache[key]

    def plan(self, pipeline: Pipeline, kind: str, count: int, cutoff: float = np.inf) -> PipelinePlan | None:
        """Return the plan of a pipeline under a schedule, if there is one; see `schedule_pipeline`."""
        plans = self.plans_under(pipeline, [(kind, count)], cutoff)
        return plans[0] if plans else None

    def plans_under(
        self,
        pipeline: Pipeline,
        schedules: Sequence[tuple[str, int]],
        cutoff: float,
        slower: float = np.inf,
        stop: float = np.inf,
    ) -> list[PipelinePlan]:
        """Return the plans of a pipeline under some schedules; see `schedule_pipeline`."""
        possible = [(kind, count) for kind, count in schedules if count * pipeline.widest <= self.columns.samples]
        plans: list[PipelinePlan] = []
        for costs, group in self._by_costs(pipeline, possible):
            group_plans = schedule_pipeline(
                pipeline,
                costs,
                group,
                self.machine.memory,
                recompute=self.recompute,
                cutoff=cutoff,
                slower=slower,
                stop=stop,
                rooms=self._rooms,
            )
            cutoff = min([cutoff, *(plan.seconds * slower for plan in group_plans)])
            plans += group_plans
        return plans

    def _by_costs(
        self, pipeline: Pipeline, schedules: Iterable[tuple[str, int]]
    ) -> Iterator[tuple[PipelineCosts, list[tuple[str, int]]]]:
        """Yield schedules of equal costs together, in their order; none where a stage cannot have so many devices."""
        for _, group in itertools.groupby(schedules, key=lambda schedule: self.columns.at(schedule[1]).micro_batches):
            together = list(group)
            costs = self.costs_of(pipeline, together[0][1])
            if costs is None:
                return
            yield costs, together

    def shape(self, pipeline: Pipeline) -> tuple[object, ...]:
        """Return a key that is equal for pipelines that differ only in the names of equal hosts."""
        hosts = sorted(zip(self.machine.kinds, zip(*pipeline.counts, strict=True), strict=True))
        return (pipeline.cuts, *hosts)

    def schedules(self, pipeline: Pipeline) -> list[tuple[str, int]]:
        """Return the possible schedules of a pipeline, with the most promising number of micro-batches first."""
        counts = [count for count in self.micro_batches if count * pipeline.widest <= self.columns.samples]
        if len(pipeline.cuts) == 1:  # nothing to wait for: the fewer the better
            return [(self.kinds[0], count) for count in counts]
        return [(kind, count) for count in counts[::-1] for kind in self.kinds]

    def fastest(self, pipeline: Pipeline, cutoff: float = np.inf) -> PipelinePlan | None:
        """Return the fastest plan of a pipeline over all schedules, if it takes less than ``cutoff`` seconds."""
        if len(pipeline.cuts) < self.least_stages:
            return None
        plans = self.plans_under(pipeline, self.schedules(pipeline), cutoff, 1.0)
        return min((plan for plan in plans if plan.seconds < cutoff), key=_seconds, default=None)

    def plans_of(self, best: float, number: int) -> list[PipelinePlan]:
        """Return so many plans to simulate task by task; ``best`` is the seconds of the best baseline."""
        most_selected = number if number >= _ENOUGH else sys.maxsize  # so that it is known when there are enough
        plans: list[PipelinePlan] = []
        variants: dict[Pipeline, set[tuple[str, int]]] = {}
        most_stages = min(self.machine.n_devices, self.columns.n_cuts - 1, _MOST_STAGES)
        if most_stages < self.least_stages:
            return []
        for task, (seconds, cuts, counts) in pipelines(self.tasks(), best, most_stages, _MOST):
            if len(plans) >= _ENOUGH and seconds > plans[0].seconds * _SLOWER:
                break
            stop_if_wanted()
            pipeline = Pipeline(cuts, counts)
            tried = variants.setdefault(pipeline, set())
            possible = self._variants(task.order, task.micro_batches)
            schedules = [schedule for schedule in possible if schedule not in tried]
            tried.update(schedules)
            cutoff = plans[0].seconds * _SLOWER if plans else np.inf
            stop = reach(plans, most_selected, len(pipeline.cuts))
            for plan in self.plans_under(pipeline, schedules, cutoff, _SLOWER, stop):
                bisect.insort(plans, plan, key=_seconds)
            plans = drop_others(plans, most_selected)
        return select(plans, number)

    def _variants(self, order: str, count: int) -> list[tuple[str, int]]:
        """Return the schedules to simulate of a pipeline that was planned for one, with its number of micro-batches."""
        duplicates = ("zero-bubble", "1f1b")
        kinds = [kind for kind in (duplicates if order in duplicates else (order,)) if kind in self.kinds]
        # A longer last pass hides more of the all-reduces.
        fewest = count // 4
        counts = [count >> halvings for halvings in range(count.bit_length()) if count >> halvings >= fewest]
        counts = [fewer for fewer in counts if fewer in self.micro_batches]
        return [(kind, fewer) for kind in kinds for fewer in counts]

    def _planned_orders(self) -> list[str]:
        """Return the schedules to plan for: without 1F1B if ZB-H1 is among them, whose best pipelines are similar."""
        duplicate = "1f1b" if "zero-bubble" in self.kinds else None
        return [kind for kind in self.kinds if kind != duplicate]

    def tasks(self) -> list[Task]:
        """Return what the dynamic program plans for."""
        moves, pairs = paired_moves(self.machine, self.sizes)
        counts = [(count, self.columns.samples // count) for count in self._wide()]
        return [
            Task(self.columns.at(count), moves, pairs, count, widest, order, self.machine.memory, self.recompute)
            for count, widest in counts
            for order in self._planned_orders()
        ]

    def _wide(self) -> list[int]:
        """For each width of the widest stage, the greatest number of micro-batches: fewer only make gaps longer.

        Unless small micro-batches compute longer for each sample: then also fewer, each time about half as many.
        """
        samples, counts = self.columns.samples, self.micro_batches
        widths = self.columns.replicas.tolist()
        wide = {max((c for c in counts if c * width <= samples), default=1) for width in widths}
        last = max(wide)
        while not self.columns.linear and last > 1:
            last = max((c for c in counts if c <= last / 2), default=1)
            wide.add(last)
        return sorted(wide)


def _seconds(plan: PipelinePlan) -> float:
    return plan.seconds


def baselines(
    layers_of: Callable[[], Layers], machine: Machine, samples: int, least_stages: int = 1
) -> Iterator[tuple[str, Callable[[], Iterator[Pipeline]]]]:
    """Yield the baselines: the name in reports, and a function that yields the pipelines.

    Args:
        layers_of: builds layers with the same states as those of the columns; called on first use.
        machine: the machine of the plans.
        samples: of the batch.
        least_stages: the fewest that may fit.
    """
    all_devices = tuple(np.bincount(machine.host).tolist())
    yield "data_parallel", lambda: iter([Pipeline((0,), (all_devices,))])
    count, layers = machine.n_devices, functools.cache(layers_of)
    if _is_large(count, layers().count):
        yield "straight", lambda: _consecutive(layers(), machine, least_stages)
        return
    hpgo = HpgoMachine(host=tuple(machine.host.tolist()), bandwidths=RELEASED)

    def straight() -> Iterator[Pipeline]:
        for stages in range(2, min(count, layers().count) + 1):
            stop_if_wanted()
            if count % stages == 0 and (equal := straight_pipeline(layers(), hpgo, stages, count // stages)):
                yield _pipeline(equal.starts, equal.devices, machine)

    def released() -> Iterator[Pipeline]:
        for plan in shortlist(layers(), hpgo, samples):
            yield _pipeline([s.start for s in plan.stages], [s.devices for s in plan.stages], machine)

    yield "straight", straight
    yield "hpgo", released


def are_slow(machine: Machine, layers: int) -> bool:
    """Say whether all baselines but data parallelism take longer than the dynamic program, as HPGO plans them."""
    return machine.n_devices > _MOST_QUICK and not _is_large(machine.n_devices, layers)


def _is_large(devices: int, layers: int) -> bool:
    """Say whether straight pipelines are those of consecutive devices, which take no time to speak of."""
    return devices > MOST_SINGLE or _maxima(devices, layers) > _MOST_MAXIMA


def _maxima(devices: int, layers: int) -> int:
    """Return how many maxima of two stages HPGO's straight pipelines take at least."""
    return sum(stages for stages in range(2, min(devices, layers) + 1) if devices % stages == 0) * layers**2


def _pipeline(starts: Iterable[int], devices: Iterable[Devices], machine: Machine) -> Pipeline:
    return Pipeline(tuple(starts), tuple(tuple(machine.counts(members).tolist()) for members in devices))


def _consecutive(layers: Layers, machine: Machine, least_stages: int) -> Iterator[Pipeline]:
    """Yield for each possible number of stages the straight pipeline of the least slowest stage.

    Stages have consecutive devices.  Rows of a dynamic program say how long the slowest of so many stages takes that
    end behind a layer; a step is one maximum over all pairs of layers.  Their number ends by the time that rows take,
    but not before the first pipeline that may fit.
    """
    count, compute = machine.n_devices, np.where(layers.before, layers.seconds[:, None] - layers.seconds, np.inf)
    slowest, cuts = layers.seconds, [np.zeros(layers.count, dtype=np.int64)]
    fitting = next((stages for stages in range(least_stages, count + 1) if count % stages == 0), count)
    most = min(_MOST_STRAIGHT, max(_MOST_STAGES, _MOST_MAXIMA // layers.count**2, fitting))
    for stages in range(2, min(count, layers.count, most) + 1):
        stop_if_wanted()
        candidates = np.maximum(compute, slowest)
        cuts.append(candidates.argmin(axis=1))
        slowest = candidates[np.arange(layers.count), cuts[-1]]
        if count % stages == 0 and slowest[-1] < np.inf:
            last, starts = layers.count - 1, []
            for row in reversed(cuts[1:]):
                last = int(row[last])
                starts.append(last + 1)
            devices = np.arange(count).reshape(stages, -1)
            yield _pipeline([0, *starts[::-1]], [tuple(row) for row in devices.tolist()], machine)
