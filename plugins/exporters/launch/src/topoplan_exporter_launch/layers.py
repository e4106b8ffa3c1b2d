"""Which layer of the model an operator belongs to, by its name.

Trainers cut a pipeline between layers, so the operators of a plan must be found in the model's layers again.  Names
tell: ``layers.3.attention.wq``, ``model.layers.3.mlp.up_proj``, ``h.3.attn``, ``block3_linear1`` and ``enc3_attention``
belong to layer 3.  What comes before the first layer is the embedding, what comes after the last one the head.
"""

from __future__ import annotations

import re

import attrs

from topoplan import OperatorGraph
from topoplan_exporter_launch.targets import Target

__all__ = ["StageLayers", "layer_of", "layers_of_stages", "name_pattern"]

_LAYER = re.compile(r"(?:^|[._/])(?:layers?|blocks?|h|enc|dec|encoder|decoder|resblocks)[._/]?(\d+)(?=[._/]|$)")


@attrs.frozen
class StageLayers:
    """What a stage holds: the embedding or not, layers ``first`` to ``last`` - 1, the head or not."""

    embedding: bool
    first: int
    last: int
    head: bool


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


def layers_of_stages(graph: OperatorGraph, stage: tuple[int, ...], target: Target) -> list[StageLayers]:
    """Return the layers of every stage.

    Raises:
        TopoplanError: names tell no layers, or a stage begins inside of one.
    """
    numbers = [layer_of(op.name) for op in graph.operators]
    numbered = [index for index, number in enumerate(numbers) if number is not None]
    if not numbered:
        raise target.refusal(
            graph.operators[0],
            "is in no layer by its name, nor is any other, so stages cannot be said in layers "
            "(names such as layers.0.attention)",
        )
    first, last = numbered[0], numbered[-1]
    stages = max(stage) + 1
    owner: dict[int, int] = {}  # layer -> its stage
    for index in numbered:
        number = numbers[index]
        assert number is not None
        if owner.setdefault(number, stage[index]) != stage[index]:
            raise target.refusal(
                graph.operators[index],
                f"is in stage {stage[index]}, but layer {number} begins in stage {owner[number]}, "
                "and stages end with layers",
            )
    for index, op in enumerate(graph.operators):
        if numbers[index] is None and first < index < last and op.weights:
            raise target.refusal(op, "has weights and is in no layer, but others before and after it are")
        wrong = (index < first and stage[index] > 0) or (index > last and stage[index] < stages - 1)
        if wrong and op.weights:
            where = "the embedding, which is in the first stage" if index < first else "the head, in the last stage"
            raise target.refusal(op, f"is in stage {stage[index]}, but belongs to {where}")
    layers = sorted(owner)
    if layers != [*range(len(layers))]:
        missing = next(number for number, layer in enumerate(layers) if layer != number)
        raise target.unsuited(f"model {graph.name!r} has no operator in layer {missing} (layers count from 0)")
    return [
        StageLayers(
            embedding=number == 0,
            first=sum(owner[layer] < number for layer in layers),
            last=sum(owner[layer] <= number for layer in layers),
            head=number == stages - 1,
        )
        for number in range(stages)
    ]
