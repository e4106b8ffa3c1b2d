"""Weights that nodes make: quantized, merged, joined, cut out; recurrent layers, and normalization by groups.

Parameters and FLOPs are those of the same product with a weight that the file has.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from topoplan_engine.throughput import model_flops
from topoplan_frontend_onnx import Onnx
from topoplan_samples.onnx_files import integers, model, node, tensor

pytestmark = pytest.mark.filterwarnings("error::topoplan.errors.TopoplanWarning")

SAMPLES, POSITIONS, WIDTH = 4, 8, 16
#: FLOPs of x @ w, or of a convolution of images with one position and a kernel of one.
PRODUCT = 2 * SAMPLES * POSITIONS * WIDTH * WIDTH


@pytest.fixture
def build(tmp_path):
    """Return a function from nodes and tensors to a graph."""

    def graph_of(nodes, tensors, shape=(POSITIONS, WIDTH), outputs=(POSITIONS, WIDTH)):
        path = tmp_path / "model.onnx"
        path.write_bytes(model(nodes, {"x": ["n", *shape]}, {"y": ["n", *outputs]}, tensors))
        return Onnx(file=str(path)).build(SAMPLES)

    return graph_of


def parameters(graph):
    return sum(weight.elements for op in graph.operators for weight in op.weights)


def flops(graph, *kinds):
    return sum(
        term.coefficient * math.prod(op.sizes[d] for d in term.dims)
        for op in graph.operators
        if op.kind in kinds
        for term in op.work[:1]
    )


def int8(name, *shape):
    return tensor(name, shape, kind="int8")


MATMUL = node("MatMul", "x w", "y")
SCALE = [tensor("scale", [], 0.1), int8("zero")]
PER_CHANNEL = [tensor("scale", [WIDTH], np.full(WIDTH, 0.1)), int8("zero", WIDTH)]
#: Name -> nodes, tensors, whether the weight is trained.
QUANTIZED = {
    "linear": ([node("DequantizeLinear", "q scale zero", "w"), MATMUL], [int8("q", WIDTH, WIDTH), *SCALE], False),
    "a scale for each channel": (
        [node("DequantizeLinear", "q scale zero", "w", axis=1), MATMUL],
        [int8("q", WIDTH, WIDTH), *PER_CHANNEL],
        False,
    ),
    "transposed": (
        [
            node("DequantizeLinear", "q scale", "d"),
            node("Transpose", "d", "w"),
            node("QuantizeLinear", "x scale zero", "xq"),
            node("DequantizeLinear", "xq scale zero", "xd"),
            node("MatMul", "xd w", "y"),
        ],
        [int8("q", WIDTH, WIDTH), *SCALE],
        False,
    ),
    "trained with what quantization does": (
        [node("QuantizeLinear", "r scale zero", "q"), node("DequantizeLinear", "q scale zero", "w"), MATMUL],
        [tensor("r", [WIDTH, WIDTH]), *SCALE],
        True,
    ),
    "by hand": (
        [
            node("DynamicQuantizeLinear", "x", "xq xs xz"),
            node("MatMulInteger", "xq q xz zero", "i"),
            node("Cast", "i", "c", to=1),
            node("Mul", "c scale", "y"),
        ],
        [int8("q", WIDTH, WIDTH), *SCALE],
        False,
    ),
    "as one node": (
        [
            node("QuantizeLinear", "x scale zero", "xq"),
            node("QLinearMatMul", "xq scale zero q scale zero scale zero", "z"),
            node("DequantizeLinear", "z scale zero", "y"),
        ],
        [int8("q", WIDTH, WIDTH), *SCALE],
        False,
    ),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_weight_costs_what_it_stands_for(name, build) -> None:
    nodes, tensors, trained = QUANTIZED[name]
    graph = build(nodes, tensors)
    assert parameters(graph) == WIDTH * WIDTH
    assert flops(graph, "linear", "matmul") == PRODUCT
    (weight,) = [weight for op in graph.operators for weight in op.weights]
    assert (weight.requires_grad, weight.itemsize) == (trained, 4 if trained else 1)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_quantized_kernels_are_convolved(kind, build) -> None:
    tensors = [int8("q", WIDTH, WIDTH, 3, 3), *SCALE, tensor("b", [WIDTH])]
    nodes = [node("DequantizeLinear", "q scale zero", "w"), node(kind, "x w b", "y", pads=[1, 1, 1, 1])]
    graph = build(nodes, tensors, (WIDTH, 5, 5), (WIDTH, 5, 5))
    plain = build(
        [node(kind, "x w b", "y", pads=[1, 1, 1, 1])],
        [tensor("w", [WIDTH, WIDTH, 3, 3]), tensors[-1]],
        (WIDTH, 5, 5),
        (WIDTH, 5, 5),
    )
    assert parameters(graph) == parameters(plain) == WIDTH * WIDTH * 9 + WIDTH
    (op,), (of_plain,) = graph.operators, plain.operators
    assert (op.kind, op.work) == (of_plain.kind, of_plain.work)
    assert [weight.requires_grad for weight in op.weights] == [False, True]


def test_a_convolution_of_integers_is_one(build) -> None:
    nodes = [
        node("QuantizeLinear", "x scale zero", "xq"),
        node("QLinearConv", "xq scale zero q scale zero scale zero bias", "z"),
        node("DequantizeLinear", "z scale zero", "y"),
    ]
    tensors = [int8("q", 8, WIDTH, 1, 1), *SCALE, tensor("bias", [8], kind="int32")]
    graph = build(nodes, tensors, (WIDTH, 2, 4), (8, 2, 4))
    assert flops(graph, "conv2d") == 2 * SAMPLES * 8 * WIDTH * 8


#: Name -> nodes that make the weight w, tensors, parameters.
COMPUTED = {
    "merged adapter": (
        [node("MatMul", "b a", "ab"), node("Add", "base ab", "w")],
        [tensor("base", [WIDTH, WIDTH]), tensor("b", [WIDTH, 2]), tensor("a", [2, WIDTH])],
        WIDTH * WIDTH + 4 * WIDTH,
    ),
    "sum": (
        [node("Add", "first second", "w")],
        [tensor("first", [WIDTH, WIDTH]), tensor("second", [WIDTH, WIDTH])],
        2 * WIDTH * WIDTH,
    ),
    "joined": (
        [node("Concat", "first second", "w", axis=1)],
        [tensor("first", [WIDTH, 6]), tensor("second", [WIDTH, WIDTH - 6])],
        WIDTH * WIDTH,
    ),
    "joined with zeros": (
        [node("Concat", "first zeros", "w", axis=1)],
        [tensor("first", [WIDTH, WIDTH - 6]), tensor("zeros", [WIDTH, 6], kind="int64")],
        WIDTH * (WIDTH - 6),
    ),
    "split": (
        [node("Split", "both sizes", "w rest", axis=1), node("MatMul", "x rest", "unused")],
        [tensor("both", [WIDTH, 2 * WIDTH]), integers("sizes", WIDTH, WIDTH)],
        2 * WIDTH * WIDTH,
    ),
    "slice": (
        [node("Slice", "both starts ends axes", "w")],
        [tensor("both", [WIDTH, 2 * WIDTH]), integers("starts", 0), integers("ends", WIDTH), integers("axes", 1)],
        WIDTH * WIDTH,
    ),
    "rows": (
        [node("Gather", "both chosen", "w", axis=0)],
        [tensor("both", [2 * WIDTH, WIDTH]), integers("chosen", *range(WIDTH))],
        WIDTH * WIDTH,
    ),
    "reshaped": (
        [node("Reshape", "flat shape", "w")],
        [tensor("flat", [WIDTH * WIDTH]), integers("shape", WIDTH, WIDTH)],
        WIDTH * WIDTH,
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_computed_weight_costs_what_a_stored_one_does(name, build) -> None:
    nodes, tensors, count = COMPUTED[name]
    graph = build([*nodes, MATMUL], tensors)
    *_, product = graph.operators
    assert (
        flops(graph, product.kind)
        - sum(flops_of(op) for op in graph.operators if op.kind == product.kind and op is not product)
        == PRODUCT
    )
    assert parameters(graph) in (count, WIDTH * WIDTH)  # of a table that is cut, what is read


def flops_of(op):
    return op.work[0].coefficient * math.prod(op.sizes[d] for d in op.work[0].dims)


def test_gemm_and_convolutions_take_computed_factors(build) -> None:
    halves = [tensor("u", [WIDTH, WIDTH]), tensor("v", [WIDTH, WIDTH]), tensor("c", [WIDTH])]
    nodes = [node("Mul", "u v", "w"), node("Gemm", "x w c", "y", transB=1)]
    graph = build(nodes, halves, (WIDTH,), (WIDTH,))
    assert parameters(graph) == 2 * WIDTH * WIDTH + WIDTH
    assert flops(graph, "einsum") == 2 * SAMPLES * WIDTH * WIDTH
    kernels = [tensor("u", [WIDTH, WIDTH, 3, 3]), tensor("v", [WIDTH, 1, 1, 1]), tensor("c", [WIDTH])]
    graph = build([node("Mul", "u v", "w"), node("Conv", "x w c", "y")], kernels, (WIDTH, 5, 5), (WIDTH, 3, 3))
    assert parameters(graph) == WIDTH * WIDTH * 9 + 2 * WIDTH
    assert flops(graph, "conv2d") == 2 * SAMPLES * WIDTH * WIDTH * 9 * 9


def test_constants_that_follow_the_shape_of_an_input_are_no_parameters(build) -> None:
    """Strides of a detector's anchors, as YOLO's exporters write them: filled, and then joined."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Slice", "shape one two", "rows"),
        node("Concat", "rows columns", "sizes", axis=0),
        node("ConstantOfShape", "sizes", "first", value=tensor("", [1], 8.0)),
        node("ConstantOfShape", "sizes", "second", value=tensor("", [1], 16.0)),
        node("Concat", "first second", "strides", axis=1),
        node("Mul", "x strides", "y"),
    ]
    tensors = [integers("one", 1), integers("two", 2), integers("columns", 128)]
    graph = build(nodes, tensors, (1024, 256), (1024, 256))
    assert [op.kind for op in graph.operators] == ["multiply"]
    assert parameters(graph) == 0


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_have_their_weights_and_products(kind, gates, directions, build) -> None:
    hidden = 5
    rows = gates * hidden
    tensors = [
        *(tensor("w", [directions, rows, WIDTH]), tensor("r", [directions, rows, hidden])),
        *(tensor("b", [directions, 2 * rows]), integers("axes", 1)),
    ]
    direction = "bidirectional" if directions == 2 else "forward"
    nodes = [node(kind, "x w r b", "y", hidden_size=hidden, direction=direction)]
    graph = build(nodes, tensors, (POSITIONS, WIDTH), (directions, POSITIONS, hidden))
    assert parameters(graph) == directions * rows * (WIDTH + hidden + 2)
    assert flops(graph, kind.lower()) == directions * 2 * rows * (WIDTH + hidden) * SAMPLES * POSITIONS


def test_normalization_by_groups_is_cut_by_samples_and_groups(build) -> None:
    tensors = [tensor("s", [12]), tensor("b", [12])]
    for nodes, groups in (
        ([node("GroupNormalization", "x s b", "y", num_groups=3)], 3),
        ([node("InstanceNormalization", "x s b", "y")], 12),
    ):
        (op,) = build(nodes, tensors, (12, 4, 4), (12, 4, 4)).operators
        assert {dim.name: dim.size for dim in op.dims if dim.role is not None} == {"n": SAMPLES, "g": groups}
        assert sum(weight.elements for weight in op.weights) == 24


def test_model_flops_have_no_product_for_the_gradient_of_integers(build) -> None:
    first = node("MatMul", "x first", "h")
    nodes = [first, node("DequantizeLinear", "q scale zero", "w"), node("MatMul", "h w", "y")]
    graph = build(nodes, [tensor("first", [WIDTH, WIDTH]), int8("q", WIDTH, WIDTH), *SCALE])
    assert model_flops(graph) <= 5 * PRODUCT
