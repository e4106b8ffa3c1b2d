"""Operator kinds in the algebra, the builder's two dialects, and presets."""

from __future__ import annotations

import math
from typing import Literal

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Operator, Role, Tensor
from topoplan.options import option
from topoplan_engine.partition import slice_elements
from topoplan_operators import GraphBuilder, Handle, dense, experts, pointwise, spatial, with_preset


def flops(op: Operator) -> float:
    return math.fsum(term.coefficient * math.prod(op.sizes[d] for d in term.dims) for term in op.work)


def touched(axis: Axis, start: int, stop: int) -> range:
    """Elements of ``axis`` that iterations [start, stop) touch, as `Axis` defines it."""
    low = max(0, start * axis.scale + axis.offset)
    return range(low, max(low, min(axis.size, (stop - 1) * axis.scale + axis.offset + axis.extent)))


def roles(op: Operator) -> dict[str, Role | None]:
    return {dim.name: dim.role for dim in op.dims}


class TestLinear:
    def test_axes_roles_and_weights(self) -> None:
        op = dense.linear(Handle((32, 100)), 40, bias=True, activation=False)
        assert roles(op) == {"s": Role.SAMPLE, "o": Role.PARAMETER, "i": Role.REDUCTION}
        assert [w.shape for w in op.weights] == [(40, 100), (40,)]
        assert op.outputs[0].shape == (32, 40)
        assert flops(op) == 2 * 32 * 40 * 100 + 32 * 40
        assert op.tags["flexnet"] == "Dense_100_40"

    def test_axes_between_are_attributes(self) -> None:
        op = dense.linear(Handle((8, 16, 100)), 40, bias=False, activation=False)
        assert [dim.role for dim in op.dims] == [Role.SAMPLE, Role.ATTRIBUTE, Role.PARAMETER, Role.REDUCTION]
        assert op.outputs[0].shape == (8, 16, 40)
        assert len(op.weights) == 1
        # cutting positions cuts input and output, not the weight
        assert slice_elements(op, op.inputs[0], (1, 2, 1, 1)).tolist() == [8 * 8 * 100] * 2
        assert slice_elements(op, op.weights[0], (1, 2, 1, 1)).tolist() == [40 * 100] * 2
        assert slice_elements(op, op.weights[0], (1, 1, 2, 2)).tolist() == [20 * 50] * 4


class TestEmbedding:
    def test_traffic_counts_touched_rows_only(self) -> None:
        op = dense.embedding(Handle((64, 100), 8), 10_000_000, 256, itemsize=4)
        assert flops(op) == pytest.approx(64 * 100 * 256)
        moved = math.fsum(t.coefficient * math.prod(op.sizes[d] for d in t.dims) for t in op.traffic)
        assert moved == pytest.approx(64 * 100 * 256 * 4 + 64 * 100 * 8 + 64 * 256 * 4)
        assert moved < op.weights[0].nbytes / 100

    def test_rows_are_a_reduction_and_the_bag_cannot_be_cut(self) -> None:
        op = dense.embedding(Handle((64, 10), 8), 1000, 16, itemsize=4)
        assert roles(op) == {"n": Role.SAMPLE, "d": Role.PARAMETER, "r": Role.REDUCTION, "b": None}
        assert slice_elements(op, op.weights[0], (1, 2, 4, 1)).tolist() == [250 * 8] * 8
        assert slice_elements(op, op.outputs[0], (1, 1, 4, 1)).tolist() == [64 * 16] * 4


class TestAttention:
    def test_self_attention_costs_what_transformers_cost(self) -> None:
        n, s, e, h = 2, 32, 64, 4
        x = Handle((n, s, e))
        op = dense.attention(x, x, x, e, h, merge=False)
        # four projections, two products of positions, softmax of one row per head and position
        assert flops(op) == n * (8 * s * e * e + 4 * s * s * e + 5 * h * s * s)
        assert [w.elements for w in op.weights] == [4 * e * e]
        assert roles(op) == {"n": Role.SAMPLE, "q": Role.ATTRIBUTE, "h": Role.REDUCTION}

    def test_cutting_the_query_leaves_keys_whole(self) -> None:
        q, k = Handle((2, 32, 64), producer=0), Handle((2, 48, 64), producer=1)
        op = dense.attention(q, k, k, 64, 4, merge=False)
        assert [slice_elements(op, t, (1, 4, 1))[0] for t in op.inputs] == [2 * 8 * 64, 2 * 48 * 64, 2 * 48 * 64]

    def test_a_tensor_given_twice_travels_once(self) -> None:
        q, k = Handle((2, 32, 64), producer=0), Handle((2, 32, 64), producer=1)
        assert len(dense.attention(q, q, q, 64, 4, merge=True).inputs) == 1
        assert len(dense.attention(q, k, k, 64, 4, merge=True).inputs) == 2
        assert dense.attention(q, q, q, 64, 4, merge=True).inputs[0].axes[1].dim == -1

    def test_heads_must_divide(self) -> None:
        x = Handle((2, 32, 64))
        with pytest.raises(TopoplanError, match="5 heads do not divide 64"):
            dense.attention(x, x, x, 64, 5, merge=True)


class TestSpatial:
    @given(
        size=st.integers(1, 20),
        kernel=st.integers(1, 5),
        stride=st.integers(1, 3),
        padding=st.integers(0, 2),
        data=st.data(),
    )
    @settings(max_examples=60, deadline=None)
    def test_windows_touch_exactly_what_the_kernel_reads(self, size, kernel, stride, padding, data) -> None:
        x = Handle((4, 3, size, 9))
        if size + 2 * padding < kernel:
            with pytest.raises(TopoplanError, match="do not fit"):
                spatial.pool2d(x, (kernel, 1), stride=(stride, 1), padding=(padding, 0))
            return
        op = spatial.pool2d(x, (kernel, 1), stride=(stride, 1), padding=(padding, 0))
        rows = op.outputs[0].shape[2]
        start = data.draw(st.integers(0, rows - 1))
        stop = data.draw(st.integers(start + 1, rows))
        read = {h * stride - padding + k for h in range(start, stop) for k in range(kernel)}
        read = {row for row in read if 0 <= row < size}
        got = set(touched(op.inputs[0].axes[2], start, stop))
        assert read <= got
        # Cut dimensions touch intervals: what lies between two windows comes along.
        assert got <= set(range(start * stride - padding, (stop - 1) * stride - padding + kernel))

    def test_convolution_of_known_size(self) -> None:
        op = spatial.conv2d(Handle((1, 3, 224, 224)), 64, 7, stride=2, padding=3, bias=False, activation=False)
        assert op.outputs[0].shape == (1, 64, 112, 112)
        assert flops(op) == 2 * 118_013_952  # multiplications and additions of ResNet's first layer
        assert roles(op) == {
            "n": Role.SAMPLE,
            "o": Role.PARAMETER,
            "h": Role.ATTRIBUTE,
            "w": Role.ATTRIBUTE,
            "i": Role.REDUCTION,
        }
        assert op.tags["flexnet"] == "Conv2D_7_7_64"

    def test_rectangular_kernels(self) -> None:
        op = spatial.conv2d(Handle((1, 8, 17, 17)), 16, (1, 7), stride=1, padding=(0, 3), bias=True, activation=True)
        assert op.outputs[0].shape == (1, 16, 17, 17)
        assert op.weights[0].shape == (16, 8, 1, 7)
        assert op.tags["flexnet"] == "Conv2D_1_7_16"

    def test_flat_keeps_the_positions_of_a_channel_together(self) -> None:
        op = spatial.flat(Handle((2, 5, 3, 4)))
        assert op.outputs[0].shape == (2, 60)
        assert list(touched(op.outputs[0].axes[1], 2, 4)) == list(range(2 * 12, 4 * 12))
        assert slice_elements(op, op.inputs[0], (1, 5)).tolist() == [2 * 12] * 5


class TestPointwise:
    @given(widths=st.lists(st.integers(1, 9), min_size=1, max_size=5), degree=st.integers(1, 6))
    @settings(max_examples=40, deadline=None)
    def test_concat_reads_every_element_once(self, widths, degree) -> None:
        op = pointwise.concat([Handle((4, width)) for width in widths], 1)
        degree = min(degree, sum(widths))
        for tensor, width in zip(op.inputs, widths, strict=True):
            assert slice_elements(op, tensor, (1, degree)).sum() == 4 * width
        assert (
            np.sum([slice_elements(op, t, (1, degree)) for t in op.inputs], axis=0).tolist()
            == slice_elements(op, op.outputs[0], (1, degree)).tolist()
        )

    def test_softmax_cannot_be_cut_along_classes(self) -> None:
        assert roles(pointwise.softmax(Handle((4, 6, 10)))) == {"n": Role.SAMPLE, "a1": Role.ATTRIBUTE, "a2": None}

    def test_structures(self) -> None:
        x = Handle((4, 10))
        assert pointwise.elementwise("relu", [x]).tags["flexnet"] == "ElementUnary_13"
        assert pointwise.elementwise("add", [x, x]).tags["flexnet"] == "ElementBinary_31"
        assert pointwise.elementwise("multiply", [x, x]).tags["flexnet"] == "ElementBinary_32"
        assert pointwise.concat([x, x], 1).tags["flexnet"] == "Concat_1"

    def test_shapes_that_do_not_fit(self) -> None:
        with pytest.raises(TopoplanError, match="differ"):
            pointwise.elementwise("add", [Handle((4, 10)), Handle((4, 11))])
        with pytest.raises(TopoplanError, match="beside axis 1"):
            pointwise.concat([Handle((4, 10)), Handle((5, 10))], 1)
        with pytest.raises(TopoplanError, match="axis 2"):
            pointwise.concat([Handle((4, 10))], 2)


class TestExperts:
    def test_dispatch_and_combination_are_reductions(self) -> None:
        x, chosen = Handle((60, 8)), Handle((60, 2))
        dispatch = experts.group_by(x, chosen, 5, 2.0)
        assert [t.shape for t in dispatch.outputs] == [(48, 8)] * 5  # ceil(2 * 2 * 60 / 5)
        assert roles(dispatch) == {"c": Role.SAMPLE, "d": Role.ATTRIBUTE, "n": Role.REDUCTION}
        combine = experts.aggregate(
            [chosen, chosen], [Handle((48, 10))] * 5, kind="aggregate", flexnet_name="Aggregate"
        )
        assert combine.outputs[0].shape == (60, 10)
        assert roles(combine) == {"n": Role.SAMPLE, "o": Role.ATTRIBUTE, "c": Role.REDUCTION}
        assert flops(combine) == pytest.approx(2 * 2 * 60 * 10)

    def test_capacity_is_rounded_up(self) -> None:
        assert experts.capacity(2.0, 2, 64, 5) == 52
        assert experts.capacity(1.0, 1, 1, 8) == 1

    def test_top_k_is_checked(self) -> None:
        values, indices = experts.top_k(Handle((60, 5)), 2).outputs
        assert values.shape == indices.shape == (60, 2)
        with pytest.raises(TopoplanError, match=r"6 of 5 classes"):
            experts.top_k(Handle((60, 5)), 6)


def small(dialect: Literal["standard", "flexnet"]) -> GraphBuilder:
    b = GraphBuilder("small", 32, dialect)
    image = b.conv2d(b.input((3, 8, 8)), 4, 3, padding=1)
    image = b.flat(b.pool2d(image, 3, stride=2))
    rows = b.embedding(b.input((10,), 8), 100, 4)
    x = b.multiply(b.concat([rows, image]), b.concat([rows, image]), flexnet_name="mix")
    b.linear(x, 5, name="head")
    return b


class TestBuilder:
    def test_standard_names_count_each_kind(self) -> None:
        graph = small("standard").build()
        names = [op.name for op in graph.operators]
        assert names == ["conv1", "pool1", "flat1", "embedding1", "concat1", "concat2", "multiply1", "head"]

    def test_flexnet_names_count_from_100(self) -> None:
        names = [op.name for op in small("flexnet").build().operators]
        assert names == [
            "Conv2D_100",
            "Pool2D_101",
            "Flat_102",
            "Embedding_103",
            "Concat_104",
            "Concat_105",
            "mix_106",
            "Dense_107",
        ]

    def test_flexnet_cuts_samples_only_and_reads_everything(self) -> None:
        for op in small("flexnet").build().operators:
            assert {dim.role for dim in op.dims} <= {Role.SAMPLE, None}
            for tensor in (*op.inputs, *op.weights):
                ones = (1,) * len(op.dims)
                assert slice_elements(op, tensor, ones).tolist() == [tensor.elements]
        # the standard pool leaves out the last row of 8: it reads 7 of them
        pool = small("standard").build().operators[1]
        assert slice_elements(pool, pool.inputs[0], (1, 1, 1, 1)).tolist() == [32 * 4 * 7 * 7]

    def test_element_sizes(self) -> None:
        sizes = {d: [op.outputs[0].itemsize for op in small(d).build().operators] for d in ("standard", "flexnet")}
        assert sizes == {"standard": [4] * 8, "flexnet": [4, 4, 4, 8, 8, 8, 8, 8]}
        assert {w.itemsize for op in small("flexnet").build().operators for w in op.weights} == {4}

    def test_edges_join_outputs_to_inputs(self) -> None:
        b = GraphBuilder("moe", 64)
        x = b.input((16,))
        values, chosen = b.top_k(b.linear(x, 4), 2)
        shares = b.group_by(x, chosen, 4, 1.0)
        b.aggregate([values, chosen], shares)
        assert b.build().edges.tolist() == [
            [0, 0, 1, 0],
            [1, 1, 2, 1],
            [1, 0, 3, 0],
            [1, 1, 3, 1],
            [2, 0, 3, 2],
            [2, 1, 3, 3],
            [2, 2, 3, 4],
            [2, 3, 3, 5],
        ]

    def test_attention_inputs_by_dialect(self) -> None:
        edges = {}
        for dialect in ("standard", "flexnet"):
            b = GraphBuilder("t", 4, dialect)
            x = b.linear(b.input((8, 16)), 16)
            y = b.attention(x, x, x, 16, 2)
            b.attention(y, x, x, 16, 2)
            edges[dialect] = [(u, v, i) for u, _, v, i in b.build().edges.tolist()]
        assert edges["standard"] == [(0, 1, 0), (1, 2, 0), (0, 2, 1)]
        assert edges["flexnet"] == [(0, 1, 0), (0, 1, 1), (0, 1, 2), (1, 2, 0), (0, 2, 1), (0, 2, 2)]

    def test_bad_arguments(self) -> None:
        with pytest.raises(TopoplanError, match="batch size 0"):
            GraphBuilder("m", 0)
        with pytest.raises(TopoplanError, match="dialect 'other'"):
            GraphBuilder("m", 1, "other")  # type: ignore[arg-type]
        with pytest.raises(TopoplanError, match="no operators"):
            GraphBuilder("m", 1).build()
        b = GraphBuilder("m", 4)
        x = b.linear(b.input((4,)), 4, name="a")
        b.linear(x, 4, name="a")
        with pytest.raises(TopoplanError, match="two operators are named 'a'"):
            b.build()

    @given(batch=st.integers(1, 10_000))
    @settings(max_examples=20, deadline=None)
    def test_any_batch_size_builds(self, batch) -> None:
        b = GraphBuilder("m", batch)
        b.softmax(b.relu(b.linear(b.input((7,)), 3)))
        graph = b.build()
        assert [op.outputs[0].shape for op in graph.operators] == [(batch, 3)] * 3


@attrs.frozen
class ModelOptions:
    preset: Literal["", "large"] = option("", help="preset")
    width: int | None = option(None, minimum=1, help="width")
    layers: tuple[int, ...] | None = option(None, minimum=1, help="layers")


@attrs.frozen
class ModelSizes:
    width: int = 2
    layers: tuple[int, ...] = (4, 2)


class TestPresets:
    def fill(self, options: ModelOptions, batch_size: int | None = None) -> tuple[ModelSizes, int]:
        return with_preset(
            "frontend m",
            options,
            batch_size,
            ModelSizes,
            defaults={"layers": (4, options.width)} if options.width else {},
            presets={"large": {"batch_size": 1024, "width": 512}},
        )

    def test_the_users_word_comes_first(self) -> None:
        assert self.fill(ModelOptions()) == (ModelSizes(2, (4, 2)), 64)
        assert self.fill(ModelOptions("large")) == (ModelSizes(512, (4, 2)), 1024)
        assert self.fill(ModelOptions("large", width=3), 8) == (ModelSizes(3, (4, 3)), 8)

    @pytest.mark.parametrize(
        ("options", "batch_size", "message"),
        [
            (ModelOptions(width=0), None, "frontend m: width: 0 is too small"),
            (ModelOptions(layers=(4, -1)), None, "frontend m: layers: -1 is too small"),
            (ModelOptions(layers=()), None, "frontend m: layers: the list is empty"),
            (ModelOptions("larg"), None, "preset: 'larg' is unknown; did you mean 'large'"),
            (ModelOptions(), 0, "batch size 0 is too small"),
        ],
    )
    def test_what_is_wrong_is_named(self, options, batch_size, message) -> None:
        with pytest.raises(TopoplanError, match=message):
            self.fill(options, batch_size)


def test_handle_of_an_output_is_its_tensor() -> None:
    b = GraphBuilder("m", 4, "flexnet")
    handle = b.embedding(b.input((1,), 8), 10, 3)
    tensor = b.build().operators[0].outputs[0]
    assert isinstance(tensor, Tensor)
    assert (handle.shape, handle.itemsize, handle.producer, handle.output) == (tensor.shape, 8, 0, 0)
