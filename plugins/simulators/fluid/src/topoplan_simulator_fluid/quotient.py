"""Simulating a quotient: one entity for each class of flows.

On a switch that all hosts reach in the same way, the messages of one class keep one pace, and the interfaces of
the hosts of one class carry the same load at any time.  The entity that represents a class loads the interfaces
of the hosts that represent theirs, once for each of its messages that cross them, and so gets the share that each
of them gets.  Bursts that are served in turn have one path set for each class of channels
(`topoplan_engine.lowering.symmetry.refinement`), so that the representatives wait as long as those that they represent.

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
from topoplan_simulator_fluid.prepared import Prepared

__all__ = ["Star", "quotient_loads", "star", "switch_links"]


class Star(NamedTuple):
    """(H,) the link that leaves each host, and the one that enters it."""

    up: I64
    down: I64


def star(network: Network) -> Star | None:
    """Return the interfaces of the hosts if they, all equal and of one device, hang on one switch and nothing else."""
    cluster = network.cluster
    return switch_links(network) if cluster.n_devices == cluster.n_hosts else None


@functools.lru_cache(maxsize=16)
def switch_links(network: Network) -> Star | None:
    """Return the interfaces of the hosts if they, all equal, hang on one switch and nothing else."""
    fabric, cluster = network.fabric, network.cluster
    hosts = fabric.n_hosts
    if fabric.n_switches != 1 or fabric.n_links != 2 * hosts or fabric.routes is not None or fabric.rings:
        return None
    counts = np.bincount(cluster.device_host, minlength=hosts)
    if (counts != counts[0]).any() or (cluster.inside_bandwidth != cluster.inside_bandwidth[0]).any():
        return None
    up, down = np.flatnonzero(fabric.link_dst == hosts), np.flatnonzero(fabric.link_src == hosts)
    equal = all(
        len(np.unique(column[links])) == 1
        for links in (up, down)
        for column in (fabric.link_bandwidth, fabric.link_latency)
    )
    if len(up) != hosts or not equal or (np.diff(cluster.device_host) < 0).any():
        return None
    return Star(up[np.argsort(fabric.link_src[up])], down[np.argsort(fabric.link_dst[down])])


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
