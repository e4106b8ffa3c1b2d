"""The shape of one part of an operator: everything that the time of its kernels depends on.

Cuts of several operators, or several cuts of one, often give parts of one shape.  Equal shapes are equal values here,
so that a dictionary says which parts have to be timed.  Where parts of a cut differ, the shape is that of the largest.

A part that is cut along rows or columns of an image reads the rows under its windows, without padding: that is a part
from the middle of the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs

from topoplan.model.graph import Axis, Operator, OperatorGraph, Tensor
from topoplan_engine.partition import part_bounds
from topoplan_engine.training import gradient_flow, shared_weights

__all__ = ["PartShape", "Slice", "gradients_of", "part_shape"]

#: FLOPs of softmax for each element, in the work of `topoplan_operators.dense.multihead_attention`.
_SOFTMAX_FLOPS = 5
#: FLOPs of a rotated element, in that of `topoplan_operators.attention.rotary`.
_ROTARY_FLOPS = 3
#: Kinds whose kernel slides a window over an image.
_WINDOWED = ("conv2d", "pool2d")


@attrs.frozen
class Slice:
    """The slice of a tensor that a part touches: its shape, and the dimension that each axis follows (-1: none)."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    itemsize: int = 4

    @property
    def nbytes(self) -> int:
        """Bytes of the slice."""
        return math.prod(self.shape) * self.itemsize


@attrs.frozen(kw_only=True)
class PartShape:
    """A part as its kernel sees it.

    Attributes:
        kind: of the operator.
        sizes: iterations of each dimension.
        inputs, weights, outputs: slices of the operator's tensors.
        gradients: of each input, whether the backward pass computes its gradient (training data have none).
        constants: what the kernel needs beside shapes, such as the stride of a convolution; ``frozen`` has a bit for
            each weight that is not trained.
    """

    kind: str
    sizes: tuple[int, ...]
    inputs: tuple[Slice, ...]
    weights: tuple[Slice, ...]
    outputs: tuple[Slice, ...]
    gradients: tuple[bool, ...]
    constants: tuple[tuple[str, int], ...] = ()

    def constant(self, name: str) -> int:
        """Return one of the constants; 0 where the part has none of that name."""
        return dict(self.constants).get(name, 0)

    def trains(self, weight: int) -> bool:
        """Whether a weight is trained."""
        return not self.constant("frozen") >> weight & 1

    @property
    def nbytes(self) -> int:
        """Bytes of all slices and of as many gradients, which is what FlexNet counts as memory of a measurement."""
        return 2 * sum(piece.nbytes for piece in (*self.inputs, *self.weights, *self.outputs))


def gradients_of(graph: OperatorGraph) -> list[tuple[bool, ...]]:
    """Return for each operator which of its inputs need a gradient: what another one makes, or has as a weight.

    Not where nothing is trained before, or nothing flows back (`topoplan_engine.training`).
    """
    return list(gradient_flow(graph).inputs)


def part_shape(op: Operator, degrees: tuple[int, ...], gradients: tuple[bool, ...], gpus: int = 1) -> PartShape:
    """Return the shape of the largest part of a cut.

    Args:
        op: the operator.
        degrees: parts along each dimension, as even as can be; a legal cut.
        gradients: see `gradients_of`.
        gpus: real GPUs of a device, which divide the samples of a part; the shape is that of one GPU's share.
    """
    sizes = [-(-dim.size // degree) for dim, degree in zip(op.dims, degrees, strict=True)]
    if op.sample_dim >= 0:
        sizes[op.sample_dim] = -(-sizes[op.sample_dim] // gpus)

    def length(axis: Axis) -> int:
        size = op.dims[axis.dim].size if axis.dim >= 0 else 0
        if axis.dim < 0 or sizes[axis.dim] == size:
            return axis.size
        if axis.extent == 1 and axis.offset < 0:  # what falls into the last share of a concatenation
            starts, stops = part_bounds(size, degrees[axis.dim])
            low, high = int(starts[-1]) + axis.offset, int(stops[-1]) + axis.offset
            return max(min(high, axis.size) - max(low, 0), 0)
        return min(axis.size, (sizes[axis.dim] - 1) * axis.scale + axis.extent)

    def pieces(tensors: tuple[Tensor, ...]) -> tuple[Slice, ...]:
        return tuple(
            Slice(tuple(map(length, tensor.axes)), tuple(axis.dim for axis in tensor.axes), tensor.itemsize)
            for tensor in tensors
        )

    constants = _CONSTANTS.get(op.kind, _none)(op)
    if op.kind in _WINDOWED:
        constants |= _windows(op, [sizes[d] < op.dims[d].size for d in (2, 3)])
    if frozen := sum(1 << k for k, tensor in enumerate(op.weights) if not tensor.requires_grad):
        constants["frozen"] = frozen
    return PartShape(
        kind=op.kind,
        sizes=tuple(sizes),
        inputs=pieces(op.inputs),
        weights=pieces(op.weights),
        outputs=pieces(op.outputs),
        gradients=gradients,
        constants=tuple(sorted(constants.items())),
    )


def _none(op: Operator) -> dict[str, int]:
    return {}


def _activation(op: Operator) -> dict[str, int]:
    """Linear layers and convolutions count a FLOP for each output for the bias, and one for an activation."""
    each = op.work[1].coefficient if len(op.work) > 1 else 0
    return {"activation": int(each > (len(op.weights) + len(shared_weights(op)) > 1))}


def _heads(op: Operator) -> dict[str, int]:
    return {"heads": max(1, round(op.work[-1].coefficient / _SOFTMAX_FLOPS)) if op.work else 1}


def _choices(op: Operator) -> dict[str, int]:
    return {"choices": max(1, round(op.work[-1].coefficient)) if op.work else 1}


def _attention(op: Operator) -> dict[str, int]:
    return {"head_size": op.outputs[0].shape[-1] // op.dims[2].size}


def _rotated(op: Operator) -> dict[str, int]:
    """A rotated element takes two products and a sum; work is counted for each element, rotated or not."""
    return {"rotated": round(op.work[0].coefficient / _ROTARY_FLOPS * op.dims[-1].size)}


def _causal(op: Operator) -> dict[str, int]:
    window = {"window": int(op.tags["window"])} if "window" in op.tags else {}
    return {"causal": int("causal" in op.tags), **window}


def _gates(op: Operator) -> dict[str, int]:
    """Inputs before the answers of experts, in which aggregation is linear."""
    return {"gates": op.linear_in[0][0] if op.linear_in else 2}


def _undivided(op: Operator) -> dict[str, int]:
    """The axis that cannot be cut, the last one if there are several."""
    return {"axis": max((k for k, dim in enumerate(op.dims) if dim.role is None), default=len(op.dims) - 1)}


def _joined(op: Operator) -> dict[str, int]:
    """The axis along which the inputs stand side by side: the one along which their sizes add up."""
    axes = range(len(op.dims))
    return {"axis": next(k for k in axes if sum(x.shape[k] for x in op.inputs) == op.dims[k].size)}


def _answers(op: Operator) -> dict[str, int]:
    """Products whose outputs are answers of experts, which are weighed later, with biases."""
    return {"answers": 1} if "answers" in op.tags else {}


_CONSTANTS: Mapping[str, Callable[[Operator], dict[str, int]]] = {
    "aggregate": _gates,
    "aggregate_spec": _gates,
    "attention": _attention,
    "concat": _joined,
    "conv2d": _activation,
    "expert_linear": _answers,
    "gating": _choices,
    "linear": _activation,
    "log_softmax": _undivided,
    "multihead_attention": _heads,
    "rotary": _rotated,
    "scaled_dot_product_attention": _causal,
    "softmax": _undivided,
}


def _windows(op: Operator, cut: list[bool]) -> dict[str, int]:
    """Return kernel, stride and padding along height and width; a cut axis has no padding.

    In FlexNet's dialect axes do not say how windows slide over them.  The least stride and padding that give the output
    do as much work.
    """
    constants: dict[str, int] = {}
    for k, word in enumerate(("h", "w")):
        axis, output = op.inputs[0].axes[2 + k], op.outputs[0].shape[2 + k]
        if axis.dim >= 0:
            kernel, stride, padding = axis.extent, axis.scale, -axis.offset
        else:
            kernel = op.weights[0].shape[2 + k] if op.weights else int(op.tags["flexnet"].split("_")[1 + k])
            stride, padding = _stride(axis.size, output, kernel)
        steps = op.weights[0].shape[2 + k] - 1 if op.weights else 0
        if axis.dim >= 0 and steps and kernel > steps + 1:
            constants[f"dilation_{word}"] = (kernel - 1) // steps
        constants |= {f"kernel_{word}": kernel, f"stride_{word}": stride, f"padding_{word}": 0 if cut[k] else padding}
    return constants


def _stride(size: int, output: int, kernel: int) -> tuple[int, int]:
    """Return the least (stride, padding) by which a window makes ``output`` of ``size`` positions."""
    for stride in range(max(1, size // (output + 1)), size + 1):
        for padding in range(kernel // 2 + 1):
            if size + 2 * padding >= kernel and (size + 2 * padding - kernel) // stride + 1 == output:
                return stride, padding
    return 1, 0
