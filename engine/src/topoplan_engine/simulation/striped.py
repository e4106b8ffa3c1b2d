"""Transfers as the stripes of which they consist, each a flow of its own (`topoplan_engine.network.stripes`)."""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I64, i32
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.simulation.replaced import replaced

__all__ = ["stripes_of", "with_stripes"]


def stripes_of(rows: I64, network: Network) -> tuple[I64, I64, F64]:
    """Return the stripes of (n,) messages on rows of paths: the message of each, its row, and how much of it it is."""
    rows_and_shares = network.stripes_of(i32(rows))
    if rows_and_shares is None:
        return np.arange(len(rows)), rows, np.ones(len(rows))
    stripes, shares = rows_and_shares
    message, by = np.nonzero(stripes >= 0)
    return message, stripes[message, by], shares[message, by]


def with_stripes(taskgraph: TaskGraph, entities: Entities, network: Network) -> Entities:
    """Put stripes in the place of the transfers of a task graph.

    Args:
        taskgraph: what the entities are of.
        entities: of all its tasks.
        network: of the entities; gets rows of paths.
    """
    if network.interfaces.most == 1:
        return entities
    tasks = np.flatnonzero(taskgraph.kind == TaskKind.TRANSFER)
    message, rows, share = stripes_of(entities.path_set[entities.of_task[tasks]].astype(np.int64), network)
    counts = np.bincount(message, minlength=len(tasks))
    several = np.flatnonzero(counts > 1)
    some = np.isin(message, several)
    columns = {
        "path_set": rows[some],
        "ring": -1,
        "volume": taskgraph.size[tasks][message[some]] * share[some],
        "max_rate": np.inf,
        "cap": -1,
    }
    return replaced(entities, tasks[several], counts[several], columns, network)
