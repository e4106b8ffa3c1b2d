"""A layer that no kind says, described by its algebra: loops, and how the axes of its tensors follow them.

    kind = "operator"
    dimensions = [{name = "n", size = "batch", role = "sample"}, {name = "c", size = 64, role = "parameter"}]
    inputs = [["n", 64]]
    weights = [["c", 64]]
    outputs = [["n", "c"]]
    flops = [{each = 128, over = ["n", "c"]}]

See `topoplan.model.graph` for what each of them means, and the README for every key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from topoplan import Operator, TopoplanError, option
from topoplan.errors import nearest, shown
from topoplan.model.graph import Axis, Dimension, Role, Tensor, Term
from topoplan_frontend_layers.reading import BATCH, required, rows_of
from topoplan_operators import Handle

__all__ = ["operator_of"]

_KEYS = ("computes", "dimensions", "inputs", "weights", "outputs", "flops", "bytes", "linear-in")


@attrs.frozen(kw_only=True)
class _Dimension:
    name: str = option(attrs.NOTHING, help="which tensors refer to")
    size: str = option(attrs.NOTHING, help=f'iterations, or "{BATCH}"')
    role: Literal["sample", "attribute", "parameter", "reduction", "whole"] = option(
        "whole", help="what cutting it means; whole: it is never cut"
    )


@attrs.frozen(kw_only=True)
class _Axis:
    """An axis that follows a dimension in strides: iteration k touches elements k * scale + offset, ``extent`` many."""

    dim: str = option(attrs.NOTHING, help="name of a dimension")
    size: int = option(attrs.NOTHING, help="elements of the axis", minimum=1)
    scale: int = option(1, help="elements from one iteration to the next")
    offset: int = option(0, help="first element of iteration 0")
    extent: int = option(1, help="elements of one iteration", minimum=1)


@attrs.frozen(kw_only=True)
class _Tensor:
    name: str = option("", help="of the tensor")
    bytes: int = option(4, help="of an element", minimum=1, maximum=64)


@attrs.frozen(kw_only=True)
class _Term:
    each: float = option(attrs.NOTHING, help="for every iteration of the dimensions in over", minimum=0)


def operator_of(table: Mapping[str, Any], xs: Sequence[Handle], batch: int, name: str, where: str) -> Operator:
    """Return the operator that a table describes.

    Args:
        table: of the layer, without name, kind and from.
        xs: tensors that it reads.
        batch: samples, for sizes of "batch".
        name: of the operator, for messages.
        where: start of messages.

    Raises:
        TopoplanError: a key is missing or wrong, or the shapes of inputs are not those of ``xs``.
    """
    keys = {key.replace("_", "-"): value for key, value in table.items()}
    for key in keys:
        if key not in _KEYS:
            raise TopoplanError(f"{where}: no key {shown(key)}{nearest(key, _KEYS)}")
    loops = _Loops(rows_of(keys, "dimensions", where), batch, where)
    inputs = loops.tensors(_list(keys, "inputs", where), "input", where)
    if len(inputs) != len(xs):
        raise TopoplanError(f"{where}: inputs: {len(inputs)} tensors, but from names {len(xs)}")
    for k, (tensor, x) in enumerate(zip(inputs, xs, strict=True)):
        if tensor.shape != x.shape:
            raise TopoplanError(f"{where}: input {k}: has shape {tensor.shape}, but what it reads has {x.shape}")
    weights = loops.tensors(_list(keys, "weights", where), "weight", where)
    outputs = loops.tensors(rows_of(keys, "outputs", where), "output", where)
    computes = keys.get("computes", "operator")
    if not isinstance(computes, str) or not computes.isprintable() or not 0 < len(computes) <= 60:
        raise TopoplanError(f"{where}: computes: expected one word, got {shown(computes)}")
    return Operator(
        name=name,
        kind=computes,
        dims=loops.dims,
        inputs=tuple(attrs.evolve(tensor, itemsize=x.itemsize) for tensor, x in zip(inputs, xs, strict=True)),
        weights=tuple(weights),
        outputs=tuple(outputs),
        work=loops.terms(keys, "flops", where),
        traffic=loops.terms(keys, "bytes", where),
        linear_in=_linear(keys, len(inputs) + len(weights), where),
    )


class _Loops:
    """The dimensions of an operator, and what refers to them by name."""

    def __init__(self, rows: Sequence[Any], batch: int, where: str) -> None:
        self.dims: tuple[Dimension, ...] = ()
        self._numbers: dict[str, int] = {}
        for k, row in enumerate(rows):
            dim = self._dimension(row, batch, f"{where}: dimension {k}")
            if dim.name in self._numbers:
                raise TopoplanError(f"{where}: dimension {k}: two are named {shown(dim.name)}")
            self._numbers[dim.name] = k
            self.dims += (dim,)
        if sum(dim.role is Role.SAMPLE for dim in self.dims) > 1:
            raise TopoplanError(f"{where}: dimensions: more than one has the role sample")

    @staticmethod
    def _dimension(row: Any, batch: int, where: str) -> Dimension:
        read = required(_Dimension, _table(row, where), where)
        digits = read.size.isascii() and read.size.isdigit() and len(read.size) < 20
        if not digits and read.size != BATCH:
            raise TopoplanError(f'{where}: size: {shown(read.size)} is no size (expected a whole number, or "{BATCH}")')
        size = int(read.size) if digits else batch
        try:
            return Dimension(read.name, size, None if read.role == "whole" else Role(read.role))
        except TopoplanError as error:
            raise TopoplanError(f"{where}: {error}") from None

    def number(self, name: Any, where: str) -> int:
        """Return the index of a dimension."""
        if not isinstance(name, str) or name not in self._numbers:
            raise TopoplanError(f"{where}: no dimension {shown(name)}{nearest(str(name)[:60], self._numbers)}")
        return self._numbers[name]

    def tensors(self, rows: Sequence[Any], word: str, where: str) -> list[Tensor]:
        """Read tensors; one without a name gets a letter and its number."""
        letter = {"input": "x", "weight": "w", "output": "y"}[word]
        return [self._tensor(row, f"{letter}{k}", f"{where}: {word} {k}") for k, row in enumerate(rows)]

    def _tensor(self, row: Any, name: str, where: str) -> Tensor:
        """Read a tensor: a list of axes, or a table with ``axes``, ``name`` and ``bytes``."""
        table = row if isinstance(row, dict) else {"axes": row}
        options = {key: value for key, value in table.items() if key != "axes"}
        read = required(_Tensor, options, where)
        axes = table.get("axes")
        if not isinstance(axes, list) or len(axes) > 64:
            raise TopoplanError(f'{where}: axes: expected a list such as ["n", 64], got {shown(axes)}')
        axes_read = tuple(self._axis(axis, f"{where}: axis {k}") for k, axis in enumerate(axes))
        try:
            return Tensor(read.name or name, axes_read, read.bytes)
        except TopoplanError as error:
            raise TopoplanError(f"{where}: {error}") from None

    def _axis(self, axis: Any, where: str) -> Axis:
        """Read an axis: the name of a dimension, a size that every part reads whole, or a table."""
        if isinstance(axis, int) and not isinstance(axis, bool):
            if not 1 <= axis <= 10**15:
                raise TopoplanError(f"{where}: {shown(axis)} is no size (expected a whole number from 1 on)")
            return Axis(axis)
        if isinstance(axis, str):
            number = self.number(axis, where)
            return Axis(self.dims[number].size, number)
        read = required(_Axis, _table(axis, where), where)
        number = self.number(read.dim, where)
        return Axis(read.size, number, scale=read.scale, offset=read.offset, extent=read.extent)

    def terms(self, table: Mapping[str, Any], key: str, where: str) -> tuple[Term, ...]:
        """Read the terms of a polynomial in the sizes of dimensions."""
        polynomial = []
        for k, row in enumerate(_list(table, key, where)):
            place = f"{where}: {key} {k}"
            terms = dict(_table(row, place))
            over = terms.pop("over", None)
            read = required(_Term, terms, place)
            if not isinstance(over, list):
                raise TopoplanError(f"{place}: over: expected a list of dimensions, got {shown(over)}")
            numbers = tuple(self.number(name, f"{place}: over") for name in over)
            if len(set(numbers)) != len(numbers):
                raise TopoplanError(f"{place}: over: names a dimension twice")
            polynomial.append(Term(read.each, numbers))
        return tuple(polynomial)


def _linear(table: Mapping[str, Any], arguments: int, where: str) -> tuple[tuple[int, ...], ...]:
    """Read the sets of arguments in which the operator is linear together."""
    sets = []
    for k, row in enumerate(_list(table, "linear-in", where)):
        row = row if isinstance(row, list) else [row]
        for number in row:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < arguments:
                raise TopoplanError(
                    f"{where}: linear-in {k}: {shown(number)} is no argument "
                    f"(0 to {arguments - 1}: inputs, then weights)"
                )
        sets.append(tuple(row))
    return tuple(sets)


def _list(table: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    rows = table.get(key, [])
    if not isinstance(rows, list):
        raise TopoplanError(f"{where}: {key}: expected a list, got {shown(rows)}")
    return rows


def _table(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise TopoplanError(f"{where}: expected a table, got {shown(row)}")
    return row
