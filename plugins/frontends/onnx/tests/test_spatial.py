"""Images of other sizes: shapes as ONNX infers them, FLOPs, and what can be cut."""

from __future__ import annotations

import importlib.util
import math

import attrs
import pytest

from topoplan import Operator, TopoplanError
from topoplan.model.graph import Role
from topoplan_frontend_onnx import Onnx
from topoplan_samples.onnx_files import integers, model, node, tensor


@attrs.frozen
class Case:
    """A node on ``x``, what else it reads, and shapes before and after it."""

    node: bytes
    tensors: list[bytes]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def file(self) -> bytes:
        return model([self.node], {"x": self.before}, {"y": self.after}, self.tensors)


CASES = {
    "windows of one axis": Case(node("MaxPool", "x", "y", kernel_shape=[3], strides=[2]), [], (2, 3, 9), (2, 3, 4)),
    "windows of three axes": Case(
        node("AveragePool", "x", "y", kernel_shape=[2, 2, 2], strides=[2, 2, 2]), [], (2, 3, 4, 6, 8), (2, 3, 2, 3, 4)
    ),
    "twice the size": Case(
        node("ConvTranspose", "x w b", "y", strides=[2, 2], pads=[1, 1, 1, 1]),
        [tensor("w", [8, 6, 4, 4]), tensor("b", [6])],
        (2, 8, 5, 7),
        (2, 6, 10, 14),
    ),
    "groups and positions behind": Case(
        node("ConvTranspose", "x w", "y", strides=[2], group=2, output_padding=[1]),
        [tensor("w", [8, 3, 3])],
        (2, 8, 5),
        (2, 6, 12),
    ),
    "gaps": Case(
        node("ConvTranspose", "x w", "y", dilations=[2, 2]), [tensor("w", [2, 3, 3, 3])], (2, 2, 3, 4), (2, 3, 7, 8)
    ),
    "the same size": Case(
        node("ConvTranspose", "x w", "y", strides=[2, 2], auto_pad="SAME_UPPER"),
        [tensor("w", [2, 3, 3, 3])],
        (2, 2, 3, 4),
        (2, 3, 6, 8),
    ),
    "a size that is told": Case(
        node("ConvTranspose", "x w", "y", strides=[3, 3], output_shape=[10, 8]),
        [tensor("w", [1, 2, 3, 3])],
        (1, 1, 3, 3),
        (1, 2, 10, 8),
    ),
    "zeros around": Case(
        node("Pad", "x pads", "y"), [integers("pads", 0, 0, 1, 2, 0, 0, 3, 0)], (2, 3, 4, 5), (2, 3, 8, 7)
    ),
    "a mirror around": Case(
        node("Pad", "x pads", "y", mode="reflect"),
        [integers("pads", 0, 0, 0, 2, 0, 0, 0, 2)],
        (2, 3, 4, 5),
        (2, 3, 4, 9),
    ),
    "the nearest": Case(
        node("Resize", "x - scales", "y", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        [tensor("scales", [4], [1, 1, 2, 3])],
        (2, 3, 4, 5),
        (2, 3, 8, 15),
    ),
    "lines": Case(
        node("Resize", "x - - sizes", "y", mode="linear"), [integers("sizes", 2, 3, 8, 5)], (2, 3, 4, 5), (2, 3, 8, 5)
    ),
    "less": Case(
        node("Resize", "x - scales", "y", mode="linear"),
        [tensor("scales", [4], [1, 1, 0.5, 0.5])],
        (2, 3, 8, 4),
        (2, 3, 4, 2),
    ),
    "no whole number of times": Case(
        node("Resize", "x - - sizes", "y", mode="cubic"), [integers("sizes", 2, 3, 6, 5)], (2, 3, 4, 5), (2, 3, 6, 5)
    ),
}


@pytest.fixture
def operator(tmp_path):
    """Return a function from the bytes of a file of one node to its operator."""

    def build(data: bytes, batch: int | None = None) -> Operator:
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        (op,) = Onnx(file=str(path), strict=True).build(batch).operators
        return op

    return build


def flops(op: Operator) -> float:
    return sum(term.coefficient * math.prod(op.sizes[dim] for dim in term.dims) for term in op.work)


def cuttable(op: Operator) -> str:
    return " ".join(dim.name for dim in op.dims if dim.role is not None)


@pytest.mark.parametrize("name", CASES)
def test_the_shape_is_that_of_the_case_also_for_another_batch(name, operator) -> None:
    case = CASES[name]
    assert operator(case.file(), case.before[0]).outputs[0].shape == case.after
    larger = operator(case.file(), 8 * case.before[0])
    assert larger.outputs[0].shape == (8 * case.before[0], *case.after[1:])
    assert larger.dims[larger.sample_dim].role is Role.SAMPLE


@pytest.mark.parametrize("name", CASES)
@pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason="onnx is not installed")
def test_onnx_infers_this_shape(name) -> None:
    import onnx

    case = CASES[name]
    loaded = onnx.load_from_string(case.file())
    loaded.graph.output[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(loaded, strict_mode=True, data_prop=True).graph.output[0]
    assert tuple(size.dim_value for size in inferred.type.tensor_type.shape.dim) == case.after


def test_flops_are_those_of_what_is_computed(operator) -> None:
    counted = {name: flops(operator(case.file(), case.before[0])) for name, case in CASES.items()}
    assert counted == {
        "windows of one axis": 2 * 3 * 4 * 3,
        "windows of three axes": 2 * 3 * 24 * 8,
        # Every position of the input with the whole kernel, as PyTorch's FlopCounterMode counts, and the bias.
        "twice the size": 2 * (2 * 35) * 8 * 6 * 16 + 2 * 6 * 140,
        "groups and positions behind": 2 * (2 * 5) * 4 * 6 * 3,
        "gaps": 2 * (2 * 12) * 2 * 3 * 9,
        "the same size": 2 * (2 * 12) * 2 * 3 * 9,
        "a size that is told": 2 * 9 * 2 * 9,
        "zeros around": 0,
        "a mirror around": 0,
        "the nearest": 0,
        "lines": 2 * (2 * 3 * 8 * 5) * 2,
        "less": 2 * (2 * 3 * 4 * 2) * 4,
        "no whole number of times": 2 * (2 * 3 * 6 * 5) * 4,
    }


def test_positions_are_cut_where_a_part_needs_its_neighbors_alone(operator) -> None:
    found = {name: cuttable(operator(case.file())) for name, case in CASES.items()}
    assert found == {
        "windows of one axis": "n c w",
        "windows of three axes": "n c d h w",
        "twice the size": "n o h w i",
        "groups and positions behind": "n g w",
        "gaps": "n o h w i",
        "the same size": "n o h w i",
        "a size that is told": "n o i",
        "zeros around": "n a1 a2 a3",
        "a mirror around": "n a1 a2",
        "the nearest": "n a1 a2 a3",
        "lines": "n a1 a2 a3",
        "less": "n a1 a2 a3",
        "no whole number of times": "n a1 a3",
    }


@pytest.mark.parametrize(
    ("made", "tensors", "message"),
    [
        (node("ConvTranspose", "x w", "y"), [tensor("w", [4, 3, 3, 3])], "do not fit"),
        (node("ConvTranspose", "x w", "y", group=2), [tensor("w", [3, 3, 3, 3])], "2 groups do not divide 3 and 6"),
        (node("Pad", "x pads", "y"), [integers("pads", 0, 1)], "of 4 axes"),
        (node("Pad", "x pads", "y"), [integers("pads", 1, 0, 0, 0, 0, 0, 0, 0)], "samples that are added"),
        (node("Resize", "x - - sizes", "y"), [integers("sizes", 2, 3, 0, 5)], "cannot be resized"),
        (node("Resize", "x - - sizes", "y", mode="sinc"), [integers("sizes", 2, 3, 4, 5)], "interpolation 'sinc'"),
    ],
)
def test_what_does_not_fit_is_refused(made, tensors, message, operator) -> None:
    with pytest.raises(TopoplanError, match=message):
        operator(model([made], {"x": (2, 3, 4, 5)}, {"y": (2, 3, 4, 5)}, tensors))
