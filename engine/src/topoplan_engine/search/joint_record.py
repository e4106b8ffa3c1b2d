"""What a plan's provenance says of its algorithms of collectives, its wiring and its layout, and what each gained.

Data flow: a state at the end of a search ─► `with_moves`: prices of the same strategy with rings, and on the wiring
that the search began with, and which algorithm runs which collectives ─► `topoplan_engine.reporting.joint` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import I32
from topoplan.model.fabric import Fabric
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import Collective
from topoplan.plugin.components import Kind
from topoplan.search.protocol import Candidate, State
from topoplan_engine.guarded import TakesAlgorithms
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.result import Result

__all__ = ["axes_of", "with_moves"]


def with_moves(
    record: Mapping[str, Any], evaluator: Evaluator, state: State, before: Result, *, can_be_wired: bool
) -> Mapping[str, Any]:
    """Return provenance that says which algorithms run collectives, which wiring a plan has, and what each gained.

    Gains are over the fastest that is known with rings, or on the first wiring: the plan's own strategy or the best one
    of the search.

    Its simulator has the algorithms, so that whoever reads a plan simulates the same.  Where a plan has rings and a
    network that stays, it is as it was; but where the user names algorithms, it says which of these run what.

    Args:
        record: provenance of the plan.
        evaluator: of the search.
        state: of the plan.
        before: the search before these moves.
        can_be_wired: the network could be wired for the plan.
    """
    if not state.collectives and _names_algorithms(record) and (rows := _uses(evaluator, state)):
        record = {**record, "algorithms": rows}
    if not state.collectives and not can_be_wired:
        return record
    moves: dict[str, Any] = {"seconds": _seconds(evaluator, state)}
    of_search = (float("inf"),) if before.best.collectives else (float(before.best_cost),)
    if state.collectives:
        moves["collectives"] = state.collectives
        moves["algorithms"] = _uses(evaluator, state)
        moves["seconds_with_rings"] = min(_seconds(evaluator, attrs.evolve(state, collectives="")), *of_search)
    if can_be_wired:
        first = before.initial.fabric
        if is_new := state.fabric.key != first.key:
            prices = of_search if before.best.fabric.key == first.key else (float("inf"),)
            moves["seconds_on_first_wiring"] = min(_seconds(evaluator, attrs.evolve(state, fabric=first)), *prices)
        moves["wired_anew"] = is_new
    if all(state.strategy.key != entry.state.strategy.key for entry in before.shortlist):
        moves["layout_moved"] = True
    return {**_with_algorithms(record, evaluator, state), "joint": moves}


def _seconds(evaluator: Evaluator, state: State) -> float:
    return float(evaluator.price(Candidate(base=state)).cost)


def _with_algorithms(record: Mapping[str, Any], evaluator: Evaluator, state: State) -> Mapping[str, Any]:
    """Return provenance whose simulator has the algorithms of a state."""
    simulate = evaluator.runs(state)[0]
    if not state.collectives or not isinstance(simulate, TakesAlgorithms) or simulate.algorithms is None:
        return record
    text = simulate.algorithms.text
    components = [
        {**part, "options": {**part["options"], "algorithms": text}} if part["kind"] == Kind.SIMULATOR.value else part
        for part in record["components"]
    ]
    return {**record, "components": components}


def _names_algorithms(record: Mapping[str, Any]) -> bool:
    """Say whether the options of a plan's simulator name algorithms of collectives."""
    return any(
        part["kind"] == Kind.SIMULATOR.value and part["options"].get("algorithms") for part in record["components"]
    )


def _uses(evaluator: Evaluator, state: State) -> list[Mapping[str, Any]]:
    """Return which algorithm runs which collectives: a row for each kind, axes of groups and algorithm, with sizes."""
    from topoplan_engine.simulation.algorithms import tensor_bytes

    simulate, fabric, tasks = evaluator.runs(state)
    cluster = evaluator.problem.cluster
    if not isinstance(simulate, TakesAlgorithms) or not isinstance(fabric, Fabric):
        return []
    rows: dict[tuple[str, str, str, str], list[int]] = {}
    for task, name in simulate.selections(tasks, fabric, cluster):
        collective, members = Collective(tasks.collective[task]), tasks.members(task)
        _, counts = np.unique(cluster.device_host[members], return_counts=True)
        shape = f"{len(counts)}x{counts[0]}" if (counts == counts[0]).all() else f"{len(counts)} hosts"
        key = collective.label, axes_of(state.strategy, members), shape, name or "rings"
        rows.setdefault(key, []).append(tensor_bytes(collective, int(tasks.size[task])))
    names = ("collective", "axes", "shape", "algorithm")
    sized_rows = [(key, min(sizes), max(sizes)) for key, sizes in rows.items()]
    return [
        {**dict(zip(names, key, strict=True)), "least_bytes": low, "most_bytes": high}
        for key, low, high in sorted(sized_rows, key=lambda row: (row[0][1], row[0][0], row[0][2], row[1]))
    ]


def axes_of(strategy: Strategy, members: I32 | Sequence[int]) -> str:
    """Return the axes of a mesh along which the members of a group differ: ``dp+cp``; empty where they lie in none."""
    devices = np.asarray(members)
    for stage in strategy.stages if isinstance(strategy, StagedStrategy) else ():
        mesh = stage.mesh
        places = np.flatnonzero(np.isin(mesh.devices, devices))
        if len(places) == len(devices):
            coordinates = np.stack(np.unravel_index(places, mesh.sizes))
            differs = (coordinates != coordinates[:, :1]).any(axis=1)
            return "+".join(name for name, along in zip(mesh.axes, differs.tolist(), strict=True) if along)
    return ""
