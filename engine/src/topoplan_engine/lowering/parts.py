"""All parts of one iteration as columns: fragments, one after the other.

`topoplan_engine.lowering.build` makes a task graph of a `PartTable`; `topoplan_engine.lowering.symmetry` makes a
shorter table of a long one in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.csr import indptr
from topoplan_engine.lowering.fragments import EdgeFragment, OperatorFragment

__all__ = ["PartTable", "concatenate"]


class PartTable(NamedTuple):
    """Columns of all parts, all-reduces and pairs of parts.

    A pair is a part of a producer and a part of a consumer that uses some of what the first one makes.

    Attributes:
        op_base: (n_ops+1,) parts before each operator.
        device, op, forward, backward: (parts,) operator by operator; seconds of the passes.
        group_op, group_bytes, group_seconds: (G,) of all all-reduces; seconds inside hosts.
        part_ptr, group_parts: CSR, parts (numbered within their operator) of each all-reduce.
        device_ptr, group_devices: CSR, its devices.
        edge_ptr: (m+1,) rows of each edge in the columns of pairs.
        edge_src_op, edge_dst_op: (m,) producer and consumer of each edge.
        src, dst: (pairs,) parts, numbered within their operators.
        size, local: (pairs,) bytes, and whether both parts are on one device.
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


def concatenate(ops: Sequence[OperatorFragment], edges: Sequence[EdgeFragment], edge_ops: I32) -> PartTable:
    """Put fragments one after the other; ``edge_ops`` (2, m) are the producer and the consumer of each edge."""
    parts = np.array([len(fragment.devices) for fragment in ops], dtype=np.int32)
    number = np.arange(len(ops), dtype=np.int32)
    return PartTable(
        op_base=indptr(parts, np.int32),
        device=np.concatenate([fragment.devices for fragment in ops]),
        op=np.repeat(number, parts),
        forward=np.concatenate([fragment.forward for fragment in ops]),
        backward=np.concatenate([fragment.backward for fragment in ops]),
        group_op=np.repeat(number, [len(fragment.group_bytes) for fragment in ops]),
        group_bytes=np.concatenate([fragment.group_bytes for fragment in ops]),
        group_seconds=np.concatenate([fragment.group_seconds for fragment in ops]),
        part_ptr=indptr(np.concatenate([fragment.part_counts for fragment in ops]), np.int32),
        group_parts=np.concatenate([fragment.group_parts for fragment in ops]),
        device_ptr=indptr(np.concatenate([fragment.device_counts for fragment in ops]), np.int32),
        group_devices=np.concatenate([fragment.group_devices for fragment in ops]),
        edge_ptr=indptr([len(fragment.src) for fragment in edges], np.int32),
        edge_src_op=edge_ops[0],
        edge_dst_op=edge_ops[1],
        src=_column([fragment.src for fragment in edges], np.int32),
        dst=_column([fragment.dst for fragment in edges], np.int32),
        size=_column([fragment.size for fragment in edges], np.int64),
        local=_column([fragment.local for fragment in edges], np.bool_),
    )


def _column(rows: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate(rows) if rows else np.zeros(0, dtype=dtype)
