"""What a mask of attention hides, where the program makes it of positions: causal attention, and windows.

A mask is computed element by element, backwards from the call that reads it, and for a few queries alone: nothing of
positions by positions is ever made.  Padding that the caller gives hides nothing here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from topoplan_frontend_torch.program import Argument, Node, Program, Ref

__all__ = ["attended"]

Array = np.ndarray[Any, Any]
#: Elements along each axis, as arrays that broadcast.
Index = tuple[Array, ...]
#: Scores that are no more than this are hidden.
_HIDDEN = -1e4
#: Queries that are looked at, evenly over all.
_QUERIES = 16
#: Calls between a mask and the positions that it is made of, at most.
_DEEPEST = 200

_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "le": operator.le,
        "lt": operator.lt,
        "ge": operator.ge,
        "gt": operator.gt,
        "eq": operator.eq,
        "ne": operator.ne,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "floor_divide": operator.floordiv,
        "rsub": lambda x, y: y - x,
        **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), np.logical_and),
        **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), np.logical_or),
    }
)
#: Of these, those that what is not known leaves as it is: padding hides more, and a bias of scores nothing.
_NEUTRAL = ("add", "__and__", "bitwise_and", "logical_and")
_SAME = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "to", "type_as", "_to_copy")
_RESHAPED = ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten")
_FILLED: Mapping[str, int] = MappingProxyType(
    {
        f"{prefix}{word}{suffix}": number
        for word, number in (("ones", 1), ("zeros", 0))
        for prefix, suffix in (("", ""), ("new_", ""), ("", "_like"))
    }
)


class _UnknownError(Exception):
    """An element depends on what the program does not say."""


def attended(program: Program, makers: Mapping[str, Node], mask: Argument) -> tuple[bool, int | None]:
    """Return whether a mask hides all later positions and, if it also hides earlier ones, how many it leaves.

    Args:
        program: has the shapes.
        makers: value -> the call that makes it.
        mask: (..., queries, keys), booleans that say what is seen, or numbers that are added to scores.
    """
    if not isinstance(mask, Ref):
        return False, None
    value = program.values[mask.name]
    *outer, queries, keys = value.shape if len(value.shape) > 1 else (0, 1)
    if queries != keys or keys < 2:
        return False, None
    rows = np.unique(np.linspace(0, keys - 1, _QUERIES).astype(np.int64))
    columns = np.arange(keys)
    index = (*(np.zeros((1, 1), np.int64) for _ in outer), rows[:, None], columns[None, :])
    try:
        elements = np.broadcast_to(_Elements(program, makers).at(mask.name, index), (len(rows), keys))
    except (_UnknownError, IndexError, ValueError, TypeError, KeyError):
        return False, None
    visible = elements.astype(bool) if value.dtype == "bool" else elements > _HIDDEN
    window = int(visible[-1].sum())
    expected = (columns[None, :] <= rows[:, None]) & (columns[None, :] > rows[:, None] - window)
    if not window or not (visible == expected).all():
        return False, None
    return True, window if window < keys else None


class _Elements:
    """Computes single elements of values."""

    def __init__(self, program: Program, makers: Mapping[str, Node]) -> None:
        self._program, self._makers, self._depth = program, makers, 0

    def at(self, name: str, index: Index) -> Array:
        """Return the elements of a value at an index.

        Raises:
            _UnknownError: they depend on inputs or parameters, or on an operator that is not known here.
        """
        node = self._makers.get(name)
        self._depth += 1
        if node is None or self._depth > _DEEPEST:
            raise _UnknownError(name)
        try:
            return np.asarray(self._of(node, _kind(node), index))
        finally:
            self._depth -= 1

    def _of(self, node: Node, kind: str, index: Index) -> Any:
        arguments = node.arguments
        if kind in _ARITHMETIC:
            return self._arithmetic(node, kind, index)
        if kind in _SAME:
            return self._operand(arguments["self"], index)
        if kind in _FILLED:
            return _FILLED[kind]
        if kind in ("full", "full_like", "new_full"):
            return arguments["fill_value"]
        if kind == "scalar_tensor":
            return arguments["s"]
        if kind == "arange":
            return _number(arguments.get("start", 0)) + index[0] * _number(arguments.get("step", 1))
        if kind in ("where", "masked_fill"):
            return self._chosen(arguments, kind, index)
        if kind in ("logical_not", "bitwise_not"):
            return ~self._operand(arguments["self"], index).astype(bool)
        if kind in ("tril", "triu"):
            return self._triangle(arguments, kind, index)
        if kind in ("cumsum", "diff"):
            return self._along(arguments, kind, index)
        return self._operand(arguments["self"], self._looked_at(node, kind, index))

    def _operand(self, argument: Argument, index: Index) -> Array:
        """Return the elements of an argument, whose axes of one element meet all of the others'."""
        if not isinstance(argument, Ref):
            return np.asarray(_number(argument))
        shape = self._program.values[argument.name].shape
        last = index[len(index) - len(shape) :] if shape else ()
        return self.at(argument.name, tuple(i * 0 if n == 1 else i for i, n in zip(last, shape, strict=True)))

    def _arithmetic(self, node: Node, kind: str, index: Index) -> Any:
        values: list[Array | None] = []
        for name in ("self", "other"):
            try:
                values.append(self._operand(node.arguments[name], index))
            except _UnknownError:
                values.append(None)
        first, second = values
        if first is None or second is None:
            operand = first if second is None else second
            if operand is None or kind not in _NEUTRAL:
                raise _UnknownError(node.name)
            return operand
        return _ARITHMETIC[kind](first, second * _number(node.arguments.get("alpha", 1)) if kind == "sub" else second)

    def _chosen(self, arguments: Mapping[str, Argument], kind: str, index: Index) -> Any:
        words = ("condition", "self", "other") if kind == "where" else ("mask", "value", "self")
        condition, yes, no = (self._operand(arguments[word], index) for word in words)
        return np.where(condition.astype(bool), yes, no)

    def _triangle(self, arguments: Mapping[str, Argument], kind: str, index: Index) -> Any:
        below = index[-1] - index[-2] <= _number(arguments.get("diagonal", 0))
        above = index[-1] - index[-2] >= _number(arguments.get("diagonal", 0))
        return np.where(below if kind == "tril" else above, self._operand(arguments["self"], index), 0)

    def _along(self, arguments: Mapping[str, Argument], kind: str, index: Index) -> Any:
        """Sums up to an element along an axis, or what it differs by from the one before."""
        source = arguments["self"]
        if not isinstance(source, Ref):
            raise _UnknownError(kind)
        shape = self._program.values[source.name].shape
        axis = int(_number(arguments.get("dim", -1))) % len(shape)
        if kind == "diff":
            if arguments.get("n", 1) != 1 or arguments.get("prepend") is None:
                raise _UnknownError(kind)
            before = (*index[:axis], np.maximum(index[axis] - 1, 0), *index[axis + 1 :])
            first = self._operand(arguments["prepend"], index)
            return self._operand(source, index) - np.where(index[axis] == 0, first, self._operand(source, before))
        coordinates = [each[..., None] for each in index]
        coordinates[axis] = np.arange(shape[axis])
        sums = np.cumsum(np.broadcast_arrays(self._operand(source, tuple(coordinates)), coordinates[axis])[0], axis=-1)
        places = np.broadcast_to(index[axis], np.broadcast_shapes(index[axis].shape, sums.shape[:-1]))
        return np.take_along_axis(np.broadcast_to(sums, (*places.shape, sums.shape[-1])), places[..., None], -1)[..., 0]

    def _looked_at(self, node: Node, kind: str, index: Index) -> Index:
        """Return where the elements of a view lie in the value that it is a view of."""
        source = node.arguments["self"]
        if not isinstance(source, Ref):
            raise _UnknownError(kind)
        arguments, shape = node.arguments, self._program.values[source.name].shape
        after = self._program.values[node.outputs[0]].shape
        if kind in _RESHAPED:
            flat = np.ravel_multi_index(np.broadcast_arrays(*index), after) if after else np.zeros((), np.int64)
            return tuple(np.unravel_index(flat, shape)) if shape else ()
        if kind in ("expand", "broadcast_to"):
            return index
        if kind in ("transpose", "permute"):
            if kind == "transpose":
                order = list(range(len(shape)))
                first, second = (int(_number(arguments[name])) for name in ("dim0", "dim1"))
                order[first], order[second] = order[second], order[first]
            else:
                dims = arguments["dims"]
                order = [int(_number(dim)) % len(shape) for dim in dims] if isinstance(dims, tuple) else []
            return tuple(index[order.index(axis)] for axis in range(len(shape)))
        if kind in ("slice", "select"):
            axis = int(_number(arguments.get("dim", 0))) % len(shape)
            start = arguments.get("start" if kind == "slice" else "index") or 0
            first = int(_number(start))
            first = max(0, first + shape[axis]) if first < 0 else first
            if kind == "select":
                return (*index[:axis], np.asarray(first), *index[axis:])
            return (*index[:axis], first + index[axis] * _number(arguments.get("step", 1)), *index[axis + 1 :])
        if kind == "index":
            return self._gathered(arguments["indices"], len(shape), len(after), index)
        raise _UnknownError(kind)

    def _gathered(self, indices: Argument, rank: int, rank_after: int, index: Index) -> Index:
        """Return the places that tensors of indices name, one for each of the first axes."""
        if not isinstance(indices, tuple) or not all(isinstance(each, Ref) for each in indices):
            raise _UnknownError("index")
        whole_axes = rank - len(indices)
        outer = index[: rank_after - whole_axes]
        return (*(self._operand(each, outer).astype(np.int64) for each in indices), *index[rank_after - whole_axes :])


def _kind(node: Node) -> str:
    words = node.target.split(".")
    return words[1] if words[0] == "aten" and len(words) > 1 else node.target


def _number(argument: Argument) -> Any:
    if isinstance(argument, bool | int | float):
        return argument
    raise _UnknownError(str(argument))
