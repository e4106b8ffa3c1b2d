"""Simulating a quotient: one entity for each class of flows.

On a switch that all hosts reach in the same way, the messages of one class keep one pace, and the interfaces of
the hosts of one class carry the same load at any time.  The entity that represents a class loads the interfaces
of the hosts that represent theirs, once for each of its messages that cross them, and so gets the share that each
of them gets.  Bursts that are served in turn have one path set for each class of channels
(`topoplan_engine.lowering.symmetry.refinement`), so that the representatives wait as long as those that they represent.

Data flow: `topoplan_engine.network.star` returns the links of such a switch; `quotient_loads` replaces the loads of the
entities of representatives by those of their whole classes.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import I32, I64
from topoplan_engine.kernels.jit import njit
from topoplan_engine.lowering.symmetry.quotient import Quotient
from topoplan_engine.network.star import Star
from topoplan_engine.network.tables import LOAD
from topoplan_simulator_fluid.prepared import Prepared

__all__ = ["quotient_loads"]


def quotient_loads(prepared: Prepared, quotient: Quotient, links: Star) -> Prepared:
    """Give the entities of representatives the loads of their classes."""
    entities, rings = prepared.entities, prepared.rings
    rows = (quotient.task, quotient.host, quotient.leaving, quotient.entering)
    slots, *loads = _loads(entities.of_task, entities.cap, *rows, *links)
    for column in loads:
        column.setflags(write=False)  # as those of a network, for which the kernel is compiled
    return prepared._replace(
        entities=entities._replace(ring=np.arange(len(entities.task)), slot_ptr=slots),
        rings=rings._replace(load_ptr=loads[0], load_links=loads[1], load=loads[2]),
    )


@njit()
def _loads(
    of_task: I32, cap: I32, task: I64, host: I32, leaving: I64, entering: I64, up: I64, down: I64
) -> tuple[I64, I64, I32, I64]:
    """Return slots, and where the loads of each entity begin, their links, ascending, and the loads."""
    ptr = np.zeros(len(cap) + 1, np.int64)
    for r in range(len(task)):
        if of_task[task[r] + 1] > of_task[task[r]]:  # not an all-reduce of one member
            ptr[of_task[task[r]] + 1] += (leaving[r] > 0) + (entering[r] > 0)
    slots = np.zeros(len(cap) + 1, np.int64)
    for e in range(len(cap)):
        slots[e + 1] = slots[e] + ptr[e + 1] + (cap[e] >= 0)
        ptr[e + 1] += ptr[e]
    end = ptr.copy()  # where the next load of each entity goes
    link, load = np.empty(ptr[len(cap)], np.int32), np.empty(ptr[len(cap)], np.int64)
    for r in range(len(task)):
        e = of_task[task[r]]
        if of_task[task[r] + 1] == e:
            continue
        for number, crossing in ((up[host[r]], leaving[r]), (down[host[r]], entering[r])):
            if crossing > 0:
                place = end[e]
                while place > ptr[e] and link[place - 1] > number:
                    link[place], load[place] = link[place - 1], load[place - 1]
                    place -= 1
                link[place], load[place] = number, crossing * LOAD
                end[e] += 1
    return slots, ptr, link, load
