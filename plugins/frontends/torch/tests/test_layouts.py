"""Views: what a layout says of a tensor, compared with numpy, element by element."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topoplan_frontend_torch.layouts import Layout
from topoplan_operators import Handle


def elements(layout):
    """Return for each element of a view its number in the tensor, from the atoms alone."""
    strides = [math.prod(layout.handle.shape[k + 1 :]) for k in range(len(layout.handle.shape))]
    numbers = np.zeros((), dtype=np.int64)
    for axis in layout.axes:
        steps = np.zeros(1, dtype=np.int64)
        for atom in axis:
            stride = strides[atom.axis] * atom.stride if atom.axis >= 0 else 0
            steps = (steps[:, None] + np.arange(atom.size) * stride).ravel()
        numbers = numbers[..., None] + steps
    return numbers


@st.composite
def views(draw):
    """Draw a tensor, and views on it step by step; each with what numpy has."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    layout, array = Layout.of(Handle(shape), 0), np.arange(math.prod(shape)).reshape(shape)
    for _ in range(draw(st.integers(0, 5))):
        step = draw(st.sampled_from(["permute", "reshape", "unsqueeze", "expand"]))
        if step == "permute":
            order = draw(st.permutations(range(array.ndim)))
            layout, array = layout.permuted(order), array.transpose(order)
        elif step == "unsqueeze":
            axis = draw(st.integers(0, array.ndim))
            layout, array = layout.unsqueezed(axis), np.expand_dims(array, axis)
        elif step == "expand" and array.size < 10_000:
            wanted = tuple(draw(st.integers(1, 3)) if size == 1 else size for size in array.shape)
            layout, array = layout.expanded(wanted), np.broadcast_to(array, wanted)
        elif step == "reshape":
            sizes = [size for size in array.shape for size in ([2, size // 2] if size % 2 == 0 else [size])]
            joined = draw(st.booleans()) and len(sizes) > 1
            wanted = (sizes[0] * sizes[1], *sizes[2:]) if joined else tuple(sizes)
            seen = layout.reshaped(wanted)
            if seen is not None:
                layout, array = seen, array.reshape(wanted)
    return layout, array


@given(views())
def test_a_view_has_the_elements_that_numpy_has(drawn):
    layout, array = drawn
    assert layout.shape == array.shape
    np.testing.assert_array_equal(elements(layout), array)


@given(views())
def test_the_view_on_split_axes_is_the_same(drawn):
    layout, array = drawn
    split = layout.split()
    if split is not None:
        assert math.prod(split[0]) == math.prod(layout.handle.shape)
        np.testing.assert_array_equal(elements(split[1]), array)


@given(views())
def test_plain_views_are_the_tensor(drawn):
    layout, array = drawn
    if layout.is_plain:
        np.testing.assert_array_equal(array.ravel(), np.arange(array.size))


def test_a_split_that_cuts_across_an_axis_cannot_be_told():
    assert Layout.of(Handle((4, 6))).permuted((1, 0)).reshaped((8, 3)) is None


def test_heads_that_go_forth_and_back_leave_the_tensor_plain():
    flat = Layout.of(Handle((2, 5, 12)), 0)
    heads = flat.reshaped((2, 5, 3, 4)).permuted((0, 2, 1, 3))
    assert heads.shape == (2, 3, 5, 4)
    assert heads.permuted((0, 2, 1, 3)).reshaped((2, 5, 12)) == flat
