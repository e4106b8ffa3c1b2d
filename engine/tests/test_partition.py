"""The algebra against brute force: boxes of every part, intersected pair by pair."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.model.graph import Axis, Dimension, Operator, Role, Slices, Tensor
from topoplan_engine.partition import degree_of, part_bounds, part_sizes, replica_groups, slice_elements, transfers
from topoplan_reference.lowering import boxes, overlap, reference_transfers, volume


@st.composite
def degree_up_to_four(draw, size):
    """A degree of up to four slices, as even as can be or of any sizes."""
    degree = draw(st.integers(1, min(size, 4)))
    if draw(st.booleans()):
        return degree
    inner = (
        draw(st.lists(st.integers(1, size - 1), min_size=degree - 1, max_size=degree - 1, unique=True))
        if degree > 1
        else []
    )
    edges = [0, *sorted(inner), size]
    return degree_of([high - low for low, high in itertools.pairwise(edges)])


@st.composite
def producers(draw):
    """An operator with one output of up to three axes, perhaps cut along a reduction too."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    scales = [draw(st.sampled_from([1, 1, 2, 3])) for _ in sizes]
    dims = [Dimension(f"d{i}", size, Role.ATTRIBUTE) for i, size in enumerate(sizes)]
    dims.insert(draw(st.integers(0, len(dims))), Dimension("r", draw(st.integers(1, 4)), Role.REDUCTION))
    places = [i for i, dim in enumerate(dims) if dim.name != "r"]
    order = draw(st.permutations(range(len(places))))
    axes = tuple(Axis(sizes[k] * scales[k], places[k], scale=scales[k], extent=scales[k]) for k in order)
    op = Operator(name="u", kind="any", dims=tuple(dims), outputs=(Tensor("y", axes),))
    degrees = tuple(draw(degree_up_to_four(dim.size)) for dim in dims)
    return op, degrees


@st.composite
def consumers(draw, shape):
    """An operator that reads a tensor of ``shape`` with halos, offsets, whole axes and replicas."""
    dims, axes = [], []
    for k, size in enumerate(shape):
        if draw(st.booleans()):
            axes.append(Axis(size))
            continue
        dims.append(Dimension(f"e{k}", draw(st.integers(1, size)), Role.ATTRIBUTE))
        axes.append(
            Axis(
                size,
                len(dims) - 1,
                scale=draw(st.integers(1, 3)),
                offset=draw(st.integers(-4, 3)),
                extent=draw(st.integers(1, 5)),
            )
        )
    dims.append(Dimension("c", draw(st.integers(1, 5)), Role.PARAMETER))
    out = Tensor("y", tuple(Axis(dim.size, i) for i, dim in enumerate(dims)))
    op = Operator(name="v", kind="any", dims=tuple(dims), inputs=(Tensor("x", tuple(axes)),), outputs=(out,))
    degrees = tuple(draw(degree_up_to_four(dim.size)) for dim in dims)
    return op, degrees


@st.composite
def edges(draw):
    producer, given_degrees = draw(producers())
    consumer, wanted_degrees = draw(consumers(producer.outputs[0].shape))
    return producer, given_degrees, consumer, wanted_degrees


@settings(max_examples=200, deadline=None)
@given(edges())
def test_transfers_equal_pairwise_intersections(edge):
    u, du, v, dv = edge
    fast = transfers(u, u.outputs[0], du, v, v.inputs[0], dv)
    rows = list(zip(fast.src.tolist(), fast.dst.tolist(), fast.elements.tolist(), strict=True))
    assert rows == reference_transfers(u, u.outputs[0], du, v, v.inputs[0], dv)


@settings(max_examples=100, deadline=None)
@given(edges())
def test_every_element_of_the_consumer_arrives_once_from_each_holder(edge):
    u, du, v, dv = edge
    moved = transfers(u, u.outputs[0], du, v, v.inputs[0], dv)
    # Each consumer part gets exactly its slice, once for every holder of partial sums.
    holders = replica_groups(u, u.outputs[0], du).shape[1]
    arrivals = np.bincount(moved.dst, weights=moved.elements, minlength=int(np.prod(dv)))
    assert arrivals.tolist() == (slice_elements(v, v.inputs[0], dv) * holders).tolist()
    # No two pieces of one consumer part, from one holder each, overlap.
    source = boxes(u, u.outputs[0], du)
    for group in zip(*replica_groups(u, u.outputs[0], du).tolist(), strict=True):
        pieces = [source[p] for p in group]
        assert all(overlap(a, b) == 0 for i, a in enumerate(pieces) for b in pieces[:i])


@settings(max_examples=100, deadline=None)
@given(producers())
def test_parts_cover_the_output_and_do_not_overlap(made):
    op, degrees = made
    held = boxes(op, op.outputs[0], degrees)
    distinct = list(dict.fromkeys(held))
    assert sum(map(volume, distinct)) == op.outputs[0].elements
    assert all(overlap(a, b) == 0 for i, a in enumerate(distinct) for b in distinct[:i])
    assert slice_elements(op, op.outputs[0], degrees).tolist() == list(map(volume, held))


@settings(max_examples=100, deadline=None)
@given(producers())
def test_replica_groups_hold_one_slice_each(made):
    op, degrees = made
    held = boxes(op, op.outputs[0], degrees)
    groups = replica_groups(op, op.outputs[0], degrees)
    assert sorted(groups.ravel().tolist()) == list(range(len(held)))
    assert groups[:, 0].tolist() == sorted(groups[:, 0].tolist())
    slices = [{held[p] for p in row} for row in groups.tolist()]
    assert all(len(one) == 1 for one in slices)
    assert len(set.union(*slices)) == len(groups)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_part_bounds_are_balanced(size, degree):
    starts, stops = part_bounds(size, degree)
    assert starts[0] == 0
    assert stops[-1] == size
    assert (starts[1:] == stops[:-1]).all()
    assert (stops - starts).max() - (stops - starts).min() <= 1


def test_4096_channels_over_three_devices():
    op = Operator(
        name="linear",
        kind="linear",
        dims=(Dimension("s", 8, Role.SAMPLE), Dimension("o", 4096, Role.PARAMETER)),
        outputs=(Tensor("y", (Axis(8, 0), Axis(4096, 1))),),
    )
    assert part_sizes(op, (1, 3))[1].tolist() == [1365, 1365, 1366]


def test_halo_of_a_convolution_cut_in_rows():
    # 3x3, stride 1, padding 1 over 8 rows, cut in two: each half needs one row of the other.
    producer = Operator(
        name="u", kind="any", dims=(Dimension("h", 8, Role.ATTRIBUTE),), outputs=(Tensor("y", (Axis(8, 0),)),)
    )
    consumer = Operator(
        name="v",
        kind="conv",
        dims=(Dimension("h", 8, Role.ATTRIBUTE),),
        inputs=(Tensor("x", (Axis(8, 0, 1, -1, 3),)),),
        outputs=(Tensor("y", (Axis(8, 0),)),),
    )
    moved = transfers(producer, producer.outputs[0], (2,), consumer, consumer.inputs[0], (2,))
    rows = list(zip(moved.src.tolist(), moved.dst.tolist(), moved.elements.tolist(), strict=True))
    assert rows == [(0, 0, 4), (1, 0, 1), (0, 1, 1), (1, 1, 4)]


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_partial_sums_come_from_every_holder(degree):
    producer = Operator(
        name="u",
        kind="linear",
        dims=(Dimension("s", 4, Role.SAMPLE), Dimension("i", 8, Role.REDUCTION)),
        outputs=(Tensor("y", (Axis(4, 0),)),),
    )
    consumer = Operator(
        name="v",
        kind="relu",
        dims=(Dimension("s", 4, Role.SAMPLE),),
        inputs=(Tensor("x", (Axis(4, 0),)),),
        outputs=(Tensor("y", (Axis(4, 0),)),),
    )
    moved = transfers(producer, producer.outputs[0], (1, degree), consumer, consumer.inputs[0], (1,))
    assert moved.elements.tolist() == [4] * degree


def test_slices_of_unequal_sizes():
    op = Operator(
        name="linear",
        kind="linear",
        dims=(Dimension("s", 8, Role.SAMPLE), Dimension("o", 6, Role.PARAMETER)),
        outputs=(Tensor("y", (Axis(8, 0), Axis(6, 1))),),
    )
    uneven = Slices((6, 2))
    assert [sizes.tolist() for sizes in part_sizes(op, (uneven, 2))] == [[6, 6, 2, 2], [3, 3, 3, 3]]
    assert slice_elements(op, op.outputs[0], (uneven, 2)).tolist() == [18, 18, 6, 6]
    assert op.why_invalid((uneven, 2)) is None
    assert op.why_invalid((Slices((6, 3)), 1)) == "dimension 's': slices of 6 + 3 (each at least 1, together 8)"
    assert "each at least 1" in op.why_invalid((Slices((8, 0)), 1))


def test_a_degree_says_sizes_only_where_slices_are_not_as_even_as_can_be():
    assert (uneven := degree_of([6, 2])) == Slices((6, 2))
    assert type(degree_of([4, 4])) is type(degree_of([1365, 1365, 1366])) is int
    assert degree_of([1366, 1365, 1365]) == Slices((1366, 1365, 1365))
    assert uneven != 2
    assert uneven != 2
    assert uneven > 1
    assert (uneven, 1) != (2, 1)
    assert len({2, uneven, Slices((6, 2)), Slices((5, 3))}) == 3
    assert pickle.loads(pickle.dumps((uneven, 1)))[0].sizes == (6, 2)
