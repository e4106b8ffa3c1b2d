"""Placements <-> the words of FlexFlow's strategy files (strategy.cc, of FlexFlow and of its TopoOpt fork).

A file counts parts along the axes of the operator's first output, innermost first, and lists devices with
the innermost axis fastest; that is C order over the axes outermost first.  A placement counts along the
operator's dimensions, in C order of these.  Dimensions that the output lacks (reductions) have no place in
the file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator

import numpy as np

from topoplan import Operator, OperatorGraph, PlacedStrategy, Placement, Strategy, TopoplanError
from topoplan.errors import TopoplanWarning, nearest, shown
from topoplan.model.graph import Slices
from topoplan_engine.incomplete import IncompleteStrategyError, names_of
from topoplan_exporter_strategy.names import Meaning, Names, spell
from topoplan_exporter_strategy.tokens import Tokens

__all__ = ["Entry", "entries_of", "read", "unwritable_operator", "write"]

#: Name, parts along each axis of the output (innermost first), and device of each part.
Entry = tuple[str, list[int], list[int]]

#: FlexFlow keeps names in arrays of 64 characters, the end mark included.
_LONGEST_NAME = 63
#: Where a file leaves devices out, parts are counted, not listed: a bound on what that may announce.
_MOST_PARTS = 65_536


def entries_of(graph: OperatorGraph, strategy: Strategy) -> Iterator[Entry]:
    """Yield the entries of a file, by name.

    Raises:
        TopoplanError: an operator is cut along a dimension that its output lacks, or its name is too
            long for FlexFlow.
    """
    if why := unwritable_operator(graph, strategy):
        raise TopoplanError(f"strategy: {why}")
    for op, placement in sorted(zip(graph.operators, strategy.placements, strict=True), key=lambda pair: pair[0].name):
        name = spell(op.name)
        counts = [placement.degrees[dim] if dim >= 0 else 1 for dim in reversed(_output_dims(op))]
        devices = placement.devices.reshape(placement.degrees).transpose(_order(op)).ravel().tolist()
        yield name, counts, devices


def unwritable_operator(graph: OperatorGraph, strategy: Strategy) -> str:
    """Say which operator, the first by name, a file cannot say, and why; empty if it can say all."""
    for op, placement in sorted(zip(graph.operators, strategy.placements, strict=True), key=lambda pair: pair[0].name):
        if len(spell(op.name).encode()) > _LONGEST_NAME:
            return f"operator name {op.name!r} is too long (at most {_LONGEST_NAME} bytes)"
        for dim, degree in enumerate(placement.degrees):
            if isinstance(degree, Slices):
                return (
                    f"operator {op.name!r} is cut along {op.dims[dim].name!r} into slices of {degree}, but this format "
                    "has equal ones only (json can say it)"
                )
            if degree > 1 and dim not in _output_dims(op):
                return (
                    f"operator {op.name!r} is cut {degree} times along {op.dims[dim].name!r}, which its output lacks, "
                    "so this format cannot say it (json can)"
                )
    return ""


def write(entries: Iterable[Entry]) -> bytes:
    """Write entries as text."""
    lines = []
    for name, counts, devices in entries:
        lines += [name, "0", str(len(counts)), _row(counts), str(len(devices)), _row(devices)]
    return ("\n".join([str(len(lines) // 6), *lines]) + "\n").encode()


def read(tokens: Tokens, graph: OperatorGraph) -> Strategy:
    """Read a strategy for ``graph``; see `topoplan_exporter_strategy.StrategyFile.read_strategy`."""
    names = Names(graph)
    of_names: dict[int, Placement] = {}
    shared: dict[int, Placement] = {}
    on_cpus: list[str] = []
    for _ in range(tokens.integer("number of operators", 1, len(tokens.words))):
        where = tokens.where()
        name = tokens.take("operator name")
        meaning = names.meant_by(name)
        if meaning is None:
            raise TopoplanError(
                f"{where}: model {graph.name!r} has no operator {shown(name)}{nearest(name, names.positions)}"
            )
        if tokens.integer(f"device type of operator {name!r} (0 = GPU, 1 = CPU)", 0, 1):
            on_cpus.append(name)
        target = shared if meaning.shared else of_names
        if not target.keys().isdisjoint(meaning.operators):
            raise TopoplanError(f"{where}: operator {shown(name)} occurs twice")
        target.update(_placements(tokens, graph, meaning))
    if tokens.position < len(tokens.words):
        raise TopoplanError(
            f"{tokens.where()}: {tokens.words[tokens.position]!r:.40} after the last operator (expected the end)"
        )
    _tell(tokens.name, names, on_cpus)
    placements = shared | of_names
    if len(placements) < len(graph.operators):
        raise IncompleteStrategyError(tokens.name, graph, placements)
    return PlacedStrategy(tuple(placements[index] for index in range(len(graph.operators))))


def _tell(file: str, names: Names, on_cpus: list[str]) -> None:
    """Warn where an entry is not taken as it stands."""
    notes = [names.note()] if names.note() else []
    if on_cpus:
        entries = "1 entry has" if len(on_cpus) == 1 else f"{len(on_cpus)} entries have"
        notes.append(
            f"{entries} device type 1, CPU ({names_of(on_cpus)}); no CPUs are planned for, so these operators run on "
            "the GPUs of the same numbers, at a GPU's speed and in its memory"
        )
    for note in notes:
        warnings.warn(TopoplanWarning(f"{file}: {note}"), stacklevel=2)


def _placements(tokens: Tokens, graph: OperatorGraph, meaning: Meaning) -> dict[int, Placement]:
    """Read what follows the device type, for every operator that the entry is for."""
    start = tokens.position
    if not meaning.operators:
        for what in ("axes", "devices"):
            for _ in range(tokens.integer(f"number of {what} of a loss", 0, _MOST_PARTS)):
                tokens.integer(f"{what} of a loss", 0, 2**31 - 1)
    placements = {}
    for index in meaning.operators:
        tokens.position = start
        placements[index] = _placement(tokens, graph.operators[index])
    return placements


def _placement(tokens: Tokens, op: Operator) -> Placement:
    """Read what follows the device type of ``op``."""
    owner = f"of operator {op.name!r}"
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


def _row(values: list[int]) -> str:
    return "".join(f"{value}\t" for value in values)
