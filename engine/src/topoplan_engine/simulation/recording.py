"""What a simulated iteration leaves behind: which task kept each link busy, and the critical path.

Data flow: a simulator that was asked to record gives rows of link use and the times of its tasks (`Run`); `recorded`
makes a `Recording` of them, with tasks of the plan in the place of those that the options of the simulator have put
there.  `joined` puts the recordings of stretches behind each other where a fabric is rebuilt between them.

Links of a run are those of the fabric, then two for every device, up and down inside its host
(`topoplan_engine.network.tables`).  Rows of the latter are needed for the critical path, and are in no recording.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.errors import TopoplanWarning
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.reconfigurable import AnyFabric, ReconfigurableFabric
from topoplan.model.recording import Cause, CriticalPath, LinkUse, MemoryLevels, Recording
from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Timeline
from topoplan.plugin.simulate import Simulate
from topoplan_engine.csr import expand, indptr
from topoplan_engine.simulation.waiting import Run, path_of

__all__ = ["Records", "Stretch", "expanded", "joined", "recorded", "simulated"]

#: Corrections of a link's last row until its rows add up to the last bit; one or two are needed.
_CORRECTIONS = 60
_NO_MEMORY = MemoryLevels(time=[], device=[], kind=[], nbytes=[])


@runtime_checkable
class Records(Protocol):
    """A simulator that can write down what it does."""

    def record(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> tuple[Timeline, Recording]:
        """Run one iteration, as a call does, and return what happened in it as well; of memory it knows nothing."""


def simulated(
    simulate: Simulate, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster, *, record: bool
) -> tuple[Timeline, Recording | None]:
    """Run one iteration; None in the place of a recording that is not wanted, or with a warning, cannot be made."""
    if record and isinstance(simulate, Records):
        return simulate.record(taskgraph, fabric, cluster)
    if record:
        text = "record: the simulator writes nothing down (fluid and flexnet do); the plan has no recording"
        warnings.warn(TopoplanWarning(text), stacklevel=2)
    return simulate(taskgraph, fabric, cluster), None


def recorded(run: Run, origin: I64, n_links: int) -> Recording:
    """Return the recording of a run.

    Args:
        run: what was simulated.
        origin: of each of its tasks, the task of the plan that it belongs to; -1 for none.
        n_links: of the fabric.
    """
    task, cause, by = path_of(run)
    tasks = origin[task]
    # What belongs to no task takes no time, and of what belongs to one task the first is what waited.
    stays = np.flatnonzero((tasks >= 0) & (np.diff(tasks, prepend=-2) != 0))
    stays = stays[np.diff(tasks[stays], prepend=-2) != 0]
    tasks, cause, by = tasks[stays], cause[stays], by[stays]
    follows = (cause == Cause.PREDECESSOR) & (np.arange(len(tasks)) > 0)
    by[follows] = tasks[:-1][follows[1:]]
    rows = run.links
    of_plan = (rows.link < n_links) & (origin[rows.task] >= 0) & (rows.nbytes > 0)  # messages may be empty
    links = LinkUse(
        link=rows.link[of_plan],
        task=origin[rows.task[of_plan]],
        start=rows.start[of_plan],
        finish=rows.finish[of_plan],
        nbytes=rows.nbytes[of_plan],
    )
    return Recording(
        links=_exact(links, run.outcome.link_bytes[:n_links]),
        critical=CriticalPath(task=tasks, cause=cause, by=by),
        memory=_NO_MEMORY,
    )


class Stretch(NamedTuple):
    """The recording of a stretch of the iteration on one fabric, and where it belongs in the whole.

    Attributes:
        fabric: of the stretch.
        tasks: rows of the whole task graph, ascending.
        begins: seconds.
        rebuilt: its fabric was built before it.
    """

    recording: Recording
    fabric: Fabric
    tasks: I64
    begins: float
    rebuilt: bool


def joined(stretches: Sequence[Stretch], fabric: ReconfigurableFabric, link_bytes: F64) -> Recording:
    """Put the recordings of stretches behind each other.

    Args:
        stretches: in the order of time; there is one at least.
        fabric: the whole.
        link_bytes: (L,) bytes of each of its links.
    """
    tables: dict[str, list[Any]] = {name: [] for name in ("link", "task", "start", "finish", "nbytes")}
    path: dict[str, list[Any]] = {name: [] for name in ("task", "cause", "by")}
    before = -1
    for number, (recording, wiring, tasks, begins, rebuilt) in enumerate(stretches):
        links, critical, row = recording.links, recording.critical, fabric.links.link_rows
        of_link = row(wiring.link_src, wiring.link_dst)
        columns = (of_link[links.link], tasks[links.task], begins + links.start, begins + links.finish, links.nbytes)
        for column, values in zip(tables.values(), columns, strict=True):
            column.append(values)
        cause, by = critical.cause.astype(np.int64), critical.by.astype(np.int64)
        on_link, on_task = cause == Cause.LINK, cause == Cause.PREDECESSOR
        inside = on_link & (by >= wiring.n_links)
        by[inside] += fabric.links.n_links - wiring.n_links
        by[on_link & ~inside] = of_link[by[on_link & ~inside]]
        by[on_task] = tasks[by[on_task]]
        if len(cause) and (number or rebuilt):
            cause[0], by[0] = Cause.REBUILD, before
        for column, values in zip(path.values(), (tasks[critical.task], cause, by), strict=True):
            column.append(values)
        before = int(path["task"][-1][-1]) if len(cause) else before
    links = LinkUse(**{name: np.concatenate(columns) for name, columns in tables.items()})
    whole = CriticalPath(**{name: np.concatenate(columns) for name, columns in path.items()})
    return Recording(links=_exact(links, link_bytes), critical=whole, memory=_NO_MEMORY)


def expanded(rows: LinkUse, representative: I64) -> LinkUse:
    """Return the rows of all links, given (E,) the link that stands for each: see `RingColumns.representative`."""
    ordered = _sorted(rows)
    ptr = indptr(np.bincount(ordered.link, minlength=len(representative)))
    first, count = ptr[representative], np.diff(ptr)[representative]
    link, row = expand(first, count)
    return LinkUse(
        link=link,
        task=ordered.task[row],
        start=ordered.start[row],
        finish=ordered.finish[row],
        nbytes=ordered.nbytes[row],
    )


def _sorted(rows: LinkUse) -> LinkUse:
    """Return rows by link, then by time."""
    order = np.lexsort((rows.task, rows.finish, rows.start, rows.link))
    return LinkUse(
        link=rows.link[order],
        task=rows.task[order],
        start=rows.start[order],
        finish=rows.finish[order],
        nbytes=rows.nbytes[order],
    )


def _exact(rows: LinkUse, link_bytes: F64) -> LinkUse:
    """Sort rows, and change the last one of each link by rounding, so that their sum is (L,) ``link_bytes``."""
    rows = _sorted(rows)
    nbytes = rows.nbytes.copy()
    links, last = np.unique(rows.link[::-1], return_index=True)
    last = len(nbytes) - 1 - last
    for _ in range(_CORRECTIONS):
        missing = link_bytes[links] - np.bincount(rows.link, nbytes, len(link_bytes))[links]
        if not missing.any():
            break
        changed = nbytes[last] + missing
        stuck = (changed == nbytes[last]) & (missing != 0)
        changed[stuck] = np.nextafter(changed[stuck], np.sign(missing[stuck]) * np.inf)
        nbytes[last] = changed
    return LinkUse(link=rows.link, task=rows.task, start=rows.start, finish=rows.finish, nbytes=nbytes)
