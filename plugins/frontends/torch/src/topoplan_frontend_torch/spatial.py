"""ATen operators on images: convolution, pooling, batch normalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from topoplan_frontend_torch.calls import Call, UntranslatedError
from topoplan_frontend_torch.layouts import Layout
from topoplan_operators import normalization, spatial

__all__ = ["SPATIAL"]


def _convolution(call: Call) -> Sequence[Layout]:
    x, weight = call.plain("input"), call.view("weight")
    if not weight.parameter or len(weight.shape) < 3 or call.argument("transposed"):
        raise UntranslatedError(f"a convolution with a weight of {len(weight.shape)} axes")
    count = len(weight.shape) - 2
    stride, dilation = (call.integers(name, count=count, default=(1,) * count) for name in ("stride", "dilation"))
    biases = [call.made_plain(call.view("bias"))] if call.has("bias") else []
    operator = spatial.convolution(
        x.handle,
        weight.shape[0],
        weight.shape[2:],
        stride=stride,
        padding=[(side, side) for side in _padding(call, weight.shape[2:], dilation)],
        bias=bool(biases),
        activation=False,
        groups=call.integer("groups", default=1),
        dilation=dilation,
    )
    return call.emit(operator, [x], [weight, *biases])


def _padding(call: Call, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """Return the padding of each side: numbers, or ``same`` and ``valid``."""
    padding = call.argument("padding")
    if padding == "valid":
        return (0,) * len(kernel)
    if padding == "same":
        return tuple(step * (size - 1) // 2 for size, step in zip(kernel, dilation, strict=True))
    return call.integers("padding", count=len(kernel), default=(0,) * len(kernel))


def _pool(call: Call) -> Sequence[Layout]:
    """Return a pooling; where windows may reach over the end (`ceil_mode`), zeros stand behind."""
    x = call.plain("self")
    kernel = call.integers("kernel_size", count=2)
    stride = call.integers("stride", count=2, default=kernel)
    padding = call.integers("padding", count=2, default=(0, 0))
    dilation = call.integers("dilation", count=2, default=(1, 1))
    pads = [
        (side, (out - 1) * step + (size - 1) * apart + 1 - before - side)
        for before, out, size, step, side, apart in zip(
            x.shape[2:], call.shape[2:], kernel, stride, padding, dilation, strict=True
        )
    ]
    operator = spatial.pool2d(
        x.handle,
        _pair(kernel),
        stride=_pair(stride),
        padding=[(low, max(high, 0)) for low, high in pads],
        average="avg" in call.operator,
        dilation=_pair(dilation),
    )
    return call.emit(operator, [x]) * len(call.node.outputs)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return values[0], values[1]


def _windows(call: Call, x: Layout) -> Sequence[Layout]:
    """Return a pooling to a given height and width, in windows as even as can be."""
    if len(x.shape) != 4 or len(call.shape) != 4:
        raise UntranslatedError(f"a pooling of {len(x.shape)} axes")
    kernels, strides = [], []
    for size, out in zip(x.shape[2:], call.shape[2:], strict=True):
        strides.append(max(1, size // out))
        kernels.append(size - (out - 1) * strides[-1])
        if kernels[-1] < 1:
            raise UntranslatedError(f"a pooling of {size} to {out}")
    average = "avg" in call.operator
    operator = spatial.pool2d(x.handle, _pair(kernels), stride=_pair(strides), padding=0, average=average)
    return call.emit(operator, [x]) * len(call.node.outputs)


def _adaptive(call: Call) -> Sequence[Layout]:
    return _windows(call, call.plain("self"))


def _batch_norm(call: Call) -> Sequence[Layout]:
    x = call.plain("input")
    operator = normalization.batch_norm(x.handle)
    weights = [call.made_plain(call.view(name)) for name in ("weight", "bias") if call.has(name)]
    operator = attrs.evolve(operator, weights=operator.weights[: len(weights)])
    return call.emit(operator, [x], weights) * len(call.node.outputs)


SPATIAL: Mapping[str, Callable[[Call], Sequence[Layout]]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    **dict.fromkeys(("max_pool2d", "avg_pool2d", "max_pool2d_with_indices"), _pool),
    **dict.fromkeys(("adaptive_avg_pool2d", "adaptive_max_pool2d"), _adaptive),
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit"), _batch_norm),
}
