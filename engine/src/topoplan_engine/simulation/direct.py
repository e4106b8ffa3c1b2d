"""All-to-alls as one task without an algorithm: a flow for every message between two members, equal ones as one.

Every member sends to each other one at once, as if the messages were transfers between two joins, and they share links
with all that flows.  Messages on the same path are the same flow: they put as many loads on its links, and each gets
the rate that all of them get.  Hosts of 8 devices that are one endpoint so have 1 flow for 64 messages.  Messages that
draw one of several paths draw it each.  Stripes of messages
(`topoplan_engine.network.stripes`) are flows of their own.

Data flow: `with_direct_all_to_alls` puts the flows of all-to-alls in the place of the rings that
`topoplan_engine.simulation.flows.build` lists; `topoplan_engine.network.tables.Network` keeps their loads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, i32
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.csr import expand, indptr
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.simulation.replaced import replaced
from topoplan_engine.simulation.striped import stripes_of

__all__ = ["with_direct_all_to_alls"]

#: Members of enumerations, which take as long to look up as a column takes to be compared.
_COLLECTIVE, _ALL_TO_ALL = int(TaskKind.COLLECTIVE), int(Collective.ALL_TO_ALL)


class _GroupFlows(NamedTuple):
    """The flows of a group: (f,) rows of paths, and of loads, -1 where a path is drawn; and how much of a message."""

    path_set: I64
    ring: I64
    share: F64


def with_direct_all_to_alls(taskgraph: TaskGraph, entities: Entities, network: Network) -> Entities:
    """Put flows in the place of the rings of all all-to-alls of a task graph.

    Args:
        taskgraph: what the entities are of.
        entities: of all its tasks; collectives run rings.
        network: of the entities; gets rows of loads.

    Raises:
        TopoplanError: there is no path between two members.
    """
    is_one = taskgraph.collective == _ALL_TO_ALL
    if not is_one.any():
        return entities
    tasks = np.flatnonzero(is_one & (taskgraph.kind == _COLLECTIVE))
    sizes = np.diff(taskgraph.group_ptr)
    tasks = tasks[sizes[taskgraph.group[tasks]] > 1]
    if not len(tasks):
        return entities
    groups, place = np.unique(taskgraph.group[tasks], return_inverse=True)
    flows = [_flows_of(taskgraph.group_members[a:b], network) for a, b in _ends(taskgraph, groups)]
    counts = np.array([len(each.path_set) for each in flows])
    _, entry = expand(indptr(counts)[:-1][place.ravel()], counts[place.ravel()])
    path_set, ring, share = (np.concatenate(column)[entry] for column in zip(*flows, strict=True))
    counts = counts[place.ravel()]
    volume = -(-taskgraph.size[tasks] // sizes[taskgraph.group[tasks]])
    volume = np.repeat(volume, counts) * share
    columns = {"path_set": path_set, "ring": ring, "volume": volume, "max_rate": np.inf, "cap": -1}
    return replaced(entities, tasks, counts, columns, network)


def _ends(taskgraph: TaskGraph, groups: I32) -> list[tuple[int, int]]:
    return list(zip(taskgraph.group_ptr[groups].tolist(), taskgraph.group_ptr[groups + 1].tolist(), strict=True))


def _flows_of(members: I32, network: Network) -> _GroupFlows:
    """Return the flows of a group, which the network keeps."""
    key = "direct", members.tobytes()
    if key not in network.prices:
        sender, receiver = np.nonzero(~np.eye(len(members), dtype=bool))
        rows = network.rows_between(i32(members[sender]), i32(members[receiver])).astype(np.int64)
        _, rows, share = stripes_of(rows, network)
        draws = np.diff(network.paths.row_ptr)[rows] > 1
        different = distinct_columns(rows[~draws])
        merged, counts = rows[~draws][different.first], different.counts
        ring = network.add_messages(i32(merged), counts)
        path_set = np.concatenate([merged, rows[draws]])
        shares = np.append(share[~draws][different.first], share[draws])
        network.prices[key] = _GroupFlows(path_set, np.append(ring, np.full(int(draws.sum()), -1)), shares)
    flows: _GroupFlows = network.prices[key]
    return flows
