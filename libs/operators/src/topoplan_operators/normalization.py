"""Operators that bring activations to mean 0, variance 1 or mean square 1, and scale them by weights."""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Dimension, Operator, Role, Term
from topoplan_operators.handle import Handle, every_axis, plain

__all__ = ["batch_norm", "layer_norm", "rms_norm"]

#: FLOPs that normalization spends on one element: mean, variance, scale, weight, bias.
NORM_FLOPS = 8
#: Of one element in RMS normalization: square, sum, scale, weight.
RMS_NORM_FLOPS = 4


def layer_norm(x: Handle, normalized: int = 1) -> Operator:
    """Return ``x`` with mean 0 and variance 1 over its last ``normalized`` axes, times a weight, plus a bias."""
    rank = len(x.shape)
    if not 0 < normalized < rank:
        raise TopoplanError(f"normalization: {normalized} axes of {rank} (choose 1..{rank - 1})")
    dims = tuple(
        Dimension(dim.name, dim.size, dim.role if k < rank - normalized else None)
        for k, dim in enumerate(every_axis(x.shape))
    )
    axes = tuple(range(rank))
    scale = Handle(x.shape[rank - normalized :])
    return Operator(
        name="",
        kind="layer_norm",
        dims=dims,
        inputs=(plain("x", x, *axes),),
        weights=tuple(plain(name, scale, *axes[rank - normalized :]) for name in ("weight", "bias")),
        outputs=(plain("y", x, *axes),),
        work=(Term(NORM_FLOPS, axes),),
    )


def rms_norm(x: Handle, normalized: int = 1) -> Operator:
    """Return ``x`` with mean square 1 over its last ``normalized`` axes, times a weight (Zhang and Sennrich, 2019)."""
    operator = layer_norm(x, normalized)
    return attrs.evolve(
        operator,
        kind="rms_norm",
        weights=operator.weights[:1],
        work=(Term(RMS_NORM_FLOPS, operator.work[0].dims),),
    )


def batch_norm(x: Handle) -> Operator:
    """Return ``x`` (samples, channels, ...) with mean 0 and variance 1 in every channel, times a weight, plus a bias.

    Every part takes the mean over its own samples, as data parallelism usually does; positions stay together.
    """
    if len(x.shape) < 2:
        raise TopoplanError(f"batch_norm: input of shape {x.shape} is not (samples, channels, ...)")
    samples, channels, *positions = x.shape
    axes = tuple(range(len(x.shape)))
    return Operator(
        name="",
        kind="batch_norm",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("c", channels, Role.PARAMETER),
            *(Dimension(f"a{k}", size) for k, size in enumerate(positions, 2)),
        ),
        inputs=(plain("x", x, *axes),),
        weights=tuple(plain(name, Handle((channels,)), 1) for name in ("weight", "bias")),
        outputs=(plain("y", x, *axes),),
        work=(Term(NORM_FLOPS, axes),),
    )
