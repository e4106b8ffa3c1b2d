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

from topoplan.arrays import i32, i64
from topoplan_engine.lowering.symmetry.quotient import Quotient
from topoplan_engine.network.star import Star
from topoplan_engine.network.tables import LOAD
from topoplan_simulator_fluid.prepared import Prepared

__all__ = ["quotient_loads"]


def quotient_loads(prepared: Prepared, quotient: Quotient, links: Star) -> Prepared:
    """Give the entities of representatives the loads of their classes."""
    entities, rings = prepared.entities, prepared.rings
    count = len(entities.task)
    entity = entities.of_task[quotient.task]
    runs = entities.of_task[quotient.task + 1] > entity  # not an all-reduce of one member
    owner = np.concatenate([entity[runs], entity[runs]])
    link = np.concatenate([links.up[quotient.host[runs]], links.down[quotient.host[runs]]])
    crossing = np.concatenate([quotient.leaving[runs], quotient.entering[runs]])
    order = np.lexsort((link, owner))
    order = order[crossing[order] > 0]
    loads = np.bincount(owner[order], minlength=count)
    slots = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(loads + (entities.cap >= 0), out=slots[1:])
    return prepared._replace(
        entities=entities._replace(ring=np.arange(count), slot_ptr=slots),
        rings=rings._replace(
            load_ptr=i64(np.concatenate([[0], np.cumsum(loads)])),
            load_links=i32(link[order]),
            load=i64(crossing[order] * LOAD),
        ),
    )
