"""What tables say about the model: how large it is, and whether it is a toy that nobody meant to plan for."""

from __future__ import annotations

from typing import get_args, get_type_hints

from topoplan.model.graph import OperatorGraph
from topoplan.model.plan import Plan
from topoplan.plugin.components import Frontend
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment

__all__ = ["model_rows", "parameter_count", "toy"]

#: No model that is trained on several devices has fewer parameters.
_TOY = 100_000

#: Bytes of a parameter.
_FULL, _HALF = 4, 2


def parameter_count(graph: OperatorGraph) -> int:
    """Return the number of parameters of a model.

    Layers of a profile may have a number of bytes that no whole number of parameters has: these are rounded.
    """
    itemsize = _FULL if graph.precision == "fp32" else _HALF
    return sum(
        round(weight.nbytes / itemsize) if op.profile is not None and weight.itemsize == 1 else weight.elements
        for op in graph.operators
        for weight in op.weights
    )


def model_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of a table: parameters, operators and batch."""
    graph = plan.graph
    if graph is None:
        return []
    size = _count(parameter_count(graph))
    return [("model", f"{size} parameters, {len(graph.operators)} operators, batch of {graph.batch_size:,}")]


def toy(host: Host, experiment: Experiment, plan: Plan) -> str | None:
    """Say that a model without a preset is too small to mean anything, where its frontend has presets."""
    graph = plan.graph
    if graph is None or parameter_count(graph) >= _TOY or experiment.model.options.get("preset"):
        return None
    frontend = host.get(Frontend, experiment.model.name)
    presets = [name for name in get_args(get_type_hints(frontend).get("preset")) if name]
    if not presets:
        return None
    return (
        f"{experiment.model.name} with {parameter_count(graph):,} parameters is a toy; published configurations are "
        f"{', '.join(f'-o preset={name}' for name in presets)}"
    )


def _count(number: int) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return str(number)
