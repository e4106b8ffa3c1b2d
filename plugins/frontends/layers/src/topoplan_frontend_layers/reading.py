"""The tables of a file: a document of inputs, layers, and blocks of layers that repeat.

    file ─► document (TOML, or JSON) ─► Model(inputs, layers); options of layers are read by `kinds` and `algebra`

Every message begins with the file and the table: ``model.toml: layer 3 'fc': …``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from topoplan import TopoplanError, option
from topoplan.errors import nearest, shown
from topoplan.options import structure
from topoplan_engine.files import read_text
from topoplan_engine.tomlfiles import read_toml

__all__ = ["BATCH", "IN", "Block", "Input", "Layer", "Model", "read", "required", "rows_of"]

T = TypeVar("T")

#: Bytes of the largest file.
_LARGEST = 4 << 20
#: Blocks that lie within each other.
_DEEPEST = 8
#: How a file calls the number of samples, where it stands among sizes.
BATCH = "batch"
#: How layers of a block call what the block reads.
IN = "in"


@attrs.frozen(kw_only=True)
class _Head:
    """What a file says of the whole model."""

    name: str = option("", help="of the model")
    batch_size: int = option(64, minimum=1, help="samples of a batch, unless --batch-size says")


@attrs.frozen(kw_only=True)
class Input:
    """Data of the training set: its name, its shape without samples, and the bytes of an element."""

    name: str
    shape: tuple[int, ...]
    itemsize: int


@attrs.frozen(kw_only=True)
class Layer:
    """A layer.

    Attributes:
        where: how messages name it.
        name: its own, or empty.
        kind: what it computes.
        sources: names of the tensors that it reads; None means the layer before.
        options: all other keys of its table.
    """

    where: str
    name: str
    kind: str
    sources: tuple[str, ...] | None
    options: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Block:
    """Layers that repeat, each time on the output of the time before; `where`, `name` and `sources` as of a layer."""

    where: str
    name: str
    repeat: int
    sources: tuple[str, ...] | None
    layers: tuple[Layer | Block, ...]


@attrs.frozen(kw_only=True)
class Model:
    """A file."""

    name: str
    batch_size: int
    inputs: tuple[Input, ...]
    layers: tuple[Layer | Block, ...]


@attrs.frozen(kw_only=True)
class _InputRow:
    name: str = option("input", help="how layers call it")
    bytes: int = option(4, minimum=1, maximum=64, help="of an element")


@attrs.frozen(kw_only=True)
class _BlockRow:
    name: str = option("", help="of the block")
    repeat: int = option(1, minimum=1, maximum=10_000, help="how many times")


def read(path: Path) -> Model:
    """Read a file; one that ends in ``.json`` is JSON, any other one TOML.

    Raises:
        TopoplanError: it cannot be read, or says what cannot be; the message names the file, the table and the key.
    """
    where = str(path)
    document = _json(path) if path.suffix.lower() == ".json" else read_toml(path)
    if not isinstance(document, dict):
        raise TopoplanError(f"{where}: expected tables of inputs and layers, got {shown(document)}")
    tables = {key: document[key] for key in ("input", "layer") if key in document}
    head_table = {key: value for key, value in document.items() if key not in tables}
    for key in head_table:
        if key.replace("-", "_") not in ("name", "batch_size"):
            raise TopoplanError(f"{where}: no key {shown(key)}{nearest(key, ('name', 'batch-size', 'input', 'layer'))}")
    head = structure(_Head, head_table, where)
    inputs = tuple(_input(row, f"{where}: input {k}") for k, row in enumerate(rows_of(tables, "input", where), 1))
    layers = _layers(rows_of(tables, "layer", where), where, 0)
    return Model(name=head.name or path.stem, batch_size=head.batch_size, inputs=inputs, layers=layers)


def required(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Make options as `structure` does; a field without a default must be in the table.

    Raises:
        TopoplanError: as of `structure`, or a key is missing.
    """
    keys = {key.replace("-", "_") for key in table}
    names = {field.name.replace("_", "-"): field for field in attrs.fields(cls)}  # type: ignore[arg-type]
    for key in table:  # a misspelt key is named before the one that is missing for it
        if key.replace("_", "-") not in names:
            raise TopoplanError(f"{where}: no key {shown(key)}{nearest(key, names)}")
    for key, field in names.items():
        if field.default is attrs.NOTHING and field.name not in keys:
            raise TopoplanError(f"{where}: {key} is missing ({field.metadata['help']})")
    return structure(cls, table, where)


def rows_of(table: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    """Return the rows of a key: a list with at least one entry.

    Raises:
        TopoplanError: there is none, or it is no list.
    """
    rows = table.get(key)
    if not isinstance(rows, list) or not rows:
        received = f"got {shown(rows)}" if key in table else "it is missing"
        raise TopoplanError(f"{where}: {key}: expected a list of at least one entry, {received}")
    return rows


def _json(path: Path) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(items)
        if len(table) != len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise TopoplanError(f"{path}: key {shown(twice)} is given twice in one table")
        return table

    text = read_text(path, "JSON", _LARGEST)
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise TopoplanError(f"{path}: is not JSON ({reason})") from None


def _input(row: Any, where: str) -> Input:
    """Read the table of an input; a first size of "batch" is the axis of samples, which goes without saying."""
    if not isinstance(row, dict):
        raise TopoplanError(f"{where}: expected a table, got {shown(row)}")
    options = {key: value for key, value in row.items() if key != "shape"}
    head = required(_InputRow, options, where)
    shape = row.get("shape")
    if isinstance(shape, int) and not isinstance(shape, bool):
        shape = [shape]
    if not isinstance(shape, list):
        received = f"got {shown(shape)}" if "shape" in row else "it is missing"
        raise TopoplanError(f"{where} {shown(head.name)}: shape: expected sizes such as [3, 224, 224], {received}")
    sizes = shape[1:] if shape[:1] == [BATCH] else shape
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 10**12:
            raise TopoplanError(
                f"{where} {shown(head.name)}: shape: {shown(size)} is no size (expected a whole number from 1 on; the "
                f'axis of samples is left out, or "{BATCH}" in the first place)'
            )
    return Input(name=_name(head.name, where), shape=tuple(sizes), itemsize=head.bytes)


def _layers(rows: Sequence[Any], where: str, depth: int) -> tuple[Layer | Block, ...]:
    if depth > _DEEPEST:
        raise TopoplanError(f"{where}: blocks lie within each other too deeply (at most {_DEEPEST})")
    return tuple(_layer(row, f"{where}: layer {k}", depth) for k, row in enumerate(rows, 1))


def _layer(row: Any, where: str, depth: int) -> Layer | Block:
    """Read the table of a layer or of a block."""
    if not isinstance(row, dict):
        raise TopoplanError(f"{where}: expected a table, got {shown(row)}")
    name = row.get("name", "")
    where = f"{where} {shown(name)}" if name else where
    if not isinstance(name, str):
        raise TopoplanError(f"{where}: name: expected text, got {shown(name)}")
    _name(name or "x", where)
    sources = _sources(row["from"], where) if "from" in row else None
    if "layer" in row:
        options_of_block = {key: value for key, value in row.items() if key not in ("from", "layer")}
        block = required(_BlockRow, options_of_block, where)
        if not name:
            raise TopoplanError(f'{where}: name is missing (a block needs one, such as "block")')
        layers = _layers(rows_of(row, "layer", where), where, depth + 1)
        return Block(where=where, name=name, repeat=block.repeat, sources=sources, layers=layers)
    if "repeat" in row:
        raise TopoplanError(f"{where}: repeat: belongs to a block (a layer that has layers of its own)")
    kind = row.get("kind")
    if not isinstance(kind, str):
        received = f"got {shown(kind)}" if "kind" in row else "it is missing"
        raise TopoplanError(f'{where}: kind: expected the name of a kind, such as "linear", {received}')
    options = {key: value for key, value in row.items() if key not in ("name", "kind", "from")}
    return Layer(where=where, name=name, kind=kind, sources=sources, options=options)


def _name(name: str, where: str) -> str:
    """Check that other layers can refer to a name."""
    if not name or ":" in name or name == IN or len(name) > 200 or not name.isprintable():
        raise TopoplanError(
            f'{where}: name: {shown(name)} cannot be one (expected printable text without a colon, not "{IN}")'
        )
    return name


def _sources(value: Any, where: str) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise TopoplanError(f"{where}: from: expected names of inputs or layers, got {shown(value)}")
    return tuple(names)
