"""Computes what depends on no input of an ONNX graph: shapes, positions, masks; weights keep where they come from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from topoplan import TopoplanError
from topoplan_frontend_onnx.reading import SMALL, Node, Stored
from topoplan_frontend_onnx.values import Constant

__all__ = ["constant_of", "folded", "reshaped", "slices_of"]

Array = np.ndarray[Any, Any]

#: Scores that are no more than this come from a mask.
_FORBIDS = -1e4

#: Elements of the longest range.
_LONGEST = 1 << 30
#: Operators that give a constant other axes, and leave it the parameter that it was.
_MOVES = ("Identity", "Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Dropout")

_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Pow": np.power,
    "Mod": np.mod,
    "Neg": np.negative,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "Not": np.logical_not,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Where": np.where,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Sin": np.sin,
    "Cos": np.cos,
    "Abs": np.abs,
    "Min": np.minimum,
    "Max": np.maximum,
    "Reciprocal": np.reciprocal,
    "Sign": np.sign,
}
#: Operators whose output is a parameter where an input is one: some of its rows, or the same in another unit.
_KEEP_SOURCE = (*_ARITHMETIC, "Div", "Gather", "Slice", "Expand", "Concat", "Split", "Tile")
#: Operators between real numbers and integers that stand for them: a weight of integers is a parameter.
_SCALES = ("QuantizeLinear", "DequantizeLinear")
_SUMS: Mapping[str, Callable[..., Any]] = {
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
}


def constant_of(tensor: Stored, name: str) -> Constant:
    """Return a tensor of the file as a constant; real numbers are a parameter, unless they forbid something."""
    value = tensor.value
    mask = value is not None and value.size > 1 and value.dtype.kind == "f" and bool((value <= _FORBIDS).any())
    return Constant(tensor.shape, tensor.itemsize, value, name if tensor.real and not mask else "", stored=True)


def folded(node: Node, inputs: Sequence[Constant | None]) -> list[Constant] | None:
    """Return the outputs of a node whose inputs are all constants; None if it is not known how to compute them.

    Raises:
        TopoplanError: they are too large, or do not fit.
    """
    with np.errstate(all="ignore"):
        if node.kind in ("Constant", "ConstantOfShape"):
            return [_filled(node, inputs)]
        xs = [x for x in inputs if x is not None]
        if node.kind in _MOVES and xs:
            return [_moved(node, xs)]
        if node.kind in _SCALES and xs:
            return [_scaled(node, xs[0])]
        parameters = node.kind in _KEEP_SOURCE and any(x.source and not x.number for x in xs)
        if not xs or parameters or any(x.value is None for x in xs):
            return _unknown(node, xs)
        arrays = [x.value for x in xs if x.value is not None]
        if node.kind in _ARITHMETIC and math.prod(np.broadcast_shapes(*(a.shape for a in arrays))) > SMALL:
            return _unknown(node, xs)
        if node.kind == "Split":
            return _split(node, xs)
        answer = _computed(node, arrays)
    if answer is None:
        return _unknown(node, xs)
    return [Constant(answer.shape, answer.dtype.itemsize, answer)]


def _scaled(node: Node, x: Constant) -> Constant:
    """Return what a tensor of integers stands for, or the integers that stand for a tensor.

    Source: ONNX's operators QuantizeLinear and DequantizeLinear.  Several integers of the file are a parameter that
    no gradient trains; one number is none.
    """
    of_integers = node.kind == "DequantizeLinear" and not x.source and x.stored and not x.number
    source, trained = (node.inputs[0], False) if of_integers else (x.source, x.trained)
    return Constant(x.shape, x.itemsize, None, source, x.table, trained=trained)


def _unknown(node: Node, xs: Sequence[Constant]) -> list[Constant] | None:
    """Outputs of which only the shape is known: weights that are scaled, or rows of a table."""
    if node.kind in (*_ARITHMETIC, "Div") and xs:
        if len({x.source for x in xs if x.source and not x.number}) > 1:
            return None
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        largest = max(xs, key=lambda x: (bool(x.source) and not x.number, x.elements))
        return [attrs.evolve(largest, shape=shape, value=None, stored=False)]
    if node.kind == "Gather" and len(xs) == 2 and xs[0].shape:
        axis = _axis(node.attributes.get("axis", 0), len(xs[0].shape))
        return [_some(xs[0], (*xs[0].shape[:axis], *xs[1].shape, *xs[0].shape[axis + 1 :]))]
    if node.kind in ("Expand", "Tile") and len(xs) == 2 and xs[1].value is not None:
        numbers = tuple(int(size) for size in xs[1].value.ravel())
        if node.kind == "Tile":
            return [_some(xs[0], tuple(size * count for size, count in zip(xs[0].shape, numbers, strict=True)))]
        return [_some(xs[0], np.broadcast_shapes(xs[0].shape, numbers))]
    if node.kind == "Slice" and all(x.value is not None for x in xs[1:]):
        lengths = [*xs[0].shape]
        columns = [x.value.ravel().tolist() for x in xs[1:] if x.value is not None] or _slice_attributes(node)
        for axis, key in slices_of(len(xs[0].shape), columns):
            lengths[axis] = len(range(*key.indices(lengths[axis])))
        return [_some(xs[0], tuple(lengths))]
    if node.kind == "Split":
        return _split(node, xs)
    if node.kind == "Concat":
        return _joined(node, xs)
    if node.kind == "Range" and all(x.value is not None for x in xs):
        start, stop, step = (x.value.ravel()[0].item() for x in xs if x.value is not None)
        count = max(0, math.ceil((stop - start) / step)) if step else 0
        return [Constant((count,), xs[0].itemsize)] if count <= _LONGEST else None
    if node.kind == "Trilu":
        return [attrs.evolve(xs[0], value=None, stored=False)]
    return None


def _some(x: Constant, shape: tuple[int, ...]) -> Constant:
    """Return some of the elements of a constant, or all of them several times."""
    return attrs.evolve(x, shape=shape, value=None, table=(x.table or x.shape) if x.source else (), stored=False)


def _joined(node: Node, xs: Sequence[Constant]) -> list[Constant] | None:
    """Return constants side by side; None where several parameters are among them, which an operator then holds."""
    sources = {x.source: x for x in xs if x.source}
    if len(sources) > 1 or (sources and sum(bool(x.source) for x in xs) > 1):
        return None
    axis = _axis(node.attributes.get("axis", 0), len(xs[0].shape))
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    whole = next(iter(sources.values()), xs[0])
    return [_some(whole, tuple(shape))]


def _split(node: Node, xs: Sequence[Constant]) -> list[Constant]:
    """Return the parts of a constant, which are computed where its elements are known."""
    x, axis = xs[0], _axis(node.attributes.get("axis", 0), len(xs[0].shape))
    sizes = node.attributes.get("split") if len(xs) < 2 or xs[1].value is None else xs[1].value.ravel().tolist()
    if not sizes:
        each = -(-x.shape[axis] // max(len(node.outputs), 1))
        sizes = [min(each, x.shape[axis] - k * each) for k in range(len(node.outputs))]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise TopoplanError(f"parts {sizes} of {x.shape[axis]}")
    parts = [_some(x, (*x.shape[:axis], int(size), *x.shape[axis + 1 :])) for size in sizes]
    if x.value is None or x.source:
        return parts
    values = np.split(x.value, np.cumsum(sizes)[:-1], axis)
    return [attrs.evolve(part, value=value) for part, value in zip(parts, values, strict=True)]


def _filled(node: Node, inputs: Sequence[Constant | None]) -> Constant:
    name = next(iter(node.outputs), "")
    value = node.attributes.get("value")
    if node.kind == "ConstantOfShape":
        if not inputs or inputs[0] is None or inputs[0].value is None:
            raise TopoplanError("its shape is not known")
        shape = tuple(int(size) for size in inputs[0].value.ravel())
        if any(size < 0 for size in shape):
            raise TopoplanError(f"shape {shape}")
        filled = value if isinstance(value, Stored) else Stored((1,), "float32", 4, np.zeros(1, np.float32))
        few = math.prod(shape) <= SMALL and filled.value is not None and filled.value.size == 1
        array = np.full(shape, filled.value.ravel()[0]) if few and filled.value is not None else None
        # Weights of one number are written so; what follows the shape of an input is none.
        return Constant(shape, filled.itemsize, array, name if filled.real and inputs[0].stored else "")
    if isinstance(value, Stored):
        return constant_of(value, name)
    for key, dtype in (("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32)):
        if key in node.attributes:
            array = np.array(node.attributes[key], dtype=dtype)
            return Constant(array.shape, array.dtype.itemsize, array)
    array = np.array(node.attributes.get("value_floats") or [], dtype=np.float32)
    return Constant(array.shape, 4, array, name)


def _moved(node: Node, xs: Sequence[Constant]) -> Constant:
    x = xs[0]
    if node.kind in ("Identity", "Dropout", "CastLike"):
        return x
    if node.kind == "Cast":
        kinds = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}
        dtype = kinds.get(node.attributes.get("to", 1))
        value: Array | None = None if x.value is None or dtype is None else x.value.astype(dtype)
        itemsize = x.itemsize if dtype is None else np.dtype(dtype).itemsize
        return attrs.evolve(x, itemsize=itemsize, value=value)
    if node.kind == "Transpose":
        order = node.attributes.get("perm") or list(range(len(x.shape)))[::-1]
        shape = tuple(x.shape[k] for k in order)
        value = None if x.value is None else x.value.transpose(order)
        return attrs.evolve(x, shape=shape, value=value)
    shape = reshaped(node, x.shape, xs[1].value if len(xs) > 1 else None)
    value = None if x.value is None else x.value.reshape(shape)
    return attrs.evolve(x, shape=shape, value=value)


def reshaped(node: Node, shape: tuple[int, ...], argument: Array | None) -> tuple[int, ...]:
    """Return the shape that Reshape, Flatten, Squeeze or Unsqueeze gives.

    Args:
        node: see above.
        shape: before.
        argument: target or axes, where they are an input.
    """
    rank = len(shape)
    if node.kind == "Flatten":
        axis = _axis(node.attributes.get("axis", 1), rank + 1)
        return math.prod(shape[:axis]), math.prod(shape[axis:])
    if node.kind in ("Squeeze", "Unsqueeze"):
        axes = node.attributes.get("axes") if argument is None else argument.ravel().tolist()
        if node.kind == "Squeeze":
            dropped = {_axis(k, rank) for k in axes} if axes else {k for k in range(rank) if shape[k] == 1}
            if any(shape[k] != 1 for k in dropped):
                raise TopoplanError(f"axes {sorted(dropped)} of {shape} have more than one element")
            return tuple(size for k, size in enumerate(shape) if k not in dropped)
        axes = axes or []
        added = {_axis(k, rank + len(axes)) for k in axes}
        if len(added) != len(axes):
            raise TopoplanError(f"axes {axes} come twice")
        sizes = iter(shape)
        return tuple(1 if k in added else next(sizes) for k in range(rank + len(added)))
    target = node.attributes.get("shape") if argument is None else [int(size) for size in argument.ravel()]
    if target is None:
        raise TopoplanError("its shape depends on an input")
    if not node.attributes.get("allowzero"):
        target = [shape[k] if size == 0 and k < rank else size for k, size in enumerate(target)]
    if target.count(-1) == 1:
        product = -math.prod(target)
        target[target.index(-1)] = math.prod(shape) // product if product else 0
    if math.prod(target) != math.prod(shape) or any(size < 0 for size in target):
        raise TopoplanError(f"{shape} cannot have shape {tuple(target)}")
    return tuple(target)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise TopoplanError(f"axis {axis} of {rank} axes")
    return axis % rank


def slices_of(rank: int, columns: Sequence[Sequence[int]]) -> list[tuple[int, slice]]:
    """Return axis and slice, of the numbers of Slice: starts, stops, axes, steps."""
    starts, stops = columns[:2]
    axes = columns[2] if len(columns) > 2 else range(len(starts))
    steps = columns[3] if len(columns) > 3 else [1] * len(starts)
    return [
        (_axis(int(axis), rank), slice(int(start), int(stop), int(step)))
        for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True)
    ]


def _computed(node: Node, arrays: list[Array]) -> Array | None:
    """Return the output of a node whose inputs are known; None if it is not known how, or too large."""
    kind = node.kind
    if kind in _ARITHMETIC:
        if kind not in ("Min", "Max"):
            return np.asarray(_ARITHMETIC[kind](*arrays))
        return np.asarray(functools.reduce(_ARITHMETIC[kind], arrays))
    if kind in _SUMS:
        axes = node.attributes.get("axes") if len(arrays) < 2 else arrays[1].ravel().tolist()
        keep = bool(node.attributes.get("keepdims", 1))
        return np.asarray(_SUMS[kind](arrays[0], axis=tuple(axes) if axes else None, keepdims=keep))
    return _COMPUTED[kind](node, arrays) if kind in _COMPUTED else None


def _quotient(_: Node, arrays: list[Array]) -> Array:
    divide = np.floor_divide if arrays[0].dtype.kind in "iu" else np.divide
    return np.asarray(divide(arrays[0], arrays[1]))


def _gathered(node: Node, arrays: list[Array]) -> Array | None:
    array, indices = arrays
    axis = _axis(node.attributes.get("axis", 0), array.ndim)
    if indices.size * array.size // max(array.shape[axis], 1) > SMALL:
        return None
    return np.take(array, indices.astype(np.int64), axis)


def _sliced(node: Node, arrays: list[Array]) -> Array:
    keys = [slice(None)] * arrays[0].ndim
    columns = [a.ravel().tolist() for a in arrays[1:]] if len(arrays) > 1 else _slice_attributes(node)
    for axis, key in slices_of(arrays[0].ndim, columns):
        keys[axis] = key
    return arrays[0][tuple(keys)]


def _range(_: Node, arrays: list[Array]) -> Array | None:
    start, stop, step = (a.ravel()[0].item() for a in arrays)
    return np.arange(start, stop, step) if step and 0 <= (stop - start) / step <= SMALL else None


def _expanded(_: Node, arrays: list[Array]) -> Array | None:
    shape = np.broadcast_shapes(arrays[0].shape, tuple(int(size) for size in arrays[1].ravel()))
    return np.broadcast_to(arrays[0], shape).copy() if math.prod(shape) <= SMALL else None


def _triangle(node: Node, arrays: list[Array]) -> Array:
    k = int(arrays[1].ravel()[0]) if len(arrays) > 1 else 0
    return np.triu(arrays[0], k) if node.attributes.get("upper", 1) else np.tril(arrays[0], k)


_COMPUTED: Mapping[str, Callable[[Node, list[Array]], Array | None]] = {
    "Concat": lambda node, arrays: np.concatenate(arrays, _axis(node.attributes.get("axis", 0), arrays[0].ndim)),
    "Div": _quotient,
    "Expand": _expanded,
    "Gather": _gathered,
    "Range": _range,
    "Shape": lambda _, arrays: np.array(arrays[0].shape, dtype=np.int64),
    "Size": lambda _, arrays: np.array(arrays[0].size, dtype=np.int64),
    "Slice": _sliced,
    "Trilu": _triangle,
}


def _slice_attributes(node: Node) -> list[list[int]]:
    """Inputs of Slice as ONNX had them before version 10: attributes."""
    starts, stops = node.attributes.get("starts") or [], node.attributes.get("ends") or []
    return [starts, stops, node.attributes.get("axes") or list(range(len(starts)))]
