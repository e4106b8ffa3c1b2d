"""Strategy files: placements <-> the tokens of FlexFlow (TopoOpt fork, strategy.cc).

A file counts parts along the axes of the operator's first output, innermost first, and lists devices with
the innermost axis fastest; that is C order over the axes outermost first.  A placement counts along the
operator's dimensions, in C order of these.  Dimensions that the output lacks (reductions) have no place in
the file.
"""

from __future__ import annotations

import math
import re
from urllib.parse import quote

import attrs
import numpy as np

from topoplan import Operator, OperatorGraph, PlacedStrategy, Placement, Strategy, TopoplanError
from topoplan.errors import nearest, shown

__all__ = ["read", "write"]

#: FlexFlow keeps names in arrays of 64 characters, the end mark included.
_LONGEST_NAME = 63
#: Where a file leaves devices out, parts are counted, not listed: a bound on what that may announce.
_MOST_PARTS = 65_536
_INTEGER = re.compile(r"-?[0-9]{1,9}")


def write(graph: OperatorGraph, strategy: Strategy) -> bytes:
    """Write a strategy.

    Raises:
        TopoplanError: an operator is cut along a dimension that its output lacks, or its name is too
            long for FlexFlow.
    """
    lines = [str(len(graph.operators))]
    for op, placement in sorted(zip(graph.operators, strategy.placements, strict=True), key=lambda pair: pair[0].name):
        name = _spell(op.name)
        if len(name.encode()) > _LONGEST_NAME:
            raise TopoplanError(f"strategy: operator name {op.name!r} is too long (at most {_LONGEST_NAME} bytes)")
        order = _order(op)
        for dim in range(len(op.dims)):
            if dim not in _output_dims(op) and placement.degrees[dim] > 1:
                raise TopoplanError(
                    f"strategy: operator {op.name!r} is cut {placement.degrees[dim]} times along "
                    f"{op.dims[dim].name!r}, which its output lacks, so this format cannot say it (json can)"
                )
        counts = [placement.degrees[dim] if dim >= 0 else 1 for dim in reversed(_output_dims(op))]
        devices = placement.devices.reshape(placement.degrees).transpose(order).ravel().tolist()
        lines += [name, "0", str(len(counts)), _row(counts), str(len(devices)), _row(devices)]
    return ("\n".join(lines) + "\n").encode()


def read(data: bytes, name: str, graph: OperatorGraph) -> Strategy:
    """Read a strategy for ``graph``; see `topoplan_exporter_strategy.read_strategy`."""
    tokens = _Tokens.of(data, name)
    positions = {_spell(op.name): index for index, op in enumerate(graph.operators)}
    placements: dict[int, Placement] = {}
    for _ in range(tokens.integer("number of operators", 1, len(tokens.words))):
        position = tokens.where()
        op_name = tokens.take("operator name")
        if op_name not in positions:
            raise TopoplanError(
                f"{position}: model {graph.name!r} has no operator {shown(op_name)}{nearest(op_name, positions)}"
            )
        if positions[op_name] in placements:
            raise TopoplanError(f"{position}: operator {shown(op_name)} occurs twice")
        placements[positions[op_name]] = _placement(tokens, graph.operators[positions[op_name]])
    if tokens.position < len(tokens.words):
        raise TopoplanError(
            f"{tokens.where()}: {tokens.words[tokens.position]!r:.40} after the last operator (expected the end)"
        )
    missing = [op.name for index, op in enumerate(graph.operators) if index not in placements]
    if missing:
        raise TopoplanError(
            f"{name}: says nothing about {', '.join(missing)} (every operator of {graph.name!r} needs an entry)"
        )
    return PlacedStrategy(tuple(placements[index] for index in range(len(graph.operators))))


def _placement(tokens: _Tokens, op: Operator) -> Placement:
    """Read what follows the name of ``op``."""
    owner = f"of operator {op.name!r}"
    tokens.integer(f"device type {owner} (0 = GPU; nothing else is planned for)", 0, 0)
    axes = len(_output_dims(op))
    tokens.integer(f"number of axes {owner}", axes, axes)
    degrees = [1] * len(op.dims)
    for axis, dim in reversed(list(enumerate(_output_dims(op)))):
        size = op.dims[dim].size if dim >= 0 and op.dims[dim].role is not None else 1
        label = f"{op.dims[dim].name!r}" if dim >= 0 else f"axis {axis} (which cannot be cut)"
        degree = tokens.integer(f"parts {owner} along {label}", 1, size)
        if dim >= 0:
            degrees[dim] = degree
    parts = math.prod(degrees)
    if parts > _MOST_PARTS:
        raise TopoplanError(f"{tokens.where(-1)}: {parts} parts {owner} (at most {_MOST_PARTS})")
    count = tokens.integer(f"number of devices {owner} ({parts} parts, or 0 for devices 0 to {parts - 1})", 0, parts)
    if count not in (0, parts):
        raise TopoplanError(f"{tokens.where(-1)}: {count} devices {owner} for {parts} parts (expected {parts}, or 0)")
    device_list = [tokens.integer(f"device {owner}", 0, 2**31 - 1) for _ in range(count)] or list(range(parts))
    order = _order(op)
    devices = np.array(device_list).reshape([degrees[dim] for dim in order]).transpose(np.argsort(order)).ravel()
    return Placement(degrees, devices)


def _output_dims(op: Operator) -> tuple[int, ...]:
    """Dimension (or -1) of each axis of the first output, outermost first; files write these axes innermost first."""
    return tuple(axis.dim for axis in op.outputs[0].axes)


def _order(op: Operator) -> list[int]:
    """Dimensions in the order in which a file counts parts, outermost first; those without a place last."""
    output_dims = [dim for dim in _output_dims(op) if dim >= 0]
    return output_dims + [dim for dim in range(len(op.dims)) if dim not in output_dims]


def _spell(name: str) -> str:
    """Write a name as one word: blanks (and the sign itself) as ``%`` and two hexadecimal digits per byte."""
    return "".join(quote(c, safe="") if c.isspace() or c == "%" else c for c in name)


def _row(values: list[int]) -> str:
    return "".join(f"{value}\t" for value in values)


@attrs.define
class _Tokens:
    """The words of a file and how far it is read; every word knows its line."""

    name: str
    words: list[str]
    lines: list[int]
    position: int = 0

    @classmethod
    def of(cls, data: bytes, name: str) -> _Tokens:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise TopoplanError(f"{name}: is not text (expected a FlexFlow strategy file)") from None
        rows = [(word, line) for line, row in enumerate(text.split("\n"), 1) for word in row.split()]
        return cls(name, [word for word, _ in rows], [line for _, line in rows])

    def where(self, step: int = 0) -> str:
        """File and line of the next word, or of the last one."""
        index = min(self.position + step, len(self.words) - 1)
        return f"{self.name}: line {self.lines[index]}" if self.words else self.name

    def take(self, description: str) -> str:
        """Read a word."""
        if self.position >= len(self.words):
            raise TopoplanError(f"{self.where()}: the file ends before the {description}")
        self.position += 1
        return self.words[self.position - 1]

    def integer(self, description: str, low: int, high: int) -> int:
        """Read an integer from ``low`` to ``high``."""
        word = self.take(description)
        if not _INTEGER.fullmatch(word) or not low <= int(word) <= high:
            expected = str(low) if low == high else f"{low} to {high}"
            raise TopoplanError(f"{self.where(-1)}: {word!r:.40} as {description} (expected {expected})")
        return int(word)
