"""What is kept for backward passes: by linearity, by what operators say, each tensor once and where it is made."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import OperatorGraph, TopoplanError
from topoplan_engine.precision import in_precision
from topoplan_operator_times.parts import gradients_of
from topoplan_operator_times.saved import saved_tensors
from topoplan_operator_times.work import backward_factors
from topoplan_operators import GraphBuilder, Handle, dense, normalization, pointwise, shaping, spatial

SAMPLES, WIDTH = 4, 6


def kept(build) -> dict[str, list[str]]:
    """Return operator -> the names of its tensors that are kept; ``build`` adds operators to a builder."""
    builder = GraphBuilder("model", SAMPLES)
    build(builder, builder.linear(builder.input((WIDTH,)), WIDTH, name="first"))
    return names(builder.build())


def names(graph: OperatorGraph) -> dict[str, list[str]]:
    found = zip(graph.operators, saved_tensors(graph), strict=True)
    return {operator.name: [tensor.name for tensor in tensors] for operator, tensors in found}


def test_a_product_keeps_its_factors_and_a_sum_nothing() -> None:
    def build(b, x):
        y, z = b.linear(x, WIDTH, name="left"), b.linear(x, WIDTH, name="right")
        product = b.append(pointwise.elementwise("multiply", [y, z]), [y, z], "product")[0]
        b.append(pointwise.elementwise("add", [product, x]), [product, x], "sum")

    assert kept(build) == {"first": ["y"], "left": ["y"], "right": ["y"], "product": [], "sum": []}


@pytest.mark.parametrize(
    ("kind", "input_is_kept", "own"),
    [
        ("relu", [], ["y"]),
        ("sigmoid", [], ["y"]),
        ("gelu", ["y"], []),
        ("dropout", [], ["mask"]),
        ("neg", [], []),
        ("add", [], []),
    ],
)
def test_a_function_keeps_its_answer_or_its_input(kind, input_is_kept, own) -> None:
    found = kept(lambda b, x: b.append(pointwise.elementwise(kind, [x]), [x], "function"))
    assert found == {"first": input_is_kept, "function": own}


def test_reading_a_view_is_reading_what_it_looks_at() -> None:
    def build(b, x):
        view = b.append(shaping.view(x, (SAMPLES, 2, 3)), [x], "view")[0]
        turned = b.append(shaping.permute(view, (0, 2, 1)), [view], "turned")[0]
        b.append(normalization.layer_norm(turned), [turned], "norm")

    assert kept(build) == {"first": ["y"], "view": [], "turned": [], "norm": ["statistics"]}
    assert kept(lambda b, x: b.append(shaping.view(x, (SAMPLES, 2, 3)), [x], "view")) == {"first": [], "view": []}


def test_training_data_are_not_counted() -> None:
    builder = GraphBuilder("model", SAMPLES)
    x = builder.input((3, 8, 8))
    builder.append(spatial.pool2d(x, 2, stride=2, padding=0), [x], "pool")
    (tensors,) = saved_tensors(builder.build())
    assert [(tensor.name, tensor.nbytes) for tensor in tensors] == [("places", SAMPLES * 3 * 16 * 8)]


def test_a_function_inside_a_product_needs_its_answer_too() -> None:
    def build(b, x):
        b.linear(b.linear(x, WIDTH, activation="relu", name="hidden"), WIDTH, name="last")

    assert kept(build) == {"first": ["y"], "hidden": ["y"], "last": []}


def test_a_tensor_that_an_operator_has_not_is_refused() -> None:
    operator = attrs.evolve(pointwise.elementwise("relu", [Handle((SAMPLES, WIDTH))]), name="f", saved=("z",))
    graph = OperatorGraph(name="m", operators=(operator,), edges=np.zeros((0, 4)), batch_size=SAMPLES)
    with pytest.raises(TopoplanError, match="operator 'f': saves 'z', which it has not"):
        saved_tensors(graph)


def test_a_weight_of_another_operator_needs_a_gradient_though_none_makes_it() -> None:
    def build(tags) -> OperatorGraph:
        builder = GraphBuilder("model", SAMPLES)
        x = builder.linear(builder.input((WIDTH,)), WIDTH, bias=False, name="first")
        operator = dense.linear(x, WIDTH, bias=False, activation=False)
        (kernel,) = operator.weights
        tied = attrs.evolve(operator, inputs=(*operator.inputs, kernel), weights=(), tags=tags)
        builder.append(tied, [x], "tied")
        return builder.build()

    shared, data = build({"shared": "kernel"}), build({})
    assert gradients_of(shared) == [(False,), (True, True)]
    assert gradients_of(data) == [(False,), (True, False)]
    assert names(shared)["first"] == ["y"], "the gradient of the weight is a product with its other factor"
    assert names(data)["first"] == []
    assert backward_factors(shared.operators[1], 2).flops == 2
    halves = [in_precision(graph, "bf16").operators[1].inputs[1].itemsize for graph in (shared, data)]
    assert halves == [2, 4]


def test_attention_with_projections_keeps_what_it_projects_in_the_precision_of_activations() -> None:
    def build(b, x):
        y = b.append(shaping.view(x, (SAMPLES, 2, 3)), [x], "view")[0]
        b.attention(y, y, y, 3, 3, name="attention")

    names_of = kept(build)["attention"]
    in_order = ["answers_in_order", "kernel_in_order"]  # copies that PyTorch's einsum multiplies
    assert names_of == ["queries", "answers", "keys", "values", "sums", *in_order]
    builder = GraphBuilder("model", SAMPLES)
    build(builder, builder.linear(builder.input((WIDTH,)), WIDTH, name="first"))
    graph = builder.build()
    elements = SAMPLES * 2 * 3
    for precision, itemsize in (("fp32", 4), ("bf16", 2)):
        tensors = saved_tensors(in_precision(graph, precision))[-1]
        assert [tensor.nbytes for tensor in tensors[:6]] == [elements * itemsize] * 4 + [
            elements * 4,
            elements * itemsize,
        ]
