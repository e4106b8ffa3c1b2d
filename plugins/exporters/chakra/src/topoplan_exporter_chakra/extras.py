"""What a plan has and a trace has not: attributes of our own, which other readers skip.

The metadata of rank 0 holds the cluster, the fabric, groups and names as a JSON text.  The first node of each task
holds its row of the task graph (`ROW`), and where its dependencies stand among the successors of what it waits for.  So
what is read is what was written, and simulates to the last bit as before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from topoplan import Cluster, Device, Fabric, HostLink, HostModel, Routes, TaskGraph, TopoplanError
from topoplan_exporter_chakra.schema import OURS

__all__ = ["METADATA", "PLACES", "ROW", "ROW_FIELDS", "SYNC", "around", "metadata"]

#: Names of attributes: of metadata; of the row of a task; of places among successors; of messages without a transfer.
METADATA, ROW, PLACES, SYNC = OURS, "topoplan_task", "topoplan_places", "topoplan_sync"
#: What a row holds, in this order: columns of the task graph, and seconds of the timeline.
ROW_FIELDS = ("task", "kind", "seconds", "size", "op", "micro_batch", "collective", "group", "start", "finish")
_VERSION = 1


def metadata(
    graph: TaskGraph, cluster: Cluster, fabric: Fabric, skipped: Mapping[int, tuple[int, list[float]]] | None = None
) -> str:
    """Return what surrounds the tasks, as JSON; equal plans give equal texts.

    Args:
        graph, cluster, fabric: of the plan.
        skipped: tasks without a node -> their rank and row; the dependencies from and to them are written, too.
    """
    skipped = skipped or {}
    edges = [
        [task, place, after]
        for task in range(graph.n_tasks if skipped else 0)
        for place, after in enumerate(graph.successors(task).tolist())
        if task in skipped or after in skipped
    ]
    document = {
        "version": _VERSION,
        "tasks": graph.n_tasks,
        "micro_batches": graph.micro_batch is not None,
        "op_names": list(graph.op_names),
        "group_ptr": graph.group_ptr.tolist(),
        "group_members": graph.group_members.tolist(),
        **({"slowdown": graph.slowdown.tolist()} if len(graph.slowdown) else {}),
        "cluster": {name: value for name, value in _columns(cluster).items() if name != "machines"},
        "fabric": _columns(fabric),
        **({"skipped": [[rank, *row] for rank, row in skipped.values()], "edges": edges} if skipped else {}),
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def _columns(value: Any) -> dict[str, Any]:
    """Return the fields of a value, columns as lists."""
    fields = {}
    for field in attrs.fields(type(value)):
        content = getattr(value, field.name)
        if isinstance(content, np.ndarray):
            content = content.tolist()
        elif attrs.has(type(content)):
            content = _columns(content)
        elif isinstance(content, tuple) and any(attrs.has(type(item)) for item in content):
            content = [_columns(item) for item in content]
        elif isinstance(content, Mapping):
            content = {str(key): item for key, item in content.items()}
        fields[field.name] = content
    return fields


def _host(fields: Mapping[str, Any]) -> HostModel:
    """Return the machine of each host, from what `_columns` made of it."""
    device = fields["device"]
    if device is not None:
        device = Device(**{**device, "sources": tuple(device["sources"])})
    content = {
        "device": device,
        "links": tuple(HostLink(**link) for link in fields["links"]),
        "nic_owners": tuple(map(tuple, fields["nic_owners"])),
        "sources": tuple(fields["sources"]),
    }
    return HostModel(**{**fields, **content})


def around(text: object, where: str) -> tuple[dict[str, Any], Cluster, Fabric]:
    """Read `metadata`: all of it, and the cluster and the fabric in it.

    Raises:
        TopoplanError: it is damaged, or of another version.
    """
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise TopoplanError(f"{where}: attribute {METADATA!r} is no JSON object of version {_VERSION}")
    try:
        fabric = dict(document["fabric"])
        if fabric["routes"] is not None:
            fabric["routes"] = Routes(**fabric["routes"])
        fabric["rings"] = {
            int(size): tuple(tuple(map(int, ring)) for ring in rings) for size, rings in fabric["rings"].items()
        }
        cluster = dict(document["cluster"])
        cluster["device_preset"] = tuple(map(str, cluster["device_preset"]))
        if cluster.get("host") is not None:
            cluster["host"] = _host(cluster["host"])
        return document, Cluster(**cluster), Fabric(**fabric)
    except TopoplanError as error:
        raise TopoplanError(f"{where}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise TopoplanError(f"{where}: attribute {METADATA!r} is damaged ({type(error).__name__}: {error})") from None
