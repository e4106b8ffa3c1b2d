"""Rings of folded iterations whose steps would draw their ways: as slow as draws make them in the mean.

A coupled ring is as slow as the link that most of its steps have drawn, and a link that two rings have drawn is slow
for both.  A folded iteration loads each way by its weight, so that nothing meets.  All groups along the same axes of a
stage begin together there, and what waits for them waits for the slowest of them.  So they are held to the mean, over
many draws of all their steps, of the bytes on the fullest link.  What other groups, and messages between two devices,
draw at the same time does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from topoplan.arrays import I32, I64
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.csr import expand, indptr, select
from topoplan_engine.network.machine import network_of
from topoplan_engine.network.ring_loads import MOST_DRAWN
from topoplan_engine.network.tables import ONE_PATH, Network
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.simulation.message_paths import drawn_paths

if TYPE_CHECKING:
    from topoplan_engine.lowering.folding.layout import FoldedIteration

__all__ = ["held_to_draws", "seconds_of_draws"]

#: Draws of some groups, fewer where they have many steps: at least, at most, and of all steps together.
_FEWEST, _MOST, _STEPS = 16, 512, 1 << 18


def held_to_draws(folded: FoldedIteration, entities: Entities, by_ring: Any, network: Network) -> Entities:
    """Return entities whose rings are no faster than draws of their ways let them be.

    Args:
        folded: the iteration.
        entities: of its tasks.
        by_ring: (T,) whether rings of the network run a collective.
        network: where it runs.
    """
    if not folded.draws or not folded.groups:
        return entities
    taskgraph = folded.taskgraph
    rings = np.flatnonzero((entities.ring >= 0) & by_ring[entities.task])
    rings = rings[(taskgraph.kind == TaskKind.COLLECTIVE)[entities.task[rings]]]
    rings = rings[(taskgraph.collective != Collective.ALL_TO_ALL)[entities.task[rings]]]
    seconds = np.zeros(len(folded.flow_ptr) - 1)
    message = folded.message[entities.task[rings]]
    drawing = [
        (classes, groups)
        for classes, groups in folded.groups
        if np.isin(classes, message).any() and _may_draw(groups, network.cluster.device_host)
    ]
    if not drawing:
        return entities
    all_paths = network if network.spreading is None else network_of(network.spreading.drawn, network.cluster)
    for classes, groups in drawing:
        seconds[classes] = np.maximum(seconds[classes], seconds_of_draws(groups, all_paths))
    # Parallel rings may be one entity here (planes, rails), which has the bytes of all of them.
    parallel = np.diff(entities.of_task)[entities.task[rings]]
    with np.errstate(divide="ignore"):
        rate = 1 / (seconds[message] * parallel)
    slower = np.flatnonzero(rate < entities.max_rate[rings] * (1 - 1e-9))
    rings, rate = rings[slower], rate[slower]
    cap, max_rate = entities.cap.copy(), entities.max_rate.copy()
    cap[rings], max_rate[rings] = len(entities.caps) + np.arange(len(rings)), rate
    return entities._replace(cap=cap, max_rate=max_rate, caps=np.append(entities.caps, rate))


def _may_draw(groups: I64 | I32, device_host: I32) -> bool:
    """Whether rings of (G, n) members may draw ways: those inside of a host, and of very many, have one or load all."""
    hosts = np.sort(device_host[groups], axis=1)
    several = 1 + np.count_nonzero(hosts[:, 1:] != hosts[:, :-1], axis=1)
    return bool(((several > 1) & (several <= MOST_DRAWN)).any())


def seconds_of_draws(groups: I64 | I32, network: Network) -> float:
    """Return what a byte of each step of rings takes on the fullest link, in the mean of draws; 0 if nothing draws.

    Args:
        groups: (G, n) members; the bytes of a step are those of all parallel rings of its group.
        network: has all paths.
    """
    ring = network.lower(_collectives(groups, network.cluster.n_devices)).ring
    rings = network.rings_in_full
    if (rings.choice[ring] == ONE_PATH).all():
        return 0.0
    flows = (rings.parallel[ring] * rings.members[ring]).astype(np.int64)
    owner, row = expand(rings.first[ring], flows)
    rows, share = rings.rows[row].astype(np.int64), (1 / rings.parallel[ring])[owner]
    outside = network.fabric.n_links
    seconds = []
    for number in range(min(_MOST, max(_FEWEST, _STEPS // len(rows)))):
        stream = np.arange(len(rows), dtype=np.uint64) + np.uint64(number * len(rows))
        path = drawn_paths(network, rows, stream)
        flow, entry = select(network.paths.path_ptr, path)
        links = network.paths.links[entry]
        between = links < outside
        load = np.bincount(links[between], share[flow[between]], outside)
        seconds.append(float((load / network.fabric.link_bandwidth).max(initial=0.0)))
    return float(np.mean(seconds))


def _collectives(groups: I64 | I32, n_devices: int) -> TaskGraph:
    """Return a collective for each group."""
    count, none = len(groups), np.full(len(groups), -1)
    return TaskGraph(
        kind=np.full(count, int(TaskKind.COLLECTIVE)),
        device=none,
        seconds=np.zeros(count),
        size=np.ones(count, np.int64),
        src=none,
        dst=none,
        group=np.arange(count),
        op=np.zeros(count, np.int64),
        collective=np.full(count, int(Collective.ALL_REDUCE)),
        group_ptr=indptr(np.full(count, groups.shape[1])),
        group_members=groups.ravel(),
        succ_ptr=np.zeros(count + 1, np.int32),
        succ=[],
        n_devices=n_devices,
        op_names=("collectives",),
    )
