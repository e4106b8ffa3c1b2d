"""Our own file of times: one row for each part shape, whatever model it was timed for.

    {"format": "topoplan-operator-times", "version": 1,
     "device": "…", "torch": "2.15.0", "threads": 2, "precision": "fp32", "parts": [
    {"operator": "alexnet/linear1", "kind": "linear", …, "forward_s": [q1, median, q3], "backward_s": […]},
    …]}

A table is of one device in one precision.  Several models can share it, and a run that was interrupted continues with
what it holds.  Rows also have the work of a part (FLOPs and bytes), so that a roofline can be fitted to it alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import attrs

from topoplan.errors import TopoplanError, shown
from topoplan_engine.files import read_file, write_file
from topoplan_operator_times.parts import PartShape, Slice

__all__ = ["FORMAT", "Bench", "PartTimes", "Table", "Times", "Work", "is_table", "parse", "read", "write"]

FORMAT, VERSION = "topoplan-operator-times", 1


@attrs.frozen
class Bench:
    """What parts were timed on: name of the device, version of torch, threads (0 on a GPU), precision."""

    device: str
    torch: str
    threads: int
    precision: str

    def __str__(self) -> str:
        count = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        threads = f", {count}" if self.threads else ""
        return f"{self.device}{threads}, {self.precision}, torch {self.torch}"


@attrs.frozen
class Times:
    """First quartile, median and third quartile of what repeated runs took, in seconds."""

    low: float
    median: float
    high: float


@attrs.frozen(kw_only=True)
class Work:
    """Work of one pass forward, and how many times as much a pass backward does.

    Attributes:
        flops, traffic: FLOPs, and bytes that move through device memory.
        backward: FLOPs, bytes and kernels of the backward pass, in multiples of the forward pass.
    """

    flops: float
    traffic: float
    backward: tuple[float, int, int]


@attrs.frozen(kw_only=True)
class PartTimes:
    """A row: a part shape and its times.

    Attributes:
        operator: the first operator that has parts of this shape, as ``model/name``.
        shape, work: of the part.
        repeats: how often it was timed.
        forward, backward: None where the part did not fit into memory.
    """

    operator: str
    shape: PartShape
    work: Work
    repeats: int
    forward: Times | None
    backward: Times | None


@attrs.frozen
class Table:
    """A table: what its parts were timed on, and a row for each part shape."""

    bench: Bench
    rows: dict[PartShape, PartTimes]


def is_table(document: object) -> bool:
    """Say whether a JSON document says that it is such a table."""
    return isinstance(document, dict) and document.get("format") == FORMAT


def read(path: Path) -> Table:
    """Read a table.

    Raises:
        TopoplanError: it cannot be read, or is no table; the message names the file, the field and what is expected.
    """
    try:
        document = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise TopoplanError(f"{path}: is not JSON ({error}); topoplan profile operators writes such a file") from None
    return parse(document, str(path))


def parse(document: Any, where: str) -> Table:
    """Check a document, which was read from ``where``.

    Raises:
        TopoplanError: it is no table; the message names the field and what is expected.
    """
    if not is_table(document):
        raise TopoplanError(f'{where}: format: is no table of operator times (expected "{FORMAT}")')
    if document.get("version") != VERSION:
        raise TopoplanError(f"{where}: version: {shown(document.get('version'))} cannot be read (expected {VERSION})")
    bench = Bench(
        _text(document, "device", where),
        _text(document, "torch", where),
        _whole(document, "threads", where),
        _text(document, "precision", where),
    )
    parts = document.get("parts")
    if not isinstance(parts, list):
        raise TopoplanError(f"{where}: parts: expected a list of rows, got {shown(parts)}")
    rows = [_row(row, f"{where}: parts[{index}]") for index, row in enumerate(parts)]
    return Table(bench, {row.shape: row for row in rows})


def write(path: Path, table: Table) -> None:
    """Write a table, a line for each row.

    Raises:
        TopoplanError: the file cannot be written; what was there before is still there.
    """
    head = json.dumps({"format": FORMAT, "version": VERSION, **attrs.asdict(table.bench)})[:-1]
    lines = ",\n".join(json.dumps(_document(row), separators=(",", ":")) for row in table.rows.values())
    write_file(path, f'{head}, "parts": [\n{lines}\n]}}\n'.encode())


def _document(row: PartTimes) -> dict[str, Any]:
    shape = row.shape

    def slices(pieces: tuple[Slice, ...]) -> list[list[Any]]:
        return [[piece.shape, piece.dims, piece.itemsize] for piece in pieces]

    def seconds(times: Times | None) -> list[float] | None:
        return None if times is None else [float(f"{value:.6g}") for value in attrs.astuple(times)]

    return {
        "operator": row.operator,
        "kind": shape.kind,
        "sizes": shape.sizes,
        "inputs": slices(shape.inputs),
        "weights": slices(shape.weights),
        "outputs": slices(shape.outputs),
        "gradients": shape.gradients,
        "constants": dict(shape.constants),
        "flops": row.work.flops,
        "bytes": row.work.traffic,
        "backward_work": row.work.backward,
        "repeats": row.repeats,
        "forward_s": seconds(row.forward),
        "backward_s": seconds(row.backward),
    }


def _row(row: Any, where: str) -> PartTimes:
    """Check one row."""
    if not isinstance(row, dict):
        raise TopoplanError(f"{where}: expected an object, got {shown(row)}")
    constants, gradients = row.get("constants"), row.get("gradients")
    if not isinstance(constants, dict) or not all(type(value) is int for value in constants.values()):
        raise TopoplanError(f"{where}: constants: expected whole numbers by name, got {shown(constants)}")
    if not isinstance(gradients, list) or not all(isinstance(value, bool) for value in gradients):
        raise TopoplanError(f"{where}: gradients: expected true or false for each input, got {shown(gradients)}")
    backward, place = row.get("backward_work"), f"{where}: backward_work"
    if not isinstance(backward, list) or len(backward) != 3:
        raise TopoplanError(f"{place}: expected FLOPs, bytes and kernels, got {shown(backward)}")
    return PartTimes(
        operator=_text(row, "operator", where),
        shape=PartShape(
            kind=_text(row, "kind", where),
            sizes=_counts(row.get("sizes"), f"{where}: sizes"),
            inputs=_slices(row, "inputs", where),
            weights=_slices(row, "weights", where),
            outputs=_slices(row, "outputs", where),
            gradients=tuple(gradients),
            constants=tuple(sorted(constants.items())),
        ),
        work=Work(
            flops=_number(row.get("flops"), f"{where}: flops"),
            traffic=_number(row.get("bytes"), f"{where}: bytes"),
            backward=(_number(backward[0], place), _counts(backward[1:2], place)[0], _counts(backward[2:], place)[0]),
        ),
        repeats=_whole(row, "repeats", where),
        forward=_times(row.get("forward_s"), f"{where}: forward_s"),
        backward=_times(row.get("backward_s"), f"{where}: backward_s"),
    )


def _times(value: Any, where: str) -> Times | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3:
        raise TopoplanError(f"{where}: expected three quartiles in seconds, or null, got {shown(value)}")
    return Times(*(_number(item, where) for item in value))


def _slices(row: dict[str, Any], key: str, where: str) -> tuple[Slice, ...]:
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(piece, list) and len(piece) == 3 for piece in value):
        raise TopoplanError(f"{where}: {key}: expected [shape, dimensions, bytes of an element]s, got {shown(value)}")
    place = f"{where}: {key}"
    return tuple(
        Slice(_counts(shape, place), _counts(dims, place, minimum=-1), _counts([size], place)[0])
        for shape, dims, size in value
    )


def _counts(value: Any, where: str, minimum: int = 0) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and item >= minimum for item in value):
        raise TopoplanError(f"{where}: expected whole numbers, {minimum} or more, got {shown(value)}")
    return tuple(value)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise TopoplanError(f"{where}: expected a number, 0 or more, got {shown(value)}")
    return float(value)


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise TopoplanError(f"{where}: {key}: expected text, got {shown(value)}")
    return value


def _whole(row: dict[str, Any], key: str, where: str) -> int:
    value = row.get(key)
    if type(value) is not int or value < 0:
        raise TopoplanError(f"{where}: {key}: expected a whole number, 0 or more, got {shown(value)}")
    return value
