"""The file format, once, for reader and writer: tables, fields, wire types, numbers of enumerations.

Fields stand in the order of their slots in the vtable.  The format is that of FlexNet (TopoOpt, NSDI'23);
``taskgraph.fbs`` is the same in the language of ``flatc``.

Both directions work on *columns*: for a table type, a mapping from field to an array of one row per
table; for a vector field, to `Rows`.  A string field holds a tuple of str.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import I64

__all__ = [
    "ALLREDUCE",
    "BACKWARD",
    "BARRIER",
    "CPU",
    "FORWARD",
    "GPU",
    "NOMINAL_COMM",
    "NW_COMM",
    "NW_NOMINAL",
    "OPERATOR_TYPES",
    "ROOT",
    "UPDATE",
    "Columns",
    "Field",
    "Rows",
    "Table",
    "flatten",
    "unflatten",
]

# SimTaskType.  TASK_COMM (2) exists but no reader accepts it.
FORWARD, BACKWARD, UPDATE, BARRIER, NOMINAL_COMM, ALLREDUCE = 0, 1, 3, 4, 5, 6
# DeviceType: the ones that task graphs use.
GPU, CPU, NW_COMM, NW_NOMINAL = 0, 1, 13, 14

#: FlexFlow's OperatorType (ffconst.h) of our operator kinds; kinds that are absent are written as 0.
OPERATOR_TYPES: Mapping[str, int] = {
    "conv2d": 3,
    "linear": 5,
    "pool2d": 7,
    "relu": 13,
    "flat": 18,
    "softmax": 19,
    "concat": 21,
    "embedding": 23,
    "add": 31,
    "multiply": 32,
    "attention": 74,
}

#: Columns of one table type: field -> array, tuple of str, or `Rows`.
Columns = dict[str, Any]


@attrs.frozen(eq=False)
class Rows:
    """A vector field of many tables: the vector of table ``i`` is ``values[ptr[i] : ptr[i + 1]]``.

    ``values`` is an array, or `Columns` where the vector holds tables.
    """

    ptr: I64
    values: Any


@attrs.frozen
class Field:
    """One field: ``wire`` is a numpy scalar type, ``"string"``, or None for a vector of ``items``."""

    name: str
    wire: np.dtype[Any] | None
    items: Any = None  # numpy dtype, or Table


@attrs.frozen
class Table:
    """One table type."""

    name: str
    fields: tuple[Field, ...]


def _table(name: str, /, **fields: Any) -> Table:
    """Declare a table: a type name is a scalar, ``[type]`` a vector."""
    columns = []
    for field, kind in fields.items():
        if isinstance(kind, list):
            item = kind[0]
            columns.append(Field(field, None, item if isinstance(item, Table) else np.dtype(item)))
        else:
            columns.append(Field(field, np.dtype(kind)))
    return Table(name, tuple(columns))


_SHORT, _INT, _UINT, _ULONG, _FLOAT, _STRING = "<i2", "<i4", "<u4", "<u8", "<f4", "O"

CONNECTION = _table("Connection", fromnode=_UINT, tonode=_UINT, nconn=_UINT)
OPERATOR = _table("Operator", opid=_ULONG, type=_ULONG, name=_STRING)
TASK = _table("Task", type=_SHORT, taskid=_ULONG, deviceid=_ULONG, runtime=_FLOAT, xfersize=_ULONG, nexttasks=[_ULONG])
DEVICE = _table("Device", type=_SHORT, deviceid=_ULONG, nodeid=_ULONG, deviceproperty=_ULONG, bandwidth=_ULONG)
PATH = _table("Path", hopnode=[_UINT], chance=_FLOAT)
ROUTE = _table("Route", fromnode=_UINT, tonode=_UINT, paths=[PATH])
RING = _table("RingDescriptor", jumps=[_INT])
RINGS = _table("Rings", ringsz=_ULONG, ringpaths=[RING])

ROOT = _table(
    "TaskGraph",
    ngpupernode=_UINT,
    nnode=_UINT,
    nswitch=_UINT,
    intergpubw=_FLOAT,
    drambw=_FLOAT,
    netbw=_FLOAT,
    conn=[CONNECTION],
    ops=[OPERATOR],
    tasks=[TASK],
    devices=[DEVICE],
    routes=[ROUTE],
    rings=[RINGS],
)


def flatten(columns: Columns, prefix: str) -> dict[str, Any]:
    """Spread nested columns over keys like ``tasks.nexttasks`` and ``tasks.nexttasks.ptr``."""
    flat: dict[str, Any] = {}
    for field, column in columns.items():
        key = f"{prefix}{field}"
        if not isinstance(column, Rows):
            flat[key] = column
            continue
        flat[f"{key}.ptr"] = column.ptr
        flat |= flatten(column.values, f"{key}.") if isinstance(column.values, dict) else {key: column.values}
    return flat


def unflatten(flat: Mapping[str, Any], prefix: str, table: Table = ROOT) -> Columns:
    """Undo `flatten`; KeyError where a column is missing."""
    columns: Columns = {}
    for field in table.fields:
        key = f"{prefix}{field.name}"
        if field.wire is not None:
            columns[field.name] = flat[key]
        elif isinstance(field.items, Table):
            columns[field.name] = Rows(flat[f"{key}.ptr"], unflatten(flat, f"{key}.", field.items))
        else:
            columns[field.name] = Rows(flat[f"{key}.ptr"], flat[key])
    return columns
