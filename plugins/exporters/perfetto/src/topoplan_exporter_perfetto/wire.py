"""Protocol buffers by columns: many messages of one shape at a time, without an object for any of them.

A `Message` is a list of parts, each a column of bytes of one width, some of which only some rows have.  Numbers are
written with the bytes that the largest of a column needs, which readers accept.  `sizes_of` says how long each message
is, and `write` puts it where it belongs: several kinds of messages can be written between each other into one buffer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I64

__all__ = ["Message", "Part", "fixed64", "flags", "number", "packed", "repeated", "sizes_of", "text", "within", "write"]

Bytes = NDArray[np.uint8]


class Part(NamedTuple):
    """Some bytes of each row: (n, w), or (w,) of all; ``rows`` are those that have them, all unless given.

    A row may have a part several times: ``rows`` then names it again, in the order of the values.
    """

    data: Bytes
    rows: I64 | None = None


Message = list[Part]


def number(field: int, values: I64, rows: I64 | None = None) -> Part:
    """Make a part of numbers that are not negative."""
    return Part(np.hstack([np.tile(_tag(field, 0), (len(values), 1)), _varints(values, _width(values))]), rows)


def fixed64(field: int, values: I64, rows: I64 | None = None) -> Part:
    """Make a part of numbers of eight bytes."""
    data = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    return Part(np.hstack([np.tile(_tag(field, 1), (len(values), 1)), data]), rows)


def flags(field: int, value: int) -> Part:
    """Make a part that is the same number in all rows."""
    return Part(np.frombuffer(bytes(_tag(field, 0)) + _varint(value), np.uint8))


def within(field: int, message: Message, count: int) -> Message:
    """Put a message of each of ``count`` rows into a field of another."""
    sizes = sizes_of(message, count)
    return [Part(np.hstack([np.tile(_tag(field, 2), (count, 1)), _varints(sizes, _width(sizes))])), *message]


def repeated(field: int, message: Message, rows: I64, count: int) -> Part:
    """Put a message without options into a field of the rows ``rows``; ``message`` has as many rows as these."""
    data = np.hstack([np.broadcast_to(part.data, (count, part.data.shape[-1])) for part in message])
    head = np.frombuffer(bytes(_tag(field, 2)) + _varint(data.shape[1]), np.uint8)
    return Part(np.hstack([np.tile(head, (count, 1)), data]), rows)


def sizes_of(message: Message, count: int) -> I64:
    """(count,) bytes of each row."""
    sizes = np.zeros(count, dtype=np.int64)
    for data, rows in message:
        width = data.shape[-1]
        sizes += width if rows is None else width * np.bincount(rows, minlength=count)
    return sizes


def write(buffer: Bytes, message: Message, first: I64) -> None:
    """Write the rows of a message, the first byte of each at ``first`` (n,)."""
    place = first.copy()
    for data, rows in message:
        width = data.shape[-1]
        step = np.arange(width)
        if rows is None:
            buffer[place[:, None] + step] = data
            place += width
            continue
        turn = np.arange(len(rows)) - np.searchsorted(rows, rows)  # rows ascend
        buffer[(place[rows] + width * turn)[:, None] + step] = data
        place += width * np.bincount(rows, minlength=len(place))


def text(field: int, value: str | bytes) -> bytes:
    """Write one text, or one message."""
    data = value.encode() if isinstance(value, str) else value
    return bytes(_tag(field, 2)) + _varint(len(data)) + data


def packed(field: int, value: int) -> bytes:
    """Write one number."""
    return bytes(_tag(field, 0)) + _varint(value)


def _width(values: I64) -> int:
    """Return how many bytes the largest of (n,) numbers needs."""
    return max(1, (int(values.max(initial=0)).bit_length() + 6) // 7)


def _tag(field: int, kind: int) -> Bytes:
    return np.frombuffer(_varint(field << 3 | kind), np.uint8)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def _varints(values: I64, width: int) -> Bytes:
    """(n, width) bytes: seven bits each, lowest first, with a mark on all but the last."""
    data = (values[:, None] >> (7 * np.arange(width))).astype(np.uint64) & 127
    data[:, :-1] |= 128
    return data.astype(np.uint8)
