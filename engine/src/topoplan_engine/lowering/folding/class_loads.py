"""What the flows of each class of messages put on links together: one compiled pass, without a column of all entries.

The messages of 100,000 devices on a torus list ten million links, and their classes some thousand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64
from topoplan_engine.csr import indptr
from topoplan_engine.kernels.jit import kernel
from topoplan_engine.lowering.folding.patterns import MessageLoads
from topoplan_engine.network.ring_loads import sort_links

__all__ = ["ClassLoads", "class_loads"]


class ClassLoads(NamedTuple):
    """Units of load of classes of flows, as compressed rows: their links, ascending, and what is put there.

    ``shares`` are the units by which links are shared (`MessageLoads.shares`).
    """

    ptr: I64
    links: I32
    loads: I64
    shares: I64

    def among(self, some: Any) -> ClassLoads:
        """Return those on some (E,) links alone."""
        stays = some[self.links]
        if stays.all():
            return self
        return ClassLoads(indptr(stays)[self.ptr], *(column[stays] for column in self[1:]))


def class_loads(loads: MessageLoads, of: I64, classes: int, counts: Any) -> ClassLoads:
    """Return what classes of flows put on some links.

    Args:
        loads: of all flows.
        of: (N,) class of each flow, -1 for one that does not count.
        classes: how many there are.
        counts: (E,) whether each link does.
    """
    flows = np.argsort(of, kind="stable")[np.count_nonzero(of < 0) :]
    first = np.searchsorted(of[flows], np.arange(classes + 1))
    most = int((loads.load_ptr[flows + 1] - loads.load_ptr[flows]).sum())
    ptr, links = np.zeros(classes + 1, np.int64), np.empty(most, np.int32)  # room that is not written is not taken
    units, shares, total = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros((2, len(counts)), np.int64)
    before = loads.load_ptr, loads.links, loads.loads, loads.shares
    _sum(flows, first, before, counts, total[0], total[1], ptr, links, units, shares)
    end = ptr[-1]
    return ClassLoads(ptr, links[:end].copy(), units[:end].copy(), shares[:end].copy())


@kernel
def _sum(
    flows: I64,
    first: I64,
    before: Any,
    counts: Any,
    total: I64,
    total_shares: I64,
    ptr: I64,
    links: I32,
    loads: I64,
    shares: I64,
) -> None:
    """Fill the last four columns; the totals (E,) are room, all 0 between two classes."""
    load_ptr, flow_links, flow_loads, flow_shares = before
    end = 0
    for number in range(len(first) - 1):
        for flow in flows[first[number] : first[number + 1]]:
            for i in range(load_ptr[flow], load_ptr[flow + 1]):
                link = flow_links[i]
                if counts[link]:
                    if total[link] == 0:
                        links[end] = link
                        end += 1
                    total[link] += flow_loads[i]
                    total_shares[link] += flow_shares[i]
        sort_links(links, ptr[number], end, total)
        for i in range(ptr[number], end):
            link = links[i]
            loads[i], shares[i] = total[link], total_shares[link]
            total[link], total_shares[link] = 0, 0
        ptr[number + 1] = end
