"""The plan: the result of a search, or what an importer could read of one.

Flows from the driver (`topoplan_engine.search.driver`) or an importer to exporters, the command line and notebooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import attrs

from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.recording import MemoryUse, Recording, SearchHistory
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Timeline

__all__ = ["Plan"]


def _shown(name: str) -> Callable[..., Any]:
    """Return a method that `topoplan_engine.reporting.notebook` has, where the engine is installed."""
    return lambda plan, *args: getattr(import_module("topoplan_engine.reporting.notebook"), name)(plan, *args)


@attrs.frozen(kw_only=True, repr=False)
class Plan:
    """Strategy, fabric, task graph, timeline and where they come from.

    Attributes:
        cluster, fabric, taskgraph: always present.
        graph, strategy: absent where only a task graph was imported.
        timeline: absent before a simulation.
        memory: what devices keep; absent where only a task graph was imported.
        recording, history: of the timeline and of the search; absent unless asked for.
        provenance: versions, seed, options and hashes of the inputs: all that is needed to repeat it.
            JSON values only; nothing in it depends on time or place.
        plot: returns a `matplotlib.figure.Figure`: devices and links over time, and memory.
        to_pandas, to_polars: return a data frame of its ``"tasks"`` (default), ``"links"`` or ``"history"``.
    """

    cluster: Cluster
    fabric: AnyFabric
    taskgraph: TaskGraph
    graph: OperatorGraph | None = None
    strategy: Strategy | None = None
    timeline: Timeline | None = None
    memory: MemoryUse | None = None
    recording: Recording | None = None
    history: SearchHistory | None = None
    provenance: Mapping[str, Any] = attrs.field(factory=dict)

    plot, to_pandas, to_polars = _shown("plot"), _shown("to_pandas"), _shown("to_polars")
    _repr_html_ = _shown("plan_html")

    @property
    def fits(self) -> bool | None:
        """Whether every device holds what the plan keeps on it, beside its reserve; None where that is not known."""
        return None if self.memory is None else self.memory.fits(self.cluster.usable_memory)

    def __repr__(self) -> str:
        model = "a task graph" if self.graph is None else self.graph.name
        time = "" if self.timeline is None else f", {self.timeline.makespan * 1e3:.4f} ms an iteration"
        return f"<Plan: {model} on {self.fabric.name}, {self.cluster.n_devices} devices{time}>"
