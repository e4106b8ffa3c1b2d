"""Plans and outcomes in notebooks: tables in HTML, data frames, and figures of matplotlib.

A `Plan` calls these functions by their names; core, where it is defined, has no tables of its own.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

from topoplan.errors import TopoplanError, shown
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.network.building import host_links
from topoplan_engine.reporting.figures import COLOURS, empty_figure
from topoplan_engine.reporting.memory import memory_rows
from topoplan_engine.reporting.report import outcome_rows, outcome_title
from topoplan_engine.reporting.timeline import simulation_rows
from topoplan_engine.search.optimize import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["frame", "outcome_html", "plan_html", "plot", "to_pandas", "to_polars"]

#: Kinds of tasks in the order of their colours.
_KINDS = ("forward", "backward", "update")
#: What fills memory, in the colours of reports.
_PURPOSES = {
    "weights": "#0072b2",
    "gradients": "#56b4e9",
    "optimizer": "#cc79a7",
    "activations": "#e69f00",
    "undivided": "#999999",
}


def plan_html(plan: Plan) -> str:
    """Return the table of a plan as HTML."""
    rows = [] if plan.timeline is None else simulation_rows(plan)
    tasks = ("tasks", f"{plan.taskgraph.n_tasks:,}")
    return _rows_html(
        repr(plan).strip("<>"),
        [*rows, ("network of a host", host_links(plan.fabric, plan.cluster)), *memory_rows(plan), tasks],
    )


def outcome_html(outcome: Outcome) -> str:
    """Return the table of what a search found as HTML."""
    return _rows_html(outcome_title(outcome), outcome_rows(outcome))


def _rows_html(title: str, rows: list[tuple[str, str]]) -> str:
    """Return a table of two columns as HTML; text is escaped."""
    lines = [f"<tr><th>{html.escape(name.strip())}</th><td>{html.escape(value)}</td></tr>" for name, value in rows]
    return f"<table><caption>{html.escape(title)}</caption>{''.join(lines)}</table>"


def to_pandas(plan: Plan, rows: str = "tasks") -> Any:
    """Return a `pandas.DataFrame` of a plan's tasks, links or history; see `frame`."""
    return frame(plan, rows, "pandas")


def to_polars(plan: Plan, rows: str = "tasks") -> Any:
    """Return a `polars.DataFrame` of the same."""
    return frame(plan, rows, "polars")


def frame(plan: Plan, rows: str, package: Literal["pandas", "polars"]) -> Any:
    """Return a data frame of a plan.

    Args:
        plan: what it is of.
        rows: ``tasks``, ``links`` or ``history``: what it has a row for.
        package: whose `DataFrame` it is.

    Raises:
        TopoplanError: another word, a plan without such rows, or the package is not installed.
    """
    tables: Mapping[str, Callable[[Plan], Mapping[str, Any]]] = {
        "tasks": _tasks,
        "links": _links,
        "history": _history,
    }
    if rows not in tables:
        raise TopoplanError(f"to_{package}: rows is {shown(rows)} (must be one of {', '.join(tables)})")
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError:
        raise TopoplanError(f"to_{package}: {package} is not installed (pip install {package})") from None
    return module.DataFrame(dict(tables[rows](plan)))


def _tasks(plan: Plan) -> dict[str, Any]:
    """Return columns with a row for each task."""
    tasks = plan.taskgraph
    names = np.array([*tasks.op_names, ""], dtype=object)
    columns: dict[str, Any] = {
        "operator": names[np.where(tasks.op >= 0, tasks.op, len(tasks.op_names))],
        "kind": _kinds(tasks),
        "device": tasks.device,
        "source": tasks.src,
        "destination": tasks.dst,
        "bytes": tasks.size,
        "seconds": tasks.seconds,
    }
    if plan.timeline is not None:
        columns |= {"start": plan.timeline.start, "finish": plan.timeline.finish}
    return columns


def _kinds(tasks: TaskGraph) -> Any:
    kinds = np.array([kind.name.lower() for kind in TaskKind], dtype=object)[tasks.kind]
    collectives = np.array([kind.label for kind in Collective], dtype=object)
    return np.where(tasks.collective >= 0, collectives[tasks.collective], kinds)


def _links(plan: Plan) -> dict[str, Any]:
    """Return columns with a row for each link of the network."""
    links = plan.fabric.links
    columns: dict[str, Any] = {
        "source": links.link_src,
        "destination": links.link_dst,
        "count": links.link_count,
        "bandwidth": links.link_bandwidth,
        "latency": links.link_latency,
    }
    if plan.timeline is not None:
        count = links.n_links
        columns |= {"bytes": plan.timeline.link_bytes[:count], "busy": plan.timeline.link_busy[:count]}
    return columns


def _history(plan: Plan) -> dict[str, Any]:
    if plan.history is None:
        raise TopoplanError("the plan has no history of its search (plan with record=True)")
    return {field.name: getattr(plan.history, field.name) for field in attrs.fields(type(plan.history))}


def plot(plan: Plan) -> Figure:
    """Draw when devices and links of a plan are busy, and what is in the memory of devices.

    Raises:
        TopoplanError: the plan was not simulated, or matplotlib is not installed.
    """
    if plan.timeline is None:
        raise TopoplanError("plot: the plan was not simulated")
    if importlib.util.find_spec("matplotlib") is None:
        raise TopoplanError('plot: needs matplotlib (pip install "topoplan-engine[plot]")')
    panels: list[Callable[[Plan, Axes], None]] = [_devices, _busy_links]
    if plan.memory is not None:
        panels.append(_memory)
    figure = empty_figure(9.0, 2.6 * len(panels))
    for panel, axes in zip(panels, np.atleast_1d(figure.subplots(len(panels))), strict=True):
        panel(plan, axes)
    figure.suptitle(repr(plan).strip("<>"), fontsize="medium")
    return figure


def _devices(plan: Plan, axes: Axes) -> None:
    """Draw a bar for each compute task, in the row of its device."""
    assert plan.timeline is not None
    tasks, timeline = plan.taskgraph, plan.timeline
    height = _bar_size(tasks.n_devices)
    for kind, colour in zip(_KINDS, COLOURS, strict=False):
        of_kind = np.flatnonzero((tasks.device >= 0) & (tasks.kind == TaskKind[kind.upper()]))
        for device in np.unique(tasks.device[of_kind]):
            tasks_there = of_kind[tasks.device[of_kind] == device]
            start, length = (
                timeline.start[tasks_there] * 1e3,
                (timeline.finish[tasks_there] - timeline.start[tasks_there]) * 1e3,
            )
            bars = list(zip(start.tolist(), length.tolist(), strict=True))
            axes.broken_barh(bars, (device - height / 2, height), color=colour, linewidth=0)
        if len(of_kind):
            axes.plot([], [], color=colour, linewidth=6, label=kind)
    axes.set(xlabel="ms", ylabel="device", xlim=(0, timeline.makespan * 1e3), ylim=(tasks.n_devices - 0.5, -0.5))
    axes.locator_params(axis="y", integer=True)
    _legend_beside(axes)


def _busy_links(plan: Plan, axes: Axes) -> None:
    """Draw the share of the iteration that each link needs for its bytes, the busiest first."""
    assert plan.timeline is not None
    busy = np.sort(plan.timeline.link_busy[: plan.fabric.links.n_links])[::-1]
    axes.bar(np.arange(len(busy)), 100 * busy / max(plan.timeline.makespan, 1e-300), width=1.0, color=COLOURS[0])
    axes.set(xlabel="link, busiest first", ylabel="% of the iteration", xlim=(-0.5, len(busy) - 0.5), ylim=(0, 100))
    axes.locator_params(axis="x", integer=True)


def _memory(plan: Plan, axes: Axes) -> None:
    """Draw what is in the memory of each device, in GiB, and the least that a plan may fill."""
    assert plan.memory is not None
    base, width = np.zeros(plan.cluster.n_devices), _bar_size(plan.cluster.n_devices)
    for name, colour in _PURPOSES.items():
        gibibytes = getattr(plan.memory, name) / 2**30
        if gibibytes.any():
            axes.bar(np.arange(len(base)), gibibytes, bottom=base, width=width, color=colour, label=name)
            base = base + gibibytes
    capacity = plan.cluster.usable_memory.min() / 2**30
    if base.max() > capacity / 4:
        axes.axhline(capacity, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel="device", ylabel="GiB")
    axes.locator_params(axis="x", integer=True)
    _legend_beside(axes)


def _bar_size(count: int) -> float:
    """Return the part of a place that a bar takes: all of it where gaps would be thinner than a pixel."""
    return 0.85 if count <= 32 else 1.0


def _legend_beside(axes: Axes) -> None:
    """Say what colours mean, right of the panel, where it hides no bar."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
