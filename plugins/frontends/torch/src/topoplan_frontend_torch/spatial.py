"""ATen operators on images: convolution and its transpose, pooling, padding, batch normalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from topoplan_frontend_torch.calls import Call, UntranslatedError
from topoplan_frontend_torch.layouts import Layout
from topoplan_operators import normalization, resampling, spatial

__all__ = ["SPATIAL"]


def _convolution(call: Call) -> Sequence[Layout]:
    x, weight = call.plain("input"), call.view("weight")
    weight = call.made_plain(weight)
    if len(weight.shape) < 3 or len(x.shape) != len(weight.shape):
        raise UntranslatedError(f"a convolution of {len(x.shape)} axes with a weight of {len(weight.shape)} axes")
    if call.argument("transposed") or "transpose" in call.operator:
        return _transposed(call, x, weight)
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


def _transposed(call: Call, x: Layout, weight: Layout) -> Sequence[Layout]:
    """Return a transposed convolution, whose weight is (input channels, output channels of a group, kernel)."""
    count, groups = len(weight.shape) - 2, call.integer("groups", default=1)
    biases = [call.made_plain(call.view("bias"))] if call.has("bias") else []
    sides = call.integers("padding", count=count, default=(0,) * count)
    operator = resampling.transposed_convolution(
        x.handle,
        weight.shape[1] * groups,
        weight.shape[2:],
        stride=call.integers("stride", count=count, default=(1,) * count),
        padding=[(side, side) for side in sides],
        output_padding=call.integers("output_padding", count=count, default=(0,) * count),
        bias=bool(biases),
        groups=groups,
        dilation=call.integers("dilation", count=count, default=(1,) * count),
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
    x, count = call.plain("self"), _axes(call)
    if len(x.shape) != count + 2:
        raise UntranslatedError(f"a pooling of {len(x.shape)} axes")
    kernel = call.integers("kernel_size", count=count)
    stride = call.integers("stride", count=count, default=kernel)
    padding = call.integers("padding", count=count, default=(0,) * count)
    dilation = call.integers("dilation", count=count, default=(1,) * count)
    pads = [
        (side, (out - 1) * step + (size - 1) * apart + 1 - before - side)
        for before, out, size, step, side, apart in zip(
            x.shape[2:], call.shape[2:], kernel, stride, padding, dilation, strict=True
        )
    ]
    operator = spatial.pooling(
        x.handle,
        kernel,
        stride=stride,
        padding=[(low, max(high, 0)) for low, high in pads],
        average="avg" in call.operator,
        dilation=dilation,
    )
    return call.emit(operator, [x]) * len(call.node.outputs)


def _axes(call: Call) -> int:
    """Return the number of axes of positions, which the name of a pooling says."""
    return next(count for count in (1, 2, 3) if f"pool{count}d" in call.operator)


def _windows(call: Call, x: Layout) -> Sequence[Layout]:
    """Return a pooling to given sizes, in windows as even as can be."""
    count = _axes(call)
    if not len(x.shape) == len(call.shape) == count + 2:
        raise UntranslatedError(f"a pooling of {len(x.shape)} axes")
    kernels, strides = [], []
    for size, out in zip(x.shape[2:], call.shape[2:], strict=True):
        strides.append(max(1, size // out))
        kernels.append(size - (out - 1) * strides[-1])
        if kernels[-1] < 1:
            raise UntranslatedError(f"a pooling of {size} to {out}")
    average, padding = "avg" in call.operator, [(0, 0)] * count
    operator = spatial.pooling(x.handle, kernels, stride=strides, padding=padding, average=average)
    return call.emit(operator, [x]) * len(call.node.outputs)


def _adaptive(call: Call) -> Sequence[Layout]:
    return _windows(call, call.plain("self"))


def _pad(call: Call) -> Sequence[Layout]:
    """Return elements before and behind axes, of which the last one is named first."""
    x = call.plain("self")
    numbers = call.argument("pad", "padding")
    values = numbers if isinstance(numbers, tuple) else (numbers,)
    pads = [(0, 0)] * len(x.shape)
    for place, (low, high) in enumerate(zip(values[::2], values[1::2], strict=False), 1):
        if not (isinstance(low, int) and isinstance(high, int)) or place > len(pads):
            raise UntranslatedError(f"padding of {values}")
        pads[-place] = low, high
    is_added_to = x.sample is not None and any(pads[x.sample])
    if is_added_to or min(min(sides) for sides in pads) < 0:
        raise UntranslatedError("elements that are cut off, or samples that are added")
    constant = call.operator == "constant_pad_nd" or call.argument("mode", default="constant") == "constant"
    named = any(word in call.operator for word in ("reflection", "replication"))
    return call.emit(resampling.padded(x.handle, pads, constant=constant and not named), [x])


def _batch_norm(call: Call) -> Sequence[Layout]:
    x = call.plain("input")
    operator = normalization.batch_norm(x.handle)
    weights = [call.made_plain(call.view(name)) for name in ("weight", "bias") if call.has(name)]
    operator = attrs.evolve(operator, weights=operator.weights[: len(weights)])
    return call.emit(operator, [x], weights) * len(call.node.outputs)


_COUNTS = (1, 2, 3)
SPATIAL: Mapping[str, Callable[[Call], Sequence[Layout]]] = {
    "convolution": _convolution,
    **dict.fromkeys((f"conv{rest}{n}d" for rest in ("", "_transpose") for n in _COUNTS), _convolution),
    **dict.fromkeys((f"{kind}_pool{n}d" for kind in ("avg", "max") for n in _COUNTS), _pool),
    **dict.fromkeys((f"max_pool{n}d_with_indices" for n in _COUNTS), _pool),
    **dict.fromkeys((f"adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in _COUNTS), _adaptive),
    **dict.fromkeys((f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in _COUNTS), _pad),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit"), _batch_norm),
}
