"""Strategy files: FlexFlow's order of axes and parts, round trips, and messages that name the line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import (
    Axis,
    Dimension,
    Operator,
    OperatorGraph,
    PlacedStrategy,
    Placement,
    Role,
    Tensor,
    TopoplanError,
)
from topoplan.errors import TopoplanWarning
from topoplan.model.graph import Slices
from topoplan.testing import reference
from topoplan_engine.incomplete import IncompleteStrategyError
from topoplan_exporter_strategy import StrategyFile

read_strategy = StrategyFile().read_strategy


def conv(name="conv1"):
    """A convolution with output (n, o, h, w) and the channels that it sums over."""
    return Operator(
        name=name,
        kind="conv2d",
        dims=(
            Dimension("n", 8, Role.SAMPLE),
            Dimension("o", 6, Role.PARAMETER),
            Dimension("h", 4, Role.ATTRIBUTE),
            Dimension("w", 4, Role.ATTRIBUTE),
            Dimension("i", 3, Role.REDUCTION),
        ),
        outputs=(Tensor("y", (Axis(8, 0), Axis(6, 1), Axis(4, 2), Axis(4, 3))),),
    )


def scattered(name="moved"):
    """An operator whose output axes (w, whole, n, o) stand in another order than its dimensions (i, o, n, w)."""
    return Operator(
        name=name,
        kind="transpose",
        dims=(
            Dimension("i", 3, Role.REDUCTION),
            Dimension("o", 6, Role.PARAMETER),
            Dimension("n", 8, Role.SAMPLE),
            Dimension("w", 4, Role.ATTRIBUTE),
        ),
        outputs=(Tensor("y", (Axis(4, 3), Axis(5, -1), Axis(8, 2), Axis(6, 1))),),
    )


def graph_of(*operators):
    return OperatorGraph(name="model", operators=operators, edges=np.empty((0, 4)), batch_size=8)


GRAPH = graph_of(scattered(), conv())


def write(graph, *placements):
    plan = reference.plan()
    made = type(plan)(
        cluster=plan.cluster,
        fabric=plan.fabric,
        taskgraph=plan.taskgraph,
        graph=graph,
        strategy=PlacedStrategy(placements),
    )
    return StrategyFile().write(made)


WHOLE = Placement((1, 1, 1, 1), [5])
HALVES = Placement((1, 1, 2, 2, 1), [0, 2, 1, 3])
TEXT = write(GRAPH, WHOLE, HALVES)


def test_the_form_of_flexflow():
    # Operators by name; axes innermost first: w h o n; devices with w fastest.
    assert TEXT == (b"2\nconv1\n0\n4\n2\t2\t1\t1\t\n4\n0\t2\t1\t3\t\nmoved\n0\n4\n1\t1\t1\t1\t\n1\n5\t\n")


def test_the_order_of_parts_follows_the_output():
    # Degrees (i, o, n, w) = (1, 3, 2, 1): part (o, n) runs on device 10 o + n.
    placement = Placement((1, 3, 2, 1), [0, 1, 10, 11, 20, 21])
    lines = write(GRAPH, placement, HALVES).decode().split("\n")
    # Axes innermost first: o n whole w; devices with o fastest.
    assert lines[7:13] == ["moved", "0", "4", "3\t2\t1\t1\t", "6", "0\t10\t20\t1\t11\t21\t"]


def test_reading_the_order_of_parts():
    text = b"1 moved 0 4 3 2 1 1 6 0 10 20 1 11 21"
    found = read_strategy(text, "x", graph_of(scattered())).placements[0]
    assert found == Placement((1, 3, 2, 1), [0, 1, 10, 11, 20, 21])


def test_without_devices_they_count_from_zero():
    found = read_strategy(b"1\nconv1\n0\n4\n1 1 2 4\n0\n", "x", graph_of(conv())).placements[0]
    assert found == Placement((4, 2, 1, 1, 1), range(8))


@st.composite
def placements(draw, operator):
    cuttable = [d if d.role is not Role.REDUCTION else None for d in operator.dims]
    degrees = [draw(st.integers(1, min(dim.size, 4))) if dim else 1 for dim in cuttable]
    parts = int(np.prod(degrees))
    return Placement(degrees, draw(st.lists(st.integers(0, 1000), min_size=parts, max_size=parts)))


@settings(max_examples=60, deadline=None)
@given(placements(scattered()), placements(conv()))
def test_round_trip(first, second):
    found = read_strategy(write(GRAPH, first, second), "x", GRAPH)
    assert found == PlacedStrategy((first, second))


@pytest.mark.parametrize("name", ["a b", "größe", "100%", "a%20b", "x\ty"])
def test_any_name_survives(name):
    graph = graph_of(conv(name), conv("a%2520b"))
    assert read_strategy(write(graph, HALVES, HALVES), "x", graph) == PlacedStrategy((HALVES, HALVES))


def test_a_cut_reduction_cannot_be_written():
    with pytest.raises(TopoplanError, match="operator 'conv1' is cut 3 times along 'i', which its output lacks"):
        write(GRAPH, WHOLE, Placement((1, 1, 1, 1, 3), [0, 1, 2]))


def test_slices_of_unequal_sizes_cannot_be_written():
    with pytest.raises(
        TopoplanError, match=r"operator 'conv1' is cut along 'h' into slices of 3 \+ 1, but this format"
    ):
        write(GRAPH, WHOLE, Placement((1, 1, Slices((3, 1)), 1, 1), [0, 1]))


def test_a_name_too_long_cannot_be_written():
    with pytest.raises(TopoplanError, match="too long"):
        write(graph_of(conv("c" * 64)), HALVES)


def test_a_plan_without_a_strategy():
    plan = reference.plan()
    bare = type(plan)(cluster=plan.cluster, fabric=plan.fabric, taskgraph=plan.taskgraph)
    with pytest.raises(TopoplanError, match="only a task graph"):
        StrategyFile().write(bare)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"2\nconv1", b"2\nconv2", r"x: line 2: model 'model' has no operator 'conv2'; did you mean 'conv1'\?"),
        (b"moved", b"conv1", "x: line 8: operator 'conv1' occurs twice"),
        (b"conv1\n0", b"conv1\n2", "x: line 3: '2' as device type of operator 'conv1'"),
        (b"0\n4\n2", b"0\n3\n2", "x: line 4: '3' as number of axes of operator 'conv1'"),
        (b"2\t2\t1\t1", b"5\t2\t1\t1", "x: line 5: '5' as parts of operator 'conv1' along 'w'"),
        (b"2\t2\t1\t1", b"0\t2\t1\t1", "x: line 5: '0' as parts of operator 'conv1' along 'w'"),
        (b"2\t2\t1\t1", b"2\tx\t1\t1", "x: line 5: 'x' as parts of operator 'conv1' along 'h'"),
        (b"2\t2\t1\t1\t\n4", b"2\t2\t1\t1\t\n3", "x: line 6: 3 devices of operator 'conv1' for 4 parts"),
        (b"0\t2\t1\t3", b"0\t2\t1\t-1", "x: line 7: '-1' as device of operator 'conv1'"),
        (b"0\t2\t1\t3", b"0\t2\t1", "x: line 8: 'moved' as device of operator 'conv1'"),
        (b"1\t1\t1\t1\t\n1", b"1\t1\t2\t1\t\n1", r"x: line 11: '2' as parts of operator 'moved' along axis 1 \(which"),
        (b"5\t\n", b"", "x: line 12: the file ends before the device of operator 'moved'"),
        (b"5\t\n", b"5 6", "x: line 13: '6' after the last operator"),
        (b"2\nconv1", b"3\nconv1", "x: line 13: the file ends before the operator name"),
        (b"2\nconv1", b"9999999999\nconv1", "x: line 1: '9999999999' as number of operators"),
        (TEXT, b"", "x: the file ends before the number of operators"),
        (TEXT, b"\xff\xfe", "x: is not text"),
    ],
)
def test_damage_is_named_with_its_line(old, new, message):
    assert old in TEXT
    with pytest.raises(TopoplanError, match=message):
        read_strategy(TEXT.replace(old, new, 1), "x", GRAPH)


def test_missing_operators_are_named():
    with pytest.raises(TopoplanError, match=r"x: says nothing about conv1 \(.*`--strategy-rest data-parallel`"):
        read_strategy(b"1 moved 0 4 1 1 1 1 1 0", "x", GRAPH)


def test_what_is_named_comes_along_where_operators_are_missing():
    with pytest.raises(IncompleteStrategyError) as caught:
        read_strategy(b"1 moved 0 4 1 1 1 1 1 5", "x", GRAPH)
    assert caught.value.missing == ["conv1"]
    assert caught.value.completed(PlacedStrategy((HALVES, HALVES))) == PlacedStrategy((WHOLE, HALVES))


def test_an_operator_on_cpus_is_planned_on_gpus_and_a_warning_says_so():
    text = TEXT.replace(b"conv1\n0", b"conv1\n1")
    with pytest.warns(
        TopoplanWarning, match=r"x: 1 entry has device type 1, CPU \(conv1\); .* GPUs of the same numbers"
    ):
        assert read_strategy(text, "x", GRAPH) == PlacedStrategy((WHOLE, HALVES))


WORDS = st.sampled_from(["0", "1", "2", "4", "-1", "conv1", "moved", "99999999999", "1_0", "²", "x", ""])


@pytest.mark.filterwarnings("ignore:x. . entr:topoplan.errors.TopoplanWarning")  # a device of a kind that moves
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(TEXT.split()) - 1), WORDS), max_size=3), st.integers(0, len(TEXT)))
def test_any_damage_is_survived(changes, length):
    words = TEXT[:length].decode().split() if not changes else TEXT.decode().split()
    for place, word in changes:
        words[place] = word
    try:
        read_strategy(" ".join(words).encode(), "x", GRAPH).check(GRAPH, 1000)
    except TopoplanError as error:
        problem = str(error)
    else:
        return
    assert problem.startswith("x: ")
    assert "\n" not in problem


def test_a_schedule_is_refused():
    with pytest.raises(TopoplanError, match=r"has a schedule \(1f1b, 4 micro-batches, 2 stages\), .*json can"):
        StrategyFile().write(reference.pipelined())
