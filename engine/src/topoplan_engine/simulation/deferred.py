"""Task graphs and timelines of plans that are made when a task of them is asked for.

Where one task stands for all that are equal (`topoplan_engine.lowering.folding`), what a search prints of its plan
follows from these.  The whole task graph of a thousand devices has millions of rows, which only exporters and replays
want.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Timeline

__all__ = ["DeferredTaskGraph", "DeferredTimeline", "of_first", "simulated_words", "with_words"]


class DeferredTaskGraph(TaskGraph):
    """A task graph whose columns are made when the first of them is asked for."""

    __slots__ = ("_count", "_make")

    @classmethod
    def of(
        cls, make: Callable[[], TaskGraph], *, n_tasks: int, n_devices: int, op_names: tuple[str, ...]
    ) -> DeferredTaskGraph:
        """Return the task graph that ``make`` makes, which has so many tasks and devices."""
        taskgraph: DeferredTaskGraph = _deferred(
            cls, _make=make, _count=n_tasks, n_devices=n_devices, op_names=op_names
        )
        return taskgraph

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return int(self._count) if hasattr(self, "_count") else len(self.kind)

    def __getattr__(self, name: str) -> Any:
        return _made(self, TaskGraph, name)

    def __eq__(self, operand: object) -> bool:
        return _equal(self, operand, TaskGraph)

    __hash__ = TaskGraph.__hash__


class DeferredTimeline(Timeline):
    """A timeline whose starts and ends are made when one of them is asked for; sums and bounds are there.

    Attributes:
        of_first: task graph and timeline of the first device and of the groups that it is in.
        simulated: what was simulated in place of all tasks, in words; empty for programs.
    """

    __slots__ = ("_make", "of_first", "simulated")

    of_first: tuple[TaskGraph, Timeline]
    simulated: str

    @classmethod
    def of(
        cls,
        make: Callable[[], Timeline],
        of_first: tuple[TaskGraph, Timeline],
        simulated: str = "",
        **fields: Any,
    ) -> DeferredTimeline:
        """Return the timeline that ``make`` makes, of which all is in ``fields`` but starts and ends."""
        timeline: DeferredTimeline = _deferred(cls, _make=make, of_first=of_first, simulated=simulated, **fields)
        return timeline

    def __getattr__(self, name: str) -> Any:
        return _made(self, Timeline, name)

    def __eq__(self, operand: object) -> bool:
        return _equal(self, operand, Timeline)

    __hash__ = Timeline.__hash__


def of_first(taskgraph: TaskGraph, timeline: Timeline) -> tuple[TaskGraph, Timeline]:
    """Return the tasks that stand for all, and when they ran; all where none does."""
    return getattr(timeline, "of_first", (taskgraph, timeline))


def simulated_words(timeline: Timeline) -> str:
    """Return what was simulated in place of all tasks, in words; empty where all of them were."""
    return getattr(timeline, "simulated", "")


def with_words(taskgraph: TaskGraph, timeline: Timeline, words: str) -> DeferredTimeline:
    """Return a timeline of all tasks that says what was simulated in their place."""
    fields = {field.name: getattr(timeline, field.name) for field in attrs.fields(Timeline)}
    return DeferredTimeline.of(lambda: timeline, (taskgraph, timeline), words, **fields)


def _deferred(cls: type[Any], **fields: Any) -> Any:
    """Return a value of a class with some of its fields."""
    value: Any = object.__new__(cls)
    for name, part in fields.items():
        object.__setattr__(value, name, part)
    return value


def _made(value: Any, cls: type[Any], name: str) -> Any:
    """Return a field that was not there, having made all that are missing."""
    fields = [field.name for field in attrs.fields(cls)]
    if name not in fields:
        raise AttributeError(name)
    whole = object.__getattribute__(value, "_make")()
    present = {field for field in fields if _has(value, field)}
    for field in fields:
        if field not in present:
            object.__setattr__(value, field, getattr(whole, field))
    return object.__getattribute__(value, name)


def _has(value: Any, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


def _equal(value: Any, operand: object, cls: type[Any]) -> bool:
    if not isinstance(operand, cls):
        return False

    def whole(columns: Any) -> Any:
        return cls(**{field.name: getattr(columns, field.name) for field in attrs.fields(cls)})

    return bool(whole(value) == whole(operand))
