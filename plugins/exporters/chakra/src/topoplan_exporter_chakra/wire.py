"""Protocol buffers by hand: fields of messages to bytes and back.

Encoding: https://protobuf.dev/programming-guides/encoding/.  Only what the schema of traces needs (`schema`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from topoplan import TopoplanError

__all__ = [
    "BYTES",
    "FIXED32",
    "FIXED64",
    "VARINT",
    "Field",
    "fields",
    "fixed",
    "integers",
    "message",
    "number",
    "packed",
    "read_varint",
    "varint",
]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

#: Number of the field, its wire type, and its value: an integer, or the bytes of any other type.
Field = tuple[int, int, int | bytes]


def varint(value: int) -> bytes:
    """Write an integer of 64 bits, seven bits a byte, the lowest first; negative ones in two's complement."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Write a field with an integer."""
    return varint(field << 3 | VARINT) + varint(value)


def message(field: int, content: bytes) -> bytes:
    """Write a field with a message, a text or bytes."""
    return varint(field << 3 | BYTES) + varint(len(content)) + content


def integers(field: int, values: Iterable[int]) -> bytes:
    """Write a field with packed integers; nothing where there are none."""
    content = b"".join(map(varint, values))
    return message(field, content) if content else b""


def fields(data: bytes, where: str) -> Iterator[Field]:
    """Go through the fields of a message; ``where`` it lies is for messages.

    Raises:
        TopoplanError: it is damaged or cut off.
    """
    position = 0
    while position < len(data):
        start = position
        tag, position = read_varint(data, position, where)
        field, wire = tag >> 3, tag & 7
        if field == 0 or wire not in (VARINT, FIXED64, BYTES, FIXED32):
            raise TopoplanError(f"{where}: byte {start}: field {field} of wire type {wire} is none of a trace")
        if wire == VARINT:
            value, position = read_varint(data, position, where)
            yield field, wire, value
            continue
        length = {FIXED64: 8, FIXED32: 4}.get(wire, 0)
        if wire == BYTES:
            length, position = read_varint(data, position, where)
        if length > len(data) - position:
            raise TopoplanError(
                f"{where}: cut off: field {field} at byte {start} needs {length} bytes, {len(data) - position} follow"
            )
        yield field, wire, data[position : position + length]
        position += length


def read_varint(data: bytes, start: int, where: str) -> tuple[int, int]:
    """Return the integer of at most 64 bits at a byte, and where it ends."""
    value = shift = 0
    for position in range(start, min(len(data), start + 10)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 2**64 - 1, position + 1
        shift += 7
    raise TopoplanError(f"{where}: byte {start}: an integer does not end")


def packed(content: bytes, where: str) -> Iterator[int]:
    """Go through packed integers."""
    position = 0
    while position < len(content):
        value, position = read_varint(content, position, where)
        yield value


def fixed(content: bytes, form: str, where: str) -> list[float]:
    """Return packed numbers of a fixed size; ``form`` is a letter of `struct`."""
    size = struct.calcsize(form)
    if len(content) % size:
        raise TopoplanError(f"{where}: {len(content)} bytes are no numbers of {size} bytes")
    return list(struct.unpack(f"<{len(content) // size}{form}", content))
