"""Which plans there are: degrees that go together, and for each of them what may save memory or time.

shapes: tp, cp, ep, pp, micro-batch ─► a ladder of what saves memory, up to the first step that fits
variants of a shape: schedule, layers of chunks, layout         neighbours: plans that differ in one setting
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from topoplan import Cluster, Problem
from topoplan_engine.experts import expert_dims
from topoplan_engine.recomputation import ATTENTION
from topoplan_searcher_stated.degrees import divisors
from topoplan_searcher_stated.megatron import positions_dims
from topoplan_searcher_stated.settings import Settings

__all__ = [
    "SCHEDULES",
    "data_degrees",
    "degrees_of_model",
    "ladders",
    "layouts",
    "moved_borders",
    "neighbours",
    "shapes",
]

#: Largest micro-batch of a data parallel device that is tried of models with attention, whose samples are long.
_LARGEST_MICRO_BATCH = 16
#: Widest tensor parallel group: so many hosts, or so many devices of hosts that have few.
_HOSTS, _DEVICES = 2, 16
#: Positions that a device has at least.
_POSITIONS = 512
#: What saves more and more memory, and takes more and more time: (zero, recompute).
_LADDERS: tuple[tuple[tuple[int, str], ...], ...] = (
    ((0, "none"), (1, "none"), (1, "selective"), (1, "full")),
    ((3, "none"), (3, "selective"), (3, "full")),
)
_LAYOUTS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "dp-tp-cp-ep-pp", "pp-tp-cp-ep-dp")
SCHEDULES = ("1f1b", "interleaved:2", "interleaved:3", "interleaved:4", "zb-h1", "zb-h2", "zbv", "v-half")


def shapes(problem: Problem, n_layers: int) -> list[Settings]:
    """Return plans of all degrees and micro-batches that go together, those that just hold the weights first."""
    graph, cluster = problem.graph, problem.cluster
    n_devices, batch = cluster.n_devices, graph.batch_size
    experts, positions = _experts(problem), _positions(problem)
    largest = _LARGEST_MICRO_BATCH if positions > 1 else batch
    widest = max(_DEVICES, _HOSTS * n_devices // cluster.n_hosts)
    plans = []
    for tp, pp, cp in itertools.product(divisors(n_devices), divisors(n_devices), divisors(n_devices)):
        if tp > widest or pp > max(1, n_layers) or n_devices % (tp * pp * cp):
            continue
        if cp > 1 and (experts or positions % cp or positions // cp < _POSITIONS):
            continue
        dp = n_devices // (tp * pp * cp)
        if batch % dp:
            continue
        for (ep, etp), micro_batch in itertools.product(_expert_degrees(experts, dp, tp), divisors(batch // dp)):
            if micro_batch <= largest:
                plans.append(Settings(tp=tp, cp=cp, ep=ep, etp=etp, pp=pp, micro_batch=micro_batch))
    parts, per_host = _parts_that_hold_weights(problem), n_devices / cluster.n_hosts

    def unlikely(plan: Settings) -> float:
        """How far it is from just holding the weights; groups over hosts, and cut positions, are less likely."""
        distance = abs(math.log(plan.tp * plan.pp * max(1, plan.ep / 2) / parts))
        return distance + math.log(max(1.0, plan.tp / per_host)) + 0.3 * math.log(plan.cp)

    return sorted(plans, key=unlikely)


def _expert_degrees(experts: int, dp: int, tp: int) -> list[tuple[int, int]]:
    """Return pairs of ``ep`` and ``etp``: of experts that are cut as all else is, and of whole ones.

    >>> _expert_degrees(8, 2, 2)
    [(1, 0), (2, 0), (1, 1), (2, 1), (4, 1)]
    """
    pairs = [(ep, 0) for ep in divisors(math.gcd(dp, experts or 1))]
    if experts and tp > 1:
        pairs += [(ep, 1) for ep in divisors(math.gcd(dp * tp, experts)) if ep % tp == 0 or tp % ep == 0]
    return pairs


def data_degrees(plan: Settings, n_devices: int) -> tuple[int, int]:
    """Return the factor of ``ep`` that is one of data parallelism, and how many devices are left there.

    >>> data_degrees(Settings(tp=2, ep=4, etp=1), 8)
    (2, 2)
    """
    dp, ep = n_devices // (plan.tp * plan.cp * plan.pp), plan.ep
    if plan.etp:
        ep //= math.gcd(ep, plan.tp // plan.etp)
        ep //= math.gcd(ep, plan.cp)
    return ep, dp // ep


def layouts(plan: Settings, cluster: Cluster) -> list[str]:
    """Return layouts that differ in where the devices of a plan lie."""
    degrees = {axis: getattr(plan, axis) for axis in ("tp", "cp", "pp")}
    degrees["ep"], degrees["dp"] = data_degrees(plan, cluster.n_devices)
    different: dict[tuple[str, ...], str] = {}
    for layout in _LAYOUTS if cluster.n_hosts > 1 else _LAYOUTS[:1]:
        different.setdefault(tuple(axis for axis in layout.split("-") if degrees[axis] > 1), layout)
    return list(different.values())


def ladders(plan: Settings, replicas: int) -> tuple[tuple[tuple[int, str], ...], ...]:
    """Return steps of (zero, recompute) that save more and more memory, and take more and more time.

    Weights are stored in slices (ZeRO's third level) where they are not gathered for each micro-batch of a pipeline.
    """
    return _LADDERS if plan.pp == 1 and replicas > 1 else _LADDERS[:1]


def degrees_of_model(problem: Problem) -> tuple[str, ...]:
    """Return the degrees beside data parallelism that a model can have: of positions and of experts if it has any."""
    can = {"cp": _positions(problem) > 1, "ep": _experts(problem) > 0}
    return tuple(name for name in ("tp", "cp", "ep", "pp") if can.get(name, True))


def _experts(problem: Problem) -> int:
    """Return how many experts the model has; 0 for none."""
    dims = expert_dims(problem.graph)
    counts = [op.dims[dim].size for op, dim in zip(problem.graph.operators, dims, strict=True) if dim >= 0]
    return math.gcd(*counts) if counts else 0


def _positions(problem: Problem) -> int:
    """Return how many positions attention has; 1 where it has none."""
    operators, dims = problem.graph.operators, positions_dims(problem.graph)
    sizes = [op.dims[dim].size for op, dim in zip(operators, dims, strict=True) if dim >= 0 and op.kind in ATTENTION]
    return math.gcd(*sizes) if sizes else 1


def _parts_that_hold_weights(problem: Problem) -> float:
    """Return into how many parts weights, with eight times as many bytes for their state, must be cut about."""
    nbytes = sum(tensor.nbytes for op in problem.graph.operators for tensor in op.weights)
    return max(1.0, 8.0 * nbytes / (0.6 * float(problem.cluster.usable_memory.min())))


def neighbours(
    plan: Settings, layers: Sequence[str], layouts: Sequence[str], degrees: Sequence[str] = ("tp", "cp", "ep", "pp")
) -> Iterator[Settings]:
    """Go through plans that differ from one in one setting.

    Args:
        plan: in full.
        layers, layouts: that are tried.
        degrees: that are doubled and halved.
    """
    for layout in layouts:
        yield attrs.evolve(plan, layout=layout)
    if plan.pp > 1:
        for schedule in (*SCHEDULES, "gpipe", "v-min"):
            yield attrs.evolve(plan, schedule=schedule, layers="")
        for each in layers:
            yield attrs.evolve(plan, layers=each)
    for size in (2 * plan.micro_batch, plan.micro_batch // 2):
        if size >= 1:
            yield attrs.evolve(plan, micro_batch=size)
    for zero in (0, 1, 2, 3):
        yield attrs.evolve(plan, zero=zero)
    for recompute in ("none", "selective", "every:2", "full"):
        yield attrs.evolve(plan, recompute=recompute)
    if plan.tp > 1:
        yield attrs.evolve(plan, sp=plan.sp is False)
    if plan.tp > 1 and (plan.ep > 1 or plan.etp):
        yield from (attrs.evolve(plan, etp=etp) for etp in (0, *divisors(plan.tp)[:-1]))
    yield from _traded_degrees(plan, degrees)


def _traded_degrees(plan: Settings, names: Sequence[str]) -> Iterator[Settings]:
    """Go through plans with twice and half as much of one degree, from data parallelism or another degree."""
    for name in names:
        degree = getattr(plan, name)
        for value in (2 * degree, degree // 2 if degree % 2 == 0 else 0):
            if not value:
                continue
            changes: dict[str, Any] = {name: value, "layers": ""}
            yield attrs.evolve(plan, **changes)
            for other_name in names:
                peer = getattr(plan, other_name)
                if other_name != name and value > degree and peer % 2 == 0:
                    yield attrs.evolve(plan, **{**changes, other_name: peer // 2})


def moved_borders(layers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Go through layers of chunks where one layer has moved to the next or the previous chunk.

    >>> list(moved_borders((2, 1)))
    [(1, 2)]
    """
    for border in range(len(layers) - 1):
        for source, target in ((border, border + 1), (border + 1, border)):
            if layers[source] > 1:
                moved = list(layers)
                moved[source] -= 1
                moved[target] += 1
                yield tuple(moved)
