"""All-to-alls as one task without an algorithm: a flow for every message between two members, equal ones as one.

Every member sends to each other one at once, as if the messages were transfers between two joins, and they share links
with all that flows.  Messages on the same path are the same flow: they put as many loads on its links, and each gets
the rate that all of them get.  Hosts of 8 devices that are one endpoint so have 1 flow for 64 messages.  Messages that
draw one of several paths draw it each.  Stripes of messages
(`topoplan_engine.network.stripes`) are flows of their own.  Messages that are not equal (`TaskGraph.shares`) are flows
of their sizes; those of one size on one path are one.

In an iteration of very many such flows the messages of each all-to-all are coupled, as those of a ring are: all move
in proportion to their bytes, each on a path that it has drawn, and they take the longest latency of these paths
and the bytes on the fullest link over its bandwidth, if they are alone.

Data flow: `with_direct_all_to_alls` puts the flows of all-to-alls in the place of the rings that
`topoplan_engine.simulation.flows.build` lists; `topoplan_engine.network.tables.Network` keeps their loads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, i32
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.csr import expand, indptr
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.interrupt import check_size
from topoplan_engine.network.exchanged import Factors, factors_of, is_unequal, scales_of
from topoplan_engine.network.machine import network_of
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.coupled_messages import coupled_flows, streams_of
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.simulation.message_paths import paths_of_messages
from topoplan_engine.simulation.replaced import replaced
from topoplan_engine.simulation.striped import stripes_of

__all__ = ["MOST_FLOWS", "with_direct_all_to_alls"]

#: Flows of the all-to-alls of the largest iteration in which they are not coupled.
MOST_FLOWS = 1 << 18

#: Messages of the largest coupled all-to-all whose paths are kept, and how many of a larger one are routed at a time.
_KEPT, _AT_A_TIME = 1 << 17, 1 << 15

#: Members of enumerations, which take as long to look up as a column takes to be compared.
_COLLECTIVE, _ALL_TO_ALL = int(TaskKind.COLLECTIVE), int(Collective.ALL_TO_ALL)


class _GroupFlows(NamedTuple):
    """The flows of a group; f of them.

    Attributes:
        path_set, ring: (f,) rows of paths, and of loads, -1 where a path is drawn.
        scale: (f,) bytes of their messages over those of an equal one.
        share: (f,) of a message that each carries.
    """

    path_set: I64
    ring: I64
    scale: F64
    share: F64


class _Coupled(NamedTuple):
    """The messages of a group as one flow.

    Attributes:
        ring: its row of loads.
        latency, max_rate: of the largest message, and bytes/s at most.
        scale: bytes of the largest message over those of an equal one.
    """

    ring: int
    latency: float
    max_rate: float
    scale: float


class _Group(NamedTuple):
    """Members of an all-to-all, and what `TaskGraph.shares` says of them."""

    members: I32
    factors: Factors

    @property
    def key(self) -> tuple[bytes, Factors]:
        return self.members.tobytes(), self.factors

    @property
    def n_messages(self) -> int:
        return len(self.members) * (len(self.members) - 1)


def with_direct_all_to_alls(
    taskgraph: TaskGraph,
    entities: Entities,
    network: Network,
    most_flows: float = MOST_FLOWS,
    *,
    equal: bool = True,
) -> Entities:
    """Put flows in the place of the rings of all all-to-alls of a task graph.

    Args:
        taskgraph: what the entities are of.
        entities: of all its tasks; collectives run rings.
        network: of the entities; gets rows of loads.
        most_flows: how many there may be that are not coupled.
        equal: those of equal messages, too; else algorithms run these.

    Raises:
        TopoplanError: there is no path between two members.
    """
    is_one = taskgraph.collective == _ALL_TO_ALL if equal else is_unequal(taskgraph)
    if not is_one.any():
        return entities
    tasks = np.flatnonzero(is_one & (taskgraph.kind == _COLLECTIVE))
    sizes = np.diff(taskgraph.group_ptr)
    tasks = tasks[sizes[taskgraph.group[tasks]] > 1]
    if not len(tasks):
        return entities
    groups, place = np.unique(taskgraph.group[tasks], return_inverse=True)
    listed, times = _groups(taskgraph, groups), np.bincount(place.ravel(), minlength=len(groups))
    volume = -(-taskgraph.size[tasks] // sizes[taskgraph.group[tasks]])
    flows = _flows_of_all(listed, times, network, most_flows)
    if flows is None:
        coupled = [_coupled(group, network) for group in listed]
        ring, latency, max_rate, scale = (np.array(column)[place.ravel()] for column in zip(*coupled, strict=True))
        volume = np.rint(volume * scale)
        of_all = {"path_set": -1, "ring": ring, "volume": volume, "max_rate": max_rate, "cap": -1}
        return replaced(entities, tasks, np.ones_like(tasks), {**of_all, "setup_latency": latency}, network)
    counts = np.array([len(each.path_set) for each in flows])
    _, entry = expand(indptr(counts)[:-1][place.ravel()], counts[place.ravel()])
    path_set, ring, scale, share = (np.concatenate(column)[entry] for column in zip(*flows, strict=True))
    counts = counts[place.ravel()]
    volume = np.rint(np.repeat(volume, counts) * scale) * share
    columns = {"path_set": path_set, "ring": ring, "volume": volume, "max_rate": np.inf, "cap": -1}
    return replaced(entities, tasks, counts, columns, network)


def _flows_of_all(groups: list[_Group], times: I64, network: Network, most_flows: float) -> list[_GroupFlows] | None:
    """Return the flows of groups, of which there are so many all-to-alls each; None if they are more than the most."""
    flows, count = [], 0
    for group, several in zip(groups, times.tolist(), strict=True):
        if group.n_messages > most_flows:  # those on one path are one, which is not known before
            return None
        flows.append(_flows_of(group, network))
        count += several * len(flows[-1].path_set)
        if count > most_flows:
            return None
    return flows


def _messages_of(group: _Group, first: int = 0, last: int | None = None) -> tuple[I32, I32, F64]:
    """Return the senders and receivers of the messages of some members, and their scales."""
    members = group.members
    sender, receiver = np.nonzero(~np.eye(len(members), dtype=bool)[first:last])
    scales = np.ones(len(sender))
    if group.factors:
        scales = scales_of(group.factors, len(members))[first:last][sender, receiver]
    return i32(members[first:last][sender]), i32(members[receiver]), scales


def _coupled(group: _Group, network: Network) -> _Coupled:
    """Return the one flow of a group, which the network keeps."""
    key = "coupled", group.key
    if key not in network.prices:
        links, load, latency = _loads_of(group, network)
        rate = float(np.min(network.bandwidth[links] / (load / LOAD), initial=np.inf))
        network.prices[key] = _Coupled(network.add_loads([(links, load)]), latency, rate, _largest(group))
    coupled: _Coupled = network.prices[key]
    return coupled


def _largest(group: _Group) -> float:
    """Return how many times an equal message the largest one of a group is."""
    size = len(group.members)
    return float(scales_of(group.factors, size)[~np.eye(size, dtype=bool)].max()) if group.factors else 1.0


def _loads_of(group: _Group, network: Network) -> tuple[I64, I64, float]:
    """Return the links that the messages of a group load, how much, and their longest latency.

    Paths of very many messages are not kept: a part of them is routed at a time, in a network of its own.
    """
    size, load, latency = len(group.members), np.zeros(network.n_links, np.int64), 0.0
    check_size(group.n_messages)  # each has a path, which takes as long as a task
    largest = _largest(group) or 1.0
    step = size if group.n_messages <= _KEPT else max(1, _AT_A_TIME // size)
    for first in range(0, size, step):
        stop_if_wanted()
        routed = network if step == size else network_of(network.fabric, network.cluster)
        src, dst, scale = _messages_of(group, first, first + step)
        ways = paths_of_messages(routed, src, dst, streams_of(src, dst, network.cluster.n_devices))
        part = coupled_flows(ways, np.zeros(len(src), np.int64), 1, scale / largest, routed)
        load[part.links] += part.load
        latency = max(latency, float(part.latency[0]))
    links = np.flatnonzero(load)
    return links, load[links], latency


def _groups(taskgraph: TaskGraph, groups: I32) -> list[_Group]:
    ends = zip(taskgraph.group_ptr[groups].tolist(), taskgraph.group_ptr[groups + 1].tolist(), strict=True)
    members = [taskgraph.group_members[first:last] for first, last in ends]
    return [_Group(each, factors_of(taskgraph, group)) for group, each in zip(groups.tolist(), members, strict=True)]


def _flows_of(group: _Group, network: Network) -> _GroupFlows:
    """Return the flows of a group, which the network keeps."""
    key = "direct", group.key
    if key not in network.prices:
        src, dst, scale = _messages_of(group)
        message, rows, share = stripes_of(network.rows_between(src, dst).astype(np.int64), network)
        scale = scale[message]
        draws = np.diff(network.paths.row_ptr)[rows] > 1
        size = np.unique(scale, return_inverse=True)[1].ravel() if group.factors else np.zeros(len(rows), np.int64)
        different = distinct_columns(rows[~draws], size[~draws])
        merged, counts = rows[~draws][different.first], different.counts
        ring = network.add_messages(i32(merged), counts)
        path_set = np.concatenate([merged, rows[draws]])
        sizes, shares = (np.append(each[~draws][different.first], each[draws]) for each in (scale, share))
        rings = np.append(ring, np.full(int(draws.sum()), -1))
        network.prices[key] = _GroupFlows(path_set, rings, sizes, shares)
    flows: _GroupFlows = network.prices[key]
    return flows
