"""Files of FlexFlow's PyTorch front end: its three forms, equal to our own frontend, and messages that name the line.

The texts are what FlexFlow's own writers wrote for networks of ours (``python/flexflow/torch`` of r20.12, r21.09 and
v23.12.0, PyTorch 2.x), unchanged.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.errors import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_frontend_alexnet import Alexnet
from topoplan_frontend_fx import Fx
from topoplan_samples.frontends import multiplications


@parametrize_with_checks(Fx)
def test_conformance(check) -> None:
    check()


ALEXNET_2020 = """\
x, , 2050
conv1, x:, 2011, 64, 11, 11, 4, 4, 2, 2, 10, 1
relu1, conv1:, 2022
pool1, relu1:, 2013, 3, 2, 0, 30, 10
conv2, pool1:, 2011, 192, 5, 5, 1, 1, 2, 2, 10, 1
relu2, conv2:, 2022
pool2, relu2:, 2013, 3, 2, 0, 30, 10
conv3, pool2:, 2011, 384, 3, 3, 1, 1, 1, 1, 10, 1
relu3, conv3:, 2022
conv4, relu3:, 2011, 256, 3, 3, 1, 1, 1, 1, 10, 1
relu4, conv4:, 2022
conv5, relu4:, 2011, 256, 3, 3, 1, 1, 1, 1, 10, 1
relu5, conv5:, 2022
pool3, relu5:, 2013, 3, 2, 0, 30, 10
flat1, pool3:, 2017
linear1, flat1:, 2014, 4096, 10, 1
relu6, linear1:, 2022
linear2, relu6:, 2014, 4096, 10, 1
relu7, linear2:, 2022
linear3, relu7:, 2014, 1000, 10, 1
softmax1, linear3:, 2015
output, softmax1:, 2051
"""

ALEXNET_2021 = """\
x, , conv1:, INPUT
conv1, x:, relu1:, CONV2D, 64, 11, 11, 4, 4, 2, 2, 10, 1, 1
relu1, conv1:, pool1:, RELU
pool1, relu1:, conv2:, POOL2D, 3, 2, 0, 30, 10
conv2, pool1:, relu2:, CONV2D, 192, 5, 5, 1, 1, 2, 2, 10, 1, 1
relu2, conv2:, pool2:, RELU
pool2, relu2:, conv3:, POOL2D, 3, 2, 0, 30, 10
conv3, pool2:, relu3:, CONV2D, 384, 3, 3, 1, 1, 1, 1, 10, 1, 1
relu3, conv3:, conv4:, RELU
conv4, relu3:, relu4:, CONV2D, 256, 3, 3, 1, 1, 1, 1, 10, 1, 1
relu4, conv4:, conv5:, RELU
conv5, relu4:, relu5:, CONV2D, 256, 3, 3, 1, 1, 1, 1, 10, 1, 1
relu5, conv5:, pool3:, RELU
pool3, relu5:, flat1:, POOL2D, 3, 2, 0, 30, 10
flat1, pool3:, linear1:, FLAT
linear1, flat1:, relu6:, LINEAR, 4096, 10, 1
relu6, linear1:, linear2:, RELU
linear2, relu6:, relu7:, LINEAR, 4096, 10, 1
relu7, linear2:, linear3:, RELU
linear3, relu7:, softmax1:, LINEAR, 1000, 10, 1
softmax1, linear3:, output:, SOFTMAX
output, softmax1:, , OUTPUT
"""

ALEXNET = """\
x; ; conv1,; INPUT
conv1; x,; relu1,; CONV2D; 64; 11; 11; 4; 4; 2; 2; 10; 1; 1
relu1; conv1,; pool1,; RELU
pool1; relu1,; conv2,; POOL2D; 3; 2; 0; 30; 10
conv2; pool1,; relu2,; CONV2D; 192; 5; 5; 1; 1; 2; 2; 10; 1; 1
relu2; conv2,; pool2,; RELU
pool2; relu2,; conv3,; POOL2D; 3; 2; 0; 30; 10
conv3; pool2,; relu3,; CONV2D; 384; 3; 3; 1; 1; 1; 1; 10; 1; 1
relu3; conv3,; conv4,; RELU
conv4; relu3,; relu4,; CONV2D; 256; 3; 3; 1; 1; 1; 1; 10; 1; 1
relu4; conv4,; conv5,; RELU
conv5; relu4,; relu5,; CONV2D; 256; 3; 3; 1; 1; 1; 1; 10; 1; 1
relu5; conv5,; pool3,; RELU
pool3; relu5,; flat1,; POOL2D; 3; 2; 0; 30; 10
flat1; pool3,; linear1,; FLAT
linear1; flat1,; relu6,; LINEAR; 4096; 10; 1
relu6; linear1,; linear2,; RELU
linear2; relu6,; relu7,; LINEAR; 4096; 10; 1
relu7; linear2,; linear3,; RELU
linear3; relu7,; softmax1,; LINEAR; 1000; 10; 1
softmax1; linear3,; output,; SOFTMAX
output; softmax1,; ; OUTPUT
"""

BLOCK_2021 = """\
x, , conv_a:add:, INPUT
conv_a, x:, bn_a:, CONV2D, 8, 3, 3, 1, 1, 1, 1, 10, 1, 0
bn_a, conv_a:, relu_a:, BATCH_NORM
relu_a, bn_a:, conv_b:, RELU
conv_b, relu_a:, bn_b:, CONV2D, 8, 3, 3, 1, 1, 1, 1, 10, 1, 0
bn_b, conv_b:, add:cat:, BATCH_NORM
add, x:bn_b:, relu:, ADD
relu, add:, cat:, RELU
cat, relu:bn_b:, flat:, CONCAT, 1
flat, cat:, drop:, FLAT
drop, flat:, fc:, DROPOUT, 0.5
fc, drop:, output:, LINEAR, 10, 10, 1
output, fc:, , OUTPUT
"""

BLOCK = """\
x; ; conv_a,add,; INPUT
conv_a; x,; bn_a,; CONV2D; 8; 3; 3; 1; 1; 1; 1; 10; 1; 0
bn_a; conv_a,; relu_a,; BATCH_NORM
relu_a; bn_a,; conv_b,; RELU
conv_b; relu_a,; bn_b,; CONV2D; 8; 3; 3; 1; 1; 1; 1; 10; 1; 0
bn_b; conv_b,; add,cat,; BATCH_NORM
add; x,bn_b,; relu,; ADD
relu; add,; cat,; RELU
cat; relu,bn_b,; flat,; CONCAT; 1
flat; cat,; drop,; FLAT
drop; flat,; fc,; DROPOUT; 0.5
fc; drop,; output,; LINEAR; 10; 10; 1
output; fc,; ; OUTPUT
"""

TEXT = """\
t; ; emb,; INPUT
emb; t,; q,k,id_1,v,; EMBEDDING; 1000; 32
q; emb,; matmul,; LINEAR; 32; 10; 1
k; emb,; transpose,; LINEAR; 32; 10; 1
transpose; k,; matmul,; TRANSPOSE; 1; 2
matmul; q,transpose,; truediv,; BATCH_MATMUL
truediv; matmul,; sm,; SCALAR_TRUEDIV; 4.0
sm; truediv,; matmul_1,; SOFTMAX
id_1; emb,; add,; IDENTITY
v; emb,; matmul_1,; LINEAR; 32; 10; 1
matmul_1; sm,v,; add,; BATCH_MATMUL
add; id_1,matmul_1,; ln,; ADD
ln; add,; up,; LAYER_NORM
up; ln,; gelu,; LINEAR; 64; 10; 1
gelu; up,; view,; GELU
view; gelu,; permute,; VIEW; 2; -1; 8; 8
permute; view,; output,; PERMUTE; 0; 2; 1; 3
output; permute,; ; OUTPUT
"""


@pytest.fixture
def build(tmp_path):
    """Return a function from a text and shapes of inputs to a graph."""

    def graph_of(text, inputs, batch=8):
        (tmp_path / "net.ff").write_text(text)
        return Fx(file=str(tmp_path / "net.ff"), inputs=inputs).build(batch)

    return graph_of


@pytest.mark.parametrize("text", [ALEXNET_2020, ALEXNET_2021, ALEXNET])
def test_alexnet_is_that_of_the_frontend_alexnet(build, text) -> None:
    graph, ours = build(text, "3x224x224", 256), Alexnet().build(256)
    assert graph.operators == ours.operators
    assert np.array_equal(graph.edges, ours.edges)
    assert sum(weight.elements for op in graph.operators for weight in op.weights) == 61_100_840  # torchvision's count
    assert multiplications(graph) == multiplications(ours)


def test_alexnet_takes_as_long_as_that_of_the_frontend_alexnet(tmp_path) -> None:
    (tmp_path / "net.ff").write_text(ALEXNET)
    models = [Fx(file=str(tmp_path / "net.ff"), inputs="3x224x224"), Alexnet()]
    experiments = [
        Experiment(model=model, cluster=ClusterOptions(servers=4), run=RunOptions(batch_size=64, budget=0))
        for model in models
    ]
    first, second = (optimize(experiment) for experiment in experiments)
    assert first.seconds == second.seconds


@pytest.mark.parametrize("text", [BLOCK_2021, BLOCK])
def test_a_residual_block(build, text) -> None:
    graph = build(text, "8x16x16")
    kinds = [op.kind for op in graph.operators]
    assert kinds == [
        *("conv2d", "batch_norm", "relu", "conv2d", "batch_norm", "add", "relu", "concat", "flat", "dropout", "linear")
    ]
    shapes = {op.name: op.outputs[0].shape for op in graph.operators}
    assert shapes["cat"] == (8, 16, 16, 16)
    assert shapes["flat"] == (8, 16 * 16 * 16)
    # Two kernels without bias, two weights and biases of 8 channels, the linear layer.
    parameters = 2 * 8 * 8 * 9 + 2 * 2 * 8 + 10 * 4096 + 10
    assert sum(weight.elements for op in graph.operators for weight in op.weights) == parameters
    names = [op.name for op in graph.operators]
    edges = {(names[a], names[b]) for a, _, b, _ in graph.edges.tolist()}
    assert {("bn_b", "add"), ("bn_b", "cat"), ("relu", "cat")} <= edges


def test_attention_over_tokens(build) -> None:
    graph = build(TEXT, "16")
    operators = {op.name: op for op in graph.operators}
    assert operators["emb"].inputs[0].itemsize == 8
    assert operators["emb"].outputs[0].shape == (8, 16, 32)
    assert operators["matmul"].outputs[0].shape == (8, 16, 16)
    assert operators["matmul_1"].outputs[0].shape == (8, 16, 32)
    assert operators["add"].outputs[0].shape == (8, 16, 32)
    assert operators["view"].outputs[0].shape == (8, 16, 8, 8)
    assert operators["permute"].outputs[0].shape == (8, 8, 16, 8)
    assert "id_1" not in operators  # changes nothing
    assert "gelu" not in operators  # became the activation of "up"
    assert operators["up"].work[1].coefficient == 2  # bias and function


def test_a_function_that_is_not_alone_stays_an_operator(build) -> None:
    graph = build("x; ; a,; INPUT\na; x,; r,s,; LINEAR; 4; 10; 0\nr; a,; s,; RELU\ns; a,r,; ; ADD\n", "6")
    assert [op.name for op in graph.operators] == ["a", "r", "s"]
    assert graph.operators[0].work[0].coefficient == 2
    assert len(graph.operators[0].work) == 1


def test_pieces_of_a_split(build) -> None:
    text = "x; ; s,; INPUT\ns; x,; a,b,; SPLIT; 1\na; s,; c,; GETITEM; 0\nb; s,; c,; GETITEM; 1\nc; b,a,; ; MULTIPLY\n"
    graph = build(text, "6")
    assert graph.operators[0].outputs[1].shape == (8, 3)
    assert graph.edges.tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "RELU\n",
            "RELO\n",
            r"net\.ff: line 3: operator 'RELO' of node 'relu1' cannot be planned; did you mean 'RELU'",
        ),
        ("conv1; x,", "conv1; y,", r"net\.ff: line 2: CONV2D reads 'y', which no earlier line makes"),
        ("relu1; conv1,", "relu1; conv1,x,", r"net\.ff: line 3: RELU reads 2 tensors \(expected 1\)"),
        (
            "64; 11; 11",
            "64; 11; k",
            r"net\.ff: line 2: CONV2D: 'k' as kernel width \(expected an integer of at least 1",
        ),
        ("10; 1; 1\nrelu1", "10; 2; 1\nrelu1", r"net\.ff: line 2: CONV2D: 2 groups \(only 1 can be planned\)"),
        ("POOL2D; 3;", "POOL2D; (3, 3);", r"net\.ff: line 4: POOL2D: '\(3, 3\)' as kernel \(expected an integer"),
        ("POOL2D; 3;", "POOL2D; 300;", r"net\.ff: line 4: POOL2D: pool2d: kernel 300, stride 2, padding 0 do not fit"),
        ("pool1; relu1", "conv1; relu1", r"net\.ff: line 4: node 'conv1' occurs twice"),
        (
            "relu1; conv1,; pool1,; RELU",
            "relu1",
            r"net\.ff: line 3: 'relu1' is no node \(expected name; inputs; users;",
        ),
        ("LINEAR; 1000", "MEAN; 1", r"net\.ff: line 20: operator 'MEAN' of node 'linear3' cannot be planned"),
        ("LINEAR; 1000; 10; 1", "LINEAR; 1000; 10", r"net\.ff: line 20: LINEAR: '' as bias"),
        (ALEXNET, "", r"net\.ff: has no line"),
        (ALEXNET, "x; ; ; INPUT\n", r"net\.ff: line 1: the file ends here, and model 'net': has no operators"),
        (
            ALEXNET,
            "x; ; ; INPUT\nw; ATTRIBUTE\n",
            r"net\.ff: line 2: operator 'ATTRIBUTE' of node 'w' cannot be planned",
        ),
        (
            ALEXNET,
            "x; ; ; INPUT\nt; x,; ; TRANSPOSE; 0; 1\n",
            r"net\.ff: line 2: TRANSPOSE: changes the axis of samples, which must stay the first",
        ),
        (
            ALEXNET,
            "x; ; ; INPUT\ne; x,; ; EMBEDDING; 9; 9\n",
            r"net\.ff: line 2: EMBEDDING: indices of shape \(8, 3, 224, ",
        ),
        (ALEXNET, "x; ; ; INPUT\nc; x,x,; ; CONCAT; 4\n", r"net\.ff: line 2: CONCAT: axis 4 is none of 4 axes"),
        (ALEXNET, "x; ; ; INPUT\nc; x,; a,b,; SPLIT; -5\n", r"net\.ff: line 2: SPLIT: axis -5 is none of 4 axes"),
        (ALEXNET, "x; ; ; INPUT\nc; x,; a,b,; SPLIT; 0\n", r"net\.ff: line 2: SPLIT: changes the axis of samples"),
        (ALEXNET, "x; ; ; INPUT\nv; x,; ; VIEW; 8; -1; -1\n", r"net\.ff: line 2: VIEW: 8x-1x-1 does not keep"),
        (
            ALEXNET,
            "x; ; ; INPUT\nv; x,; ; VIEW; -1; 7\n",
            r"net\.ff: line 2: VIEW: -1x7 does not keep samples apart",
        ),
    ],
)
def test_damage_is_named_with_its_line(build, old, new, message) -> None:
    assert old in ALEXNET
    with pytest.raises(TopoplanError, match=message):
        build(ALEXNET.replace(old, new, 1), "3x224x224")


@pytest.mark.parametrize("inputs", ["", "3x224", "3x224x224-16", "3x-1", "3,224,224", "0x3"])
def test_shapes_that_do_not_fit_are_named(build, inputs) -> None:
    with pytest.raises(TopoplanError, match=r"inputs: .* must be the shapes of 1 inputs \(x\)|line 2: CONV2D"):
        build(ALEXNET, inputs)


def test_a_file_is_needed() -> None:
    with pytest.raises(TopoplanError, match=r"frontend fx: file is missing \(-o file=model\.ff"):
        Fx().build(4)
    with pytest.raises(TopoplanError, match=r"nowhere\.ff: cannot be read"):
        Fx(file="nowhere.ff").build(4)


WORDS = ["", "0", "-1", "1", "99999999999999999999", "x", "conv1", "RELU", "FLAT", ";", ",", "²"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from(WORDS)), max_size=3),
    st.sampled_from([ALEXNET, BLOCK, TEXT]),
)
def test_any_damage_is_survived(tmp_path_factory, changes, text) -> None:
    words = text.split(" ")
    for place, word in changes:
        words[place % len(words)] = word
    path = tmp_path_factory.mktemp("fx") / "net.ff"
    path.write_text(" ".join(words))
    inputs = {ALEXNET: "3x224x224", BLOCK: "8x16x16", TEXT: "16"}[text]
    try:
        Fx(file=str(path), inputs=inputs).build(4)
    except TopoplanError as error:
        problem = str(error)
    else:
        return
    assert "net.ff: " in problem or problem.startswith("frontend fx: inputs")
    assert "\n" not in problem
