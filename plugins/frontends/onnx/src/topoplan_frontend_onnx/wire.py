"""The wire format of protocol buffers: a message as its fields, without copies of their bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from topoplan import TopoplanError

__all__ = ["Field", "fields", "integers", "reals", "signed", "text"]

#: Number of a field, and its value: an integer, 4 or 8 bytes, or the bytes of a string, a message or packed numbers.
Field = tuple[int, int | memoryview]

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_TRUNCATED = "is truncated, or no protocol buffer"


def fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a message, in their order.

    Raises:
        TopoplanError: these bytes are no message.
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, position = _varint(message, position)
        elif kind in (_FOUR, _EIGHT):
            length = 4 if kind == _FOUR else 8
        else:
            raise TopoplanError(_TRUNCATED)
        if length > len(message) - position:
            raise TopoplanError(_TRUNCATED)
        yield key >> 3, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (2**64 - 1), position
        shift += 7
    raise TopoplanError(_TRUNCATED)


def signed(value: int | memoryview) -> int:
    """Return a field as a signed integer of 64 bits."""
    if isinstance(value, memoryview):
        raise TopoplanError(_TRUNCATED)
    return value - 2**64 if value >= 2**63 else value


def integers(value: int | memoryview) -> list[int]:
    """Return a repeated field of integers, packed or one of several, as signed numbers."""
    if not isinstance(value, memoryview):
        return [signed(value)]
    numbers, position = [], 0
    while position < len(value):
        number, position = _varint(value, position)
        numbers.append(signed(number))
    return numbers


def reals(value: int | memoryview, letter: str = "f") -> list[float]:
    """Return a repeated field of floats (``f``) or doubles (``d``), packed or one of several."""
    size = struct.calcsize(letter)
    if not isinstance(value, memoryview) or len(value) % size:
        raise TopoplanError(_TRUNCATED)
    return list(struct.unpack(f"<{len(value) // size}{letter}", value))


def text(value: int | memoryview) -> str:
    """Return a string field; signs that are no UTF-8 are replaced."""
    if not isinstance(value, memoryview):
        raise TopoplanError(_TRUNCATED)
    return bytes(value).decode("utf-8", "replace")
