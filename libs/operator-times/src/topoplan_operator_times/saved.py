"""What forward passes keep for backward ones: of every operator the outputs that are read again, and its extras.

An operator says which inputs and outputs its backward pass reads (`Operator.saved`).  Where it does not, its linearity
does: the gradient of an argument depends on those alone in which the operator is not linear together with it.  So a sum
and a view keep nothing, a product keeps its factors, and a function of elements keeps its inputs.  A tensor is counted
once, where it is made, however many operators read it.  A view has no bytes of its own: reading it is reading what it
looks at.  Training data are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from topoplan import TopoplanError
from topoplan.model.graph import Operator, OperatorGraph, Tensor
from topoplan_operator_times.parts import gradients_of

__all__ = ["is_view", "saved_tensors"]


def saved_tensors(graph: OperatorGraph) -> list[tuple[Tensor, ...]]:
    """Return for every operator its outputs that some backward pass reads, and its extras.

    Raises:
        TopoplanError: an operator names a tensor that it has not.
    """
    made_by = {(v, place): (u, output) for u, output, v, place in graph.edges.reshape(-1, 4).tolist()}
    needed = gradients_of(graph)
    places: set[tuple[int, int]] = set()
    for number, operator in reversed([*enumerate(graph.operators)]):  # readers before what they read
        inputs, outputs = _read(operator, needed[number])
        places |= {(number, output) for output in outputs}
        answers = {(number, output) for output in range(len(operator.outputs))}
        if is_view(operator) and places & answers:
            places -= answers
            inputs = {0}
        places |= {made_by[number, place] for place in inputs if (number, place) in made_by}
    return [
        (*(tensor for k, tensor in enumerate(operator.outputs) if (number, k) in places), *operator.extras)
        for number, operator in enumerate(graph.operators)
    ]


def is_view(operator: Operator) -> bool:
    """Whether the outputs of an operator are elements of its only input, which it neither computes nor copies."""
    if operator.work or operator.weights or operator.extras or len(operator.inputs) != 1 or not operator.linear_in:
        return False
    return sum(output.nbytes for output in operator.outputs) <= operator.inputs[0].nbytes


def _read(operator: Operator, has_gradient: Sequence[bool]) -> tuple[set[int], set[int]]:
    """Return the inputs and the outputs that the backward pass of an operator reads."""
    if operator.saved is not None:
        names = [{tensor.name: k for k, tensor in enumerate(each)} for each in (operator.inputs, operator.outputs)]
        for name in operator.saved:
            if not any(name in numbers for numbers in names):
                raise TopoplanError(f"operator {operator.name!r}: saves {name!r}, which it has not")
        inputs, outputs = ({numbers[name] for name in operator.saved if name in numbers} for numbers in names)
        return inputs, outputs
    arguments = {*range(len(operator.inputs) + len(operator.weights))}
    numbers_read: set[int] = set()
    for argument in arguments:
        if argument < len(has_gradient) and not has_gradient[argument]:
            continue  # training data need no gradient
        together = max((linear for linear in operator.linear_in if argument in linear), key=len, default=())
        numbers_read |= arguments - {*together}
    return {argument for argument in numbers_read if argument < len(operator.inputs)}, set()
