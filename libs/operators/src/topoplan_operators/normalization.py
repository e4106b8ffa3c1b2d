"""Operators that bring activations to mean 0, variance 1 or mean square 1, and scale them by weights."""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_operators.handle import Handle, every_axis, plain

__all__ = [
    "batch_norm",
    "batch_scale",
    "batch_statistics",
    "group_norm",
    "layer_norm",
    "local_response_norm",
    "rms_norm",
    "weight_norm",
]

#: FLOPs that normalization spends on one element: mean, variance, scale, weight, bias.
NORM_FLOPS = 8
#: Of these, what the sums of `batch_statistics` need: an addition, a square, another addition.
STATISTICS_FLOPS = 3
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
        extras=(_statistics(x, rank - normalized, 2),),
    )


def _statistics(x: Handle, leading: int, count: int) -> Tensor:
    """``count`` numbers in fp32 for every row of ``x``, whose place its first axes say."""
    return Tensor("statistics", (*(Axis(size, k) for k, size in enumerate(x.shape[:leading])), Axis(count)), 4)


def rms_norm(x: Handle, normalized: int = 1) -> Operator:
    """Return ``x`` with mean square 1 over its last ``normalized`` axes, times a weight (Zhang and Sennrich, 2019)."""
    operator = layer_norm(x, normalized)
    return attrs.evolve(
        operator,
        kind="rms_norm",
        weights=operator.weights[:1],
        extras=(_statistics(x, len(x.shape) - normalized, 1),),
        work=(Term(RMS_NORM_FLOPS, operator.work[0].dims),),
    )


def batch_norm(x: Handle) -> Operator:
    """Return ``x`` (samples, channels, ...) with mean 0 and variance 1 in every channel, times a weight, plus a bias.

    Every part takes the mean over its own samples, as data parallelism usually does; positions stay together.  Where
    the statistics are to be those of all samples, `batch_statistics` and `batch_scale` are.
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
        extras=(Tensor("statistics", (Axis(2), Axis(channels, 1)), 4),),
    )


def group_norm(x: Handle, groups: int) -> Operator:
    """Return ``x`` (samples, channels, ...) with mean 0 and variance 1 in every group of channels (Wu and He, 2018).

    Dimensions: ``n`` samples, ``g`` groups, positions, ``c`` channels of a group.  Samples and groups are independent,
    and can be cut; channels lie behind their group in one axis.

    Args:
        x: see above.
        groups: of channels; as many as channels make it instance norm.

    Raises:
        TopoplanError: groups do not divide channels.
    """
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
        raise TopoplanError(f"group_norm: {groups} groups do not divide the channels of {x.shape} (choose a divisor)")
    samples, channels, *positions = x.shape
    inner = channels // groups
    of_channels = Axis(channels, 1, scale=inner, extent=inner)
    axes = (Axis(samples, 0), of_channels, *(Axis(size, k) for k, size in enumerate(positions, 2)))
    dims = (
        Dimension("n", samples, Role.SAMPLE),
        Dimension("g", groups, Role.PARAMETER),
        *(Dimension(f"a{k}", size) for k, size in enumerate(positions, 2)),
        Dimension("c", inner),
    )
    return Operator(
        name="",
        kind="group_norm",
        dims=dims,
        inputs=(Tensor("x", axes, x.itemsize),),
        weights=tuple(Tensor(name, (of_channels,)) for name in ("weight", "bias")),
        outputs=(Tensor("y", axes, x.itemsize),),
        work=(Term(NORM_FLOPS, tuple(range(len(dims)))),),
        extras=(Tensor("statistics", (Axis(samples, 0), Axis(groups, 1), Axis(2)), 4),),
    )


def weight_norm(direction: Handle, length: Handle) -> Operator:
    """Return a weight of the direction of one and the lengths of another one (Salimans and Kingma, 2016).

    Both are weights, and the operator has no inputs: it reads no sample, and is not cut.
    """
    if len(length.shape) not in (0, len(direction.shape)):
        raise TopoplanError(f"weight_norm: lengths {length.shape} do not fit {direction.shape}")
    dims = tuple(Dimension(f"a{k}", size) for k, size in enumerate(direction.shape))
    axes = tuple(range(len(dims)))
    return Operator(
        name="",
        kind="weight_norm",
        dims=dims,
        weights=(plain("v", direction, *axes), Tensor("g", tuple(map(Axis, length.shape)))),
        outputs=(plain("y", direction, *axes),),
        traffic=(Term(2 * 4 + 4, axes),),  # read for its length, read again and written
    )


def batch_statistics(x: Handle) -> Operator:
    """Return for every channel of ``x`` (samples, channels, ...) the sum of its elements, and of their squares.

    Samples and positions are summed over, so that parts hold partial sums.  The operator has ``x`` as two inputs, the
    factors of the squares: in the first alone it is linear, and so a sum over slices of both is exact.
    """
    if len(x.shape) < 2:
        raise TopoplanError(f"batch_statistics: input of shape {x.shape} is not (samples, channels, ...)")
    samples, channels, *positions = x.shape
    axes = tuple(range(len(x.shape)))
    return Operator(
        name="",
        kind="batch_statistics",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("c", channels, Role.ATTRIBUTE),
            *(Dimension(f"a{k}", size, Role.REDUCTION) for k, size in enumerate(positions, 2)),
        ),
        inputs=(plain("x", x, *axes), plain("factor", x, *axes)),
        outputs=tuple(plain(name, Handle((channels,)), 1) for name in ("sum", "squares")),
        work=(Term(STATISTICS_FLOPS, axes),),
        traffic=(Term(x.itemsize, axes),),
        linear_in=((0,),),
    )


def batch_scale(x: Handle, sums: Handle, squares: Handle) -> Operator:
    """Return ``x`` normalized by the sums of `batch_statistics`, times a weight, plus a bias."""
    samples, channels, *positions = x.shape
    if sums.shape != (channels,) or squares.shape != (channels,):
        raise TopoplanError(f"batch_scale: sums {sums.shape} and {squares.shape} are not those of {channels} channels")
    axes = tuple(range(len(x.shape)))
    return Operator(
        name="",
        kind="batch_scale",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("c", channels, Role.PARAMETER),
            *(Dimension(f"a{k}", size, Role.ATTRIBUTE) for k, size in enumerate(positions, 2)),
        ),
        inputs=(plain("x", x, *axes), plain("sum", sums, 1), plain("squares", squares, 1)),
        weights=tuple(plain(name, Handle((channels,)), 1) for name in ("weight", "bias")),
        outputs=(plain("y", x, *axes),),
        work=(Term(NORM_FLOPS - STATISTICS_FLOPS, axes),),
    )


def local_response_norm(x: Handle, size: int) -> Operator:
    """Return ``x`` (samples, channels, ...) divided by a power of the squares of ``size`` neighbouring channels.

    Source: Krizhevsky et al., AlexNet, 2012.  A part with some channels reads their neighbours, too.
    """
    if len(x.shape) < 2 or size < 1:
        raise TopoplanError(f"local_response_norm: size {size} does not fit an input of shape {x.shape}")
    axes = tuple(range(len(x.shape)))
    neighbours = Axis(x.shape[1], 1, offset=-((size - 1) // 2), extent=size)
    read = (Axis(x.shape[0], 0), neighbours, *(Axis(length, k) for k, length in enumerate(x.shape[2:], 2)))
    return Operator(
        name="",
        kind="local_response_norm",
        dims=every_axis(x.shape),
        inputs=(Tensor("x", read, x.itemsize),),
        outputs=(plain("y", x, *axes),),
        work=(Term(2 * size + 3, axes),),
    )
