"""The panels beside the iteration and the network: bounds, memory, search, strategy, provenance, the first table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.plan import Plan
from topoplan_engine.fitting import fullest_device, size_text
from topoplan_engine.network.building import host_links
from topoplan_engine.reporting.critical_path import critical_path_rows
from topoplan_engine.reporting.explanations import explanation
from topoplan_engine.reporting.memory import memory_rows
from topoplan_engine.reporting.model import model_rows
from topoplan_engine.reporting.parts import parts_rows
from topoplan_engine.reporting.printing import spelled_time
from topoplan_engine.reporting.runners_up import plans_json
from topoplan_engine.reporting.strategy import strategy_columns, strategy_json, strategy_legend
from topoplan_engine.reporting.throughput import plan_throughput_rows
from topoplan_engine.reporting.timeline import simulation_rows
from topoplan_html_report.alike import classes_of, named
from topoplan_html_report.columns import packed
from topoplan_html_report.limits import Limits

__all__ = [
    "bounds",
    "links_over_time",
    "memory",
    "provenance",
    "runners_up",
    "search",
    "short_name",
    "strategy",
    "summary",
]

#: What memory is used for, as `topoplan.model.recording.MemoryUse` and the levels of a recording number it.
_PURPOSES = ("weights", "gradients", "optimizer state", "activations", "not divided by the estimator")
_FIELDS = ("weights", "gradients", "optimizer", "activations", "undivided")
#: Times at which the picture of memory and of links has a value; links that it has a row for.
_TIMES, _LINKS = 800, 12
#: Links that are looked at for these rows: the busiest.
_BUSIEST = 1024
#: Characters of the longest value of a provenance that is shown in full.
_LONGEST = 500
#: Characters of the longest name of an operator that is shown in full.
_NAME = 80


def summary(plan: Plan) -> list[dict[str, str]]:
    """Return the rows of the first table, each with what `topoplan explain` says of it."""
    rows = [
        *simulation_rows(plan),
        *parts_rows(plan),
        *critical_path_rows(plan),
        *model_rows(plan),
        ("network of a host", host_links(plan.fabric, plan.cluster)),
        *plan_throughput_rows(plan),
        *memory_rows(plan),
    ]
    return [{"label": label, "text": text, "meaning": explanation(label) or ""} for label, text in rows]


def runners_up(plan: Plan) -> list[dict[str, Any]]:
    """Return tables of the best plans and of the front of time and memory; none where the search says none."""
    lists = plans_json(plan)
    tables = []
    for key, title in (("best_plans", "Best plans, and why each lost"), ("front", "Less memory for more time")):
        rows = [
            [
                str(row["plan"]),
                spelled_time(row["seconds"]) + ("" if row.get("simulated") else " (estimated)"),
                f"{row['memory_gib']:.1f} GiB",
                *([str(row["lost_by"])] if key == "best_plans" else []),
            ]
            for row in lists.get(key, ())
        ]
        columns = ["plan", "iteration", "memory", *(["lost by"] if key == "best_plans" else [])]
        if rows:
            tables.append({"title": title, "columns": columns, "rows": rows})
    return tables


def bounds(plan: Plan) -> list[dict[str, Any]]:
    """Return the lower bounds and the iteration's time, in seconds."""
    assert plan.timeline is not None
    lower = plan.timeline.bounds
    return [
        {"label": "busiest device", "seconds": lower.device},
        {"label": "busiest link", "seconds": lower.link},
        {"label": "longest chain", "seconds": lower.chain},
        {"label": "collectives", "seconds": lower.collective},
        {"label": "iteration", "seconds": plan.timeline.makespan},
    ]


def memory(plan: Plan, limits: Limits) -> dict[str, Any] | None:
    """Return what devices hold when they hold the most: the fullest first, alike ones once; and over time, of one.

    The time course is that of the fullest of the devices for which it was recorded.
    """
    use, capacity = plan.memory, plan.cluster.usable_memory
    if use is None:
        return None
    columns = np.stack([getattr(use, field) for field in _FIELDS])
    keys = [(columns[:, device].tobytes(), float(capacity[device])) for device in range(len(capacity))]
    classes = classes_of(keys)
    fullest = fullest_device(use.total, capacity)
    share = use.total / np.maximum(capacity, 1e-300)
    classes.sort(key=lambda members: (fullest not in members, -float(share[members[0]]), members[0]))
    shown, other_classes = classes[: limits.bars], classes[limits.bars :]
    over_time = _memory_over_time(plan, share)
    return {
        "purposes": list(_PURPOSES),
        "classes": [
            {
                "label": named("device", members),
                "bytes": columns[:, members[0]].tolist(),
                "capacity": float(capacity[members[0]]),
            }
            for members in shown
        ],
        "said": _emptier(other_classes, use.total) if other_classes else "",
        "overTime": over_time,
        "reserve": plan.cluster.memory_reserve,
        "fits": plan.fits,
    }


def _emptier(classes: list[list[int]], total: F64) -> str:
    """Say what devices hold that have no bar."""
    devices = [device for members in classes for device in members]
    total_bytes = total[devices]
    many = f"{len(devices):,} devices that are less full" if len(devices) > 1 else "1 device that is less full"
    least_text, most = size_text(float(total_bytes.min())), size_text(float(total_bytes.max()))
    return f"Not drawn: {many}, with {least_text if least_text == most else f'{least_text} to {most}'}."


def _memory_over_time(plan: Plan, share: F64) -> dict[str, Any] | None:
    """Return the levels of the fullest device at so many times at most; None where nothing was recorded.

    ``share`` is (D,) what devices hold of what they have.
    """
    levels = None if plan.recording is None else plan.recording.memory
    if levels is None or not len(levels.time) or plan.timeline is None:
        return None
    recorded = np.unique(levels.device)
    device = int(recorded[np.argmax(share[recorded])])
    rows_of_device = levels.device == device
    times = np.unique(levels.time[rows_of_device])
    rows = []
    for kind in range(len(_PURPOSES)):
        chosen = rows_of_device & (levels.kind == kind)
        time, nbytes = levels.time[chosen], levels.nbytes[chosen]
        order = np.argsort(time, kind="stable")
        place = np.searchsorted(time[order], times, side="right") - 1
        rows.append(np.where(place >= 0, np.append(nbytes[order], 0.0)[place], 0.0))
    stacked_levels = np.stack(rows)
    chosen_times = _fullest(stacked_levels.sum(axis=0))
    label = f"device {device}"
    return {"label": label, "seconds": times[chosen_times].tolist(), "bytes": stacked_levels[:, chosen_times].tolist()}


def _fullest(total: F64) -> I64:
    """Return which of (n,) levels are shown: the first, the last, and the highest of each equal number of them."""
    bounds = np.linspace(1, max(len(total) - 1, 1), _TIMES).astype(np.int64)
    highest = [first + int(np.argmax(total[first:stop])) for first, stop in itertools.pairwise(bounds) if stop > first]
    return np.unique([0, *highest, len(total) - 1])


def links_over_time(plan: Plan, line_of_link: I64, limits: Limits, number: I64) -> dict[str, Any] | None:
    """Return how busy the busiest links are over time, alike ones once, and bytes of each line by operator.

    Args:
        plan: with a timeline.
        line_of_link: (L,) line of the fabric's picture of each link, or -1.
        limits: of pairs of an operator and a line.
        number: (operators,) the number by which the page knows each operator, or -1.
    """
    if plan.recording is None or plan.timeline is None or not len(plan.recording.links.link):
        return None
    use, links, seconds = plan.recording.links, plan.fabric.links, plan.timeline.makespan
    inside = use.link < links.n_links
    link, operator = use.link[inside], plan.taskgraph.op[use.task[inside]]
    nbytes, start, finish = use.nbytes[inside], use.start[inside], use.finish[inside]
    busy = plan.timeline.link_busy[: links.n_links]
    busiest = np.sort(np.argsort(-busy, kind="stable")[:_BUSIEST])
    row = np.full(links.n_links, -1)
    row[busiest] = np.arange(len(busiest))
    among = row[link] >= 0
    shares = _binned(row[link[among]], start[among], finish[among], nbytes[among], len(busiest), seconds)
    shares /= links.link_bandwidth[busiest, None] * (seconds / shares.shape[1])
    levels = np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8)
    used = np.flatnonzero(busy[busiest] > 0)
    classes = [used[members] for members in classes_of([levels[number].tobytes() for number in used.tolist()])]
    classes.sort(key=lambda members: (-busy[busiest[members[0]]], members[0]))
    return {
        "bins": int(levels.shape[1]),
        "rows": [_link_row(plan, busiest[members], levels[members[0]]) for members in classes[:_LINKS]],
        "byOperator": _lines_by_operator(np.append(number, -1)[operator], line_of_link[link], nbytes, limits.uses),
    }


def _link_row(plan: Plan, members: I64, levels: Any) -> dict[str, Any]:
    links, first = plan.fabric.links, int(members[0])
    ends = [links.node_name(int(ends[first])) for ends in (links.link_src, links.link_dst)]
    more = f" and {len(members) - 1} equal ones" if len(members) > 1 else ""
    return {"label": f"{ends[0]} to {ends[1]}{more}", "levels": packed(levels, "uint8")}


def _binned(link: Any, start: F64, finish: F64, nbytes: F64, n_links: int, seconds: float) -> F64:
    """Return (L, B) bytes that cross each link in each of B equal stretches of time."""
    edges = np.linspace(0.0, seconds, _TIMES + 1)
    total = np.zeros((n_links, _TIMES + 1))
    # Bytes that have crossed a link by an edge are a sum of ramps: two corners for each row.
    length = np.maximum(finish - start, 1e-15)
    for time, sign in ((start, 1.0), (finish, -1.0)):
        place = np.searchsorted(edges, time, side="left")
        rate = np.zeros((n_links, _TIMES + 2))
        offset = np.zeros((n_links, _TIMES + 2))
        np.add.at(rate, (link, place), nbytes / length)
        np.add.at(offset, (link, place), nbytes / length * time)
        crossed = np.cumsum(rate, axis=1)[:, :-1] * edges - np.cumsum(offset, axis=1)[:, :-1]
        total += sign * crossed
    return np.asarray(np.maximum(np.diff(total, axis=1), 0.0))


def _lines_by_operator(operator: Any, line: I64, nbytes: F64, most: int) -> dict[str, Any]:
    """Return the pairs of an operator and a line that it sends over; of too many those with the most bytes."""
    on_lines = (line >= 0) & (operator >= 0)
    lines = int(line.max(initial=0)) + 1
    cells, row = np.unique(operator[on_lines].astype(np.int64) * lines + line[on_lines], return_inverse=True)
    total = np.bincount(row.ravel(), nbytes[on_lines], len(cells))
    chosen = np.sort(np.argsort(-total, kind="stable")[:most])
    left_out = len(cells) - len(chosen)
    return {
        "operator": packed(cells[chosen] // lines, "int32"),
        "line": packed(cells[chosen] % lines, "int32"),
        "said": f"of a chosen operator the busiest links are marked ({len(chosen):,} of {len(cells):,} pairs are kept)"
        if left_out
        else "",
    }


def search(plan: Plan, limits: Limits) -> dict[str, Any] | None:
    """Return the search, chain by chain; None where it was not recorded.

    Of too many evaluations, the last of each equal number of them stays: the best cost of a chain is that of its last.
    """
    history = plan.history
    if history is None or not len(history.evaluation):
        return None
    chains = []
    numbers = np.unique(history.chain)[: limits.evaluations].tolist()
    for chain in numbers:
        chosen = np.flatnonzero(history.chain == chain)
        most = max(limits.evaluations // len(numbers), 1)
        if len(chosen) > most:
            chosen = chosen[np.linspace(0, len(chosen), most + 1).astype(np.int64)[1:] - 1]
        chains.append(
            {
                "evaluation": history.evaluation[chosen].tolist(),
                "current": _finite(history.current[chosen]),
                "best": _finite(history.best[chosen]),
            }
        )
    return {"chains": chains}


def _finite(values: F64) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def strategy(plan: Plan, limits: Limits) -> dict[str, Any] | None:
    """Return the groups of operators that run alike, as the table of `topoplan optimize` has them."""
    if plan.strategy is None or plan.graph is None:
        return None
    groups, columns, title = strategy_columns(plan)
    operators = plan.graph.operators
    rows, names_left = [], limits.names
    for group in groups[: limits.groups]:
        names = [short_name(operators[op].name) for op in group.operators[:names_left]]
        names_left -= len(names)
        rows.append({"cells": [_cut(column.text(group)) for column in columns], "names": names})
    left_out = len(groups) - len(rows)
    more = [f"{left_out:,} of {len(groups):,} rows are not shown; -x json writes all"] if left_out else []
    unnamed = sum(len(group.operators) for group in groups[: limits.groups]) - sum(len(row["names"]) for row in rows)
    more += [f"{unnamed:,} operators of these rows cannot be opened by name here"] if unnamed else []
    return {
        "title": title,
        "columns": [column.header for column in columns],
        "groups": rows,
        "legend": [*strategy_legend(plan), *more],
        "mesh": strategy_json(plan)["strategy"]["mesh"],
    }


def short_name(name: str) -> str:
    """Return a name that is cut in its middle if it is very long.

    >>> short_name("layer." * 20)
    'layer.layer.layer.layer.layer.layer.la…ayer.layer.layer.layer.layer.layer.layer.'
    """
    return name if len(name) <= _NAME else f"{name[: _NAME // 2 - 2]}…{name[-_NAME // 2 - 1 :]}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def provenance(plan: Plan, limits: Limits) -> list[list[str]]:
    """Return what the plan says of where it comes from, as names and values."""
    rows: list[list[str]] = []
    for key, value in plan.provenance.items():
        if key == "components" and isinstance(value, list | tuple):
            rows += [_component(part) for part in value]
        elif isinstance(value, Mapping):
            rows += [[f"{key}: {name}", _said(part)] for name, part in value.items()]
        else:
            rows.append([str(key), _said(value)])
    left_out = len(rows) - limits.facts
    more = [["…", f"{left_out:,} more rows; -x json writes all"]] if left_out > 0 else []
    return [[_cut(name), value] for name, value in rows[: limits.facts]] + more


def _component(part: Any) -> list[str]:
    if not isinstance(part, Mapping):
        return ["component", _said(part)]
    options = part.get("options")
    pairs = ", ".join(f"{key}={_said(value)}" for key, value in options.items()) if isinstance(options, Mapping) else ""
    version = f" ({part.get('distribution')} {part.get('version')})" if part.get("distribution") else ""
    return [str(part.get("kind", "component")), f"{part.get('name')}{version}{f': {pairs}' if pairs else ''}"]


def _said(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text):,} characters; -x json writes all)"
