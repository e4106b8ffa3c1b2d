"""What links still have to carry: a lower bound on the end of an iteration while it runs.

A link carries no more than its bandwidth.  So an iteration ends no earlier than now plus the seconds that a link needs
for what has yet to cross it: what is left of the flows over it, and messages that have not begun to flow.  How many of
these cross it is known before the iteration runs, for paths are drawn by pair of hosts and number: how often a row
draws each of its paths does not depend on the order of events.  Where its messages differ, each counts as the smallest.

The bound of a link rises no faster than the clock, so that a link is looked at only when its bound may have reached the
time to stop at.

Data flow: `deadline` is made before the first instant; `is_too_late` is asked when the clock reaches ``next_look``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan_engine.kernels.jit import inline_kernel, njit, part
from topoplan_engine.network.tables import LOAD, PathColumns
from topoplan_engine.simulation.flows import inside_load
from topoplan_simulator_fluid.drawing import draw_path
from topoplan_simulator_fluid.prepared import Prepared
from topoplan_simulator_fluid.rows import Sharing
from topoplan_simulator_fluid.sharing import bytes_left_over

__all__ = ["TOGETHER", "Deadline", "deadline", "is_too_late", "no_deadline"]

#: Events this close, in seconds, happen together.
TOGETHER = 1e-12

#: A link is looked at no more than so often in the time to stop at.
_LOOKS = 128


class Deadline(NamedTuple):
    """When an iteration is proven to come too late; T tasks, E links.

    Attributes:
        stop: seconds; infinite for an iteration that runs to its end, and then nothing else is used.
        time_to_end: (T,) seconds from the start of each task to the end of all, at least.
        late: seconds; ``stop``, and what rounding and events that happen together can take from the bound of a link.
        total: (E,) bytes that cross each link in the iteration, at least.
        look: (E,) seconds; when the bound of each link can reach ``late`` at the earliest.
        next_look: (1,) seconds; when to look at links again.
    """

    stop: float
    time_to_end: F64
    late: float
    total: F64
    look: F64
    next_look: F64


@njit()
def no_deadline() -> Deadline:
    """Return the deadline of an iteration that runs to its end."""
    return Deadline(np.inf, np.zeros(0), np.inf, np.zeros(0), np.zeros(0), np.full(1, np.inf))


@part()
def deadline(p: Prepared, seed: int, time_to_end: F64, stop: float) -> Deadline:
    """Return the deadline of an iteration whose end is of no interest from ``stop`` on."""
    if stop == np.inf:
        never: Deadline = no_deadline()
        return never
    n_links, n_rows = len(p.paths.bandwidth), len(p.paths.pair)
    total = np.zeros(n_links)
    smallest, draws = np.full(n_rows, np.inf), np.zeros(n_rows, np.int64)
    _add_certain(p, smallest, total)
    _add_drawn(p, smallest, draws, seed, total)
    late = stop * (1 + 1e-9) + 4 * TOGETHER * (len(p.tasks.kind) + p.entities.rounds.sum())
    return Deadline(stop, time_to_end, late, total, np.zeros(n_links), np.zeros(1))


@inline_kernel
def _add_certain(p: Prepared, smallest: F64, total: F64) -> None:
    """Add the bytes of entities whose links are certain, and find the smallest message of each other row."""
    entities, rings, paths = p.entities, p.rings, p.paths
    for e in range(len(entities.task)):
        ring, row = entities.ring[e], entities.path_set[e]
        if ring >= 0:
            size = entities.volume[e] * LOAD / entities.load[e]
            for i in range(rings.load_ptr[ring], rings.load_ptr[ring + 1]):
                total[rings.load_links[i]] += size * ((rings.load[i] * entities.load[e] // LOAD) / LOAD)
        elif row >= 0:
            _add_row(paths, row, entities.volume[e], entities.rounds[e], smallest, total)
        for i in range(entities.drawn[e], entities.drawn[e] + entities.drawn_flows[e]):
            _add_row(paths, rings.rows[i], entities.volume[e], 1, smallest, total)


@inline_kernel
def _add_row(paths: PathColumns, row: int, volume: float, times: int, smallest: F64, total: F64) -> None:
    """Add what a row sends so many times to the links of its path, or note the smallest where there are several."""
    path = paths.row_ptr[row]
    if paths.row_ptr[row + 1] - path > 1:
        smallest[row] = min(smallest[row], volume)
        return
    for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
        total[paths.links[i]] += volume * times * (inside_load(path, paths.links[i], LOAD, paths) / LOAD)


@inline_kernel
def _add_drawn(p: Prepared, smallest: F64, draws: I64, seed: int, total: F64) -> None:
    """Add the bytes of entities that draw paths: every message of a row as the smallest of them."""
    entities = p.entities
    for e in range(len(entities.task)):
        row = entities.path_set[e]
        if entities.ring[e] < 0 and row >= 0:
            for _ in range(entities.rounds[e]):
                _add_draw(p, row, smallest, draws, seed, total)
        for i in range(entities.drawn[e], entities.drawn[e] + entities.drawn_flows[e]):
            _add_draw(p, p.rings.rows[i], smallest, draws, seed, total)


@inline_kernel
def _add_draw(p: Prepared, row: int, smallest: F64, draws: I64, seed: int, total: F64) -> None:
    """Add the smallest message of a row to the links of the path that it draws next; none where it has one path."""
    paths = p.paths
    if smallest[row] < np.inf:
        path = draw_path(paths, draws, row, seed)
        for i in range(paths.path_ptr[path], paths.path_ptr[path + 1]):
            total[paths.links[i]] += smallest[row] * (inside_load(path, paths.links[i], LOAD, paths) / LOAD)


@inline_kernel
def is_too_late(p: Prepared, sharing: Sharing, entered: F64, d: Deadline, now: float) -> bool:
    """Whether some link proves that the iteration ends no earlier than its deadline.

    Args:
        p: the iteration.
        sharing: flows, settled and up to date until ``now``.
        entered: (E,) bytes of what flows or has flowed over each link.
        d: its deadline.
        now: seconds.
    """
    soonest = np.inf
    for link in range(len(d.look)):
        if d.look[link] <= now:
            rest_bytes = d.total[link] - entered[link] + bytes_left_over(sharing, link, now)
            slack = d.late - now - rest_bytes / p.paths.bandwidth[link]
            if slack <= 0.0:
                return True
            d.look[link] = now + slack if rest_bytes > 0.0 else np.inf
        soonest = min(soonest, d.look[link])
    d.next_look[0] = max(soonest, now + d.late / _LOOKS)
    return False
