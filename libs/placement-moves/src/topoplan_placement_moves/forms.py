"""Operators of one form: those of repeated layers."""

from __future__ import annotations

from typing import Any

from topoplan.model.graph import Operator, OperatorGraph

__all__ = ["form_of", "operators_of_same_form"]


def form_of(operator: Operator) -> Any:
    """Return a hashable value that is equal for operators which differ in nothing but their names and tags."""
    return (
        operator.kind,
        operator.dims,
        operator.inputs,
        operator.weights,
        operator.outputs,
        operator.work,
        operator.traffic,
        operator.profile,
    )


def operators_of_same_form(graph: OperatorGraph) -> list[tuple[int, ...]]:
    """Return for each operator those of its form, itself among them, ascending."""
    members: dict[Any, list[int]] = {}
    forms = [form_of(operator) for operator in graph.operators]
    for index, form in enumerate(forms):
        members.setdefault(form, []).append(index)
    groups = {form: tuple(indices) for form, indices in members.items()}
    return [groups[form] for form in forms]
