"""What tables say about the model: how large it is, and whether it, or its batch, is hardly what was meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

from topoplan.model.graph import Operator, OperatorGraph, Tensor
from topoplan.model.plan import Plan
from topoplan.plugin.components import Frontend
from topoplan.plugin.host import Host
from topoplan_engine.checkpoints import repeated_operators
from topoplan_engine.experiment import Experiment
from topoplan_engine.model_notes import model_notes
from topoplan_engine.throughput import active_parameters, flops_per_token
from topoplan_engine.training import trained_weights

__all__ = ["few_samples", "model_json", "model_rows", "parameter_count", "toy", "trained_parameter_count"]

#: No model that is trained on several devices has fewer parameters.
_TOY = 100_000

#: Bytes of a parameter.
_FULL, _HALF = 4, 2


def parameter_count(graph: OperatorGraph) -> int:
    """Return the number of parameters of a model, trained or not.

    Numbers that a model keeps beside its weights count (tag ``buffers``), as in published totals: the biases by which
    DeepSeek-V3 chooses experts.  Layers of a profile may have a number of bytes that no whole number of parameters has:
    these are rounded.
    """
    buffers = sum(int(op.tags.get("buffers", 0)) for op in graph.operators)
    return buffers + sum(_parameters(graph, op, op.weights) for op in graph.operators)


def trained_parameter_count(graph: OperatorGraph) -> int:
    """Return the number of parameters of a model that are trained."""
    return sum(_parameters(graph, op, trained_weights(graph, number)) for number, op in enumerate(graph.operators))


def _parameters(graph: OperatorGraph, op: Operator, weights: Sequence[Tensor]) -> int:
    itemsize = _FULL if graph.precision == "fp32" else _HALF
    return sum(
        round(weight.nbytes / itemsize) if op.profile is not None and weight.itemsize == 1 else weight.elements
        for weight in weights
    )


def model_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of a table: parameters, operators and batch; what is frozen and what runs again."""
    graph = plan.graph
    if graph is None:
        return []
    total, trained = parameter_count(graph), trained_parameter_count(graph)
    size = f"{_count(total)} parameters" + (f" ({_count(trained)} trained)" if _count(trained) != _count(total) else "")
    repeats = sum(repeated_operators(graph))
    operators = f"{len(graph.operators)} operators" + (
        f" ({repeats} run again in the backward pass)" if repeats else ""
    )
    return [("model", f"{size}, {operators}, batch of {graph.batch_size:,}"), *_token_rows(graph), *_note_rows(graph)]


def _token_rows(graph: OperatorGraph) -> list[tuple[str, str]]:
    """Return what a token of a model with sequences costs, in both conventions."""
    flops, in_full = flops_per_token(graph), flops_per_token(graph, full_attention=True)
    if not flops or not in_full:
        return []
    also = f" ({in_full / 1e9:,.5g} G with attention in full)" if in_full > flops else ""
    active = active_parameters(graph)
    return [("FLOP a token", f"{flops / 1e9:,.5g} G{also}, {_count(active or 0)} active parameters")]


def _note_rows(graph: OperatorGraph) -> list[tuple[str, str]]:
    return [(f"  {subject}", text) for subject, text in model_notes(graph).items()]


def model_json(graph: OperatorGraph) -> dict[str, Any]:
    """Return what the JSON object of a run says of the model.

    ``flop_per_token`` is None for a model without sequences; of causal attention the pairs that attend to each other
    count, and all of them in ``flop_per_token_full_attention``.
    """
    return {
        "parameters": parameter_count(graph),
        "trained_parameters": trained_parameter_count(graph),
        "active_parameters": active_parameters(graph),
        "flop_per_token": flops_per_token(graph),
        "flop_per_token_full_attention": flops_per_token(graph, full_attention=True),
        "precision": graph.precision,
        "batch_size": graph.batch_size,
        **({"notes_on_model": model_notes(graph)} if model_notes(graph) else {}),
    }


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


def few_samples(experiment: Experiment, plan: Plan) -> str | None:
    """Say that a model with sequences has a batch that was not asked for, of fewer samples than there are devices."""
    graph, devices = plan.graph, plan.cluster.n_devices
    if graph is None or experiment.run.batch_size is not None or graph.batch_size >= devices:
        return None
    if not flops_per_token(graph):
        return None
    return (
        f"a batch of {graph.batch_size:,} is {experiment.model.name}'s own, fewer samples than the {devices:,} devices "
        "(--batch-size N trains on N)"
    )


def _count(number: int) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return str(number)
