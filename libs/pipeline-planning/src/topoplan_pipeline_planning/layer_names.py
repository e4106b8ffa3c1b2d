"""The layers of a model by the names of its operators, and the cuts of a pipeline between them.

Trainers cut a pipeline between the layers of the model, where a planner sees operators.  Names tell which layer an
operator is in: ``layers.3.attention.wq``, ``model.layers.3.mlp.up_proj``, ``h.3.attn``, ``block3_linear1`` and
``enc3_attention`` belong to layer 3.  What comes before the first layer is the embedding, what comes after the last one
the head.  `layer_states` are the states of a graph (`states`) that are such cuts.
"""

from __future__ import annotations

import re

import numpy as np

from topoplan import OperatorGraph, TopoplanError
from topoplan.arrays import I64
from topoplan_pipeline_planning.states import States

__all__ = ["layer_of", "layer_states", "name_pattern"]

_LAYER = re.compile(r"(?:^|[._/])(?:layers?|blocks?|h|enc|dec|encoder|decoder|resblocks)[._/]?(\d+)(?=[._/]|$)")


def layer_of(name: str) -> int | None:
    """Return the number in an operator's name that says its layer; None if there is none."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def name_pattern(name: str) -> str:
    """Return a regular expression for an operator's name with any number in place of its layer's."""
    match = _LAYER.search(name)
    if match is None:
        return re.escape(name)
    return f"{re.escape(name[: match.start(1)])}[0-9]+{re.escape(name[match.end(1) :])}"


def layer_states(graph: OperatorGraph) -> States:
    """Return the states that end with the embedding, with each layer in turn, and with the head.

    An operator without a number between the first and the last that have one, such as a mask, counts to the layer of
    the latest operator that it depends on.

    Args:
        graph: the model, its operators in topological order.

    Raises:
        TopoplanError: names tell no layers, or a layer reads what a later one makes (as where an encoder and a decoder
            both count their layers from 0).
    """
    part = _parts(graph)
    source, target = graph.edges.reshape(-1, 4)[:, [0, 2]].T
    backward = np.flatnonzero(part[source] > part[target])
    if len(backward):
        reader, maker = (graph.operators[int(end[backward[0]])] for end in (target, source))
        raise TopoplanError(
            f"model {graph.name!r}: operator {reader.name!r} reads {maker.name!r}, which is in a later layer by its "
            "name, so there is no cut between the layers"
        )
    last_reader = part.copy()
    np.maximum.at(last_reader, source, part[target])
    ends = np.unique(part)
    closed = part[None, :] <= ends[:, None]
    crossing = closed & (last_reader[None, :] > ends[:, None])
    crossing[-1, -1] = True  # as of every chain, the output of the last operator
    return States(closed, crossing, ends[None, :] < ends[:, None])


def _parts(graph: OperatorGraph) -> I64:
    """Return, for each operator, the number of its layer; -1 for the embedding, one more than all for the head."""
    numbers = [layer_of(op.name) for op in graph.operators]
    numbered = [index for index, number in enumerate(numbers) if number is not None]
    if not numbered:
        raise TopoplanError(
            f"model {graph.name!r}: operator {graph.operators[0].name!r} is in no layer by its name, nor is any other "
            "(names such as layers.0.attention tell)"
        )
    head = max(number for number in numbers if number is not None) + 1
    part = np.full(len(numbers), -1, dtype=np.int64)
    readers: list[list[int]] = [[] for _ in numbers]
    for source, _, target, _ in graph.edges.reshape(-1, 4).tolist():
        readers[source].append(target)
    for index, number in enumerate(numbers):
        if number is not None:
            part[index] = number
        elif index > numbered[-1]:
            part[index] = head
        for reader in readers[index]:
            if numbers[reader] is None and numbered[0] < reader < numbered[-1]:
                part[reader] = max(part[reader], part[index])
    return part
