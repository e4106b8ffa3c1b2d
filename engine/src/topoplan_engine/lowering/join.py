"""From pieces to columns, and from columns to a task graph.

Data flow: `join` puts kept pieces one after the other (`Joined`), `taskgraph_of` runs the compiled pass over them.
`topoplan_engine.lowering.fold` makes a shorter `Joined` of a long one in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.csr import indptr
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.lowering.pieces import EdgePiece, OperatorPiece

__all__ = ["Joined", "join", "taskgraph_of"]


class Joined(NamedTuple):
    """Columns of all parts, all-reduces and pairs of parts.

    Attributes:
        op_base: (n_ops+1,) parts before each operator.
        device, op, forward, backward: (parts,) operator by operator.
        group_op, group_bytes, group_seconds: (G,) of all all-reduces.
        part_ptr, group_parts: compressed rows, parts (numbered within their operator) of each all-reduce.
        device_ptr, group_devices: likewise its devices.
        edge_ptr: (m+1,) rows of each edge in the columns of pairs; edge_src_op, edge_dst_op: (m,).
        src, dst: (pairs,) parts, numbered within their operators; size: bytes; local: on one device.
    """

    op_base: I32
    device: I32
    op: I32
    forward: F64
    backward: F64
    group_op: I32
    group_bytes: I64
    group_seconds: F64
    part_ptr: I32
    group_parts: I32
    device_ptr: I32
    group_devices: I32
    edge_ptr: I32
    edge_src_op: I32
    edge_dst_op: I32
    src: I32
    dst: I32
    size: I64
    local: np.ndarray


def join(ops: Sequence[OperatorPiece], edges: Sequence[EdgePiece], edge_ops: I32) -> Joined:
    """Put pieces one after the other; ``edge_ops`` (2, m) says which operators each edge joins."""
    parts = np.array([len(piece.devices) for piece in ops], dtype=np.int32)
    number = np.arange(len(ops), dtype=np.int32)
    return Joined(
        op_base=indptr(parts, np.int32),
        device=np.concatenate([piece.devices for piece in ops]),
        op=np.repeat(number, parts),
        forward=np.concatenate([piece.forward for piece in ops]),
        backward=np.concatenate([piece.backward for piece in ops]),
        group_op=np.repeat(number, [len(piece.group_bytes) for piece in ops]),
        group_bytes=np.concatenate([piece.group_bytes for piece in ops]),
        group_seconds=np.concatenate([piece.group_seconds for piece in ops]),
        part_ptr=indptr(np.concatenate([piece.part_counts for piece in ops]), np.int32),
        group_parts=np.concatenate([piece.group_parts for piece in ops]),
        device_ptr=indptr(np.concatenate([piece.device_counts for piece in ops]), np.int32),
        group_devices=np.concatenate([piece.group_devices for piece in ops]),
        edge_ptr=indptr([len(piece.src) for piece in edges], np.int32),
        edge_src_op=edge_ops[0],
        edge_dst_op=edge_ops[1],
        src=_concatenated([piece.src for piece in edges], np.int32),
        dst=_concatenated([piece.dst for piece in edges], np.int32),
        size=_concatenated([piece.size for piece in edges], np.int64),
        local=_concatenated([piece.local for piece in edges], np.bool_),
    )


def taskgraph_of(joined: Joined, op_names: tuple[str, ...], n_devices: int) -> TaskGraph:
    """Return the task graph of one iteration."""
    from topoplan_engine.lowering.assemble import assemble

    columns = assemble(
        joined.op_base,
        joined.device,
        joined.op,
        joined.forward,
        joined.backward,
        joined.group_op,
        joined.part_ptr,
        joined.group_parts,
        joined.group_bytes,
        joined.group_seconds,
        joined.edge_ptr,
        joined.edge_src_op,
        joined.edge_dst_op,
        joined.src,
        joined.dst,
        joined.size,
        joined.local,
    )
    names = ("kind", "device", "seconds", "size", "src", "dst", "group", "op", "succ_ptr", "succ")
    for column in columns:
        column.setflags(write=False)
    return TaskGraph(
        **dict(zip(names, columns, strict=True)),
        group_ptr=joined.device_ptr,
        group_members=joined.group_devices,
        op_names=op_names,
        n_devices=n_devices,
    )


def _concatenated(rows: list[Any], dtype: Any) -> Any:
    return np.concatenate(rows) if rows else np.zeros(0, dtype=dtype)
