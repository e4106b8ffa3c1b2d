"""The layers of the model that each stage of a pipeline holds.

Trainers cut a pipeline between layers, so the operators of a plan must be found in the model's layers again, by their
names.
"""

from __future__ import annotations

import attrs

from topoplan import OperatorGraph
from topoplan_exporter_launch.targets import Target
from topoplan_pipeline_planning.layer_names import layer_of

__all__ = ["StageLayers", "layers_of_stages"]


@attrs.frozen
class StageLayers:
    """What a stage holds: the embedding or not, layers ``first`` to ``last`` - 1, the head or not."""

    embedding: bool
    first: int
    last: int
    head: bool


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
                "and stages end with layers (-s pipeline:cuts=layers plans such)",
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
