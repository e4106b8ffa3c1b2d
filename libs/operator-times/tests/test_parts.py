"""Part shapes: what a kernel sees of a cut, and which cuts look alike."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan.model.graph import Operator, OperatorGraph
from topoplan_operator_times.parts import gradients_of, part_shape
from topoplan_operators import GraphBuilder, Handle


def graph_of(build, dialect="standard", batch=8) -> OperatorGraph:
    builder = GraphBuilder("test", batch, dialect)
    build(builder)
    return builder.build()


def only(build, dialect="standard", batch=8) -> Operator:
    return graph_of(build, dialect, batch).operators[-1]


def shapes(pieces):
    return [piece.shape for piece in pieces]


def test_a_cut_of_a_linear_layer_cuts_its_tensors():
    op = only(lambda b: b.linear(b.input((64,)), 32))
    part = part_shape(op, (2, 4, 1), (False,))
    assert part.sizes == (4, 8, 64)
    assert (shapes(part.inputs), shapes(part.weights), shapes(part.outputs)) == ([(4, 64)], [(8, 64), (8,)], [(4, 8)])
    assert part.nbytes == 2 * 4 * (4 * 64 + 8 * 64 + 8 + 4 * 8)


def test_layers_of_one_shape_have_one_part_and_training_data_is_another():
    def two(b: GraphBuilder) -> None:
        x = b.linear(b.input((64,)), 64)
        b.linear(b.linear(x, 64), 64)

    graph = graph_of(two)
    first, second, third = (
        part_shape(op, (2, 1, 1), gradients) for op, gradients in zip(graph.operators, gradients_of(graph), strict=True)
    )
    assert second == third
    assert hash(second) == hash(third)
    assert first != second, "a layer that reads training data has no gradient of its input"


def test_two_cuts_to_one_size_are_one_part():
    op = only(lambda b: b.linear(b.input((64,)), 64), batch=6)
    assert part_shape(op, (2, 1, 1), (False,)).sizes == (3, 64, 64)
    assert part_shape(op, (2, 1, 1), (False,)) == part_shape(op, (1, 1, 1), (False,), gpus=2)


def test_uneven_cuts_are_as_large_as_their_largest_part():
    op = only(lambda b: b.linear(b.input((64,)), 10))
    assert part_shape(op, (1, 4, 1), (False,)).sizes == (8, 3, 64)


@pytest.mark.parametrize(
    ("degrees", "height", "padding"),
    [((1, 1, 1, 1, 1), 16, 1), ((1, 1, 2, 1, 1), 10, 0), ((1, 1, 4, 1, 1), 6, 0)],
)
def test_rows_of_an_image_come_with_their_halo(degrees, height, padding):
    op = only(lambda b: b.conv2d(b.input((3, 16, 16)), 8, 3, padding=1))
    part = part_shape(op, degrees, (False,))
    assert part.inputs[0].shape == (8, 3, height, 16)
    assert (part.constant("padding_h"), part.constant("padding_w"), part.constant("stride_h")) == (padding, 1, 1)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"), [(224, 11, 4, 2), (224, 7, 2, 3), (14, 3, 1, 1), (27, 5, 1, 2)]
)
def test_windows_that_flexnets_dialect_does_not_tell_are_inferred(size, kernel, stride, padding):
    def build(b: GraphBuilder) -> None:
        b.conv2d(b.input((3, size, size)), 8, kernel, stride=stride, padding=padding)

    op = only(build, "flexnet")
    part = part_shape(op, (1,) * 5, (False,))
    rows = (size + 2 * part.constant("padding_h") - kernel) // part.constant("stride_h") + 1
    assert rows == op.outputs[0].shape[2]
    assert part.constant("stride_h") == stride
    pool = only(lambda b: b.pool2d(b.input((3, size, size)), 3, stride=2), "flexnet")
    part = part_shape(pool, (1,) * 4, (False,))
    assert (part.constant("kernel_h"), part.constant("stride_h"), part.constant("padding_h")) == (3, 2, 0)


def test_a_cut_concatenation_reads_what_falls_into_its_share():
    def build(b: GraphBuilder) -> None:
        b.concat([b.input((10,)), b.input((30,))], 1)

    op = only(build)
    assert shapes(part_shape(op, (1, 1), (False,) * 2).inputs) == [(8, 10), (8, 30)]
    last = part_shape(op, (1, 2), (False,) * 2)
    assert last.inputs[1].shape == (8, 20)
    assert last.constant("axis") == 1


def test_constants_tell_what_shapes_do_not():
    linear = only(lambda b: b.linear(b.input((4,)), 4, activation="relu", bias=False))
    assert part_shape(linear, (1, 1, 1), (False,)).constant("activation") == 1
    linear = only(lambda b: b.linear(b.input((4,)), 4))
    assert part_shape(linear, (1, 1, 1), (False,)).constant("activation") == 0

    def attention(b: GraphBuilder) -> Handle:
        x = b.input((5, 12))
        return b.attention(x, x, x, 12, 3)

    assert part_shape(only(attention), (1, 1, 1), (False,)).constant("head_size") == 4


def test_gradients_are_those_of_inputs_that_operators_give():
    def build(b: GraphBuilder) -> None:
        data = b.input((4,))
        b.add(data, b.relu(data))

    assert gradients_of(graph_of(build)) == [(False,), (False, True)]
    assert np.array(graph_of(build).edges).tolist() == [[0, 0, 1, 1]]
