"""Bytes of a FlatBuffer -> columns, all tables of one type at a time, every offset checked first.

The Python runtime of FlatBuffers follows whatever offset it finds; here a damaged file ends in one
`TopoplanError` that names the field.  A table starts with the distance back to its vtable; the vtable
holds its own size, the table's size and, per field, the field's offset in the table or 0 for "default".
A string, vector or table field holds the distance forward to it.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan import TopoplanError
from topoplan.arrays import I64
from topoplan_exporter_flatbuffer.schema import ROOT, Columns, Field, Rows, Table

__all__ = ["decode"]

_U2, _U4, _I4, _U1 = (np.dtype(code) for code in ("<u2", "<u4", "<i4", "u1"))


@attrs.frozen(eq=False)
class _Buffer:
    """The file, and gathers from it that refuse to leave it."""

    data: NDArray[np.uint8]
    name: str

    def fail(self, path: str, message: str) -> TopoplanError:
        return TopoplanError(f"{self.name}: {path}: {message} (not a task graph file, truncated or damaged)")

    def inside(self, path: str, start: I64, size: Any) -> None:
        """Raise unless the ``size`` bytes at every ``start`` lie in the file."""
        bad = np.flatnonzero((start < 0) | (start + size > len(self.data)))
        if len(bad):
            row = bad[0]
            length = np.broadcast_to(size, start.shape)[row]
            raise self.fail(
                _row_path(path, row, start), f"{length} bytes at {start[row]} leave a file of {len(self.data)} bytes"
            )

    def gather(self, path: str, start: I64, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read one scalar at every ``start``."""
        self.inside(path, start, dtype.itemsize)
        scalars: NDArray[Any] = self.data[start[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
        return scalars

    def follow(self, path: str, field: I64) -> I64:
        """Where the forward offsets stored at ``field`` point; -1 where ``field`` is -1 (absent)."""
        target = np.full(len(field), -1, dtype=np.int64)
        rows = np.flatnonzero(field >= 0)
        distance = self.gather(path, field[rows], _U4).astype(np.int64)
        target[rows] = field[rows] + distance
        return target

    def vectors(self, path: str, start: I64, itemsize: int) -> tuple[I64, I64]:
        """Row pointer and the positions of all items of the vectors at ``start`` (-1: none)."""
        length = np.zeros(len(start), dtype=np.int64)
        rows = np.flatnonzero(start >= 0)
        length[rows] = self.gather(path, start[rows], _U4)
        self.inside(path, start[rows] + 4, length[rows] * itemsize)
        # Vectors of different tables do not overlap, so all together fit as well: no blow-up by sharing.
        if int(length.sum()) * itemsize > len(self.data):
            raise self.fail(path, f"vectors of {int(length.sum())} items in all, in a file of {len(self.data)} bytes")
        ptr = np.concatenate([[0], np.cumsum(length)])
        items = np.repeat(start + 4 - ptr[:-1] * itemsize, length) + np.arange(ptr[-1]) * itemsize
        return ptr, items


def decode(data: bytes, name: str) -> Columns:
    """Decode a whole file into the columns of its one `TaskGraph` table.

    Raises:
        TopoplanError: something points outside the file, or a string is not UTF-8.
    """
    buffer = _Buffer(np.frombuffer(data, dtype=np.uint8), name)
    root = buffer.follow("root", np.zeros(1, dtype=np.int64))
    return _tables(buffer, "", root, ROOT)


def _tables(buffer: _Buffer, path: str, start: I64, table: Table) -> Columns:
    """Decode the tables of one type that begin at ``start``."""
    context = path or "root"
    vtable = start - buffer.gather(context, start, _I4)
    vtable_size = buffer.gather(context, vtable, _U2).astype(np.int64)
    table_size = buffer.gather(context, vtable + 2, _U2).astype(np.int64)
    buffer.inside(context, vtable, vtable_size)
    buffer.inside(context, start, table_size)
    columns: Columns = {}
    for slot, field in enumerate(table.fields):
        inner = f"{path}.{field.name}" if path else field.name
        size = 4 if field.wire is None or field.wire.hasobject else field.wire.itemsize
        offset = np.zeros(len(start), dtype=np.int64)
        stored = np.flatnonzero(vtable_size >= 6 + 2 * slot)
        offset[stored] = buffer.gather(inner, vtable[stored] + 4 + 2 * slot, _U2)
        bad = np.flatnonzero((offset != 0) & ((offset < 4) | (offset + size > table_size)))
        if len(bad):
            raise buffer.fail(
                _row_path(inner, bad[0], start), f"field at {offset[bad[0]]} in a table of {table_size[bad[0]]} bytes"
            )
        columns[field.name] = _column(buffer, inner, np.where(offset > 0, start + offset, -1), field)
    return columns


def _column(buffer: _Buffer, path: str, offsets: I64, field: Field) -> Any:
    """Decode one field of many tables; ``offsets`` is -1 where a table leaves it at its default."""
    if field.wire is not None and not field.wire.hasobject:
        values = np.zeros(len(offsets), dtype=field.wire)
        rows = np.flatnonzero(offsets >= 0)
        values[rows] = buffer.gather(path, offsets[rows], field.wire)
        return values
    start = buffer.follow(path, offsets)
    if field.wire is not None:
        ptr, items = buffer.vectors(path, start, 1)
        raw = buffer.data[items].tobytes()
        try:
            return tuple(raw[a:b].decode() for a, b in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True))
        except UnicodeDecodeError:
            raise buffer.fail(path, "a string is not UTF-8") from None
    if isinstance(field.items, Table):
        ptr, items = buffer.vectors(path, start, 4)
        return Rows(ptr, _tables(buffer, path, buffer.follow(path, items), field.items))
    ptr, items = buffer.vectors(path, start, field.items.itemsize)
    return Rows(ptr, buffer.gather(path, items, field.items))


def _row_path(path: str, row: int, rows: I64) -> str:
    return f"{path}[{row}]" if len(rows) > 1 else path
