"""Simulating a quotient: one entity for each class of flows.

On a switch that all hosts reach in the same way, the messages of one class keep one pace, and the interfaces of
the hosts of one class carry the same load at any time.  The entity that represents a class loads the interfaces
of the hosts that represent theirs, once for each of its messages that cross them, and so gets the share that each
of them gets.

Data flow: `star` returns the links of such a switch; `quotient_loads` replaces the loads of the
entities of representatives by those of their whole classes.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from topoplan.arrays import I64, i32, i64
from topoplan_engine.lowering.symmetry.quotient import Quotient
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.simulation.messages import PACKET
from topoplan_simulator_fluid.prepared import Prepared

__all__ = ["Star", "quotient_loads", "star"]


class Star(NamedTuple):
    """(H,) the link that leaves each host, and the one that enters it."""

    up: I64
    down: I64


@functools.lru_cache(maxsize=16)
def star(network: Network) -> Star | None:
    """Return the interfaces of the hosts if they, all alike and of one device, hang on one switch and nothing else."""
    fabric, cluster = network.fabric, network.cluster
    hosts = fabric.n_hosts
    if fabric.n_switches != 1 or fabric.n_links != 2 * hosts or fabric.routes is not None or fabric.rings:
        return None
    if cluster.n_devices != hosts or len(np.unique(cluster.device_host)) != hosts:
        return None
    up, down = np.flatnonzero(fabric.link_dst == hosts), np.flatnonzero(fabric.link_src == hosts)
    alike = all(
        len(np.unique(column[links])) == 1
        for links in (up, down)
        for column in (fabric.link_bandwidth, fabric.link_latency)
    )
    if len(up) != hosts or not alike or (np.diff(cluster.device_host) != 1).any():
        return None
    return Star(up[np.argsort(fabric.link_src[up])], down[np.argsort(fabric.link_dst[down])])


def quotient_loads(prepared: Prepared, quotient: Quotient, links: Star) -> Prepared:
    """Give the entities of representatives the loads of their classes."""
    entities, paths, rings = prepared.entities, prepared.paths, prepared.rings
    count = len(entities.task)
    entity = entities.of_task[quotient.task]
    runs = entities.of_task[quotient.task + 1] > entity  # not an all-reduce of one member
    owner = np.concatenate([entity[runs], entity[runs]])
    link = np.concatenate([links.up[quotient.host[runs]], links.down[quotient.host[runs]]])
    crossing = np.concatenate([quotient.leaving[runs], quotient.entering[runs]])
    order = np.lexsort((link, owner))
    order = order[crossing[order] > 0]
    loads = np.bincount(owner[order], minlength=count)
    row = np.flatnonzero(entities.path_set >= 0)
    path = paths.row_ptr[entities.path_set[row]]
    setup, drain = entities.setup_latency.copy(), entities.drain_latency.copy()
    setup[row] = paths.delay[path] + paths.per_byte[path]
    drain[row] = paths.delay[path] + PACKET * np.maximum(0.0, paths.per_byte[path] - 1.0 / paths.slowest[path])
    slots = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(loads + (entities.cap >= 0), out=slots[1:])
    return prepared._replace(
        entities=Entities(
            **{
                **entities._asdict(),
                "path_set": np.full(count, -1, np.int32),
                "ring": np.arange(count),
                "slot_ptr": slots,
                "setup_latency": setup,
                "drain_latency": drain,
            }
        ),
        rings=rings._replace(
            load_ptr=i64(np.concatenate([[0], np.cumsum(loads)])),
            load_links=i32(link[order]),
            load=i64(crossing[order] * LOAD),
        ),
    )
