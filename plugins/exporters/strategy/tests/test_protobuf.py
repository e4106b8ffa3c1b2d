"""Protocol buffers: the three schemas of FlexFlow, bytes put together by hand, and messages that name the byte."""

from __future__ import annotations

import warnings

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Axis, Dimension, Operator, OperatorGraph, PlacedStrategy, Placement, Role, Tensor, TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan.testing import reference
from topoplan_exporter_strategy import StrategyFile, StrategyProtobuf

read_strategy = StrategyFile().read_strategy


def linear(name):
    """A linear operator with output (n, o)."""
    return Operator(
        name=name,
        kind="linear",
        dims=(
            Dimension("n", 8, Role.SAMPLE),
            Dimension("o", 6, Role.PARAMETER),
            Dimension("i", 3, Role.REDUCTION),
        ),
        outputs=(Tensor("y", (Axis(8, 0), Axis(6, 1))),),
    )


def table(name):
    """An operator of kind ``embedding`` with output (n, d)."""
    dims = (Dimension("n", 8, Role.SAMPLE), Dimension("d", 4, Role.PARAMETER))
    return Operator(name=name, kind="embedding", dims=dims, outputs=(Tensor("y", (Axis(8, 0), Axis(4, 1))),))


def graph_of(*operators):
    return OperatorGraph(name="model", operators=operators, edges=np.empty((0, 4)), batch_size=8)


GRAPH = graph_of(linear("fc1"), linear("fc2"))
#: fc1 in 2 x 3 parts along (n, o); fc2 in 4 along n.
STRATEGY = PlacedStrategy((Placement((2, 3, 1), [0, 1, 2, 10, 11, 12]), Placement((4, 1, 1), [3, 2, 1, 0])))


def varints(tag, *numbers):
    """Fields of one tag, each with a number below 128."""
    return b"".join(bytes([tag, number]) for number in numbers)


def entry(name, *fields):
    """An entry: field 1 of the file, with the name as its own field 1."""
    body = bytes([0x0A, len(name)]) + name.encode() + b"".join(fields)
    return bytes([0x0A, len(body)]) + body


# Tags by strategy.proto: field number * 8 + wire type (0 for integers, 2 for names and packed integers).
SCHEMAS = {
    "b6563d57": entry("fc1", varints(0x10, 2), varints(0x18, 3, 2), varints(0x20, 0, 1, 2, 10, 11, 12))
    + entry("fc2", varints(0x10, 2), varints(0x18, 1, 4), varints(0x20, 3, 2, 1, 0)),
    "7c9d9956": entry("fc1", varints(0x10, 3, 2), varints(0x18, 0, 1, 2, 10, 11, 12))
    + entry("fc2", varints(0x10, 1, 4), varints(0x18, 3, 2, 1, 0)),
    "3e0d2b02": entry("fc1", varints(0x10, 0), varints(0x18, 3, 2), varints(0x20, 0, 1, 2, 10, 11, 12))
    + entry("fc2", varints(0x10, 0), varints(0x18, 1, 4), varints(0x20, 3, 2, 1, 0)),
    "3e0d2b02, packed": entry("fc1", varints(0x10, 0), b"\x1a\x02\x03\x02", b"\x22\x06\x00\x01\x02\x0a\x0b\x0c")
    + entry("fc2", varints(0x10, 0), b"\x1a\x02\x01\x04", b"\x22\x04\x03\x02\x01\x00"),
    "45f9fa1f, with types of memory": entry(
        "fc1", varints(0x10, 0), varints(0x18, 3, 2), varints(0x20, 0, 1, 2, 10, 11, 12), varints(0x28, 1)
    )
    + entry("fc2", varints(0x10, 0), varints(0x18, 1, 4), varints(0x20, 3, 2, 1, 0)),
}
LAST = SCHEMAS["3e0d2b02"]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_of_flexflow_is_read(schema):
    assert read_strategy(SCHEMAS[schema], "s.pb", GRAPH) == STRATEGY


def test_bytes_that_flexflow_wrote_in_2019():
    # The first entry of FlexFlow's strategies/alexnet_data_parallel.strategy (commit 5a4d4ad48), cut to two axes.
    data = bytes.fromhex("0a150a076c696e65617231100410011800180118021803")
    graph = graph_of(linear("linear1"))
    assert read_strategy(data, "x", graph) == PlacedStrategy((Placement((1, 4, 1), [0, 1, 2, 3]),))


def written(exporter, strategy):
    return exporter().write(attrs.evolve(reference.plan(), graph=GRAPH, strategy=strategy, timeline=None))


def test_the_last_schema_is_written():
    assert written(StrategyProtobuf, STRATEGY) == LAST


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_round_trip(data):
    placements = []
    for _ in GRAPH.operators:
        degrees = (data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6)), 1)
        parts = degrees[0] * degrees[1]
        placements.append(
            Placement(degrees, data.draw(st.lists(st.integers(0, 70_000), min_size=parts, max_size=parts)))
        )
    strategy = PlacedStrategy(tuple(placements))
    assert read_strategy(written(StrategyProtobuf, strategy), "x", GRAPH) == strategy
    assert read_strategy(written(StrategyFile, strategy), "x", GRAPH) == strategy


def test_names_that_flexflows_programs_share():
    data = (
        entry("embedding0", varints(0x10, 0), varints(0x18, 1, 1), varints(0x20, 5))
        + entry("embedding1", varints(0x10, 1), varints(0x18, 1, 1), varints(0x20, 6))
        + entry("linear", varints(0x10, 0), varints(0x18, 1, 2), varints(0x20, 0, 1))
        + entry("fc2", varints(0x10, 0), varints(0x18, 2, 1), varints(0x20, 3, 4))
        + entry("mse_loss", varints(0x10, 0), varints(0x18, 1, 2), varints(0x20, 0, 1))
    )
    graph = graph_of(linear("fc1"), table("emb0"), table("emb1"), linear("fc2"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read_strategy(data, "x", graph)
    assert found == PlacedStrategy(
        (
            Placement((2, 1, 1), [0, 1]),
            Placement((1, 1), [5]),
            Placement((1, 1), [6]),
            Placement((1, 2, 1), [3, 4]),
        )
    )
    messages = [str(warning.message) for warning in caught if warning.category is TopoplanWarning]
    assert messages[0] == (
        "x: linear is all 2 operators of kind linear; embedding0 is emb0; embedding1 is emb1; "
        "mse_loss is a loss, which is no operator of the model"
    )
    assert "1 entry has device type 1, CPU (embedding1)" in messages[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (LAST[:-1], r"s\.pb: byte 25: field 1 needs 19 bytes, 18 follow"),
        (LAST[:1] + b"\x7f" + LAST[2:], r"s\.pb: byte 0: field 1 needs 127 bytes"),
        (LAST.replace(b"\x10\x00", b"\x10\x80"), r"s\.pb: byte "),
        (entry("fc1", b"\x13\x00"), r"s\.pb: byte 7: field 2 has wire type 3 \(expected 0, 1, 2 or 5\)"),
        (entry("fc1", b"\x15\x00\x00\x00\x00"), r"s\.pb: byte 7: field 2 with wire type 5 is none of a strategy"),
        (b"\x0a\x02\x10\x00", r"s\.pb: byte 2: an operator without field 1 \(its name\)"),
        (b"\x0a\x05\x0a\x01\xff\x10\x00", r"s\.pb: byte 4: field 1 \(the operator's name\) is not UTF-8"),
        (LAST.replace(b"fc2", b"fc3"), r"s\.pb: byte 27: model 'model' has no operator 'fc3'; did you mean 'fc2'\?"),
        (LAST.replace(b"\x18\x04", b"\x18\x09"), r"s\.pb: byte 27: '9' as parts of operator 'fc2' along 'n'"),
        (entry("fc1", varints(0x10, 7), varints(0x18, 1, 1)), r"s\.pb: byte 2: '7' as device type"),
    ],
)
def test_damage_is_named_with_its_byte(data, message):
    with pytest.raises(TopoplanError, match=message):
        read_strategy(data, "s.pb", GRAPH)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(LAST) - 1), st.integers(0, 255)), max_size=4), st.integers(1, len(LAST)))
def test_any_damage_is_survived(changes, length):
    data = bytearray(LAST[:length])
    for place, byte in changes:
        data[place % length] = byte
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            strategy = read_strategy(bytes(data), "x", GRAPH)
        except TopoplanError as error:
            problem = str(error)
        else:
            strategy.check(GRAPH, 2**31)
            return
    assert problem.startswith("x: ")
    assert "\n" not in problem
