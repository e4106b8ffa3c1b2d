"""Tensors that several operators read: a device gets what its operators read of a tensor once, not once for each.

An edge of the model is one operator that reads a tensor of another one.  Of a residual connection two operators of the
next stage read the same tensor; a program sends it once, and adds the gradients of both before they go back.  So all
pairs of parts with one tensor, one part that makes it and one device that reads it are one message: to the part that
the device runs first, whose backward pass comes last.  It has the elements that any of them reads.

Placements without an order of passes keep the rule of FlexNet, which sends a tensor along every edge.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan.arrays import I32, I64
from topoplan.model.placement import Placement
from topoplan_engine.csr import indptr
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.parts import PartTable

__all__ = ["along_edges", "sent_once", "union_elements"]


def sent_once(table: PartTable, stage: I32, fragments: FragmentCache, placements: Sequence[Placement]) -> PartTable:
    """Return the table with one row for what a part sends a device of a tensor; pairs on one device stay.

    Args:
        table: of ``placements``, with a row for each pair of parts of each edge.
        stage: (parts,) of every part.
        fragments: of the model.
        placements: of all operators.
    """
    edge = np.repeat(np.arange(len(table.edge_src_op)), np.diff(table.edge_ptr))
    source = table.src + table.op_base[table.edge_src_op][edge]
    target = table.dst + table.op_base[table.edge_dst_op][edge]
    remote = np.flatnonzero(~table.local)
    tensor, device = fragments.edge_tensors[edge[remote]], table.device[target[remote]]
    # Of equal keys, what the device runs first comes first.
    order = np.lexsort((target[remote], stage[target[remote]], device, source[remote], tensor))
    rows = remote[order]
    keys = np.stack([tensor, source[remote], device])[:, order]
    starts = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(rows)]
    if starts.all():
        return table
    group = np.cumsum(starts) - 1
    first, count = np.flatnonzero(starts), np.bincount(group)
    size = table.size.copy()
    several = np.flatnonzero(count[group] > 1)
    low, high = _boxes(rows[several], edge, table, fragments, placements)
    # Where in ``several`` the group of each of its rows begins.
    begins = np.searchsorted(several, first[group[several]])
    differs = ((low != low[begins]) | (high != high[begins])).any(axis=1)
    for start in np.unique(begins[differs]).tolist():
        members = slice(start, start + int(count[group[several[start]]]))
        row = rows[several[start]]
        size[row] = union_elements(low[members], high[members]) * fragments.itemsizes[edge[row]]
    stays = table.local.copy()
    stays[rows[first]] = True
    return table._replace(
        edge_ptr=indptr(np.bincount(edge[stays], minlength=len(table.edge_src_op)), np.int32),
        src=table.src[stays],
        dst=table.dst[stays],
        size=size[stays],
        local=table.local[stays],
    )


def along_edges(table: PartTable, edges: np.ndarray) -> PartTable:
    """Return the table with the pairs of some edges; ``edges`` (m,) says which."""
    pairs = np.diff(table.edge_ptr)
    chosen_rows = np.repeat(edges, pairs)
    return table._replace(
        edge_ptr=indptr(np.where(edges, pairs, 0), np.int32),
        src=table.src[chosen_rows],
        dst=table.dst[chosen_rows],
        size=table.size[chosen_rows],
        local=table.local[chosen_rows],
    )


def union_elements(low: I64, high: I64) -> int:
    """Return how many elements (n,) boxes have together, each from ``low`` to ``high`` along A axes, (n, A) each.

    >>> union_elements(np.array([[0, 0], [0, 2]]), np.array([[4, 3], [2, 4]]))
    14
    """
    boxes = np.unique(np.concatenate([low, high], axis=1), axis=0)
    low, high = np.split(boxes, 2, axis=1)
    ends = [np.unique(np.concatenate([low[:, axis], high[:, axis]])) for axis in range(low.shape[1])]
    inside = np.zeros([len(cuts) - 1 for cuts in ends], dtype=np.bool_)
    for first, last in zip(low, high, strict=True):
        box = (slice(*np.searchsorted(cuts, (a, b))) for cuts, a, b in zip(ends, first, last, strict=True))
        inside[tuple(box)] = True
    for cuts in reversed(ends):  # axis by axis, the last first
        inside = inside @ np.diff(cuts)
    return int(inside)


def _boxes(
    rows: I64, edge: I64, table: PartTable, fragments: FragmentCache, placements: Sequence[Placement]
) -> tuple[I64, I64]:
    """(n, A) where what each row sends begins and ends along the axes of its tensor; 0 and 1 along missing ones."""
    edges = edge[rows]
    present = np.unique(edges).tolist()
    most = max((len(fragments.edge_axes(number)) for number in present), default=0)
    low, high = np.zeros((len(rows), most), dtype=np.int64), np.ones((len(rows), most), dtype=np.int64)
    for number in present:
        places = np.flatnonzero(edges == number)
        source, target = fragments.slices_of(number, placements)
        axes = source.shape[2]
        sent, wanted_slices = source[:, table.src[rows[places]]], target[:, table.dst[rows[places]]]
        low[places, :axes] = np.maximum(sent[0], wanted_slices[0])
        high[places, :axes] = np.minimum(sent[1], wanted_slices[1])
    return low, high
