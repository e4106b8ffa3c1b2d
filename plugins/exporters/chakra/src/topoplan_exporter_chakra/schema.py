"""A trace: its metadata and its nodes, to bytes and back.

Schema ``et_def.proto`` of MLCommons Chakra at commit 21585d8 (version 0.0.4): a file is messages, each behind its
length: one ``GlobalMetadata``, then ``Node`` after ``Node``.  Attributes are names with a value of one of thirty types,
of which we write five.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan_exporter_chakra.wire import (
    BYTES,
    FIXED64,
    VARINT,
    fields,
    fixed,
    integers,
    message,
    number,
    packed,
    read_varint,
    varint,
)

__all__ = ["VERSION", "CollectiveType", "Node", "NodeType", "Trace", "Value", "decode", "encode"]

VERSION = "0.0.4"
#: Attribute of the metadata of traces that topoplan wrote, which are whole.
OURS = "topoplan"

Value = bool | int | float | str | bytes | list[Any]


class NodeType(IntEnum):
    """What a node does; an invalid one does nothing."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLL = 7


class CollectiveType(IntEnum):
    """Collectives of the schema."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


@attrs.frozen
class Node:
    """A node of a trace.

    Attributes:
        id: unique in its trace.
        name: for readers.
        type: what it does.
        ctrl_deps, data_deps: ids of nodes of the same trace that must have ended.
        start, duration: microseconds, whole ones.
        attributes: by name.
        inputs: values of the inputs, as PyTorch's traces have them: a text.  Only of metadata.
    """

    id: int
    name: str
    type: NodeType
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start: int = 0
    duration: int = 0
    attributes: Mapping[str, Value] = MappingProxyType({})
    inputs: str = ""


@attrs.frozen
class Trace:
    """The trace of one rank: attributes of its metadata, and nodes.

    Attributes:
        absent: (node, node that it waits for) where the trace has no such node.  PyTorch's converter drops operators
            and leaves what waited for them; a dependency on one of these is none.
    """

    attributes: Mapping[str, Value]
    nodes: tuple[Node, ...]
    absent: tuple[tuple[Node, int], ...] = ()


#: Field of an attribute for each type that we write; (field, wire type) -> how to read it.
_BOOL, _INT64, _INT64S, _DOUBLE, _DOUBLES, _STRING = 27, 9, 10, 3, 4, 29


def encode(trace: Trace) -> bytes:
    """Write a trace."""
    head = message(1, VERSION.encode()) + b"".join(_attribute(2, *each) for each in trace.attributes.items())
    out = [varint(len(head)), head]
    for node in trace.nodes:
        body = _node(node)
        out += (varint(len(body)), body)
    return b"".join(out)


def _node(node: Node) -> bytes:
    return b"".join(
        (
            number(1, node.id),
            message(2, node.name.encode()),
            number(3, node.type),
            integers(4, node.ctrl_deps),
            integers(5, node.data_deps),
            number(6, node.start) if node.start else b"",
            number(7, node.duration) if node.duration else b"",
            message(8, message(1, node.inputs.encode())) if node.inputs else b"",
            *(_attribute(10, *each) for each in node.attributes.items()),
        )
    )


def _attribute(field: int, name: str, value: Value) -> bytes:
    """Write an attribute; a list holds integers or doubles, by its first entry."""
    match value:
        case bool():
            content = number(_BOOL, value)
        case int():
            content = number(_INT64, value)
        case float():
            content = varint(_DOUBLE << 3 | FIXED64) + struct.pack("<d", value)
        case str():
            content = message(_STRING, value.encode())
        case [float(), *_]:
            content = message(_DOUBLES, message(1, struct.pack(f"<{len(value)}d", *value)))
        case list():
            content = message(_INT64S, integers(1, value))
        case _:
            raise TypeError(f"attribute {name}: {value!r}")
    return message(field, message(1, name.encode()) + content)


def decode(data: bytes, where: str) -> Trace:
    """Read a trace; ``where`` it lies is for messages.

    Raises:
        TopoplanError: it is cut off or damaged, or a node is of a type that the schema has not.
    """
    attributes: dict[str, Value] | None = None
    nodes: list[Node] = []
    position = 0
    while position < len(data):
        start = position
        length, position = read_varint(data, position, where)
        if length > len(data) - position:
            what = "its metadata" if attributes is None else f"node {len(nodes)}"
            raise TopoplanError(
                f"{where}: cut off: {what} at byte {start} needs {length} bytes, {len(data) - position} follow"
            )
        content = data[position : position + length]
        if attributes is None:
            attributes = _metadata(content, where)
        else:
            nodes.append(_read_node(content, f"{where}: node {len(nodes)} at byte {start}"))
        position += length
    if attributes is None:
        raise TopoplanError(f"{where}: is empty (a trace begins with its metadata)")
    ids: set[int] = set()
    for node in nodes:
        if node.id in ids:
            raise TopoplanError(f"{where}: two nodes have the id {node.id} (ids must be different)")
        ids.add(node.id)
    absent = [(node, each) for node in nodes for each in (*node.ctrl_deps, *node.data_deps) if each not in ids]
    for node, needed in absent[:1] if set(attributes) & {OURS} else ():
        raise TopoplanError(f"{where}: node {node.id} ({shown(node.name)}) waits for node {needed}, which was lost")
    if absent:
        nodes = [_waiting_for(node, ids) for node in nodes]
    return Trace(attributes, tuple(nodes), tuple(absent))


def _waiting_for(node: Node, ids: set[int]) -> Node:
    """Return a node without its dependencies on nodes that are not among ``ids``."""
    ctrl, data = (tuple(each for each in deps if each in ids) for deps in (node.ctrl_deps, node.data_deps))
    return attrs.evolve(node, ctrl_deps=ctrl, data_deps=data)


def _metadata(content: bytes, where: str) -> dict[str, Value]:
    attributes = {}
    for field, wire, value in fields(content, where):
        if field == 1 and wire == BYTES:
            _text(value, f"{where}: field 1 of the metadata (version)")
        elif field == 2 and wire == BYTES:
            name, attribute = _read_attribute(bytes(value), f"{where}: metadata")  # type: ignore[arg-type]
            attributes[name] = attribute
        else:
            raise TopoplanError(f"{where}: field {field} is none of the metadata of a trace (expected 1 or 2)")
    return attributes


def _read_node(content: bytes, where: str) -> Node:
    """Read one node."""
    numbers = dict.fromkeys((1, 3, 6, 7), 0)
    deps: dict[int, list[int]] = {4: [], 5: []}
    name, inputs, attributes = "", "", dict[str, Value]()
    for field, wire, value in fields(content, where):
        if field in numbers and wire == VARINT and isinstance(value, int):
            numbers[field] = value
        elif field in deps:
            deps[field] += [value] if isinstance(value, int) else packed(value, where)
        elif field == 2 and wire == BYTES:
            name = _text(value, f"{where}: field 2 (name)")
        elif field == 10 and isinstance(value, bytes):
            key, attribute = _read_attribute(value, where)
            attributes[key] = attribute
        elif field == 8 and numbers[3] == NodeType.METADATA and isinstance(value, bytes):
            inputs = next(
                (_text(text, f"{where}: inputs") for number, _, text in fields(value, where) if number == 1), ""
            )
        elif field not in (8, 9) or wire != BYTES:  # inputs and outputs say nothing that is simulated
            raise TopoplanError(f"{where}: field {field} of wire type {wire} is none of a node")
    try:
        kind = NodeType(numbers[3])
    except ValueError:
        names = ", ".join(f"{each.value} {each.name}" for each in NodeType)
        raise TopoplanError(f"{where} ({shown(name)}): unknown node type {numbers[3]} (expected {names})") from None
    return Node(numbers[1], name, kind, tuple(deps[4]), tuple(deps[5]), numbers[6], numbers[7], attributes, inputs)


def _read_attribute(content: bytes, where: str) -> tuple[str, Value]:
    """Read one attribute; one without a value is False, as its default in the schema."""
    name, result = "", False
    for field, wire, value in fields(content, where):
        if field == 1 and wire == BYTES:
            name = _text(value, f"{where}: name of an attribute")
        elif field != 2:  # what it is for
            result = _value(field, wire, value, f"{where}: attribute {shown(name)}")  # type: ignore[assignment]
    return name, result


def _value(field: int, wire: int, value: int | bytes, where: str) -> Value:
    """Read the value of an attribute by its field: odd ones are single values, the next ones lists of these."""
    single = field - 1 + field % 2
    reader = _READERS.get(single)
    if reader is None:
        raise TopoplanError(f"{where}: field {field} is no value of an attribute (expected 3 to 32)")
    if field == single:
        if (wire == BYTES) != (single in (_STRING, 31)):
            raise TopoplanError(f"{where}: field {field} has wire type {wire}")
        result: Value = reader(value, where)
        return result
    if wire != BYTES or not isinstance(value, bytes):
        raise TopoplanError(f"{where}: field {field} has wire type {wire} (expected a list)")
    entries: list[Any] = []
    form = _FIXED.get(single)
    for inner, inner_wire, entry in fields(value, where):
        if inner != 1:
            raise TopoplanError(f"{where}: field {inner} is none of a list")
        if inner_wire == BYTES and single not in (_STRING, 31) and isinstance(entry, bytes):
            entries += fixed(entry, form, where) if form else (reader(each, where) for each in packed(entry, where))
        else:
            entries.append(reader(entry, where))
    return entries


#: Letters of `struct` for values of a fixed size, by field.
_FIXED: Mapping[int, str] = {3: "d", 5: "f", 19: "I", 21: "Q", 23: "i", 25: "q"}


def _readers() -> dict[int, Callable[[Any, str], Any]]:
    """Return how the single value of each field is read."""
    signed = {7: 32, 9: 64}
    readers: dict[int, Callable[[Any, str], Any]] = dict.fromkeys((11, 13), lambda value, where: _integer(value, where))
    for field in signed:
        readers[field] = lambda value, where: _integer(value, where) - (2**64 if value >= 2**63 else 0)
    for field in (15, 17):
        readers[field] = lambda value, where: _integer(value, where) >> 1 ^ -(value & 1)
    for field, form in _FIXED.items():
        readers[field] = lambda value, where, form=form: _one(value, form, where)  # type: ignore[misc]
    readers[27] = lambda value, where: bool(_integer(value, where))
    readers[_STRING] = _text
    readers[31] = lambda value, where: value
    return readers


def _integer(value: int | bytes, where: str) -> int:
    if not isinstance(value, int):
        raise TopoplanError(f"{where}: {len(value)} bytes in the place of an integer")
    return value


def _one(value: int | bytes, form: str, where: str) -> float:
    numbers = fixed(value, form, where) if isinstance(value, bytes) else []
    if len(numbers) != 1:
        raise TopoplanError(f"{where}: is no number of {struct.calcsize(form)} bytes")
    return numbers[0]


def _text(value: int | bytes, where: str) -> str:
    try:
        if isinstance(value, bytes):
            return value.decode()
    except UnicodeDecodeError:
        pass
    raise TopoplanError(f"{where}: is no text in UTF-8")


_READERS = _readers()
