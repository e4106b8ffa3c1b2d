"""Shardings and signatures: names, what is derived from an operator by hand, and which devices can hold what."""

from __future__ import annotations

from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, arguments, shard
from topoplan_engine.sharding.signatures import signatures
from topoplan_operators import Handle, dense, pointwise, spatial


def texts(op: Operator) -> list[str]:
    return [str(signature) for signature in signatures(op)]


def test_names_are_those_of_hidup():
    assert [str(form) for form in (REPLICATED, PARTIAL, PENDING_GRADIENT, shard(0), shard(11))] == [
        "full",
        "reduce",
        "replicate",
        "gather_0",
        "gather_11",
    ]


def test_a_matrix_product_without_bias():
    op = dense.linear(Handle((8, 6)), 4, bias=False, activation=False)
    assert texts(op) == [
        "(gather_0, full) -> (gather_0)",  # samples
        "(full, gather_0) -> (gather_1)",  # rows of the weight
        "(gather_1, gather_1) -> (reduce)",  # the reduction
        "(reduce, full) -> (reduce)",
        "(full, reduce) -> (reduce)",
        "(full, full) -> (full)",
    ]


def test_a_bias_is_added_once():
    # Cut along the reduction each device would add it; in partial sums it is added once in all.
    op = dense.linear(Handle((8, 6)), 4, bias=True, activation=False)
    assert "(gather_1, gather_1, full) -> (reduce)" not in texts(op)
    assert "(gather_1, gather_1, reduce) -> (reduce)" in texts(op)
    assert "(reduce, full, reduce) -> (reduce)" in texts(op)


def test_an_activation_ends_linearity():
    op = dense.linear(Handle((8, 6)), 4, bias=True, activation=True)
    assert texts(op)[:-1] == ["(gather_0, full, full) -> (gather_0)", "(full, gather_0, gather_0) -> (gather_1)"]


def test_what_cannot_be_cut_is_not_sliced():
    op = pointwise.softmax(Handle((4, 6, 8)), 1)
    assert texts(op)[:-1] == ["(gather_0) -> (gather_0)", "(gather_2) -> (gather_2)"]


def test_windows_are_sliced_only_where_they_do_not_overlap():
    x = Handle((2, 3, 8, 8))
    patches = spatial.conv2d(x, 4, 4, stride=4, padding=0, bias=False, activation=False)
    assert "(gather_2, full) -> (gather_2)" in texts(patches)
    windows = spatial.conv2d(x, 4, 3, stride=1, padding=1, bias=False, activation=False)
    assert "(full, full) -> (gather_2)" in texts(windows)


def test_a_dimension_that_one_of_two_outputs_lacks():
    # Rows, and their sum over rows: slices of the one are partial sums of the other.
    rows = Axis(8, 0)
    op = Operator(
        name="both",
        kind="both",
        dims=(Dimension("r", 8, Role.REDUCTION),),
        inputs=(Tensor("x", (rows,)),),
        outputs=(Tensor("same", (rows,)), Tensor("sum", ())),
        linear_in=((0,),),
    )
    assert "(gather_0) -> (gather_0, reduce)" in texts(op)
    assert len(arguments(op)) == 1


def test_every_signature_comes_once_and_the_whole_one_last():
    op = pointwise.elementwise("add", [Handle((4, 6)), Handle((4, 6))])
    rules = signatures(op)
    assert len(set(rules)) == len(rules)
    assert set(rules[-1].inputs) == set(rules[-1].outputs) == {REPLICATED}
    assert [s.dim for s in rules] == [0, 1, -1, -1]
