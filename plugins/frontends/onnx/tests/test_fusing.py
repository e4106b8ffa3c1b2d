"""Attention, normalization and GELU that exporters write out: one operator each, several where that differs."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from topoplan import OperatorGraph
from topoplan_frontend_onnx import Onnx
from topoplan_samples.onnx_files import integers, model, node, tensor

SAMPLES, POSITIONS, HEADS, SIZE = 8, 6, 4, 5
WIDTH = HEADS * SIZE


@pytest.fixture
def build(tmp_path):
    """Return a function from nodes on ``x`` (samples, positions, channels) to a graph."""

    def graph_of(nodes, tensors=(), *, output="y", more=(), **options) -> OperatorGraph:
        shape = ["n", POSITIONS, WIDTH]
        outputs = dict.fromkeys((output, *more), shape)
        inputs = {"x": shape, "mask": ["n", 1, 1, POSITIONS]}
        path = tmp_path / "model.onnx"
        path.write_bytes(model(nodes, inputs, outputs, tensors, kinds={"mask": "int64"}))
        return Onnx(file=str(path), **options, strict=True).build(SAMPLES)

    return graph_of


def kinds(graph: OperatorGraph) -> Counter[str]:
    return Counter(op.kind for op in graph.operators)


def parameters(graph: OperatorGraph) -> int:
    return sum(weight.elements for op in graph.operators for weight in op.weights)


def products(graph: OperatorGraph) -> float:
    """FLOPs of matrix products, of which attention has two."""
    return sum(
        term.coefficient * math.prod(op.sizes[dim] for dim in term.dims)
        for op in graph.operators
        if op.kind in ("linear", "matmul", "scaled_dot_product_attention")
        for term in op.work
    )


NUMBERS = [tensor("root", [], 2**0.5), tensor("one", [], 1.0), tensor("half", [], 0.5), tensor("two", [], 2.0)]
GELU = [node("Div", "x root", "d"), node("Erf", "d", "e"), node("Add", "e one", "p")]


class TestGelu:
    @pytest.mark.parametrize(
        "end",
        [
            [node("Mul", "x p", "m"), node("Mul", "m half", "y")],
            [node("Mul", "p x", "m"), node("Div", "m two", "y")],
            [node("Mul", "x half", "h"), node("Mul", "h p", "y")],
            [node("Mul", "p half", "h"), node("Mul", "x h", "y")],
        ],
    )
    def test_it_is_one_function(self, build, end) -> None:
        assert kinds(build([*GELU, *end], NUMBERS)) == {"gelu": 1}

    @pytest.mark.parametrize(
        ("end", "more", "count"),
        [
            ([node("Mul", "x p", "m"), node("Mul", "m half", "y")], ["m"], 5),
            ([node("Mul", "x p", "m"), node("Mul", "m x", "y")], [], 5),
            ([node("Mul", "p half", "h"), node("Mul", "h half", "y")], [], 5),
            ([node("Mul", "x p", "y")], [], 4),
        ],
    )
    def test_it_is_several_where_something_differs(self, build, end, more, count) -> None:
        graph = build([*GELU, *end], NUMBERS, more=more)
        assert not kinds(graph)["gelu"]
        assert len(graph.operators) == count


SMALL = [*NUMBERS, tensor("three", [], 3.0), tensor("small", [], 0.044715), tensor("slope", [], 0.797885)]
#: x + 0.044715 x^3, scaled, as three programs write it.
CUBES = {
    "power": [node("Pow", "x three", "c"), node("Mul", "c small", "s"), node("Add", "x s", "a")],
    "products": [
        *(node("Mul", "x x", "q"), node("Mul", "q x", "c")),
        *(node("Mul", "small c", "s"), node("Add", "s x", "a")),
    ],
    "factors": [
        *(node("Mul", "x small", "s"), node("Mul", "s x", "q")),
        *(node("Add", "one q", "w"), node("Mul", "x w", "a")),
    ],
    "square": [
        *(node("Pow", "x two", "q"), node("Mul", "q small", "s")),
        *(node("Add", "s one", "w"), node("Mul", "w x", "a")),
    ],
}
TANH = [node("Mul", "slope a", "g"), node("Tanh", "g", "t"), node("Add", "one t", "p")]
ENDS = {
    "behind": [node("Mul", "x p", "m"), node("Mul", "half m", "y")],
    "before": [node("Mul", "x half", "h"), node("Mul", "h p", "y")],
}


class TestGeluOfTanh:
    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize("cube", CUBES)
    def test_it_is_one_function(self, build, cube, end) -> None:
        assert kinds(build([*CUBES[cube], *TANH, *ENDS[end]], SMALL)) == {"gelu": 1}

    def test_what_it_is_a_function_of_may_be_a_sum_itself(self, build) -> None:
        cube = [node("Pow", "z three", "c"), node("Mul", "c small", "s"), node("Add", "z s", "a")]
        end = [node("Mul", "z half", "h"), node("Mul", "h p", "y")]
        graph = build([node("Mul", "x x", "w"), node("Add", "w x", "z"), *cube, *TANH, *end], SMALL)
        assert kinds(graph) == {"multiply": 1, "add": 1, "gelu": 1}

    @pytest.mark.parametrize(
        ("cube", "more", "count"),
        [
            ([node("Mul", "x small", "a")], [], 6),
            ([node("Mul", "x x", "q"), node("Add", "x q", "a")], [], 7),
            (CUBES["power"], ["s"], 8),
        ],
    )
    def test_it_is_several_where_something_differs(self, build, cube, more, count) -> None:
        graph = build([*cube, *TANH, *ENDS["behind"]], SMALL, more=more)
        assert not kinds(graph)["gelu"]
        assert len(graph.operators) == count


class TestNormalization:
    TENSORS = (
        *NUMBERS,
        tensor("tiny", [], 1e-5),
        tensor("scale", [WIDTH]),
        tensor("shift", [WIDTH]),
        integers("last", -1),
        integers("first", 1),
    )
    ROOT = (
        node("ReduceMean", "s", "v", axes=[-1]),
        node("Add", "v tiny", "w"),
        node("Sqrt", "w", "r"),
    )
    MEAN = (node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d"))
    SCALED = (node("Mul", "q scale", "g"), node("Add", "g shift", "y"))

    @pytest.mark.parametrize(
        "nodes",
        [
            [*MEAN, node("Pow", "d two", "s"), *ROOT, node("Div", "d r", "q"), *SCALED],
            [*MEAN, node("Mul", "d d", "s"), *ROOT, node("Reciprocal", "r", "i"), node("Mul", "d i", "q"), *SCALED],
            [
                *(*MEAN, node("Sub", "x m", "d2"), node("Pow", "d2 two", "s")),
                *(*ROOT, node("Div", "d r", "q"), *SCALED),
            ],
            [
                *(node("ReduceMean", "x last", "m"), node("Sub", "x m", "d"), node("Pow", "d two", "s")),
                *(node("ReduceMean", "s last", "v"), *ROOT[1:], node("Div", "d r", "q"), *SCALED),
            ],
        ],
    )
    def test_a_layer_norm_is_one_operator(self, build, nodes) -> None:
        graph = build(nodes, self.TENSORS)
        assert kinds(graph) == {"layer_norm": 1}
        assert parameters(graph) == 2 * WIDTH

    @pytest.mark.parametrize(
        "end",
        [
            [node("Div", "x r", "q"), node("Mul", "q scale", "y")],
            [node("Div", "one r", "i"), node("Mul", "x i", "q"), node("Mul", "scale q", "y")],
        ],
    )
    def test_an_rms_norm_is_one_operator(self, build, end) -> None:
        graph = build([node("Pow", "x two", "s"), *self.ROOT, *end], self.TENSORS)
        assert kinds(graph) == {"rms_norm": 1}
        assert parameters(graph) == WIDTH

    @pytest.mark.parametrize(
        ("nodes", "more"),
        [
            ([*MEAN, node("Pow", "d two", "s"), *ROOT, node("Div", "d r", "q"), *SCALED], ["d"]),
            (
                [
                    *(*MEAN, node("Pow", "d two", "s"), node("ReduceMean", "s", "v", axes=[1]), *ROOT[1:]),
                    *(node("Div", "d r", "q"), *SCALED),
                ],
                [],
            ),
            (
                [*MEAN, node("Pow", "d two", "s"), *ROOT, node("Div", "x r", "q"), *SCALED],
                [],
            ),
            (
                [*MEAN, node("Pow", "d two", "s"), *ROOT, node("Div", "r d", "q"), *SCALED],
                [],
            ),
        ],
    )
    def test_it_is_several_where_something_differs(self, build, nodes, more) -> None:
        graph = build(nodes, self.TENSORS, more=more)
        assert not {"layer_norm", "rms_norm"} & {*kinds(graph)}
        assert parameters(graph) == 2 * WIDTH


def attention(*on_scores: bytes, scale_keys: bool = False, transposed_first: bool = True) -> list[bytes]:
    """Nodes of attention; those given make ``masked`` of ``scores``."""
    nodes = []
    for word in "qkv":
        order = [0, 2, 3, 1] if word == "k" and transposed_first else [0, 2, 1, 3]
        nodes += [
            node("MatMul", f"x w{word}", word),
            node("Reshape", f"{word} split", f"{word}s"),
            node("Transpose", f"{word}s", f"{word}h", perm=order),
        ]
    keys = "kh"
    if not transposed_first:
        nodes.append(node("Transpose", "kh", "kt", perm=[0, 1, 3, 2]))
        keys = "kt"
    if scale_keys:
        nodes.append(node("Mul", f"{keys} half", "kscaled"))
        keys = "kscaled"
    return [
        *nodes,
        node("MatMul", f"qh {keys}", "scores"),
        *on_scores,
        node("Softmax", f"{'masked' if on_scores else 'scores'}", "weights", axis=-1),
        node("MatMul", "weights vh", "answers"),
        node("Transpose", "answers", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back joined", "y"),
    ]


def merged_attention() -> list[bytes]:
    """Nodes of attention whose first axis has samples and heads."""
    nodes = []
    for word in "qkv":
        nodes += [
            node("MatMul", f"x w{word}", word),
            node("Reshape", f"{word} split", f"{word}s"),
            node("Transpose", f"{word}s", f"{word}h", perm=[0, 2, 1, 3]),
            node("Reshape", f"{word}h merged", f"{word}m"),
        ]
    return [
        *nodes,
        node("Transpose", "km", "kt", perm=[0, 2, 1]),
        node("Mul", "qm half", "scaled"),
        node("MatMul", "scaled kt", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights vm", "answers"),
        node("Reshape", "answers apart", "by_head"),
        node("Transpose", "by_head", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back joined", "y"),
    ]


class TestAttention:
    TENSORS = (
        *NUMBERS,
        *(tensor(f"w{word}", [WIDTH, WIDTH]) for word in "qkv"),
        integers("split", 0, 0, HEADS, SIZE),
        integers("joined", 0, 0, WIDTH),
        tensor("trained", [1, HEADS, POSITIONS, POSITIONS]),
        tensor("far", [], -1e9),
    )
    #: FLOPs of three projections and of the two products of attention.
    FLOPS = 2 * SAMPLES * (3 * POSITIONS * WIDTH**2 + 2 * HEADS * POSITIONS**2 * SIZE)
    MASKED = (
        node("Cast", "mask", "real", to=1),
        node("Mul", "real far", "bias"),
        node("Div", "scores root", "scaled"),
        node("Add", "scaled bias", "masked"),
    )

    @pytest.mark.parametrize("transposed_first", [False, True])
    @pytest.mark.parametrize("scale_keys", [False, True])
    @pytest.mark.parametrize("on_scores", [(), MASKED])
    def test_it_is_one_operator_with_the_same_products(self, build, on_scores, scale_keys, transposed_first) -> None:
        nodes = attention(*on_scores, scale_keys=scale_keys, transposed_first=transposed_first)
        graph = build(nodes, self.TENSORS)
        (found,) = [op for op in graph.operators if op.kind == "scaled_dot_product_attention"]
        assert found.dims[found.sample_dim].size == SAMPLES
        assert not {"matmul", "softmax", "add", "divide"} & {*kinds(graph)}
        assert kinds(graph)["multiply"] == scale_keys
        assert products(graph) == self.FLOPS
        assert parameters(graph) == 3 * WIDTH**2

    @pytest.mark.parametrize(
        ("on_scores", "more"),
        [
            ((node("Add", "scores trained", "masked"),), ()),
            (MASKED, ("weights",)),
            ((node("Relu", "scores", "masked"),), ()),
        ],
    )
    def test_it_is_several_where_something_differs(self, build, on_scores, more) -> None:
        graph = build(attention(*on_scores), self.TENSORS, more=more)
        assert kinds(graph)["matmul"] == 2
        assert products(graph) == self.FLOPS

    def test_samples_and_heads_may_lie_in_one_axis(self, build) -> None:
        shapes = integers("merged", -1, POSITIONS, SIZE), integers("apart", -1, HEADS, POSITIONS, SIZE)
        graph = build(merged_attention(), [*self.TENSORS, *shapes])
        (found,) = [op for op in graph.operators if op.kind == "scaled_dot_product_attention"]
        assert found.dims[found.sample_dim].size == SAMPLES * HEADS
        assert not {"matmul", "softmax"} & {*kinds(graph)}
        assert products(graph) == self.FLOPS

    def test_weights_that_are_no_numbers_are_replaced_inside(self, build) -> None:
        nodes = attention()
        at = next(k for k, each in enumerate(nodes) if b"Softmax" in each)
        nodes[at : at + 2] = [
            node("Softmax", "scores", "soft", axis=-1),
            node("IsNaN", "soft", "undefined"),
            node("Where", "undefined zero soft", "weights"),
            node("MatMul", "weights vh", "answers"),
        ]
        graph = build(nodes, [*self.TENSORS, tensor("zero", [], 0.0)])
        assert kinds(graph)["scaled_dot_product_attention"] == 1
        assert not {"matmul", "where"} & {*kinds(graph)}

    @pytest.mark.parametrize("causal", [0, 1])
    def test_the_operator_of_opset_23(self, build, causal) -> None:
        nodes = [
            *(node("MatMul", f"x w{word}", word) for word in "qkv"),
            node("Attention", "q k v", "y", q_num_heads=HEADS, kv_num_heads=HEADS, is_causal=causal),
        ]
        graph = build(nodes, self.TENSORS)
        assert kinds(graph) == {"linear": 3, "scaled_dot_product_attention": 1}
        upper = 4 * SAMPLES * WIDTH * POSITIONS * (POSITIONS - 1) // 2
        assert products(graph) == pytest.approx(self.FLOPS - causal * upper)
