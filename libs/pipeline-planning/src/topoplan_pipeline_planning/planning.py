"""HPGO, the released planner of DAPPLE (Fan et al., PPoPP 2021; AlibabaPAI/DAPPLE, HPGO 0.9.2).

`plan` takes layers, the ends of the hosts and a batch size, and returns stages and a speedup.  It compares four
families of plans by `analytical_seconds`; of two equal plans the later one wins:

1. one stage, data parallel over ``i * (n // i)`` devices, counted as ``n // i`` pipelines of ``i`` devices;
2. two equal halves, ``n // 2`` pipelines of two devices (even ``n`` above 2);
3. ``n`` stages of one device;
4. two stages of any sizes, cut anywhere, under every placement policy.

The released search visits far more plans, but can return no others (see `straight`).  It ignores memory and
recomputation.  If there are fewer layers than devices, it panics; here family 3 is omitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

from topoplan import TopoplanError
from topoplan.arrays import F64
from topoplan.search.stopping import stop_if_wanted
from topoplan_pipeline_planning.latency import analytical_seconds
from topoplan_pipeline_planning.layers import Layers
from topoplan_pipeline_planning.machine import RELEASED, Bandwidths, Devices, Machine
from topoplan_pipeline_planning.placing import placements
from topoplan_pipeline_planning.plans import Family, HpgoPlan, Stage
from topoplan_pipeline_planning.straight import straight_pipeline

__all__ = ["Task", "best_of", "plan", "shortlist", "with_speedup"]


def plan(
    layers: Layers,
    separators: Sequence[int],
    batch_size: int,
    *,
    micro_batch: int = 1,
    bandwidths: Bandwidths = RELEASED,
) -> HpgoPlan:
    """Return the plan of the greatest speedup.

    Args:
        layers: times and bytes of the whole batch.
        separators: the ends of the hosts' devices: ``[8, 16]`` means two hosts of eight.
        batch_size: samples of one iteration.
        micro_batch: samples of the smallest micro-batch.
        bandwidths: HPGO's own unless given.

    Raises:
        TopoplanError: the micro-batch is larger than the batch, the ends do not ascend, or nothing takes time.
    """
    return best_of(shortlist(layers, Machine.split(separators, bandwidths), batch_size, micro_batch))


def shortlist(layers: Layers, machine: Machine, batch_size: int, micro_batch: int = 1) -> list[HpgoPlan]:
    """Return the best plan of each family that has one, in the order of the families."""
    if micro_batch > batch_size:
        raise TopoplanError(
            f"searcher hpgo: micro-batch {micro_batch} is larger than the batch of {batch_size} samples"
        )
    if layers.seconds[-1] <= 0:
        raise TopoplanError("searcher hpgo: the model takes no time (its operators need prices)")
    task = Task(layers, machine, batch_size, micro_batch)
    families: tuple[Callable[[Task], Iterator[HpgoPlan]], ...] = (
        _one_stage,
        _equal_halves,
        _one_device_each,
        _two_stages,
    )
    return [best_of(plans) for plans in (list(family(task)) for family in families) if plans]


def best_of(plans: Sequence[HpgoPlan]) -> HpgoPlan:
    """Return the plan with the greatest speedup; of equal ones the last."""
    return max(enumerate(plans), key=lambda item: (item[1].speedup, item[0]))[1]


@attrs.frozen(eq=False)
class Task:
    """The input of the planner."""

    layers: Layers
    machine: Machine
    batch_size: int
    micro_batch: int

    @property
    def total(self) -> float:
        """Seconds of the model on one device."""
        return float(self.layers.seconds[-1])

    def micro_batches(self, pipelines: int) -> int:
        """Return the number of micro-batches of each of ``pipelines`` copies; 0 if there are too many copies."""
        return self.batch_size // pipelines // self.micro_batch


def _one_stage(task: Task) -> Iterator[HpgoPlan]:
    count = task.machine.n_devices
    for devices in range(min(2, count), count + 1):
        pipelines = count // devices
        members = placements(task.machine, frozenset(), devices * pipelines)[0]
        stage = Stage(0, task.layers.count, devices, members)
        yield with_speedup(task, (stage,), pipelines, task.total / devices / pipelines, "one stage")


def _equal_halves(task: Task) -> Iterator[HpgoPlan]:
    if task.machine.n_devices > 2 and task.machine.n_devices % 2 == 0:
        yield from _straight(task, 2, "equal halves")


def _one_device_each(task: Task) -> Iterator[HpgoPlan]:
    if task.machine.n_devices > 1:
        yield from _straight(task, task.machine.n_devices, "one device each")


def _straight(task: Task, stages: int, family: Family) -> Iterator[HpgoPlan]:
    pipelines = task.machine.n_devices // stages
    pipeline = straight_pipeline(task.layers, task.machine, stages, pipelines)
    if pipeline is not None:
        ends = (*pipeline.starts[1:], task.layers.count)
        result = tuple(
            Stage(a, b, 1, members) for a, b, members in zip(pipeline.starts, ends, pipeline.devices, strict=True)
        )
        yield with_speedup(task, result, pipelines, pipeline.bottleneck, family)


def with_speedup(task: Task, stages: tuple[Stage, ...], pipelines: int, bottleneck: float, family: Family) -> HpgoPlan:
    """Return one plan with its speedup."""
    micro_batches = task.micro_batches(pipelines)
    speedup = 0.0
    if micro_batches:
        layers, machine = task.layers, task.machine
        transfers = sum(
            machine.transfer(a.devices, b.devices, layers.crossing[a.end - 1] / pipelines / micro_batches)
            for a, b in itertools.pairwise(stages)
        )
        seconds = analytical_seconds(
            total=task.total,
            bottleneck=np.asarray(bottleneck),
            pipelines=pipelines,
            micro_batches=micro_batches,
            transfers=np.asarray(transfers),
            reductions=[machine.allreduce(s.devices, layers.spanned(s.start, s.end)[1]) for s in stages],
        )
        speedup = task.total / float(seconds)
    return HpgoPlan(speedup=speedup, stages=stages, pipelines=pipelines, micro_batches=micro_batches, family=family)


def _two_stages(task: Task) -> Iterator[HpgoPlan]:
    """Yield the best plan over all cuts, sizes and placements; as in HPGO, of equal plans the last cut wins."""
    layers, machine, count = task.layers, task.machine, task.machine.n_devices
    ways = [
        (front, back)
        for devices in range(1, count)
        for front in placements(machine, frozenset(), devices)
        for back in placements(machine, frozenset(front), count - devices)
    ]
    if layers.count < 2 or not ways:
        return
    speedups = np.stack([_cut_anywhere(task, front, back) for front, back in ways], axis=1)  # (cuts, ways)
    cut, way = divmod(int(speedups.size - 1 - speedups.ravel()[::-1].argmax()), len(ways))
    front, back = ways[way]
    yield HpgoPlan(
        speedup=float(speedups[cut, way]),
        stages=(Stage(0, cut + 1, len(front), front), Stage(cut + 1, layers.count, len(back), back)),
        pipelines=1,
        micro_batches=task.micro_batches(1),
        family="two stages",
    )


def _cut_anywhere(task: Task, front: Devices, back: Devices) -> F64:
    """Return (L-1,) speedups of two stages on the given devices, for a cut after each layer except the last."""
    stop_if_wanted()
    layers, machine, micro_batches = task.layers, task.machine, task.micro_batches(1)
    start = np.arange(1, layers.count)  # of the second stage
    elapsed, crossing = layers.seconds[:-1], layers.crossing[:-1]
    loads = [elapsed / len(front), (task.total - elapsed) / len(back), machine.transfer(front, back, crossing)]
    seconds = analytical_seconds(
        total=task.total,
        bottleneck=np.maximum.reduce(loads),
        pipelines=1,
        micro_batches=micro_batches,
        transfers=machine.transfer(front, back, crossing / micro_batches),
        reductions=[
            machine.allreduce(front, layers.spanned(0, start)[1]),
            machine.allreduce(back, layers.spanned(start, layers.count)[1]),
        ],
    )
    return np.asarray(task.total / seconds)
