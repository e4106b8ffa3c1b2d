"""ONNX files: nine real graphs, a decoder as exporters write it, batches and sizes, opaque operators, broken files."""

from __future__ import annotations

import importlib.util
import math
import random
import warnings
from pathlib import Path

import numpy as np
import pytest

from topoplan import OperatorGraph, TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan.model.graph import Role
from topoplan.testing import parametrize_with_checks
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.tied import tied_weights
from topoplan_engine.training import shared_weights
from topoplan_frontend_onnx import Onnx
from topoplan_samples.long_tail import at_night
from topoplan_samples.onnx_files import integers, model, node, tensor, value

PACKAGE = importlib.util.find_spec("onnx")
LIGHT = Path(PACKAGE.origin).parent / "backend/test/data/light" if PACKAGE and PACKAGE.origin else Path("missing")

#: Real graph -> parameters, FLOPs of products and convolutions for one sample, operators.  Parameters are those that
#: papers and torchvision have for these models, where these have the same layers: AlexNet as Caffe's, SqueezeNet 1.1.
REAL = {
    "bvlc_alexnet": (60_965_224, 1_309_120_768, 24),
    "densenet121": (7_978_856, 5_668_323_328, 426),
    "inception_v1": (6_998_552, 2_863_112_704, 143),
    "inception_v2": (11_194_984, 4_037_703_680, 233),
    "resnet50": (25_557_032, 8_178_368_512, 176),
    "shufflenet": (1_393_320, 249_329_056, 203),
    "squeezenet": (1_235_496, 698_303_872, 66),
    "vgg19": (143_667_240, 39_264_124_928, 46),
    "zfnet512": (87_250_536, 2_963_454_016, 22),
}
#: Kinds whose FLOPs are compared; the second term of those but attention is a bias.
PRODUCTS = (
    *("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul", "einsum"),
    "scaled_dot_product_attention",
)
needs_files = pytest.mark.skipif(not LIGHT.is_dir(), reason="the package onnx, which has real graphs, is not installed")


@parametrize_with_checks(Onnx)
def test_conformance(check) -> None:
    check()


def parameters(graph: OperatorGraph) -> int:
    return sum(weight.elements for op in graph.operators for weight in op.weights)


def flops(graph: OperatorGraph) -> float:
    """FLOPs of products, convolutions and attention."""
    return sum(
        term.coefficient * math.prod(op.sizes[d] for d in term.dims)
        for op in graph.operators
        if op.kind in PRODUCTS
        for term in (op.work if op.kind == "scaled_dot_product_attention" else op.work[:1])
    )


@pytest.fixture
def build(tmp_path):
    """Return a function from the bytes of a file to a graph."""

    def graph_of(data: bytes, batch: int | None = None, **options) -> OperatorGraph:
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        return Onnx(file=str(path), **options).build(batch)

    return graph_of


class TestRealGraphs:
    @needs_files
    @pytest.mark.parametrize("name", REAL)
    def test_parameters_and_flops(self, name) -> None:
        graph = Onnx(file=str(LIGHT / f"light_{name}.onnx")).build(1)
        assert (parameters(graph), flops(graph), len(graph.operators)) == REAL[name]

    @needs_files
    @pytest.mark.parametrize("name", REAL)
    def test_parameters_are_the_tensors_of_the_file(self, name) -> None:
        file = str(LIGHT / f"light_{name}.onnx")
        assert parameters(Onnx(file=file).build(1)) == elements_by_onnx(file)

    @needs_files
    @pytest.mark.parametrize("name", ["bvlc_alexnet", "resnet50", "shufflenet", "squeezenet"])
    def test_a_batch_replaces_the_one_that_was_traced(self, name) -> None:
        one, many = (Onnx(file=str(LIGHT / f"light_{name}.onnx")).build(batch) for batch in (1, 8))
        assert flops(many) == 8 * flops(one)
        assert parameters(many) == parameters(one)
        assert all(op.dims[op.sample_dim].size == 8 for op in many.operators if op.sample_dim >= 0)
        assert [op.sample_dim for op in many.operators] == [op.sample_dim for op in one.operators]
        assert Onnx(file=str(LIGHT / f"light_{name}.onnx")).build(None).batch_size == 64


def elements_by_onnx(file: str) -> int:
    """Count the floating-point tensors that nodes read, with the package onnx, without statistics of normalizations."""
    import onnx

    graph = onnx.load(file, load_external_data=False).graph
    sizes = {t.name: math.prod(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    shapes = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer if t.data_type == onnx.TensorProto.INT64}
    for one in graph.node:
        if one.op_type == "ConstantOfShape":
            sizes[one.output[0]] = int(np.prod(shapes[one.input[0]]))
    readers = {name: one for one in graph.node for name in one.input}
    used = {name for one in graph.node for name in one.input}
    for one in graph.node:
        if one.op_type == "BatchNormalization":
            scaled = readers[one.output[0]].op_type == "Mul"
            used -= {*one.input[1 if scaled else 3 :]}
    return sum(size for name, size in sizes.items() if name in used)


@pytest.mark.parametrize("name", ["resnet50", pytest.param("shufflenet", marks=pytest.mark.slow)])
@needs_files
def test_a_real_graph_is_planned(name) -> None:
    experiment = Experiment(
        model=Choice("onnx", {"file": str(LIGHT / f"light_{name}.onnx")}),
        cluster=ClusterOptions(servers=2),
        run=RunOptions(budget=5, batch_size=16),
    )
    assert optimize(experiment).plan.timeline.makespan > 0


def linear(name: str, x: str, y: str, rows: int, columns: int) -> tuple[list[bytes], list[bytes]]:
    return [node("MatMul", f"{x} {name}", y)], [tensor(name, [rows, columns])]


def decoder(*, batch: int | str = "batch", sequence: int | str = "sequence") -> bytes:
    """A layer of attention with grouped queries as PyTorch's exporter writes it: the graph computes its shapes."""
    width, heads, kv, size, rows = 16, 4, 2, 4, 50
    nodes = [
        node("Gather", "table ids", "x"),
        node("Shape", "ids", "shape"),
        node("Gather", "shape zero", "b", axis=0),
        node("Gather", "shape one", "s", axis=0),
        node("Unsqueeze", "b axis", "b1"),
        node("Unsqueeze", "s axis", "s1"),
        node("Slice", "positions axis s1", "here"),
        node("Add", "x here", "h"),
        node("LayerNormalization", "h scale shift", "n", axis=-1),
    ]
    tensors = [
        tensor("table", [rows, width]),
        tensor("positions", [64, width]),
        tensor("scale", [width]),
        tensor("shift", [width]),
        tensor("zero", [], 0, "int64"),
        tensor("one", [], 1, "int64"),
        integers("axis", 0),
        integers("two", 2),
        integers("four", 4),
        integers("kv", kv),
        integers("heads", heads),
        integers("rest", -1),
        tensor("root", [], 2.0),
    ]
    for word, count in (("q", heads), ("k", kv), ("v", kv)):
        made, weights = linear(f"w{word}", "n", word, width, count * size)
        nodes += [
            *made,
            node("Concat", f"b1 s1 {'heads' if word == 'q' else 'kv'} rest", f"{word}shape", axis=0),
            node("Reshape", f"{word} {word}shape", f"{word}split"),
            node("Transpose", f"{word}split", f"{word}t", perm=[0, 2, 1, 3]),
        ]
        tensors += weights
    for word in "kv":
        nodes += [
            node("Unsqueeze", f"{word}t two", f"{word}u"),
            node("Concat", "b1 kv two s1 four", f"{word}expanded", axis=0),
            node("Expand", f"{word}u {word}expanded", f"{word}e"),
            node("Concat", "b1 heads s1 rest", f"{word}joined", axis=0),
            node("Reshape", f"{word}e {word}joined", f"{word}h"),
        ]
    nodes += [
        node("Transpose", "kh", "keys", perm=[0, 1, 3, 2]),
        node("MatMul", "qt keys", "scores"),
        node("Div", "scores root", "scaled"),
        node("Softmax", "scaled", "weights", axis=-1),
        node("MatMul", "weights vh", "answers"),
        node("Transpose", "answers", "at", perm=[0, 2, 1, 3]),
        node("Concat", "b1 s1 rest", "flat", axis=0),
        node("Reshape", "at flat", "joined"),
    ]
    made, weights = linear("wo", "joined", "y", width, width)
    nodes += [*made, node("Add", "y bias", "z"), node("Add", "h z", "out")]
    tensors += [*weights, tensor("bias", [width])]
    return model(nodes, {"ids": [batch, sequence]}, {"out": [batch, sequence, width]}, tensors, kinds={"ids": "int64"})


class TestDecoders:
    def test_attention_is_found_through_chains_of_shapes(self, build) -> None:
        graph = build(decoder(), 8, sizes="sequence=12")
        kinds = [op.kind for op in graph.operators]
        assert [kinds.count(kind) for kind in ("linear", "scaled_dot_product_attention", "token_embedding")] == [
            4,
            1,
            1,
        ]
        assert not {"matmul", "softmax", "divide"} & {*kinds}
        assert not {"Shape", "Concat"} & {*kinds}
        assert parameters(graph) == 50 * 16 + 64 * 16 + 2 * 16 + 16 * (16 + 8 + 8 + 16) + 16
        assert flops(graph) == 2 * 8 * 12 * 16 * (16 + 8 + 8 + 16) + 2 * 2 * 8 * 4 * 12 * 12 * 4
        assert graph.operators[-1].outputs[0].shape == (8, 12, 16)

    def test_samples_stay_samples_through_all_shapes(self, build) -> None:
        graph = build(decoder(), 8, sizes="sequence=12")
        for op in graph.operators:
            assert op.kind == "table_rows" or op.dims[op.sample_dim].size == 8

    def test_a_traced_batch_is_replaced_in_all_of_them(self, build) -> None:
        # With numbers in the file, sizes come out of Shape as they were traced.
        assert build(decoder(batch=1, sequence=12), 8) == build(decoder(), 8, sizes="sequence=12")
        assert build(decoder(batch=4, sequence=12)).batch_size == 4

    def test_a_symbolic_dimension_needs_a_size(self, build) -> None:
        with pytest.raises(
            TopoplanError, match=r"axis 1 is the symbolic dimension 'sequence'; .*-o sizes=sequence=128"
        ):
            build(decoder(), 8)
        for sizes, message in {
            "sequenze=3": "no dimension is named 'sequenze'; did you mean 'sequence'",
            "batch=3": "'batch' is the batch",
            "sequence": "is no name=size",
            "sequence=0": "is no name=size",
        }.items():
            with pytest.raises(TopoplanError, match=message):
                build(decoder(), 8, sizes=sizes)

    @pytest.mark.skipif(PACKAGE is None, reason="onnx is not installed")
    def test_the_file_is_one_that_onnx_accepts(self, tmp_path) -> None:
        import onnx

        checked = onnx.load_from_string(decoder())
        onnx.checker.check_model(checked, full_check=True)


class TestNodes:
    def test_a_matrix_may_be_transposed(self, build) -> None:
        for transposed, shape in ((0, [6, 5]), (1, [5, 6])):
            data = model(
                [node("Gemm", "x w b", "y", transB=transposed)],
                {"x": ["n", 6]},
                {"y": ["n", 5]},
                [tensor("w", shape), tensor("b", [5])],
            )
            op = build(data, 4).operators[0]
            assert [w.shape for w in op.weights] == [(5, 6), (5,)]

    def test_groups_dilation_and_automatic_padding(self, build) -> None:
        def convolution(**attributes):
            nodes = [node("Conv", "x w", "y", **attributes)]
            return build(model(nodes, {"x": [1, 8, 9, 9]}, {"y": [1, 8, 9, 9]}, [tensor("w", [8, 2, 3, 3])]), 2)

        op = convolution(group=4, dilations=[2, 2], auto_pad="SAME_UPPER").operators[0]
        assert op.outputs[0].shape == (2, 8, 9, 9)
        assert flops(convolution(group=4, pads=[1, 1, 1, 1])) == 2 * 2 * 8 * 2 * 9 * 9 * 9
        assert convolution(group=4, strides=[2, 2]).operators[0].outputs[0].shape == (2, 8, 4, 4)
        with pytest.raises(TopoplanError, match=r"node 'y' \('Conv'\): 8 input channels, but 2 groups of 2"):
            convolution(group=2)

    def test_constants_in_targets_of_reshape_follow_the_batch(self, build) -> None:
        for target in ((1, 24), (-1, 24), (1, -1), (0, 24)):
            data = model(
                [node("Relu", "x", "r"), node("Reshape", "r target", "y")],
                {"x": [1, 4, 6]},
                {"y": [1, 24]},
                [integers("target", *target)],
            )
            op = build(data, 16).operators[1]
            assert op.outputs[0].shape == (16, 24)
            assert op.sample_dim == 0
        joined = model(
            [node("Relu", "x", "r"), node("Reshape", "r target", "j"), node("Reshape", "j back", "y")],
            {"x": [1, 4, 6]},
            {"y": [1, 4, 6]},
            [integers("target", 4, 6), integers("back", 1, 4, 6)],
        )
        assert [op.outputs[0].shape for op in build(joined, 16).operators] == [(16, 4, 6), (64, 6), (16, 4, 6)]

    def test_weights_of_a_converted_normalization_are_those_behind_it(self, build) -> None:
        nodes = [
            node("BatchNormalization", "x one zero mean var", "n"),
            node("Unsqueeze", "scale axes", "s"),
            node("Mul", "n s", "m"),
            node("Unsqueeze", "shift axes", "t"),
            node("Add", "m t", "a"),
            node("Relu", "a", "y"),
        ]
        names = ("one", "zero", "mean", "var", "scale", "shift")
        tensors = [*(tensor(name, [4]) for name in names), integers("axes", 1, 2)]
        graph = build(model(nodes, {"x": [1, 4, 5, 5]}, {"y": [1, 4, 5, 5]}, tensors), 2)
        assert [op.kind for op in graph.operators] == ["batch_norm", "relu"]
        assert parameters(graph) == 8

    def test_a_shared_tensor_counts_once(self, build) -> None:
        nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r w", "y")]
        graph = build(model(nodes, {"x": ["n", 6]}, {"y": ["n", 6]}, [tensor("w", [6, 6])]), 4)
        assert parameters(graph) == 36
        assert flops(graph) == 2 * 2 * 4 * 36
        assert len(graph.operators[2].inputs) == 2
        assert shared_weights(graph.operators[2]) == {1}

    def test_a_shared_tensor_belongs_to_the_operator_that_has_it(self, build) -> None:
        """Not to an earlier one with a matrix of the same sizes."""
        nodes = [node("MatMul", "x v", "a"), node("MatMul", "a w", "b"), node("MatMul", "b w", "y")]
        tensors = [tensor("v", [6, 6]), tensor("w", [6, 6])]
        (tied,) = tied_weights(build(model(nodes, {"x": ["n", 6]}, {"y": ["n", 6]}, tensors), 4))
        assert (tied.owner, tied.users) == (1, ((2, 1),))

    def test_constants_come_from_anywhere(self, build) -> None:
        nodes = [
            node("ConstantOfShape", "shape", "w", value=tensor("", [1], 1.0)),
            node("Constant", "", "b", value=tensor("", [5], np.ones(5))),
            node("Transpose", "w", "t", perm=[1, 0]),
            node("MatMul", "x t", "m"),
            node("Add", "m b", "y"),
        ]
        graph = build(model(nodes, {"x": ["n", 6]}, {"y": ["n", 5]}, [integers("shape", 5, 6)]), 4)
        assert [op.kind for op in graph.operators] == ["linear"]
        assert parameters(graph) == 35

    def test_masks_are_no_parameters(self, build) -> None:
        tensors = [tensor("mask", [3, 3], np.triu(np.full((3, 3), -1e9), 1)), tensor("factor", [])]
        nodes = [node("Add", "x mask", "a"), node("Mul", "a factor", "y")]
        assert parameters(build(model(nodes, {"x": ["n", 3, 3]}, {"y": ["n", 3, 3]}, tensors), 4)) == 0

    def test_integers_are_prepared_with_the_data(self, build) -> None:
        nodes = [
            node("Cast", "mask", "m", to=1),
            node("Unsqueeze", "m axes", "u"),
            node("Mul", "u far", "bias"),
            node("Relu", "x", "r"),
            node("Add", "r bias", "y"),
        ]
        tensors = [integers("axes", 1), tensor("far", [], -1e9)]
        data = model(nodes, {"x": ["n", 3, 7], "mask": ["n", 7]}, {"y": ["n", 3, 7]}, tensors, kinds={"mask": "int64"})
        graph = build(data, 4)
        assert [op.kind for op in graph.operators] == ["relu", "add"]
        assert [tensor.shape for tensor in graph.operators[1].inputs] == [(4, 3, 7), (4, 1, 7)]

    def test_elements_are_gathered_by_indices_of_the_data(self, build) -> None:
        data = model(
            [node("GatherElements", "x places", "y", axis=1)],
            {"x": ["n", 6, 8], "places": ["n", 3, 8]},
            {"y": ["n", 3, 8]},
            kinds={"places": "int64"},
        )
        (gather,) = build(data, 4, strict=True).operators
        assert (gather.kind, gather.sizes) == ("gather_elements", (4, 3, 8, 6))
        assert gather.dims[0].role is Role.SAMPLE
        samples = model(
            [node("GatherElements", "x places", "y", axis=0)],
            {"x": ["n", 6], "places": ["n", 6]},
            {"y": ["n", 6]},
            kinds={"places": "int64"},
        )
        with pytest.raises(TopoplanError, match="elements of other samples"):
            build(samples, 4, strict=True)

    def test_what_no_output_needs_is_left_out(self, build) -> None:
        nodes = [node("Relu", "x", "y"), node("Foo", "x", "z")]
        graph = build(model(nodes, {"x": ["n", 3]}, {"y": ["n", 3]}), 4)
        assert [op.kind for op in graph.operators] == ["relu"]

    def test_external_data_are_not_opened(self, build) -> None:
        nodes = [node("MatMul", "x w", "y")]
        graph = build(model(nodes, {"x": ["n", 6]}, {"y": ["n", 5]}, [tensor("w", [6, 5], external=True)]), 4)
        assert parameters(graph) == 30

    def test_positions_before_samples(self, build) -> None:
        nodes = [
            node("Relu", "x", "r"),
            node("Transpose", "r", "t", perm=[1, 0, 2]),
            node("Softmax", "t", "s", axis=-1),
            node("ReduceMean", "s", "y", axes=[0], keepdims=0),
        ]
        graph = build(model(nodes, {"x": [1, 5, 6]}, {"y": [1, 6]}), 4)
        samples = [(op.sample_dim, op.outputs[0].shape) for op in graph.operators]
        assert samples == [(0, (4, 5, 6)), (0, (5, 4, 6)), (1, (5, 4, 6)), (1, (4, 6))]
        assert graph.operators[3].dims[0].role is Role.REDUCTION


class TestOpaque:
    DATA = staticmethod(
        lambda shapes: model(
            [
                node("Relu", "x", "r"),
                node("Rotate", "r w", "a", domain="com.example", name="first"),
                node("Rotate", "a w", "b", domain="com.example"),
                node("NonMaxSuppression", "b", "y"),
            ],
            {"x": [1, 6]},
            {"y": [1, 6]},
            [tensor("w", [6, 6])],
            values=[value(name, [1, 6]) for name in shapes],
        )
    )

    def test_one_warning_counts_them(self, build) -> None:
        with pytest.warns(TopoplanWarning) as caught:
            graph = build(self.DATA("ab"), 8)
        assert [str(one.message) for one in caught] == [
            "onnx: 3 operators planned as a whole (opaque): 2 x com.example.Rotate, 1 x NonMaxSuppression"
        ]
        assert [op.dims[0].size for op in graph.operators] == [8] * 4
        assert parameters(graph) == 36

    def test_strict_refuses_the_first(self, build) -> None:
        with pytest.raises(TopoplanError, match=r"node 'first' \('com.example.Rotate'\): cannot be planned operator"):
            build(self.DATA("ab"), 8, strict=True)

    def test_without_shapes_they_cannot_be_planned(self, build) -> None:
        with pytest.raises(TopoplanError, match=r"the file has no shape of 'a' \(onnx.shape_inference adds it\)"):
            build(self.DATA(""), 8)


#: What is wrong with a file -> its bytes, and what the message says.
BROKEN = {
    "nothing": (b"", "is no ONNX model"),
    "text": (b"layers: 3\nname: x\n", "is no ONNX model"),
    "cut": (decoder()[:-40], "is truncated"),
    "no graph": (b"\x08\x08", "has no graph"),
    "no nodes": (model([], {"x": [1, 2]}, {}), "has no nodes"),
    "a cycle": (
        model([node("Add", "x b", "a"), node("Relu", "a", "b")], {"x": [1, 2]}, {"b": [1, 2]}),
        r"node 'a' \('Add'\): reads 'b', which nothing before it gives",
    ),
    "a missing input": (model([node("Relu", "", "y")], {"x": [1, 2]}, {"y": [1, 2]}), "input 0 is missing"),
    "sizes beyond all": (
        model([node("Relu", "x", "y")], {"x": [1, 2**50]}, {"y": [1, 2]}),
        f"'x': axis 1 has size {2**50}",
    ),
    "a tensor beyond all": (
        model([node("Relu", "x", "y")], {"x": [2**30, 2**30]}, {"y": [1, 2]}),
        f"{2**62} bytes .*at most {2**53} bytes",
    ),
    "an axis that there is not": (
        model([node("Softmax", "x", "y", axis=7)], {"x": [1, 2]}, {"y": [1, 2]}),
        "axis 7 is none of 2 axes",
    ),
    "a type of another kind": (
        model([node("Conv", "x w", "y", group="two")], {"x": [1, 2, 3]}, {"y": [1, 2, 3]}, [tensor("w", [2, 2, 1])]),
        "group is no integer",
    ),
    "a size without a name": (model([node("Relu", "x", "y")], {"x": [1, ""]}, {}), "neither a size nor a name"),
    "a shape that does not fit": (
        model([node("Reshape", "x t", "y")], {"x": [1, 6]}, {"y": [1, 5]}, [integers("t", 1, 5)]),
        r"\(1, 6\) cannot have shape \(1, 5\)",
    ),
    "a range without end": (
        model(
            [node("Range", "a b c", "r"), node("Add", "x r", "y")],
            {"x": [1, 6]},
            {"y": [1, 6]},
            [tensor("a", [], 0, "int64"), tensor("b", [], 2**62, "int64"), tensor("c", [], 1, "int64")],
        ),
        "has no shape of 'r'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_one_line(name, build) -> None:
    data, message = BROKEN[name]
    with pytest.raises(TopoplanError, match=message) as caught:
        build(data, None)
    assert "model.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_needed(tmp_path) -> None:
    with pytest.raises(TopoplanError, match=r"file is missing \(-o file=model.onnx\)"):
        Onnx().build(None)
    for path in (tmp_path, tmp_path / "missing.onnx"):
        with pytest.raises(TopoplanError, match="cannot be read"):
            Onnx(file=str(path)).build(None)


@pytest.mark.parametrize("count", at_night([300, 100], 100))
def test_changed_bytes_are_read_or_refused(build, count) -> None:
    rng = random.Random(3)
    seeds = (decoder(), decoder(batch=1, sequence=12), TestOpaque.DATA("ab"))
    outcomes = set()
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 2, 5))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                build(bytes(data), 4, sizes="sequence=12" if b"\x12\x08sequence" in data else "")
            outcomes.add("")
        except TopoplanError as error:
            outcomes.add(str(error))
    assert "" in outcomes
    assert len(outcomes) > count / 15
    assert not any("\n" in outcome for outcome in outcomes)
