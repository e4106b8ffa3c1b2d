"""Reading profiles, scaling them to a batch, and telling what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from topoplan import Role, TopoplanError
from topoplan.options import structure
from topoplan_engine.precision import in_precision
from topoplan_engine.reporting.model import parameter_count
from topoplan_frontend_torchgraph import Torchgraph
from topoplan_layer_profiles.graphs import graph_of
from topoplan_layer_profiles.reading import parse, read

NODE = "{} -- {} -- forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"
EXAMPLE = Path(Torchgraph.example["file"])


def node(name, description="Layer", forward=1.0, backward=2.0, activations="64.0", parameters=8.0):
    return NODE.format(name, description, forward, backward, activations, parameters)


def text(*lines):
    return "\n".join(lines)


def build(path, batch_size=None, **given):
    return structure(Torchgraph, {"file": str(path), **given}, "frontend").build(batch_size)


def names(graph):
    return [op.name for op in graph.operators]


def test_example_by_hand():
    graph = build(EXAMPLE)
    assert graph.batch_size == 4
    # The data and the tuple element that nobody reads are gone.
    assert names(graph) == ["node2.Conv2d", "node3.ReLU", "node4.LSTM", "node5.getitem", "node7.Linear"]
    assert graph.edges.tolist() == [[0, 0, 1, 0], [1, 0, 2, 0], [2, 0, 3, 0], [1, 0, 4, 0], [3, 0, 4, 1]]
    conv, lstm = graph.operators[0], graph.operators[2]
    assert conv.dims[0].role is Role.SAMPLE
    assert conv.profile.forward == pytest.approx(1.2e-3)
    assert conv.profile.backward == pytest.approx(2.5e-3)
    assert conv.weights[0].nbytes == 896
    assert lstm.profile.activation_bytes == lstm.outputs[0].nbytes == 32512  # the outputs in brackets together
    assert graph.parameter_bytes == 896 + 8704 + 680


def test_times_and_activations_grow_with_the_batch_and_parameters_do_not():
    small, large = build(EXAMPLE), build(EXAMPLE, 40)
    assert large.batch_size == 40
    for a, b in zip(small.operators, large.operators, strict=True):
        for field in ("forward", "backward", "activation_bytes"):
            assert getattr(b.profile, field) == pytest.approx(10 * getattr(a.profile, field))
        assert b.outputs[0].nbytes == 10 * a.outputs[0].nbytes
        assert [t.nbytes for t in a.weights] == [t.nbytes for t in b.weights]


def test_profiled_batch_is_in_the_name_or_told(tmp_path):
    unnamed = tmp_path / "model.txt"
    unnamed.write_text(EXAMPLE.read_text())
    with pytest.raises(TopoplanError, match=r"model\.txt: profile-batch is missing.*pbs-N in the name"):
        build(unnamed)
    assert build(unnamed, **{"profile-batch": 8}).batch_size == 8
    assert build(EXAMPLE, **{"profile-batch": 2}).batch_size == 2  # what is message counts


def test_order_is_that_of_the_file_as_far_as_edges_allow():
    lines = [node(name) for name in ("c", "a", "b")]
    graph = graph_of(parse(text(*lines, "\tb -- c", "\ta -- b"), "test"), "test", "test", 4, 4)
    assert names(graph) == ["a.Layer", "b.Layer", "c.Layer"]
    assert names(graph_of(parse(text(*lines), "test"), "test", "test", 4, 4)) == ["c.Layer", "a.Layer", "b.Layer"]


def test_what_real_files_hold_is_read():
    profile = parse(
        text(
            node("node1", "EmuBidirLSTM(  (bidir): LSTM(8, 8)  (layer1): LSTM(8, 8))", activations="[1.5; 2; 3]"),
            "",
            node("node2", "Linear(in_features=4, bias=True)") + " ",
            node("node3") + " -- stage_id=4",
            " \tnode1 -- node2",
            "  node2 -- node3\r",
            "\tnode2 -- node3",
        ),
        "test",
    )
    assert [n.activations for n in profile.nodes] == [6.5, 64.0, 64.0]
    assert profile.nodes[0].description.startswith("EmuBidirLSTM(  (bidir)")
    assert profile.edges == ((0, 1), (1, 2))


def test_only_sources_are_data_and_only_sinks_unused():
    lines = [node("a", "input_ids"), node("b", "InputBlock"), node("c", "__getitem__(0)"), node("d")]
    graph = graph_of(parse(text(*lines, "\ta -- b", "\tb -- c", "\tc -- d"), "test"), "test", "test", 4, 4)
    assert names(graph) == ["a.input_ids", "b.InputBlock", "c.getitem", "d.Layer"]


def test_outputs_of_no_bytes_still_order_operators():
    lines = [node("a", activations="0"), node("b", activations="7")]
    graph = graph_of(parse(text(*lines, "\ta -- b"), "test"), "test", "test", 4, 4)
    assert graph.operators[0].profile.activation_bytes == 0
    assert graph.operators[0].outputs[0].nbytes == 4
    assert graph.operators[1].outputs[0].nbytes == 8  # 7 bytes of 4 samples: whole bytes for each
    assert graph.operators[1].profile.activation_bytes == 7


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "test: has no nodes"),
        (["node1"], "test: line 1: 'node1' is no node"),
        ([node("a"), "node2 -- Linear(4"], "test: line 2: 'node2 -- Linear.4' is no node"),
        ([node("a"), node("b")[:48]], "test: line 2: backward_compute_time: 'backward' .expected"),
        ([node("a"), node("b")[:70]], "test: line 2: activation_size: 'act' .expected activation_size=NUMBER"),
        ([node("a").rpartition(",")[0]], "test: line 1: parameter_size: the line ends .expected parameter_size=NUMBER"),
        ([node("a", parameters="")], "test: line 1: parameter_size: '' is no number"),
        ([node("a", forward="fast")], "test: line 1: forward_compute_time: 'fast' is no number"),
        ([node("a", backward="-1")], "test: line 1: backward_compute_time: -1.0 .must be 0 to"),
        ([node("a", backward="nan")], "test: line 1: backward_compute_time: nan"),
        ([node("a", forward="inf")], "test: line 1: forward_compute_time: inf"),
        ([node("a", activations="[1; x]")], "test: line 1: activation_size: 'x' is no number"),
        ([node("a", activations="[1; 2")], r"test: line 1: activation_size: '\[1; 2' is no number"),
        ([node("a") + ", more=1"], "test: line 1: 'more=1' follows parameter_size"),
        ([node("a") + " -- stage_id=x"], "test: line 1: stage_id: 'stage_id=x'"),
        ([node("a").replace("activation_size", "size")], "test: line 1: activation_size: 'size=64.0'"),
        ([node("a"), node("a")], "test: line 2: node 'a' stands there twice"),
        ([node("a"), "\ta -- b", node("b")], "test: line 2: no node 'b' stands before this line"),
        ([node("a"), "\ta --"], "test: line 2: 'a --' is no edge"),
        ([node("a"), "\ta"], "test: line 2: 'a' is no edge"),
    ],
)
def test_wrong_lines_are_told_with_number_and_field(lines, message):
    with pytest.raises(TopoplanError, match=message):
        parse(text(*lines), "test")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([node("a"), node("b"), "\ta -- b", "\tb -- a"], "test: node 'a' is on a cycle"),
        ([node("a"), "\ta -- a"], "test: node 'a' is on a cycle"),
        ([node("a", "Input0")], "test: has nothing but training data"),
    ],
)
def test_profiles_that_are_no_model_are_refused(lines, message):
    with pytest.raises(TopoplanError, match=message):
        graph_of(parse(text(*lines), "test"), "test", "test", 4, 4)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(TopoplanError, match="file is missing"):
        Torchgraph().build(4)
    with pytest.raises(TopoplanError, match=r"none\.txt: cannot be read"):
        read(tmp_path / "none.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopoplanError, match=r"bytes\.txt: byte 0 is not UTF-8"):
        read(tmp_path / "bytes.txt")


def test_every_cut_of_a_file_is_refused_or_smaller():
    """A profile that was cut off anywhere is message, or its last line is whole."""
    whole = EXAMPLE.read_text().splitlines(keepends=True)
    nodes = "".join(whole[:7])
    for end in range(1, len(nodes)):
        cut = nodes[:end]
        if cut.endswith("\n") or nodes[end] == "\n" or cut[-1] == "=" or nodes[end] in "0123456789.":
            continue  # a whole line, or digits missing from its last number
        with pytest.raises(TopoplanError):
            parse(cut, "test")


def test_the_same_file_gives_the_same_graph():
    assert build(EXAMPLE, 12) == build(EXAMPLE, 12)
    assert np.array_equal(build(EXAMPLE, 12).edges, build(EXAMPLE).edges)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            Torchgraph(),
            "profile or file is missing (-o profile=NAME names a profile that comes with it: amoeba-6",
        ),
        (Torchgraph(profile="bert-48", file="a.txt"), "profile=bert-48 and file=a.txt are both given"),
    ],
)
def test_profile_or_file_are_given(options, message):
    with pytest.raises(TopoplanError, match=re.escape(message)):
        options.build(64)


def test_included_profiles_are_built():
    assert Torchgraph(profile="bert-48").build(64).batch_size == 64
    assert Torchgraph(profile="bert-48", profile_batch=4).build(None).batch_size == 4


#: Parameters of AlexNet's layers: kernels and biases (Krizhevsky 2014, as torchvision has it).
ALEXNET = [
    64 * 3 * 11**2 + 64,
    192 * 64 * 5**2 + 192,
    384 * 192 * 3**2 + 384,
    256 * 384 * 3**2 + 256,
    256 * 256 * 3**2 + 256,
    4096 * 9216 + 4096,
    4096 * 4096 + 4096,
    1000 * 4096 + 1000,
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bytes_of_a_profile_are_no_parameters(tmp_path, precision):
    """244,403,360 bytes of weights in fp32 are 61,100,840 parameters."""
    lines = [node(f"node{k}", parameters=4.0 * count) for k, count in enumerate(ALEXNET)]
    path = tmp_path / "alexnet-pbs-16.txt"
    path.write_text(text(*lines, *(f"\tnode{k} -- node{k + 1}" for k in range(len(ALEXNET) - 1))))
    graph = in_precision(build(path), precision)
    assert parameter_count(graph) == sum(ALEXNET) == 61_100_840
    assert graph.parameter_bytes == 61_100_840 * (4 if precision == "fp32" else 2)


def test_bytes_that_are_no_whole_parameters_stay(tmp_path):
    path = tmp_path / "odd-pbs-16.txt"
    path.write_text(text(node("node0", parameters=4097.0), node("node1", parameters=2.0), "\tnode0 -- node1"))
    graph = build(path)
    assert graph.parameter_bytes == 4099
    assert parameter_count(graph) == 1024  # both are rounded
