"""How many copies of a token travel to its experts, where dispatchers send it once to several of them.

    dispatch ─► all-to-all ─► experts ─► all-to-all ─► combine

An all-to-all by experts sends a token once for each of its experts.  DeepEP and HybridEP send it once to each device
that has one or more of them, which copies it, and sums the answers before it returns them.  Between hosts they send it
once to each host, whose devices hand it on (DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.2.2).  Experts
are chosen evenly: of ``E`` experts, ``k`` for each token, a place with ``S`` of them is left out with the probability
C(E - S, k) / C(E, k).  Where a token's experts are in some groups of experts alone (`ExpertGroups`), these groups are
chosen evenly, and then experts of them: a token goes to fewer hosts.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from topoplan.arrays import F64, f64
from topoplan.model.taskgraph import Collective
from topoplan_engine.experts import ExpertGroups, expert_dims, expert_groups_of
from topoplan_engine.sharding.programs import Reshard
from topoplan_engine.sharding.stage_graphs import StageGraph
from topoplan_engine.trainer_kernels import kernels_of

__all__ = ["copies_between", "copies_of_tokens", "is_chosen", "sent_in_fp8"]

_ALL = ExpertGroups()
#: Bytes of a number in fp8, with its part of a scale in fp32 for 128 of them (DeepSeek-V3, section 3.3.2; DeepEP).
FP8 = 1 + 4 / 128


def is_chosen(experts: int, chosen: int, part: int, groups: ExpertGroups = _ALL) -> float:
    """Return the probability that one or more of a token's experts are among those of a place.

    Args:
        experts: of the layer.
        chosen: of them, for each token.
        part: experts of the place, which are a part of a group, or groups; else groups make no difference.
        groups: of experts.

    Examples:
        >>> is_chosen(8, 1, 2)
        0.25
        >>> round(8 * is_chosen(128, 8, 16), 3)  # devices of eight that a token of Qwen3-235B goes to
        5.339
        >>> groups = ExpertGroups(8, 4)  # a token of DeepSeek-V3 goes to no more than four of eight hosts
        >>> [round(8 * is_chosen(256, 8, 32, each), 2) for each in (ExpertGroups(), groups)]
        [5.29, 3.63]
    """
    size = experts // groups.total
    if groups.chosen >= groups.total or (part % size and size % part):
        return 1.0 - math.comb(experts - part, chosen) / math.comb(experts, chosen)
    parts, inside = max(part // size, 1), min(part, size)  # groups of the place, and its experts of each
    among, ways = groups.chosen * size, math.comb(groups.total, groups.chosen)
    return sum(
        math.comb(parts, number)
        * math.comb(groups.total - parts, groups.chosen - number)
        / ways
        * (1.0 - math.comb(among - number * inside, chosen) / math.comb(among, chosen))
        for number in range(1, min(parts, groups.chosen) + 1)
    )


@functools.lru_cache(maxsize=64)
def copies_between(experts: int, chosen: int, devices: int, together: int, groups: ExpertGroups = _ALL) -> F64:
    """(devices, devices) bytes from each device to each other one, over those of an all-to-all by experts.

    Args:
        experts: of the layer, divided among the devices.
        chosen: of them, for each token.
        devices: along the axis of experts.
        together: neighbours that a token is sent to once; 1: to each device once.
        groups: of experts.

    Examples:
        >>> float(copies_between(8, 2, 4, 1)[0, 1]), is_chosen(8, 2, 2) / (2 / 4)
        (0.9285714285714286, 0.9285714285714286)
    """
    each = chosen / devices
    of_device = is_chosen(experts, chosen, experts // devices, groups) / each
    place = np.arange(devices) // together
    of_host = is_chosen(experts, chosen, experts // devices * together, groups) / together / each
    return f64(np.where(place[:, None] == place, of_device, of_host))


def copies_of_tokens(stage: StageGraph) -> dict[Reshard, F64]:
    """Return what `copies_between` says of the all-to-alls of tokens in a stage; none if they are sent by experts."""
    together = stage.stage.dispatch
    if not together:
        return {}
    copies, groups = {}, expert_groups_of(stage.graph)
    for reshard in stage.reshards:
        steps = [step for step in reshard.forward if step.step.collective is Collective.ALL_TO_ALL]
        operators = [stage.graph.operators[op] for op in (reshard.op, *reshard.users[:1]) if op >= 0]
        router = next((op for op in operators if op.kind in ("combine", "dispatch")), None)
        if router is None or len(steps) != 1:
            continue
        experts = router.dims[expert_dims(stage.graph)[stage.graph.operators.index(router)]].size
        chosen = router.inputs[-1].shape[-1]
        devices = math.prod(stage.stage.mesh.sizes[axis] for axis in steps[0].axes)
        if experts % devices == 0 and devices % together == 0:
            copies[reshard] = copies_between(experts, chosen, devices, together, groups)
    return copies


def sent_in_fp8(stage: StageGraph) -> dict[Reshard, tuple[float, float]]:
    """Return the all-to-alls of which one direction is in fp8, and their bytes forward and back over those of tensors.

    Trainers that keep inputs of products in fp8 send these so: tokens to experts, and gradients of experts' answers to
    them.  What experts return, forward and back, stays in the precision of activations (DeepSeek-V3, section 3.3.3).
    """
    kernels = kernels_of(stage.graph)
    if kernels is None or not kernels.narrow:
        return {}
    ways = {}
    for reshard in stage.reshards:
        operators = [stage.graph.operators[op] for op in (reshard.op, *reshard.users[:1]) if op >= 0]
        kind = next((each.kind for each in operators if each.kind in ("combine", "dispatch")), None)
        if kind and any(step.step.collective is Collective.ALL_TO_ALL for step in reshard.forward):
            smaller = FP8 / operators[0].outputs[reshard.output].itemsize
            ways[reshard] = (smaller, 1.0) if kind == "dispatch" else (1.0, smaller)
    return ways
