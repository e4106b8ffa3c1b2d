"""FlexFlow's strategies as protocol buffers (``.pb``), the form that it read until January 2021.

A file is one message ``Strategy { repeated Op ops = 1; }``.  The fields of ``Op`` changed twice (FlexFlow's
``strategy.proto``, commits b6563d57, 7c9d9956 and 3e0d2b02):

======  ==================  ==================  ================================
field   first               second              third, and the last
======  ==================  ==================  ================================
1       name                name                name
2       number of axes      parts of an axis    device type (0 GPU, 1 CPU)
3       parts of an axis    device of a part    parts of an axis
4       device of a part    --                  device of a part
5       --                  --                  memory type of a weight
======  ==================  ==================  ================================

No field says which of the three it is; `_schema_of` tells them apart by what must hold of each.  Integers are
read one by one and packed.  Encoding: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from topoplan import TopoplanError
from topoplan_exporter_strategy.tokens import Tokens

if TYPE_CHECKING:
    from topoplan_exporter_strategy.text import Entry

__all__ = ["encode", "is_protobuf", "tokens_of"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NAME, _LAST_FIELD = 1, 5


@attrs.frozen
class _Op:
    """One entry: where it starts, its name, and the integers of each other field."""

    start: int
    name: str
    integers: dict[int, list[int]]


def is_protobuf(data: bytes) -> bool:
    """Say whether bytes are no text form: they begin with field 1, and hold control characters that no text has."""
    return data[:1] == b"\n" and any(byte < 0x09 or 0x0E <= byte <= 0x1B for byte in data)


def tokens_of(data: bytes, name: str) -> Tokens:
    """Return what the text form of the same strategy would be; a word stands where its entry starts.

    Raises:
        TopoplanError: the bytes are damaged; the message names file and byte.
    """
    ops = [_op(data, name, start, end) for field, start, end, _ in _fields(data, name, 0, len(data)) if field == 1]
    device_types, degrees, devices = _schema_of(ops)
    tokens = Tokens(name, [str(len(ops))], ["byte 0"])
    for op in ops:
        numbers: list[int] = op.integers.get(device_types, [0])[-1:] if device_types else [0]
        for field in (degrees, devices):
            numbers += [len(op.integers.get(field, ())), *op.integers.get(field, ())]
        tokens.words += [op.name, *map(str, numbers)]
        tokens.places += [f"byte {op.start}"] * (1 + len(numbers))
    return tokens


def encode(entries: Iterable[Entry]) -> bytes:
    """Write (name, parts of each axis innermost first, devices) by the last schema, as FlexFlow did."""
    out = bytearray()
    for name, degrees, devices in entries:
        text = name.encode()
        body = b"".join(
            (
                _tagged(1, _BYTES) + _varint(len(text)) + text,
                _tagged(2, _VARINT) + _varint(0),
                *(_tagged(3, _VARINT) + _varint(degree) for degree in degrees),
                *(_tagged(4, _VARINT) + _varint(device) for device in devices),
            )
        )
        out += _tagged(1, _BYTES) + _varint(len(body)) + body
    return bytes(out)


def _schema_of(ops: Sequence[_Op]) -> tuple[int, int, int]:
    """Return the fields of device type (0: none), parts and devices that all entries obey.

    In the first schema field 2 counts field 3; in the second one field 2 has as many parts as field 3 has devices.
    Where nothing tells, the last schema holds.
    """

    def counts_axes(op: _Op) -> bool:
        return op.integers.get(2) == [len(op.integers.get(3, ()))]

    def fills_devices(op: _Op) -> bool:
        degrees, devices = op.integers.get(2, ()), op.integers.get(3, ())
        return {*op.integers} <= {2, 3} and 0 not in degrees and math.prod(degrees) == len(devices)

    # Device types are 0 or 1, so that an operator of two axes or more tells the first schema.
    if ops and all(map(counts_axes, ops)) and any(op.integers[2] != [1] for op in ops):
        return 0, 3, 4
    if ops and all(map(fills_devices, ops)):
        return 0, 2, 3
    return 2, 3, 4


def _op(data: bytes, name: str, start: int, end: int) -> _Op:
    """Read one entry between two bytes."""
    op_name, integers = "", dict[int, list[int]]()
    for field, body, stop, integer in _fields(data, name, start, end):
        if field == _NAME:
            try:
                op_name = data[body:stop].decode()
            except UnicodeDecodeError:
                raise TopoplanError(f"{name}: byte {body}: field 1 (the operator's name) is not UTF-8") from None
        elif field <= _LAST_FIELD:
            numbers = [integer] if integer is not None else list(_packed(data, name, body, stop))
            integers.setdefault(field, []).extend(numbers)
    if not op_name:
        raise TopoplanError(f"{name}: byte {start}: an operator without field 1 (its name)")
    return _Op(start, op_name, integers)


def _fields(data: bytes, name: str, start: int, end: int) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield (field, its first byte, its end, its integer if it is one) of the message between two bytes."""
    position = start
    while position < end:
        tag, body = _read_varint(data, name, position, end)
        field, wire = tag >> 3, tag & 7
        integer = None
        if wire == _VARINT:
            integer, stop = _read_varint(data, name, body, end)
        elif wire == _BYTES:
            length, body = _read_varint(data, name, body, end)
            stop = body + length
        elif wire in (_FIXED64, _FIXED32):
            stop = body + (8 if wire == _FIXED64 else 4)
        else:
            raise TopoplanError(f"{name}: byte {position}: field {field} has wire type {wire} (expected 0, 1, 2 or 5)")
        expected = {0: (), _NAME: (_BYTES,)}.get(field, (_VARINT, _BYTES) if field <= _LAST_FIELD else (wire,))
        if wire not in expected:
            raise TopoplanError(f"{name}: byte {position}: field {field} with wire type {wire} is none of a strategy")
        if stop > end:
            raise TopoplanError(
                f"{name}: byte {position}: field {field} needs {stop - body} bytes, {end - body} follow"
            )
        yield field, body, stop, integer
        position = stop


def _packed(data: bytes, name: str, start: int, end: int) -> Iterator[int]:
    position = start
    while position < end:
        integer, position = _read_varint(data, name, position, end)
        yield integer


def _read_varint(data: bytes, name: str, start: int, end: int) -> tuple[int, int]:
    """Return the integer at a byte, negative ones as 64-bit two's complement, and where it ends."""
    value = 0
    for count, byte in enumerate(data[start : min(end, start + 10)]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return (value - 2**64 if value >= 2**63 else value), start + count + 1
    raise TopoplanError(f"{name}: byte {start}: an integer that does not end")


def _tagged(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _varint(value: int) -> bytes:
    """Write an integer of at least 0, seven bits a byte, the lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
