"""Traces that `ranks` wrote -> the plan that was written: every column of its task graph, cluster and fabric."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from topoplan import Plan, TaskGraph, TaskKind, TopoplanError
from topoplan.errors import shown
from topoplan_engine.csr import indptr
from topoplan_exporter_chakra.extras import METADATA, PLACES, ROW, ROW_FIELDS, SYNC, around
from topoplan_exporter_chakra.reading import Ranks, matched
from topoplan_exporter_chakra.schema import Node, NodeType

__all__ = ["plan_of"]


def plan_of(ranks: Ranks) -> Plan:
    """Return the plan that was written.

    Raises:
        TopoplanError: the traces were changed since, such that they do not fit each other.
    """
    document, cluster, fabric = around(ranks.traces[0].attributes[METADATA], ranks.where(0))
    skipped = _table(ranks, document, "skipped", 1 + len(ROW_FIELDS))
    task_of, rows, devices = _tasks(ranks, document["tasks"], skipped)
    edges = _edges(ranks, task_of) | {
        (int(before), int(place), int(after))
        for before, place, after in _table(ranks, document, "edges", 3)
        if min(before, after) >= 0 and max(before, after) < len(rows) and 0 <= place < 2**31
    }
    table = np.array(rows, dtype=np.float64).reshape(-1, len(ROW_FIELDS))
    columns: dict[str, Any] = {name: table[:, column] for column, name in enumerate(ROW_FIELDS)}
    start, finish = columns.pop("start"), columns.pop("finish")
    del columns["task"]
    if not document["micro_batches"]:
        columns["micro_batch"] = None
    for name, column in columns.items():
        if name != "seconds" and column is not None:
            if not (np.abs(column) <= 2**52).all():
                raise TopoplanError(f"{ranks.name}: attribute {ROW!r} has no integers as {name}")
            columns[name] = column.astype(np.int64)
    keys = np.array(sorted(edges), dtype=np.int64).reshape(-1, 3)
    try:
        columns |= {name: [device[name] for device in devices] for name in ("device", "src", "dst")}
        taskgraph = TaskGraph(
            **columns,
            succ_ptr=indptr(np.bincount(keys[:, 0], minlength=len(rows)), np.int32),
            succ=keys[:, 2],
            group_ptr=document["group_ptr"],
            group_members=document["group_members"],
            op_names=tuple(map(str, document["op_names"])),
            slowdown=document.get("slowdown", ()),
            n_devices=len(ranks.traces),
            foreign={"chakra": {"start": start, "finish": finish}},
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TopoplanError(f"{ranks.where(0)}: attribute {METADATA!r} is damaged ({error})") from None
    if cluster.n_devices != taskgraph.n_devices:
        raise TopoplanError(f"{ranks.name}: {len(ranks.traces)} traces of a cluster of {cluster.n_devices} devices")
    if cluster.n_hosts != fabric.n_hosts:
        raise TopoplanError(f"{ranks.name}: a fabric of {fabric.n_hosts} hosts for a cluster of {cluster.n_hosts}")
    return Plan(cluster=cluster, fabric=fabric, taskgraph=taskgraph)


def _table(ranks: Ranks, document: dict[str, Any], key: str, columns: int) -> list[list[float]]:
    """Return rows of numbers of the metadata, none where it has none."""
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == columns for row in rows):
        raise TopoplanError(f"{ranks.where(0)}: attribute {METADATA!r}: {key} are no rows of {columns} numbers")
    if not all(type(each) in (int, float) and abs(each) <= sys.float_info.max for row in rows for each in row):
        raise TopoplanError(f"{ranks.where(0)}: attribute {METADATA!r}: {key} hold what is no number")
    return rows


def _tasks(
    ranks: Ranks, count: Any, skipped: list[list[float]]
) -> tuple[dict[tuple[int, int], int], list[list[float]], list[dict[str, int]]]:
    """Return the task of the node at (rank, id); for each task its row, and where it runs."""
    nodes = sum(len(trace.nodes) for trace in ranks.traces) + len(skipped)
    if type(count) is not int or not 0 < count <= nodes:
        raise TopoplanError(f"{ranks.where(0)}: {shown(count)} tasks in {nodes} nodes")
    task_of: dict[tuple[int, int], int] = {}
    rows: list[list[float]] = [[] for _ in range(count)]
    devices = [{"device": -1, "src": -1, "dst": -1} for _ in range(count)]
    for place, *values in skipped:  # joins, and transfers from a device to itself
        if not (0 <= values[0] < count and 0 <= place < len(ranks.traces)) or rows[int(values[0])]:
            raise TopoplanError(f"{ranks.where(0)}: attribute {METADATA!r}: skipped task {values[0]:g} does not fit")
        rows[int(values[0])] = values
        if values[1] == TaskKind.TRANSFER:
            devices[int(values[0])] = {"device": -1, "src": int(place), "dst": int(place)}
    for rank, trace in enumerate(ranks.traces):
        for node in trace.nodes:
            row = node.attributes.get(ROW)
            if row is None:
                continue
            task = _task(ranks, rank, node, row, count)
            task_of[rank, node.id] = task
            if isinstance(row, list) and len(row) == len(ROW_FIELDS):
                if rows[task]:
                    raise TopoplanError(f"{ranks.where(rank, node)}: task {task} has two first nodes")
                rows[task] = row
                devices[task] = _devices(ranks, rank, node, int(row[1]))
    lost = next((task for task, row in enumerate(rows) if not row), None)
    if lost is not None:
        raise TopoplanError(f"{ranks.name}: task {lost} of {count} is missing (its trace has lost a node)")
    return task_of, rows, devices


def _task(ranks: Ranks, rank: int, node: Node, row: Any, count: int) -> int:
    """Return the number of the task that a row, or the first entry of one, is of."""
    right = isinstance(row, list) and len(row) in (1, len(ROW_FIELDS))
    if not right or not all(isinstance(each, float) and math.isfinite(each) for each in row):
        raise TopoplanError(f"{ranks.where(rank, node)}: attribute {ROW!r} is {shown(row)} (expected numbers)")
    if not 0 <= row[0] < count or row[0] != int(row[0]):
        raise TopoplanError(f"{ranks.where(rank, node)}: task {row[0]:g} (expected 0 to {count - 1})")
    return int(row[0])


def _devices(ranks: Ranks, rank: int, node: Node, kind: int) -> dict[str, int]:
    """Return where a task runs, from the rank of its first node."""
    if kind == TaskKind.TRANSFER:
        peer = node.attributes.get("comm_dst", rank)
        assert isinstance(peer, int)  # as `matched` has seen
        return {"device": -1, "src": rank, "dst": peer if node.type is NodeType.SEND else rank}
    return {"device": -1 if kind == TaskKind.COLLECTIVE else rank, "src": -1, "dst": -1}


def _edges(ranks: Ranks, task_of: dict[tuple[int, int], int]) -> set[tuple[int, int, int]]:
    """Return (task, place among its successors, successor) of every dependency; members of a collective share some."""
    sender = matched(ranks)
    node_by_id = [{node.id: node for node in trace.nodes} for trace in ranks.traces]

    def before(rank: int, number: int) -> int:
        """Return the task that a node waits for, through a message of one byte if there is one."""
        for _ in range(2):
            rank, number = sender.get((rank, number), (rank, number))
            if (rank, number) in task_of:
                return task_of[rank, number]
            node = node_by_id[rank][number]
            if SYNC not in node.attributes or len(node.data_deps) != 1:
                break
            number = node.data_deps[0]
        raise TopoplanError(f"{ranks.where(rank, node_by_id[rank][number])}: is waited for, but belongs to no task")

    edges = set()
    for rank, trace in enumerate(ranks.traces):
        for node in trace.nodes:
            task = task_of.get((rank, node.id))
            if task is None:
                continue
            places = node.attributes.get(PLACES, [])
            if not isinstance(places, list) or not all(type(each) is int for each in places):
                raise TopoplanError(f"{ranks.where(rank, node)}: attribute {PLACES!r} has no integers")
            if not all(0 <= each < 2**31 for each in places) or len(places) > len(node.data_deps):
                raise TopoplanError(f"{ranks.where(rank, node)}: attribute {PLACES!r} does not fit data_deps")
            for number, place in zip(node.data_deps, places, strict=False):
                edges.add((before(rank, number), place, task))
    return edges
