"""Operators of a mixture of experts: choose experts, send samples to them, combine their answers.

Dispatch and combination are tensor products with a selection (GShard, Lepikhin et al., 2020).  Dispatch sums over
samples to fill the slots of every expert.  Combination sums over the slots to answer every sample.  The summed
dimension is a reduction, so every cut is exact: in a part with some of the samples, the slots of other samples are
zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_operators.handle import Handle, every_axis, plain, whole

__all__ = ["aggregate", "cache", "capacity", "gating", "group_by", "top_k"]

INDEX_BYTES = 4


def capacity(alpha: float, chosen: int, samples: int, experts: int) -> int:
    """Return the slots of one expert: ``alpha`` times its even share of the samples' choices, rounded up."""
    return math.ceil(alpha * chosen * samples / experts)


def top_k(x: Handle, k: int) -> Operator:
    """Return the ``k`` largest of the last axis of ``x`` (samples, ..., classes): their values, and their indices."""
    *leading, classes = x.shape
    if not 0 < k <= classes or not leading:
        raise TopoplanError(f"top_k: {k} of {classes} classes (choose 1..{classes})")
    shape, axes = (*leading, k), tuple(range(len(leading)))
    return Operator(
        name="",
        kind="top_k",
        dims=(*every_axis(leading), Dimension("e", classes)),
        inputs=(plain("x", x, *axes, len(axes)),),
        outputs=(
            plain("values", Handle(shape, x.itemsize), *axes, -1),
            plain("indices", Handle(shape, INDEX_BYTES), *axes, -1),
        ),
        work=(Term(k, (*axes, len(axes))),),
        tags={"flexnet": "TopK"},
        saved=("indices",),
    )


def group_by(x: Handle, assign: Handle, experts: int, alpha: float) -> Operator:
    """Return for each expert the samples of ``x`` (samples, channels) that ``assign`` (samples, k) gives it.

    Dimensions: ``c`` slots of every expert, ``d`` channels, ``n`` samples (a reduction).  Every output is
    (capacity, channels).
    """
    if alpha <= 0:
        raise TopoplanError(f"group_by: alpha {alpha} must be more than 0")
    samples, channels = x.shape
    slots = capacity(alpha, assign.shape[1], samples, experts)
    c, d, n = range(3)
    filled = Handle((slots, channels), x.itemsize)
    return Operator(
        name="",
        kind="group_by",
        dims=(
            Dimension("c", slots, Role.SAMPLE),
            Dimension("d", channels, Role.ATTRIBUTE),
            Dimension("n", samples, Role.REDUCTION),
        ),
        inputs=(plain("x", x, n, d), whole("assign", assign, n)),
        outputs=tuple(plain(f"expert{k}", filled, c, d) for k in range(experts)),
        tags={"flexnet": "Group_by"},
        linear_in=((0,),),
        saved=("assign",),
    )


def gating(x: Handle, experts: int, slots: int, chosen: int) -> Operator:
    """Return the expert and the slot of every position, and the weight of the expert's answer.

    Two outputs, (samples, positions, experts, slots) each: dispatch (zeros and ones) and combine (GShard,
    Lepikhin et al., 2020).  Positions are counted within their sample, so that samples alone can be cut:
    dimensions ``b`` samples, ``s`` positions, ``d`` channels, ``e`` experts, ``c`` slots.

    Args:
        x: (samples, positions, channels).
        experts: number of experts.
        slots: of each expert for each sample; positions beyond them are dropped.
        chosen: number of experts of each position, at most all.
    """
    samples, positions, channels = x.shape
    if min(chosen, experts, slots) < 1:
        raise TopoplanError(f"gating: {chosen} of {experts} experts with {slots} slots each (at least one of each)")
    b, s, d, e, c = range(5)
    routes = Handle((samples, positions, experts, slots), x.itemsize)
    return Operator(
        name="",
        kind="gating",
        dims=(
            Dimension("b", samples, Role.SAMPLE),
            Dimension("s", positions),
            Dimension("d", channels),
            Dimension("e", experts),
            Dimension("c", slots),
        ),
        inputs=(plain("x", x, b, s, d),),
        weights=(Tensor("gates", (Axis(channels, d), Axis(experts, e))),),
        outputs=(plain("dispatch", routes, b, s, e, c), plain("combine", routes, b, s, e, c)),
        work=(Term(2, (b, s, d, e)), Term(chosen, (b, s, e, c))),
    )


def aggregate(gates: Sequence[Handle], answers: Sequence[Handle], *, kind: str, flexnet_name: str) -> Operator:
    """Return for each sample the answers of its experts, weighted by its gates.

    Dimensions: ``n`` samples, ``o`` channels, ``c`` slots of every expert (a reduction).

    Args:
        gates: (samples, ...) values and indices of the choice, first the values.
        answers: (capacity, channels) of each expert.
        kind: see `Operator`; FlexNet has two operators of this form.
        flexnet_name: under which FlexNet measures it.
    """
    (samples, experts_per_sample), (slots, channels) = gates[0].shape, answers[0].shape
    if any(answer.shape != answers[0].shape for answer in answers):
        raise TopoplanError(f"{kind}: the experts' answers differ in shape")
    n, o, c = range(3)
    return Operator(
        name="",
        kind=kind,
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("o", channels, Role.ATTRIBUTE),
            Dimension("c", slots, Role.REDUCTION),
        ),
        inputs=(
            *(whole(f"gate{k}", gate, n) for k, gate in enumerate(gates)),
            *(plain(f"expert{k}", answer, c, o) for k, answer in enumerate(answers)),
        ),
        outputs=(plain("y", Handle((samples, channels), gates[0].itemsize), n, o),),
        work=(Term(2 * experts_per_sample / slots, (n, o, c)),),
        tags={"flexnet": flexnet_name},
        linear_in=(tuple(range(len(gates), len(gates) + len(answers))),),
    )


def cache(x: Handle) -> Operator:
    """Return a copy of ``x`` (samples, k) that is kept from iteration to iteration."""
    return Operator(
        name="",
        kind="cache",
        dims=(Dimension("n", x.shape[0], Role.SAMPLE),),
        inputs=(whole("x", x, 0),),
        outputs=(whole("y", x, 0),),
        tags={"flexnet": "Cache"},
        linear_in=((0,),),
    )
