"""What of a file is known before a search: its connections, its routes, and how many tasks it has at least.

Up to `network.ALL_PAIRS` hosts a file lists the routes of all pairs, whatever the plan; so a fabric that stays decides
whether they are too many.  Every operator is at least one task.  How many tasks and messages there are beyond that is
the found plan's; `why_too_large` judges the strategy that the search starts from, data parallelism as a rule.
"""

from __future__ import annotations

import math

import numpy as np

from topoplan import Fabric, Problem, State, TopoplanError
from topoplan.model.reconfigurable import AnyFabric
from topoplan_engine.lowering import Lowering
from topoplan_exporter_flatbuffer.network import ALL_PAIRS, MOST_PATHS, connections, one_link, routes_of, shifts
from topoplan_exporter_flatbuffer.tables import MOST_TASKS, check_size, unsayable_collectives

__all__ = ["why_never_written", "why_too_large"]


def why_never_written(problem: Problem, fabric: AnyFabric | None) -> str:
    """Say why no plan of a problem can be written; empty if one may be.

    Args:
        problem: what is searched in.
        fabric: the network of every plan; None where a search moves it.
    """
    count = len(problem.graph.operators)
    if count > MOST_TASKS:
        return (
            f"model {problem.graph.name!r} has {count:,} operators, each at least one task; a file of more than "
            f"{MOST_TASKS:,} tasks takes more than 1 GB of memory to write"
        )
    if not isinstance(fabric, Fabric):
        return ""
    try:
        connections(fabric, one_link(fabric, problem.cluster))
        hosts = fabric.n_hosts
        if hosts <= ALL_PAIRS and hosts * (hosts - 1) * fabric.max_paths > MOST_PATHS:
            pairs = np.arange(hosts * hosts)
            routes_of(fabric, pairs[pairs // hosts != pairs % hosts])
    except TopoplanError as error:
        return str(error).removeprefix("flatbuffer: ")
    return ""


def why_too_large(problem: Problem, start: State) -> str:
    """Say why the file of the state that a search starts from would be too large; empty if it would not."""
    if not isinstance(start.fabric, Fabric) or problem.cluster.n_devices != start.fabric.n_hosts:
        return ""
    parts = sum(math.prod(map(int, placement.degrees)) for placement in start.strategy.placements)
    weights = sum(bool(operator.weights) for operator in problem.graph.operators)
    if 3 * parts + weights * 2 * start.fabric.n_hosts**2 < MOST_TASKS:
        return ""  # one ring of all hosts for each operator with weights, written out
    graph = Lowering(problem.graph, problem.cluster, problem.costs).lower(start.strategy)
    try:
        check_size(graph, unsayable_collectives(graph, start.fabric), shifts(start.fabric, graph))
    except TopoplanError as error:
        return f"of the plan that the search starts from {str(error).removeprefix('flatbuffer: ')}"
    return ""
