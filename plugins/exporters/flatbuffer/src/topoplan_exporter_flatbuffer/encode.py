"""File columns -> bytes, through the builder of the FlatBuffers runtime.

A FlatBuffer is written back to front: the targets of a table's offsets precede the table.  The columns are therefore
visited depth first, and all rows of a table type are written before the vector that references them.  Empty vectors are
written as well, because FlexNetPacket reads them without a check.  Only an empty ``rings`` is omitted, because its
presence enables multi-ring all-reduce.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np

from topoplan import TopoplanError
from topoplan_exporter_flatbuffer.schema import ROOT, Columns, Field, Rows, Table

__all__ = ["encode"]

_Builder = Any
#: Fields whose empty vector is left out.
_OPTIONAL = {"rings"}


def encode(columns: Columns) -> bytes:
    """Encode the columns of one ``TaskGraph`` table; equal columns give equal bytes."""
    builder = flatbuffers.Builder(262_144)
    try:
        (root,) = _tables(builder, ROOT, columns, 1)
        builder.Finish(root)
    except flatbuffers.builder.BuilderSizeError:
        raise TopoplanError("flatbuffer: the task graph is larger than 2 GiB, which the format cannot hold") from None
    return bytes(builder.Output())


def _tables(builder: _Builder, table: Table, columns: Columns, count: int) -> list[int]:
    """Write ``count`` tables of one type; return their offsets."""
    writers = []
    for slot, field in enumerate(table.fields):
        values = _values(builder, field, columns[field.name])
        if values is not None:
            writers.append((_alignment(field), slot, _slot_writer(builder, field), values))
    # The largest fields first, as the code that flatc generates does: least padding.
    writers.sort(key=lambda writer: (-writer[0], writer[1]))
    slots = len(table.fields)
    places = []
    for row in range(count):
        builder.StartObject(slots)
        for _, slot, write, values in writers:
            write(slot, values[row], 0)
        places.append(builder.EndObject())
    return places


def _values(builder: _Builder, field: Field, column: Any) -> list[Any] | None:
    """Return the values of a field: scalars, or the offsets of strings or vectors."""
    if field.wire is not None:
        return [builder.CreateString(text) for text in column] if field.wire.hasobject else column.tolist()
    assert isinstance(column, Rows)
    ptr = column.ptr.tolist()
    if field.name in _OPTIONAL and ptr[-1] == 0:
        return None
    if isinstance(field.items, Table):
        places = np.array(_tables(builder, field.items, column.values, ptr[-1]), dtype=np.int64)
        return [_offsets(builder, places[a:b].tolist()) for a, b in itertools.pairwise(ptr)]
    values = np.ascontiguousarray(column.values, dtype=field.items)
    return [builder.CreateNumpyVector(values[a:b]) for a, b in itertools.pairwise(ptr)]


def _offsets(builder: _Builder, places: list[int]) -> int:
    """Write a vector of tables."""
    builder.StartVector(4, len(places), 4)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return int(builder.EndVector())


def _alignment(field: Field) -> int:
    return 4 if field.wire is None or field.wire.hasobject else field.wire.itemsize


def _slot_writer(builder: _Builder, field: Field) -> Callable[[int, Any, Any], None]:
    if field.wire is None or field.wire.hasobject:
        return builder.PrependUOffsetTRelativeSlot  # type: ignore[no-any-return]
    return {  # type: ignore[no-any-return]
        "<i2": builder.PrependInt16Slot,
        "<i4": builder.PrependInt32Slot,
        "<u4": builder.PrependUint32Slot,
        "<u8": builder.PrependUint64Slot,
        "<f4": builder.PrependFloat32Slot,
    }[field.wire.str]
