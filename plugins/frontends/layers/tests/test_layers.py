"""Models in TOML and JSON: what they become, equal to other frontends' models, and messages that name the table."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.errors import TopoplanError
from topoplan.options import describe
from topoplan.testing import parametrize_with_checks
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_frontend_layers import Layers
from topoplan_frontend_layers.kinds import KINDS
from topoplan_operators import GraphBuilder

HERE = Path(__file__).resolve()
README = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLE = HERE.parents[4] / "examples" / "models" / "transformer.toml"
MLP = """
[[input]]
shape = [8]
[[layer]]
name = "fc"
kind = "linear"
out = 4
"""


@parametrize_with_checks(Layers)
def test_conformance(check) -> None:
    check()


@pytest.fixture
def build(tmp_path):
    """Return a function from a text to a graph."""

    def graph_of(text, batch=None, suffix=".toml"):
        path = tmp_path / f"model{suffix}"
        path.write_text(text)
        return Layers(file=str(path)).build(batch)

    return graph_of


def parameters(graph):
    return sum(weight.elements for op in graph.operators for weight in op.weights)


def sources(graph, name):
    names = [op.name for op in graph.operators]
    return [names[u] for u, _, v, _ in graph.edges.tolist() if names[v] == name]


def blocks_of_readme(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_a_file_is_what_the_builder_builds(build) -> None:
    graph = build(blocks_of_readme("toml")[0])
    b = GraphBuilder("mlp", 512)
    x = b.linear(b.input((784,)), 4096, activation="relu", name="linear1")
    b.linear(b.linear(x, 4096, activation="relu", name="linear2"), 10, name="classes")
    assert graph == b.build()
    assert parameters(graph) == 785 * 4096 + 4097 * 4096 + 4097 * 10


def test_json_and_toml_are_one_format(build) -> None:
    text = blocks_of_readme("toml")[0]
    written, converted = blocks_of_readme("json")[0], json.dumps(tomllib.loads(text))
    assert build(written, suffix=".json") == build(converted, suffix=".json") == build(text)


def test_blocks_repeat_on_their_own_output(build) -> None:
    graph = build(blocks_of_readme("toml")[1], 16)
    assert sources(graph, "block.0.conv1") == ["stem"]
    assert sources(graph, "block.0.add1") == ["block.0.conv2", "stem"]
    assert sources(graph, "block.3.add1") == ["block.3.conv2", "block.2.add1"]
    assert sources(graph, "pool2d1") == ["block.3.add1"]
    assert graph.operators[-1].sizes == (16, 10, 64 * 16 * 16)
    assert parameters(graph) == 1792 + 4 * (36_864 + 128 + 36_928) + 163_850


def test_every_text_of_the_readme_is_a_model(build) -> None:
    graphs = [build(text, 8) for text in blocks_of_readme("toml")]
    assert [len(graph.operators) for graph in graphs] == [3, 24, 15, 1]
    assert sources(graphs[2], "add2") == ["down", "add1"]
    assert parameters(graphs[2]) == (2 * 1024 + 2 * 256) * 1024 + 3 * 1024 * 2816 + 2 * 1024
    attention = next(op for op in graphs[2].operators if op.name == "attention")
    assert {dim.name: dim.size for dim in attention.dims if dim.name in "hgd"} == {"h": 4, "g": 4, "d": 64}


def test_an_operator_by_its_algebra_equals_the_kind(build) -> None:
    text = MLP.replace(
        'kind = "linear"\nout = 4',
        """kind = "operator"
computes = "linear"
dimensions = [{name = "s", size = "batch", role = "sample"}, {name = "o", size = 4, role = "parameter"},
              {name = "i", size = 8, role = "reduction"}]
inputs = [{name = "x", axes = ["s", "i"]}]
weights = [{name = "kernel", axes = ["o", "i"]}, {name = "bias", axes = ["o"]}]
outputs = [{name = "y", axes = ["s", "o"]}]
flops = [{each = 2, over = ["s", "o", "i"]}, {each = 1, over = ["s", "o"]}]
linear-in = [[0, 2], [1, 2]]""",
    )
    ours, kind = build(text), build(MLP)
    assert attrs.evolve(ours.operators[0], tags={}) == attrs.evolve(kind.operators[0], tags={})
    assert np.array_equal(ours.edges, kind.edges)


def test_experts_take_their_share_of_the_positions() -> None:
    graph = Layers(file=str(EXAMPLE)).build(2)
    shapes = {op.name: op.outputs[0].shape for op in graph.operators if op.name.startswith("block.11.")}
    assert shapes["block.11.dispatch"] == (2, 8, 2 * 512 // 8, 1024)
    assert shapes["block.11.up"] == (2, 8, 128, 4096)
    assert shapes["block.11.combine"] == (2, 512, 1024)
    assert sources(graph, "block.11.combine") == ["block.11.down", "block.11.choice", "block.11.choice"]


def test_kinds_of_the_algebra_have_its_shapes(build) -> None:
    text = """
[[input]]
name = "x"
shape = [6, 8, 8]
[[layer]]
name = "conv"
kind = "conv2d"
out = 12
kernel = 3
dilation = 2
groups = 3
[[layer]]
name = "mean"
kind = "mean"
over = [2, -1]
[[layer]]
name = "parts"
kind = "split"
sizes = [8, 4]
[[layer]]
name = "norm"
kind = "rms_norm"
from = "parts:y1"
"""
    graph = build(text, 2)
    shapes = [tensor.shape for op in graph.operators for tensor in op.outputs]
    assert shapes == [(2, 12, 4, 4), (2, 12), (2, 8), (2, 4), (2, 4)]
    assert parameters(graph) == 12 * 2 * 9 + 12 + 4
    with pytest.raises(TopoplanError, match=r"layer 3 'parts': split: sizes 8, 5 along axis 1 of \(2, 12\)"):
        build(text.replace("[8, 4]", "[8, 5]"), 2)


def test_strided_axes_reach_the_graph(build) -> None:
    text = """
[[input]]
shape = [10]
[[layer]]
kind = "operator"
dimensions = [{name = "n", size = "batch", role = "sample"}, {name = "w", size = 4, role = "attribute"}]
inputs = [["n", {dim = "w", size = 10, scale = 2, offset = -1, extent = 3}]]
outputs = [["n", "w"]]
bytes = [{each = 0.5, over = ["n"]}]
"""
    operator = build(text, 2).operators[0]
    assert attrs.astuple(operator.inputs[0].axes[1]) == (10, 1, 2, -1, 3)
    assert operator.traffic[0].coefficient == 0.5


def test_outputs_have_names(build) -> None:
    text = """
[[input]]
shape = [16]
[[layer]]
name = "choice"
kind = "top_k"
k = 2
[[layer]]
kind = "relu"
from = "choice:{}"
"""
    for output, edge in (("values", 0), ("indices", 1)):
        assert build(text.format(output)).edges.tolist() == [[0, edge, 1, 0]]
    with pytest.raises(TopoplanError, match=r"'choice' has no output 'index'; did you mean 'indices'\?"):
        build(text.format("index"))


def test_the_example_plans_end_to_end() -> None:
    model = Layers(file=str(EXAMPLE))
    assert (
        parameters(model.build(1)) == 32_000 * 1024 * 2 + 12 * ((4 + 8 * 8) * 1024**2 + 8 * 1024 + 4 * 1024) + 2 * 1024
    )
    done = optimize(Experiment(model=model, cluster=ClusterOptions(servers=2), run=RunOptions(batch_size=4, budget=0)))
    assert 0 < done.seconds < math.inf


@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_has_every_kind_with_its_options(kind) -> None:
    cls = KINDS[kind]
    options = []
    for info, field in zip(describe(cls), attrs.fields(cls), strict=True):
        default = "" if field.default is attrs.NOTHING else f" ({info.default or 'none'})"
        options.append(f"`{info.key}`{default}: {info.help}")
    assert f"| `{kind}` | {'; '.join(options)} | {cls.__doc__} |".replace("  ", " ") in README


#: A change of `MLP` -> what the message says after the name of the file.
WRONG = {
    ("out = 4", "ot = 4"): r"layer 1 'fc': no key 'ot'; did you mean 'out'\?",
    ("out = 4", ""): r"layer 1 'fc': out is missing \(output channels\)",
    ("out = 4", 'out = "many"'): "layer 1 'fc': out: expected integer, got 'many'",
    ("out = 4", "out = 0"): r"layer 1 'fc': out: 0 is too small \(at least 1\)",
    ('"linear"', '"liner"'): r"layer 1 'fc': kind: no kind 'liner'; did you mean 'linear'\?",
    ('kind = "linear"', ""): "layer 1 'fc': kind: expected the name of a kind",
    (
        "out = 4",
        'out = 4\nfrom = "inpt"',
    ): r"layer 1 'fc': from: nothing before is named 'inpt'; did you mean 'input'\?",
    ("out = 4", 'out = 4\nfrom = ["input", "input"]'): "layer 1 'fc': from: linear reads 1 tensor, got 2",
    ("out = 4", "out = 4\nfrom = 3"): "layer 1 'fc': from: expected names of inputs or layers, got 3",
    ("out = 4", "out = 4\nrepeat = 2"): "layer 1 'fc': repeat: belongs to a block",
    ("out = 4", 'out = 4\nactivation = "elu"'): "layer 1 'fc': activation: 'elu' is none of none, relu",
    ("[8]", '["batch", "x"]'): "input 1 'input': shape: 'x' is no size",
    ("shape = [8]", ""): "input 1 'input': shape: expected sizes .* it is missing",
    ("shape = [8]", "shpe = [8]"): r"input 1: no key 'shpe'",
    (
        "[8]",
        "[]",
    ): r"layer 1 'fc': from: a tensor of shape \(64,\), samples included \(linear needs samples, channels\)",
    ("[[input]]", "[input]"): "input: expected a list of at least one entry",
    ('"fc"', '"a:b"'): "layer 1 'a:b': name: 'a:b' cannot be one",
    ('"fc"', '"input"'): "layer 1 'input': name: 'input' is taken",
    ("[[layer]]", "[[layers]]"): r"no key 'layers'; did you mean 'layer'\?",
    ("[[input]]", "batch-size = 0\n[[input]]"): r"batch-size: 0 is too small \(at least 1\)",
    ("shape = [8]", "shape = [8"): "is not TOML",
}


@pytest.mark.parametrize(("change", "message"), WRONG.items())
def test_what_is_wrong_is_named(build, tmp_path, change, message) -> None:
    assert change[0] in MLP
    with pytest.raises(TopoplanError, match=f"^{re.escape(str(tmp_path))}/model.toml: {message}"):
        build(MLP.replace(*change))


def test_wrong_algebra_is_named(build) -> None:
    right = blocks_of_readme("toml")[3]
    for before, after, message in (
        ('["n", "q", "k"]]', '["n", "q", "j"]]', r"output 0: axis 2: no dimension 'j'"),
        (
            '["n", "q", "k"]]',
            '["n", "q"]]',
            "operator 'distances': dimension 'k' is attribute but output 'y0' lacks it",
        ),
        (
            'size = 512, role = "attribute"',
            'size = 511, role = "attribute"',
            r"input 1: has shape \(64, 511, 64\), but",
        ),
        ('role = "sample"', 'role = "samples"', "dimension 0: role: 'samples' is none of sample, attribute"),
        ('size = "batch"', 'size = "bacth"', "dimension 0: size: 'bacth' is no size"),
        ("each = 4", "eech = 4", r"flops 0: no key 'eech'; did you mean 'each'\?"),
        ("flops =", "flopz =", r"no key 'flopz'; did you mean 'flops'\?"),
        ('from = ["queries", "keys"]', 'from = "keys"', "inputs: 2 tensors, but from names 1"),
        ('computes = "weighted_distances"', "linear-in = [[3]]", r"linear-in 0: 3 is no argument \(0 to 2"),
    ):
        assert before in right
        with pytest.raises(TopoplanError, match=rf"model.toml: layer 1 'distances': {message}"):
            build(right.replace(before, after))


def test_a_file_of_many_repetitions_ends_in_a_message(build) -> None:
    block = '[[layer]]\nname = "b"\nrepeat = 10000\n[[layer.layer]]\nname = "c"\nrepeat = 10000\n'
    with pytest.raises(TopoplanError, match="has more than 100000 layers"):
        build(f'[[input]]\nshape = [8]\n{block}[[layer.layer.layer]]\nkind = "relu"\n')


def test_json_says_a_key_once(build) -> None:
    with pytest.raises(TopoplanError, match=r"model\.json: key 'out' is given twice"):
        build('{"input": [{"shape": [8]}], "layer": [{"kind": "linear", "out": 4, "out": 5}]}', suffix=".json")


def test_a_file_is_needed() -> None:
    with pytest.raises(TopoplanError, match="frontend layers: file is missing"):
        Layers().build(1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.floats() | st.sampled_from(["batch", "n", "in", "x", "relu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "size", "axes"]), inner),
    max_leaves=6,
)
LAYERS = st.dictionaries(
    st.sampled_from(
        ["name", "from", "out", "k", "axis", "shape", "dimensions", "inputs", "outputs", "heads", "repeat"]
    ),
    VALUES,
    max_size=4,
)


@given(
    shape=st.lists(st.integers(1, 6), max_size=4),
    layers=st.lists(st.tuples(st.sampled_from([*KINDS, "operator"]), LAYERS), min_size=1, max_size=3),
)
@settings(deadline=None)
def test_any_table_is_a_model_or_one_line(tmp_path_factory, shape, layers) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(
        json.dumps({"input": [{"shape": shape}], "layer": [{**rest, "kind": kind} for kind, rest in layers]})
    )
    told = ""
    try:
        assert len(Layers(file=str(path)).build(None).operators) == len(layers)
    except TopoplanError as error:
        told = str(error)
    assert not told or re.fullmatch(rf"{re.escape(str(path))}: .+", told), told
