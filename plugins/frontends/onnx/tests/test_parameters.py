"""Parameters of ONNX files that are no weights of a layer: each counts once, wherever a node reads it."""

from __future__ import annotations

import pytest

from topoplan import TopoplanError
from topoplan_frontend_onnx import Onnx
from topoplan_samples.onnx_files import integers, model, node, tensor, value


@pytest.fixture
def build(tmp_path):
    """Return a function from nodes and tensors, of x (n, 6) and y (n, 4), to the graph of 8 samples."""

    def graph_of(nodes, tensors, *, x=("n", 6), y=("n", 4), values=()):
        file = tmp_path / "model.onnx"
        file.write_bytes(model(nodes, {"x": x}, {"y": y}, tensors, values=values))
        return Onnx(file=str(file), strict=True).build(8)

    return graph_of


#: Name -> nodes and tensors: a layer of 6 to 4 channels with a weight that is computed.
WEIGHTS = {
    "sum": ([node("Add", "a b", "w")], [("a", [6, 4]), ("b", [6, 4])]),
    "product": ([node("MatMul", "a b", "w")], [("a", [6, 2]), ("b", [2, 4])]),
    "sum with a product": (
        [node("MatMul", "a b", "ab"), node("Add", "ab c", "w")],
        [("a", [6, 2]), ("b", [2, 4]), ("c", [6, 4])],
    ),
    "function": ([node("Softplus", "a", "w")], [("a", [6, 4])]),
    "twice": ([node("MatMul", "a a", "w")], [("a", [4, 4])]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_is_computed_from_parameters_holds_each_of_them_once(build, name):
    nodes, shapes = WEIGHTS[name]
    sizes = {each: rows * columns for each, (rows, columns) in shapes}
    x = ("n", shapes[0][1][0])
    tensors = [tensor(each, shape, [0.5] * sizes[each]) for each, shape in shapes]
    graph = build([*nodes, node("MatMul", "x w", "y")], tensors, x=x)
    weights = [weight.elements for op in graph.operators for weight in op.weights]
    assert sorted(weights) == sorted(sizes.values())
    product = graph.operators[-1]
    assert [each.shape for each in product.inputs] == [(8, x[1]), (x[1], 4)]
    assert graph.edges[graph.edges[:, 2] == len(graph.operators) - 1].shape == (1, 4)


def test_a_scale_that_is_also_a_variance_is_a_parameter(build):
    """Exporters write equal tensors once: the scale and the variance of a new batch normalization are ones."""
    nodes = [node("BatchNormalization", "x one zero zero one", "y")]
    graph = build(nodes, [tensor("one", [6], [1.0] * 6), tensor("zero", [6])], y=("n", 6))
    assert [weight.elements for weight in graph.operators[0].weights] == [6, 6]


@pytest.mark.parametrize(("equation", "shape"), [("ni,io->no", [6, 4]), ("ni,oi->no", [4, 6])])
def test_an_equation_is_planned_by_its_letters(build, equation, shape):
    (operator,) = build([node("Einsum", "x w", "y", equation=equation)], [tensor("w", shape)]).operators
    assert operator.kind == "einsum"
    assert operator.outputs[0].shape == (8, 4)
    assert [weight.shape for weight in operator.weights] == [tuple(shape)]
    assert operator.sample_dim >= 0


@pytest.mark.parametrize("equation", ["ni,io", "...i,io->...o", "ni,ii->n", "NI,IO->NO"])
def test_an_equation_of_another_form_is_refused_by_strict(build, equation):
    with pytest.raises(TopoplanError, match="an equation of this form"):
        build([node("Einsum", "x w", "y", equation=equation)], [tensor("w", [6, 4])], values=[value("y", ["n", 4])])


def test_an_equation_that_does_not_fit_is_named(build):
    with pytest.raises(TopoplanError, match=r"equation 'nij,io' does not fit factors \(8, 6\) and \(6, 4\)"):
        build([node("Einsum", "x w", "y", equation="nij,io->no")], [tensor("w", [6, 4])])


def test_a_normalization_without_translation_needs_no_shape_in_the_file(tmp_path):
    nodes = [node("MeanVarianceNormalization", "x", "z"), node("Reshape", "z shape", "y")]
    tensors = [integers("shape", 0, 48)]
    file = tmp_path / "model.onnx"
    file.write_bytes(model(nodes, {"x": ["n", 3, 4, 4]}, {"y": ["n", 48]}, tensors))
    with pytest.warns(match="1 x MeanVarianceNormalization"):
        graph = Onnx(file=str(file)).build(8)
    assert graph.operators[0].outputs[0].shape == (8, 3, 4, 4)
