"""What an iteration waits for: the seconds of its critical path, by what runs in them.

A path of tasks, each of which starts when the one before it ends or later, covers the iteration: a task has the seconds
from the end of the task before it to its own end.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.plan import Plan
from topoplan.model.recording import Cause
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.reporting.printing import spelled_time

__all__ = ["PathShare", "critical_path_rows", "critical_tasks", "path_shares"]

#: Parts of the path that a table names.
_NAMED = 4
#: What tasks wait for that a fabric is rebuilt before.
_REBUILD = "rebuild"


@attrs.frozen
class PathShare:
    """Seconds of the critical path in which tasks of one sort run for one operator.

    Attributes:
        sort: ``forward``, ``backward``, ``update``, ``barrier``, ``transfer``, ``rebuild``, or what a collective does.
        operator: its number in ``TaskGraph.op_names``; -1 where tasks belong to none.
        name: in a sentence: ``all-reduce of linear2``.
        seconds: of the path.
        communicates: devices wait for the network.
    """

    sort: str
    operator: int
    name: str
    seconds: float
    communicates: bool


def critical_tasks(plan: Plan) -> I64:
    """Return the (K,) tasks of the critical path, in the order of time; none where nothing was recorded."""
    tasks = np.zeros(0) if plan.recording is None else plan.recording.critical.task
    return np.asarray(tasks, dtype=np.int64)


def path_shares(plan: Plan) -> list[PathShare]:
    """Return what the critical path consists of, the longest share first; nothing where it was not recorded."""
    path = critical_tasks(plan)
    if plan.timeline is None or not len(path):
        return []
    tasks = plan.taskgraph
    seconds = _seconds(plan.timeline.finish[path])
    rebuilds = _rebuilds(plan, path, seconds)
    sums: dict[tuple[str, int], float] = {}
    for task, spent in zip(path.tolist(), (seconds - rebuilds).tolist(), strict=True):
        key = _sort(tasks, task), int(tasks.op[task])
        sums[key] = sums.get(key, 0.0) + spent
    computes = {kind.name.lower() for kind in TaskKind if kind <= TaskKind.BARRIER}
    shares = [
        PathShare(sort, op, _name(tasks, sort, op), spent, sort not in computes) for (sort, op), spent in sums.items()
    ]
    if rebuilds.any():
        shares.append(PathShare(_REBUILD, -1, "rebuilding of the fabric", float(rebuilds.sum()), True))
    return sorted(shares, key=lambda share: (-share.seconds, share.name))


def critical_path_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a table: computation and communication on the critical path, and what takes most of it."""
    shares = path_shares(plan)
    if not shares:
        return []
    communication = sum(share.seconds for share in shares if share.communicates and share.sort != _REBUILD)
    computation = sum(share.seconds for share in shares if not share.communicates)
    waiting = sum(share.seconds for share in shares if share.sort == _REBUILD)
    total = computation + communication + waiting
    rows = [
        ("critical path", f"{len(critical_tasks(plan))} tasks"),
        ("  computes for", _of(computation, total)),
        ("  communicates for", _of(communication, total)),
    ]
    if waiting:
        rows.append(("  waits for rebuilds", _of(waiting, total)))
    longest = [f"{share.name} {spelled_time(share.seconds)}" for share in shares[:_NAMED]]
    return [*rows, ("  most of it", ", ".join(longest))]


def _seconds(finish: F64) -> F64:
    """Return the seconds that tasks add to a path, given their ends."""
    return np.asarray(np.maximum(np.diff(np.maximum.accumulate(finish), prepend=0.0), 0.0))


def _rebuilds(plan: Plan, path: I64, seconds: F64) -> F64:
    """Return how many of the (K,) seconds a fabric is being rebuilt in, before the task that they are of starts."""
    assert plan.timeline is not None
    assert plan.recording is not None
    run = np.minimum(plan.timeline.finish[path] - plan.timeline.start[path], seconds)
    return np.where(plan.recording.critical.cause == Cause.REBUILD, seconds - run, 0.0)


def _of(seconds: float, total: float) -> str:
    return f"{spelled_time(seconds)}, {seconds / total:.1%}" if total else spelled_time(seconds)


def _sort(tasks: TaskGraph, task: int) -> str:
    kind = TaskKind(tasks.kind[task])
    return Collective(tasks.collective[task]).label if kind is TaskKind.COLLECTIVE else kind.name.lower()


def _name(tasks: TaskGraph, sort: str, operator: int) -> str:
    named = {"forward": "forward pass", "backward": "backward pass"}.get(sort, sort)
    return f"{named} of {tasks.op_names[operator]}" if 0 <= operator < len(tasks.op_names) else named
