"""Reads the JSON document that the exporter writes, for programs that apply it to a module.

A `Document` has meshes of devices, and for every operator the placements of its tensors.  Nothing here needs torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan_exporter_dtensor.document import FORMAT, VERSION

__all__ = ["Document", "MeshLayout", "OperatorLayout", "Stages", "TensorLayout", "parse", "read"]

_PLACEMENT = re.compile(r"Shard\((0|[1-9][0-9]{0,2})\)|Replicate\(\)|Partial\(\)")
_LARGEST = 2**53


@attrs.frozen
class MeshLayout:
    """A mesh: its shape, and its devices with the last axis fastest."""

    name: str
    dim_names: tuple[str, ...]
    shape: tuple[int, ...]
    devices: tuple[int, ...]


@attrs.frozen
class TensorLayout:
    """A tensor of an operator.

    Attributes:
        name: such as ``kernel``.
        shape: of the whole tensor.
        placements: one text for each axis of the mesh, as the operator uses or makes it.
        stored: the same as it is stored between iterations; equal to ``placements`` unless the plan differs.
    """

    name: str
    shape: tuple[int, ...]
    placements: tuple[str, ...]
    stored: tuple[str, ...]


@attrs.frozen
class OperatorLayout:
    """An operator: its mesh, and its tensors."""

    name: str
    kind: str
    mesh: MeshLayout
    inputs: tuple[TensorLayout, ...]
    weights: tuple[TensorLayout, ...]
    outputs: tuple[TensorLayout, ...]


@attrs.frozen
class Stages:
    """The stage of each operator, the kind of the schedule, and the number of micro-batches."""

    kind: str
    micro_batches: int
    stage: tuple[int, ...]


@attrs.frozen
class Document:
    """All placements of a plan.

    Attributes:
        model, batch_size: of the operator graph.
        world_size: devices of the cluster.
        operators: in the graph's order.
        edges: (producer, output, consumer, input), by numbers of operators.
        stages: of a pipeline; None if the plan has none.
    """

    model: str
    batch_size: int
    world_size: int
    operators: tuple[OperatorLayout, ...]
    edges: tuple[tuple[int, int, int, int], ...]
    stages: Stages | None


def read(path: str | Path) -> Document:
    """Read a file.

    Raises:
        TopoplanError: it cannot be read, or is no such document.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TopoplanError(f"{path}: cannot be read ({error.strerror or error})") from None
    return parse(data, str(path))


def parse(data: bytes, name: str) -> Document:
    """Read the bytes of a file; ``name`` is for messages.

    Raises:
        TopoplanError: they are no such document; the message names the key.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise TopoplanError(f"{name}: is no JSON document of exporter dtensor") from None
    return _Reader(name).document(value)


@attrs.frozen
class _Reader:
    """Reads values of a document, and names file and key if one is wrong."""

    file: str

    def fail(self, where: str, value: object, right: str) -> NoReturn:
        raise TopoplanError(f"{self.file}: {where} is {shown(value)} (must be {right})")

    def field(self, value: Mapping[str, Any], key: str, where: str) -> Any:
        if key not in value:
            raise TopoplanError(f"{self.file}: {where} has no {key!r}")
        return value[key]

    def mapping(self, value: object, where: str) -> Mapping[str, Any]:
        return value if isinstance(value, dict) else self.fail(where, value, "an object")

    def rows(self, value: object, where: str) -> list[Any]:
        return value if isinstance(value, list) else self.fail(where, value, "a list")

    def text(self, value: object, where: str) -> str:
        return value if isinstance(value, str) else self.fail(where, value, "a text")

    def number(self, value: object, where: str, low: int, high: int = _LARGEST) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(where, value, f"a whole number from {low} to {high}")
        return value

    def document(self, value: object) -> Document:
        top = self.mapping(value, "the document")
        if (value := top.get("format")) != FORMAT:
            self.fail("format", value, repr(FORMAT))
        if (value := top.get("version")) != VERSION:
            self.fail("version", value, str(VERSION))
        world = self.number(self.field(top, "world_size", "the document"), "world_size", 1)
        tables = self.mapping(self.field(top, "meshes", "the document"), "meshes")
        meshes = {name: self.mesh(name, table, world) for name, table in tables.items()}
        rows = self.rows(self.field(top, "operators", "the document"), "operators")
        operators = tuple(self.operator(row, f"operators[{k}]", meshes) for k, row in enumerate(rows))
        if not operators:
            self.fail("operators", [], "a list of at least one operator")
        edges = self.rows(self.field(top, "edges", "the document"), "edges")
        return Document(
            model=self.text(self.field(top, "model", "the document"), "model"),
            batch_size=self.number(self.field(top, "batch_size", "the document"), "batch_size", 1),
            world_size=world,
            operators=operators,
            edges=tuple(self.edge(edge, f"edges[{k}]", operators) for k, edge in enumerate(edges)),
            stages=self.stages(top["schedule"], len(operators)) if "schedule" in top else None,
        )

    def mesh(self, name: str, value: object, world: int) -> MeshLayout:
        where = f"meshes.{name}"
        table = self.mapping(value, where)
        names = tuple(
            self.text(x, f"{where}.dim_names") for x in self.rows(table.get("dim_names"), f"{where}.dim_names")
        )
        shape: list[int] = []
        level = [self.field(table, "devices", where)]
        for axis in range(len(names)):
            lengths = {len(self.rows(row, f"{where}.devices")) for row in level}
            if len(lengths) != 1 or 0 in lengths:
                self.fail(f"{where}.devices", sorted(lengths), f"rows of one length along axis {axis}")
            shape.append(lengths.pop())
            level = [cell for row in level for cell in row]
        devices = tuple(self.number(cell, f"{where}.devices", 0, world - 1) for cell in level)
        if not names or len(set(devices)) < len(devices):
            self.fail(f"{where}.devices", list(devices[:8]), "devices that differ, along at least one axis")
        return MeshLayout(name, names, tuple(shape), devices)

    def operator(self, value: object, where: str, meshes: Mapping[str, MeshLayout]) -> OperatorLayout:
        row = self.mapping(value, where)
        name = self.text(self.field(row, "name", where), f"{where}.name")
        mesh = meshes.get(self.text(self.field(row, "mesh", where), f"{where}.mesh"))
        if mesh is None:
            self.fail(f"{where}.mesh", row["mesh"], f"one of {', '.join(meshes) or 'none'}")
        tensors = [
            tuple(
                self.tensor(tensor, f"{where}.{key}[{k}]", len(mesh.shape))
                for k, tensor in enumerate(self.rows(self.field(row, key, where), f"{where}.{key}"))
            )
            for key in ("inputs", "weights", "outputs")
        ]
        return OperatorLayout(name, self.text(self.field(row, "kind", where), f"{where}.kind"), mesh, *tensors)

    def tensor(self, value: object, where: str, axes: int) -> TensorLayout:
        row = self.mapping(value, where)
        sizes = self.rows(self.field(row, "shape", where), f"{where}.shape")
        shape = tuple(self.number(size, f"{where}.shape", 0) for size in sizes)
        used = self.placements(self.field(row, "placements", where), f"{where}.placements", axes, len(shape))
        stored = self.placements(row["stored"], f"{where}.stored", axes, len(shape)) if "stored" in row else used
        return TensorLayout(self.text(self.field(row, "name", where), f"{where}.name"), shape, used, stored)

    def placements(self, value: object, where: str, axes: int, rank: int) -> tuple[str, ...]:
        words = self.rows(value, where)
        if len(words) != axes:
            self.fail(where, words, f"{axes} placements, one for each axis of the mesh")
        for word in words:
            match = _PLACEMENT.fullmatch(word) if isinstance(word, str) else None
            if match is None or (match[1] is not None and int(match[1]) >= rank):
                self.fail(where, word, f"Shard(0) to Shard({rank - 1}), Replicate() or Partial()")
        return tuple(words)

    def edge(self, value: object, where: str, operators: tuple[OperatorLayout, ...]) -> tuple[int, int, int, int]:
        row = self.rows(value, where)
        if len(row) != 4:
            self.fail(where, row, "producer, output, consumer, input")
        u, v = (self.number(row[k], where, 0, len(operators) - 1) for k in (0, 2))
        return (
            u,
            self.number(row[1], where, 0, len(operators[u].outputs) - 1),
            v,
            self.number(row[3], where, 0, len(operators[v].inputs) - 1),
        )

    def stages(self, value: object, count: int) -> Stages:
        row = self.mapping(value, "schedule")
        numbers = self.rows(self.field(row, "stages", "schedule"), "schedule.stages")
        if len(numbers) != count:
            self.fail("schedule.stages", len(numbers), f"a list of {count}, one for each operator")
        return Stages(
            kind=self.text(self.field(row, "kind", "schedule"), "schedule.kind"),
            micro_batches=self.number(self.field(row, "micro_batches", "schedule"), "schedule.micro_batches", 1),
            stage=tuple(self.number(number, "schedule.stages", 0, count - 1) for number in numbers),
        )
