"""ONNX's operators on images: convolution and its transpose, pooling, padding, resizing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from topoplan import Operator, TopoplanError
from topoplan_frontend_onnx.calls import Call, Unknown
from topoplan_frontend_onnx.values import Activation, Value
from topoplan_operators import resampling, spatial

__all__ = ["SPATIAL"]

#: How pixels are interpolated -> order of the polynomials.
_ORDERS = {"nearest": 0, "linear": 1, "cubic": 3}


def _conv(call: Call) -> Value:
    x, w = call.activation(0), _kernel(call)
    rank = len(x.shape) - 2
    if rank < 1 or len(w.shape) != rank + 2:
        raise TopoplanError(f"input {x.shape} and kernel {w.shape} do not fit")
    kernel = w.shape[2:]
    stride, dilation = call.sizes("strides", rank), call.sizes("dilations", rank)
    groups = call.integer("group", 1)
    if groups < 1 or x.shape[1] != w.shape[1] * groups:
        raise TopoplanError(f"{x.shape[1]} input channels, but {groups} groups of {w.shape[1]}")
    operator = spatial.convolution(
        x.handle,
        w.shape[0],
        kernel,
        stride=stride,
        padding=call.pads(x.shape[2:], kernel, stride, dilation),
        bias=call.present(2),
        activation=False,
        groups=groups,
        dilation=dilation,
    )
    return _emitted(call, operator, x, w)


def _conv_transpose(call: Call) -> Value:
    x, w = call.activation(0), _kernel(call)
    rank = len(x.shape) - 2
    if rank < 1 or len(w.shape) != rank + 2 or x.shape[1] != w.shape[0]:
        raise TopoplanError(f"input {x.shape} and kernel {w.shape} do not fit")
    kernel, groups = w.shape[2:], call.integer("group", 1)
    stride, dilation = call.sizes("strides", rank), call.sizes("dilations", rank)
    output_padding = call.integers("output_padding") or [0] * rank
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    uncut = [
        (size - 1) * s + window + more
        for size, s, window, more in zip(x.shape[2:], stride, windows, output_padding, strict=True)
    ]
    target = call.integers("output_shape")
    automatic = call.node.attributes.get("auto_pad", "NOTSET")
    if not target and automatic in ("SAME_UPPER", "SAME_LOWER"):
        target = [size * s for size, s in zip(x.shape[2:], stride, strict=True)]
    if target:
        cut = [max(full - size, 0) for full, size in zip(uncut, target[-rank:], strict=True)]
        output_padding = [
            more + max(size - full, 0) for more, full, size in zip(output_padding, uncut, target[-rank:], strict=True)
        ]
        pads = [(c // 2, c - c // 2) if automatic == "SAME_UPPER" else (c - c // 2, c // 2) for c in cut]
    else:
        numbers = call.integers("pads") or [0] * (2 * rank)
        pads = list(zip(numbers[:rank], numbers[rank:], strict=True))
    operator = resampling.transposed_convolution(
        x.handle,
        w.shape[1] * groups,
        kernel,
        stride=stride,
        padding=pads,
        output_padding=output_padding,
        bias=call.present(2),
        groups=groups,
        dilation=dilation,
    )
    return _emitted(call, operator, x, w)


def _kernel(call: Call) -> Value:
    """Return a kernel, which may be computed."""
    w = call.inputs[1] if call.present(1) else None
    if w is None:
        raise Unknown("the kernel is missing")
    return w


def _emitted(call: Call, operator: Operator, x: Activation, w: Value) -> Value:
    """Add a convolution; a kernel that is computed is an input of it."""
    if not isinstance(w, Activation):
        return call.emit(operator, [x])
    kernel, *weights = operator.weights
    with_kernel = attrs.evolve(operator, inputs=(*operator.inputs, kernel), weights=tuple(weights))
    return call.emit(with_kernel, [x, w])


def _pool(call: Call) -> Value:
    x = call.activation(0)
    rank = len(x.shape) - 2
    if not 0 < rank <= 3:
        raise Unknown(f"pooling of {rank} axes")
    kernel = call.sizes("kernel_shape", rank)
    stride, dilation = call.sizes("strides", rank), call.sizes("dilations", rank)
    operator = spatial.pooling(
        x.handle,
        kernel,
        stride=stride,
        padding=call.pads(x.shape[2:], kernel, stride, dilation),
        dilation=dilation,
        average=call.node.kind == "AveragePool",
    )
    return call.emit(operator, [x])


def _pad(call: Call) -> Value:
    """Elements before and behind axes: by an input, or as before version 11 by an attribute."""
    x = call.activation(0)
    numbers = call.constant_integers(1) if call.present(1) else call.integers("pads")
    axes = call.constant_integers(3) if call.present(3) else list(range(len(x.shape)))
    if len(numbers) != 2 * len(axes):
        raise TopoplanError(f"pads {numbers} of {len(axes)} axes")
    pads = [(0, 0)] * len(x.shape)
    for axis, low, high in zip(axes, numbers[: len(axes)], numbers[len(axes) :], strict=True):
        pads[axis] = low, high
    if min(numbers, default=0) < 0 or (x.samples >= 0 and any(pads[x.samples])):
        raise Unknown("elements that are cut off, or samples that are added")
    if not any(numbers):
        return x
    return call.emit(resampling.padded(x.handle, pads, constant=call.word("mode", "constant") == "constant"), [x])


def _resize(call: Call) -> Value:
    """Resize, and Upsample, which it replaced: to sizes, or by scales."""
    x = call.activation(0)
    words = call.word("mode", "nearest"), call.word("coordinate_transformation_mode", "half_pixel")
    order = _ORDERS.get(words[0])
    if (
        order is None
        or words[1] == "tf_crop_and_resize"
        or call.word("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        raise Unknown(f"interpolation {words[0]!r} of {words[1]!r}")
    is_old = call.node.kind == "Upsample" or len(call.inputs) == 2
    # Version 10 puts pixels on the first of their places, and takes the one before.
    coordinates = "asymmetric" if is_old else words[1]
    nearest = "floor" if is_old else call.word("nearest_mode", "round_prefer_floor")
    is_at_its_place = (coordinates, nearest) == ("asymmetric", "floor") or (
        coordinates.endswith("half_pixel") and nearest.startswith("round")
    )
    operator = resampling.resized(
        x.handle,
        _target(call, x.shape, x.samples),
        order=order,
        nearby=int(order == 0 and not is_at_its_place),
        local=coordinates != "align_corners" and not call.integer("antialias", 0),
    )
    return call.emit(operator, [x])


def _target(call: Call, shape: Sequence[int], samples: int) -> tuple[int, ...]:
    """Return the sizes after `_resize`; samples stay."""
    axes = [axis % len(shape) for axis in call.integers("axes")] or list(range(len(shape)))
    target = list(shape)
    if call.present(3):
        sizes: Sequence[float] = call.constant_integers(3)
    else:
        scales = call.constant_reals(1 if len(call.inputs) == 2 else 2)
        sizes = [int(shape[axis] * scale + 1e-6) for axis, scale in zip(axes, scales, strict=True)]
    for axis, size in zip(axes, sizes, strict=True):
        target[axis] = shape[axis] if axis == samples else int(size)
    if min(target) < 1:
        raise TopoplanError(f"{tuple(shape)} cannot be resized to {tuple(target)}")
    return tuple(target)


#: Name in ONNX -> translation.
SPATIAL: Mapping[str, Callable[[Call], Value]] = {
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Pad": _pad,
}
