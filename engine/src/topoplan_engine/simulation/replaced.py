"""Entities of some tasks in the place of others: of collectives that are not the rings of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from topoplan.arrays import I64
from topoplan_engine.csr import expand
from topoplan_engine.network.tables import LOAD, Network, RingColumns
from topoplan_engine.simulation.flows import Entities

__all__ = ["replaced"]

#: Columns of an entity that is a coupled ring, or one message; of which the others are given.
_USUAL: Mapping[str, Any] = {
    "drawn": -1,
    "drawn_flows": 0,
    "latencies": 1,
    "setup_latency": 0.0,
    "drain_latency": 0.0,
    "rounds": 1,
    "ring_size": 1,
    "load": LOAD,
}


def replaced(
    entities: Entities,
    tasks: I64,
    counts: I64,
    columns: Mapping[str, Any],
    network: Network,
    rings: RingColumns | None = None,
) -> Entities:
    """Return entities in which some tasks have others.

    Args:
        entities: of all tasks.
        tasks, counts: (n,) tasks, ascending, and how many entities each has.
        columns: of all these, task by task: ``path_set``, ``ring``, ``volume``, ``max_rate``, ``cap``, and others that
            are not as usual; ``caps`` are appended.
        network: whose rows of loads, and of paths, they have.
        rings: rows of loads, if there are more than those of the network.
    """
    if not len(tasks):
        return entities
    n_tasks = len(entities.of_task) - 1
    count_of = np.diff(entities.of_task).astype(np.int64)
    is_new = np.zeros(n_tasks, dtype=bool)
    is_new[tasks], count_of[tasks] = True, counts
    of_task = np.append(0, np.cumsum(count_of)).astype(entities.of_task.dtype)
    rows = np.flatnonzero(~is_new[entities.task])
    place = of_task[entities.task[rows]] + rows - entities.of_task[entities.task[rows]]
    _, new = expand(of_task[tasks].astype(np.int64), counts)
    values = {**_USUAL, "task": np.repeat(tasks, counts), **columns}
    columns_of: dict[str, Any] = {
        "of_task": of_task,
        "caps": np.concatenate([entities.caps, values.pop("caps", np.zeros(0))]),
    }
    for name, value in values.items():
        old = getattr(entities, name)
        columns_of[name] = column = np.empty(int(of_task[-1]), dtype=old.dtype)
        column[place], column[new] = old[rows], value
    slots = np.zeros(int(of_task[-1]), dtype=np.int64)
    slots[place] = np.diff(entities.slot_ptr)[rows]
    paths, path_set = network.paths, columns_of["path_set"][new]
    if (path_set >= 0).any():
        slots[new] = np.where(path_set >= 0, np.diff(paths.path_ptr).max(), 0)
    # Links that had equal loads when the entities were made may have others by those that were added since.
    ring = columns_of["ring"]
    on_ring = np.flatnonzero(ring >= 0)
    rings = network.rings_in_full if rings is None else rings
    slots[on_ring] = np.diff(rings.load_ptr)[ring[on_ring]] + (columns_of["cap"][on_ring] >= 0)
    return Entities(slot_ptr=np.append(0, np.cumsum(slots)), **columns_of)
