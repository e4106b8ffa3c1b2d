"""Plan <-> the bytes of a JSON document, with its header and the checks that cross its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import cattrs
import numpy as np

from topoplan import Collective, Fabric, Plan, Routes, TaskGraph, TopoplanError
from topoplan.model.staged import StagedStrategy
from topoplan_engine.rebuilding import summarised
from topoplan_engine.sharding.programs import check_strategy
from topoplan_exporter_json.convert import converter, expectation, place
from topoplan_exporter_json.recordings import check_recordings
from topoplan_exporter_json.runs import packed, unpacked

__all__ = ["FORMAT", "VERSION", "read", "write"]

FORMAT = "topoplan-plan"
#: Version 1 says how often the bytes of a collective go round its ring, version 2 what it does.
VERSION, _READ = 2, (1, 2)


def write(plan: Plan) -> bytes:
    """Write a plan; equal plans give equal bytes.

    A large folded plan is written without its tasks, which follow from its strategy (`topoplan_engine.rebuilding`).
    """
    summary = summarised(plan)
    body = converter().unstructure(summary, Plan)
    document = {"format": FORMAT, "version": VERSION, **(body if summary is plan else packed(body))}
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise TopoplanError(
            f"json: the plan's provenance or foreign columns hold more than JSON values ({error})"
        ) from None
    return text.encode("ascii") + b"\n"


def read(data: bytes, name: str) -> Plan:
    """Read a plan.

    Raises:
        TopoplanError: see `topoplan_exporter_json.read`.
    """
    document = _parse(data, name)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TopoplanError(f'{name}: $.format: this is no plan (expected "{FORMAT}")')
    version = document.get("version")
    if version not in _READ or type(version) is not int:
        raise TopoplanError(f"{name}: $.version: {version!r:.40} cannot be read (expected 1 or 2)")
    body = {key: value for key, value in document.items() if key not in ("format", "version")}
    try:
        body = unpacked(body, "$")
    except TopoplanError as error:
        raise TopoplanError(f"{name}: {error}") from None
    try:
        plan = _with_placements(converter().structure(body, Plan), name)
    except cattrs.BaseValidationError as error:
        problem = cattrs.transform_error(error, path="$", format_exception=expectation)[0]
        message, _, path = problem.rpartition(" @ ")
        raise TopoplanError(f"{name}: {place(path)}: {message}") from None
    _check(plan, name)
    if not isinstance(plan.fabric, Fabric):
        _check_links(document["fabric"], converter().unstructure(plan.fabric), f"{name}: $.fabric")
    return plan if version > 1 else attrs.evolve(plan, taskgraph=_with_joins(plan.taskgraph))


def _with_placements(plan: Plan, name: str) -> Plan:
    """Return a plan whose strategy has the placements that follow from its stages, where the file has none."""
    strategy = plan.strategy
    if not isinstance(strategy, StagedStrategy) or strategy.placements or plan.graph is None or strategy.is_placed:
        return plan
    flags = strategy.clips, strategy.blocks, strategy.one_stream, strategy.pairs
    try:
        of_stages = StagedStrategy.of(plan.graph, strategy.stages, strategy.order, strategy.micro_batches, *flags)
    except TopoplanError as error:
        raise TopoplanError(f"{name}: $.strategy: {error}") from None
    return attrs.evolve(plan, strategy=of_stages)


def _parse(data: bytes, name: str) -> Any:
    def refuse(token: str) -> Any:
        raise ValueError(f"{token} is not JSON (write it as text)")

    try:
        return json.loads(data.decode(), parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise TopoplanError(f"{name}: line {error.lineno}, column {error.colno}: {error.msg} (expected JSON)") from None
    except RecursionError:
        raise TopoplanError(f"{name}: nested too deeply (expected a plan)") from None
    except ValueError as error:
        raise TopoplanError(f"{name}: {str(error).splitlines()[0]} (expected JSON in UTF-8)") from None


def _check(plan: Plan, name: str) -> None:
    """Raise unless the parts of the plan fit each other, as simulators and exporters take for granted."""
    cluster, fabric, taskgraph = plan.cluster, plan.fabric, plan.taskgraph
    for part in ("cluster", "taskgraph", "graph", "timeline"):
        _check_shapes(getattr(plan, part), f"{name}: $.{part}")
    if isinstance(fabric, Fabric):
        _check_fabric(fabric, f"{name}: $.fabric")
    else:
        for field in ("forward", "backward", "reduce"):
            _check_fabric(getattr(fabric, field), f"{name}: $.fabric.phases.{field}")
    for index, op in enumerate(plan.graph.operators if plan.graph is not None else ()):
        if not op.outputs:
            raise TopoplanError(f"{name}: $.graph.operators[{index}].outputs: empty (expected at least one)")
    if fabric.n_hosts != cluster.n_hosts:
        raise TopoplanError(f"{name}: $.fabric.n_hosts: {fabric.n_hosts} (the cluster has {cluster.n_hosts})")
    if taskgraph.n_devices != cluster.n_devices:
        raise TopoplanError(
            f"{name}: $.taskgraph.n_devices: {taskgraph.n_devices} (the cluster has {cluster.n_devices})"
        )
    for field in ("group_ptr", "succ_ptr"):
        if not len(getattr(taskgraph, field)):
            raise TopoplanError(f"{name}: $.taskgraph.{field}: empty (expected at least [0])")
    taskgraph.check(f"{name}: $.taskgraph")
    _check_strategy(plan, name)
    _check_timeline(plan, name)
    check_recordings(plan, name)


def _check_strategy(plan: Plan, name: str) -> None:
    if plan.strategy is None:
        return
    if plan.graph is None:
        raise TopoplanError(f"{name}: $.graph: missing (expected the model of $.strategy)")
    try:
        check_strategy(plan.strategy, plan.graph, plan.cluster.n_devices)
    except TopoplanError as error:
        raise TopoplanError(f"{name}: $.strategy: {error}") from None


def _check_timeline(plan: Plan, name: str) -> None:
    """Raise unless the columns of the timeline have as many values as there are tasks, devices and links."""
    if plan.timeline is None:
        return
    n_tasks, n_links = plan.taskgraph.n_tasks, plan.fabric.links.n_links
    lengths = {"start": n_tasks, "finish": n_tasks, "device_busy": plan.cluster.n_devices}
    lengths |= {"link_bytes": n_links, "link_busy": n_links}
    for field, length in lengths.items():
        if (n_values := len(getattr(plan.timeline, field))) != length:
            raise TopoplanError(f"{name}: $.timeline.{field}: {n_values} values (expected {length})")


def _with_joins(taskgraph: TaskGraph) -> TaskGraph:
    """Name the joins, which version 1 of the format writes as all-reduces of one member and no bytes."""
    collective = taskgraph.collective.copy()
    tasks = np.flatnonzero((collective == Collective.ALL_REDUCE) & (taskgraph.size == 0))
    collective[tasks[np.diff(taskgraph.group_ptr)[taskgraph.group[tasks]] == 1]] = Collective.JOIN
    return attrs.evolve(taskgraph, collective=collective)


def _check_shapes(part: Any, context: str) -> None:
    """Raise unless arrays are columns, but for two that have rows."""
    rows = {"edges": 4, "pairs": 2}
    for field in attrs.fields(type(part)) if attrs.has(type(part)) else ():
        array = getattr(part, field.name)
        if not isinstance(array, np.ndarray):
            continue
        width = rows.get(field.name)
        if array.shape[1:] != ((width,) if width else ()) or array.ndim == 0:
            raise TopoplanError(
                f"{context}.{field.name}: shape {array.shape} (expected {f'rows of {width}' if width else 'a list'})"
            )
        if width and array.size and array.min() < 0:
            raise TopoplanError(f"{context}.{field.name}: {array.min()} (must not be negative)")


def _check_fabric(fabric: Fabric, context: str) -> None:
    _check_shapes(fabric, context)
    if not 1 <= fabric.max_paths < 2**31:
        raise TopoplanError(f"{context}.max_paths: {fabric.max_paths} (expected at least 1)")
    if fabric.routes is not None:
        _check_shapes(fabric.routes, f"{context}.routes")
        _check_routes(fabric, fabric.routes, f"{context}.routes")


def _check_links(fabric: Mapping[str, Any], of_phases: Mapping[str, Any], context: str) -> None:
    """Raise unless a fabric that is rebuilt lists the links of its phases."""
    for key in fabric.keys() - {"phases"}:
        if fabric[key] != of_phases[key]:
            raise TopoplanError(f"{context}.{key}: not that of the phases")


def _check_routes(fabric: Fabric, routes: Routes, context: str) -> None:
    for field, pointer, rows, total in (
        ("pair_ptr", routes.pair_ptr, len(routes.pairs), len(routes.weight)),
        ("path_ptr", routes.path_ptr, len(routes.weight), len(routes.links)),
    ):
        if len(pointer) != rows + 1 or pointer[0] != 0 or pointer[-1] != total or (np.diff(pointer) < 0).any():
            raise TopoplanError(f"{context}.{field}: expected {rows + 1} ascending numbers from 0 to {total}")
    for field, values, limit in (("pairs", routes.pairs, fabric.n_hosts), ("links", routes.links, fabric.n_links)):
        if values.size and not 0 <= values.min() <= values.max() < limit:
            raise TopoplanError(
                f"{context}.{field}: values {values.min()} to {values.max()} (expected 0 to {limit - 1})"
            )
