"""Where no plan fits: what a model needs of memory at least, what a plan lacks, and what would help.

`least_memory` sums what all devices together hold under any strategy: every weight with its gradient and optimizer
state once, and every activation of the batch once where nothing comes and goes with micro-batches.  A search that
cannot succeed is refused by it at once; `no_plan_fits` says of the best plan what it lacks, in one line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan.errors import NoPlanFitsError
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.problem import Problem
from topoplan.model.recording import MemoryUse
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy

__all__ = [
    "LeastMemory",
    "at_least",
    "bytes_by_purpose",
    "check_fits_somewhere",
    "device_bytes",
    "fullest_device",
    "lacking",
    "least_memory",
    "needs_more",
    "no_plan_fits",
    "reserve_text",
    "size_text",
]

#: What bounds may be off by: sums are taken in another order than for a strategy.
_SLACK = 1e-9


@attrs.frozen(kw_only=True)
class LeastMemory:
    """Bytes that all devices together hold at least.

    Attributes:
        weights: of all operators.
        states: weights with gradients and optimizer state; no more than weights where the estimator does not say.
        activations: of the whole batch; 0 where the estimator does not say.
        largest: states of the operator that has the most, which a stage of a pipeline keeps whole.
    """

    weights: float
    states: float
    activations: float
    largest: float

    def needed(self, *, whole_batch: bool) -> float:
        """Return the bytes; ``whole_batch`` says that all activations are held at the same time."""
        return (self.states + (self.activations if whole_batch else 0.0)) * (1 - _SLACK)


def least_memory(graph: OperatorGraph, costs: CostFunction) -> LeastMemory:
    """Sum what every operator keeps when it is not cut; cuts and replicas only add to it."""
    states = activations = largest = 0.0
    for index, op in enumerate(graph.operators):
        weights, uncut = sum(tensor.nbytes for tensor in op.weights), (1,) * len(op.dims)
        price = costs.price(index, uncut, np.zeros(1, dtype=np.int32)) if costs.supports(index, uncut) else None
        if price is None or price.states is None:
            states += weights
            largest = max(largest, float(weights))
            continue
        persistent = float(price.states.sum())
        states += persistent
        largest = max(largest, persistent)
        activations += max(0.0, float(price.memory[0]) - persistent)
    return LeastMemory(weights=float(graph.parameter_bytes), states=states, activations=activations, largest=largest)


def check_fits_somewhere(problem: Problem, *, whole_batch: bool) -> None:
    """Raise `NoPlanFitsError` where all devices together hold less than any plan needs.

    Args:
        problem: the model, its costs and the cluster.
        whole_batch: no plan that is searched for cuts the batch into micro-batches that come and go.
    """
    graph, cluster = problem.graph, problem.cluster
    minimum, devices = least_memory(graph, problem.costs), cluster.n_devices
    room = float(cluster.usable_memory.sum()) * cluster.gpus_per_device
    if minimum.needed(whole_batch=whole_batch) <= room:
        return
    more = _micro_batches(minimum, cluster) if whole_batch else []
    parts = [f"its weights take {size_text(minimum.weights)}"]
    if minimum.states > minimum.weights:
        parts.append(f"with gradients and optimizer state {size_text(minimum.states)}")
    if minimum.states * (1 - _SLACK) <= room:
        parts.append(f"and the activations of {graph.batch_size} samples {size_text(minimum.activations)}")
    raise NoPlanFitsError(
        f"model {graph.name!r}: no plan fits: {', '.join(parts)}, but the {devices} devices hold "
        f"{size_text(room)} together{_reserved(room, cluster)}; what would help: "
        f"{_joined([*more, *_ways_out(minimum, cluster, whole_batch)])}"
    )


def fullest_device(total: F64, capacity: F64) -> int:
    """Return the device that lacks the most bytes, or where none lacks any, has filled most of its (D,) ``capacity``.

    Example:
        An H100 with 2 GB and a V100 that is empty; the same with 20 GB on the latter:

        >>> room = np.array([73.6e9, 14.7e9])
        >>> fullest_device(np.array([2e9, 0.0]), room), fullest_device(np.array([2e9, 20e9]), room)
        (0, 1)
    """
    lack = total - capacity
    return int(np.argmax(lack if lack.max() > 0 else total / capacity))


def bytes_by_purpose(use: MemoryUse, device: int) -> dict[str, float]:
    """Return the bytes on one device by what they are for, without what there is none of, in a fixed order."""
    columns = {
        "weights": use.weights,
        "gradients": use.gradients,
        "optimizer": use.optimizer,
        "activations": use.activations,
        "undivided": use.undivided,
    }
    return {name: float(column[device]) for name, column in columns.items() if name != "undivided" or column.any()}


def lacking(use: MemoryUse, cluster: Cluster, strategy: Strategy) -> str:
    """Say which device, of which stage, needs how much more than it has, and for what."""
    device = fullest_device(use.total, cluster.usable_memory)
    needed, room = float(use.total[device]), float(cluster.usable_memory[device])
    parts = ", ".join(f"{_NAMES[name]} {size_text(nbytes)}" for name, nbytes in bytes_by_purpose(use, device).items())
    return (
        f"{_stage_of(device, strategy)}device {device} needs {size_text(needed)} of {size_text(room)}"
        f"{_reserved(room, cluster)}, {size_text(needed - room)} too much ({parts})"
    )


def _stage_of(device: int, strategy: Strategy) -> str:
    """Return the stages that a device runs, such as ``stage 3 of 16, ``; empty where there is one stage."""
    if not isinstance(strategy, StagedStrategy) or len(strategy.stages) < 2:
        return ""
    numbers = [str(number) for number, stage in enumerate(strategy.stages) if device in stage.mesh.devices]
    return f"stage{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)} of {len(strategy.stages)}, "


def _fewest_samples(graph: OperatorGraph, strategy: Strategy, device: int) -> int:
    """Return the samples of the smallest batch of which a plan's parts on a device are smaller than they are.

    With one sample in each micro-batch of each part, fewer samples make fewer micro-batches, and the activations of one
    stay.
    """
    if not isinstance(strategy, StagedStrategy):
        return 1
    ops = [op for stage in strategy.stages if device in stage.mesh.devices for op in stage.operators.tolist()]
    cuts = [(strategy.placements[op].degrees, graph.operators[op].sample_dim) for op in ops]
    return strategy.micro_batches * max((degrees[dim] for degrees, dim in cuts if dim >= 0), default=1)


def no_plan_fits(problem: Problem, strategy: Strategy, use: MemoryUse, nearest: str = "") -> str:
    """Say in one line what the best plan lacks, the nearest plan that fits, and what would help.

    Args:
        problem: what was searched.
        strategy: the best that was found.
        use: what it keeps; some device holds less.
        nearest: what its searcher knows to fit, in words; the same plan on larger devices unless given.
    """
    minimum, cluster = least_memory(problem.graph, problem.costs), problem.cluster
    device = fullest_device(use.total, cluster.usable_memory)
    room, needed, activations = (float(of[device]) for of in (cluster.usable_memory, use.total, use.activations))
    program = strategy.program
    whole_batch = program is not None or not isinstance(strategy, StagedStrategy)
    sharded_state = program is not None and (program.sharded_state or program.gathers_again)
    sharded_state |= isinstance(strategy, StagedStrategy) and any(stage.zero.level for stage in strategy.stages)
    helps = []
    shared = (minimum.states + minimum.activations) / cluster.n_devices
    if not sharded_state and shared <= room:
        helps.append(
            "sharding weights, gradients and optimizer state over devices "
            f"(ZeRO; -s spmd; at least {size_text(shared)} a device with the activations)"
        )
    if whole_batch:
        helps += _micro_batches(minimum, cluster)
    elif needed - activations < room and not all(strategy.recomputes or (False,)):
        is_stated = nearest.startswith("--plan")
        way = "recompute=full in --plan" if is_stated else "-s pipeline, unless its recompute=false"
        helps.append(f"recomputation ({way})")
    samples = int(problem.graph.batch_size * (room - needed + activations) / max(activations, 1.0))
    if _fewest_samples(problem.graph, strategy, device) <= samples < problem.graph.batch_size:
        helps.append(f"a batch of at most about {samples} samples (--batch-size)")
    helps += _ways_out(minimum, cluster, whole_batch)
    larger = at_least(device_bytes(needed, cluster))
    helps.append(f"devices of {larger} for this plan")
    if needed <= float(cluster.device_memory[device]):
        helps.append(f"a smaller reserve than {reserve_text(cluster)} (--memory-reserve-percent)")
    nearest = nearest or f"this one on devices of {larger.partition(' (')[0]}"
    lacks = lacking(use, cluster, strategy)
    return f"{lacks}; the nearest plan that fits: {nearest}; what would help: {_joined(helps)}"


def needs_more(problem: Problem, needed: float) -> str:
    """Say the same of all plans of a searcher that keeps whole batches; ``needed`` bytes a device at least."""
    minimum, cluster = least_memory(problem.graph, problem.costs), problem.cluster
    room, devices = float(cluster.usable_memory.min()), cluster.n_devices
    helps = [
        *_micro_batches(minimum, cluster),
        *_ways_out(minimum, cluster, whole_batch=True),
        f"devices of at least {at_least(device_bytes(needed, cluster))}",
        "more devices (--servers), or a smaller batch (--batch-size)",
    ]
    return (
        f"each needs at least {size_text(needed)} of {size_text(room)}{_reserved(room, cluster)}, "
        f"{size_text(needed - room)} too much "
        f"(of which {size_text(minimum.states / devices)} are its share of weights, gradients and optimizer state and "
        f"{size_text(minimum.activations / devices)} of the activations, were everything shared; the rest is what "
        f"operators need whole); what would help: {_joined(helps)}"
    )


def _micro_batches(minimum: LeastMemory, cluster: Cluster) -> list[str]:
    """Say what micro-batches leave: the states alone."""
    states, room = minimum.states / cluster.n_devices, float(cluster.usable_memory.min())
    advice = f"micro-batches and recomputation (-s pipeline; states take at least {size_text(states)} a device)"
    return [advice] if max(states, minimum.largest) <= room else []


def at_least(nbytes: float) -> str:
    """Return bytes rounded up to a tenth of a unit, and the options that say so; ``--memory-gb`` counts in 1e9 bytes.

    >>> at_least(73.6e9)
    '68.6 GiB (--device, --memory-gb 73.7)'
    >>> at_least(1477.6e9)
    '1376.2 GiB (--device, --memory-gb 1480)'
    """
    factor = next((factor for _, factor in _UNITS if nbytes >= factor / 10), 2**10)
    rounded = math.ceil(nbytes / factor * 10) * factor / 10
    step = 10.0 ** (math.floor(math.log10(max(rounded, 1))) - 2)
    gigabytes = math.ceil(rounded / step) * step / 1e9  # of three digits
    text = f"{gigabytes:.0f}" if gigabytes >= 1000 else f"{gigabytes:.3g}"
    return f"{size_text(rounded)} (--device, --memory-gb {text})"


def _ways_out(minimum: LeastMemory, cluster: Cluster, whole_batch: bool) -> list[str]:
    """Say how many devices of this kind hold what all devices together hold at least."""
    room = float(cluster.usable_memory.min()) * cluster.gpus_per_device
    devices = math.ceil(minimum.needed(whole_batch=whole_batch) / room)
    ways = []
    if devices > cluster.n_devices:
        whole = size_text(device_bytes(room, cluster))
        ways.append(f"at least {devices} devices of {whole} (now {cluster.n_devices}; --servers)")
        each = minimum.needed(whole_batch=whole_batch) / cluster.n_devices / cluster.gpus_per_device
        ways.append(f"devices of at least {at_least(device_bytes(each, cluster))}")
    return ways


def device_bytes(nbytes: float, cluster: Cluster) -> float:
    """Return the memory of a device on which a plan may fill so many bytes.

    >>> device_bytes(73.6e9, Cluster.uniform(n_hosts=1, memory_reserve=0.08))
    80000000000.0
    """
    return nbytes / (1 - cluster.memory_reserve)


def reserve_text(cluster: Cluster) -> str:
    """Return the share of memory that plans leave free, such as ``8 %``."""
    return f"{100 * cluster.memory_reserve:.3g} %"


def _reserved(room: float, cluster: Cluster) -> str:
    """Say of which memory plans may fill ``room`` bytes, where some is left free."""
    if not cluster.memory_reserve:
        return ""
    return f" ({size_text(device_bytes(room, cluster))} less a reserve of {reserve_text(cluster)})"


_UNITS = (("GiB", 2**30), ("MiB", 2**20))
_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "undivided": "not divided by the estimator",
}


def size_text(nbytes: float) -> str:
    """Return bytes in the units that trainers report: GiB, or of a few MiB or KiB.

    >>> size_text(80e9), size_text(12e6)
    ('74.5 GiB', '11.4 MiB')
    """
    for unit, factor in _UNITS:
        if abs(nbytes) >= factor / 10:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes / 2**10:.1f} KiB"


def _joined(ways: Sequence[str]) -> str:
    return "; ".join(f"({number}) {way}" for number, way in enumerate(ways, 1)) if len(ways) > 1 else "".join(ways)
