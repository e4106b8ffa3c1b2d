"""`.pt2` files, read without torch: what is in them, other batch sizes, and damaged ones."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topoplan_frontend_torch
from topoplan import TopoplanError
from topoplan.testing import parametrize_with_checks
from topoplan_frontend_torch import Torch
from topoplan_frontend_torch.archive import read_archive
from topoplan_frontend_torch.symbols import Symbols

EXAMPLE = Path(topoplan_frontend_torch.__file__).with_name("example.pt2")
MEMBER = "tiny/models/model.json"


@parametrize_with_checks(Torch)
def test_conformance(check):
    check()


def document():
    """Return the graph of the example as JSON."""
    with zipfile.ZipFile(EXAMPLE) as archive:
        return json.loads(archive.read(MEMBER))


def written(path, content, member=MEMBER):
    """Write a file that holds a graph."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content if isinstance(content, (str, bytes)) else json.dumps(content))
    return path


def graph(path=EXAMPLE, batch_size=None, **options):
    """Build the graph of a file."""
    return Torch(file=str(path), **options).build(batch_size)


def test_the_example_has_its_operators_names_parameters_and_flops():
    model = graph(strict=True)
    assert (model.name, model.batch_size) == ("example", 4)
    names = [op.name for op in model.operators]
    assert names[:4] == ["embed", "blocks.0.norm", "blocks.0.q", "blocks.0.k"]
    assert "blocks.1.scaled_dot_product_attention" in names
    assert names[-1] == "head"
    assert sum(w.elements for op in model.operators for w in op.weights) == 100 * 32 * 2 + 2 * (
        32 + 32 * (32 + 16 + 16 + 32) + 2 * 32 * 64 + 64 + 32
    )
    attention = next(op for op in model.operators if op.kind == "scaled_dot_product_attention")
    flops = sum(term.coefficient * math.prod(attention.sizes[dim] for dim in term.dims) for term in attention.work)
    assert flops == 2 * 2 * 4 * (16 * 17 // 2) * 32  # the pairs of causal attention
    assert [dim.role for dim in attention.dims if dim.name in "nqh"] == ["sample", "attribute", "attribute"]


def test_a_symbolic_batch_takes_any_size():
    assert [graph(batch_size=n).operators[0].sizes[0] for n in (None, 8, 1024)] == [4, 8, 1024]


def test_a_batch_that_is_a_number_is_kept_or_refused(tmp_path):
    text = json.dumps(document()).replace(
        json.dumps(document()["graph_module"]["graph"]["tensor_values"]["tokens"]["sizes"][0]), '{"as_int": 4}'
    )
    path = written(tmp_path / "static.pt2", text)
    assert graph(path, 4).batch_size == 4
    with pytest.raises(TopoplanError, match="first size of input 'tokens' is 4 and not a symbol"):
        graph(path, 8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("schema_version"), "schema_version: None (expected dict)"),
        (lambda d: d["schema_version"].update(major=7), "schema_version: 7 cannot be read (expected 8)"),
        (lambda d: d["graph_module"].pop("graph"), "graph: None (expected dict)"),
        (lambda d: d["graph_module"]["graph"]["nodes"].append(3), "is no table (expected one with target)"),
        (lambda d: d["graph_module"]["graph"]["tensor_values"]["linear"].update(dtype=99), "dtype 99 cannot be read"),
        (lambda d: d["graph_module"]["graph"]["tensor_values"].pop("tokens"), "tokens"),
        (lambda d: d["graph_module"]["graph"]["nodes"][0]["inputs"][0].update(arg={"as_tensor": {"name": "y"}}), "'y'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, words):
    content = document()
    change(content)
    path = written(tmp_path / "model.pt2", content)
    with pytest.raises(TopoplanError) as error:
        graph(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "model.pt2"
    for content, words in (
        (b"", "is no .pt2 file"),
        (b"PK\x03\x04", "is no .pt2 file"),
        (b"\x80\x02}", "is no .pt2 file"),
    ):
        path.write_bytes(content)
        with pytest.raises(TopoplanError, match=words):
            graph(path)
    with pytest.raises(TopoplanError, match="holds 0 graphs"):
        graph(written(path, "{}", member="archive/data.pkl"))
    with pytest.raises(TopoplanError, match="is no JSON"):
        graph(written(path, "{"))
    with pytest.raises(TopoplanError, match="is no JSON"):
        graph(written(path, "[" * 100_000))
    with pytest.raises(TopoplanError, match="No such file"):
        graph(tmp_path / "other.pt2")


def test_options_that_do_not_fit_together():
    with pytest.raises(TopoplanError, match="module is missing"):
        Torch().build(None)
    with pytest.raises(TopoplanError, match="both given"):
        Torch(module="a:b", file="c.pt2").build(None)
    with pytest.raises(TopoplanError, match="inputs: are those of the file"):
        Torch(file="c.pt2", inputs="2x2").build(None)


@settings(max_examples=150)
@given(st.data())
def test_files_that_nobody_writes_are_refused_in_a_line(tmp_path_factory, data):
    raw = bytearray(EXAMPLE.read_bytes())
    kind = data.draw(st.sampled_from(["bytes", "cut", "json"]))
    if kind == "json":
        text = bytearray(json.dumps(document()).encode())
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(text) - 1))
            text[place : place + data.draw(st.integers(0, 4))] = data.draw(
                st.sampled_from([b"0", b'"', b"-1", b"9999999999999", b"null", b"{}"])
            )
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(MEMBER, bytes(text))
        raw = bytearray(buffer.getvalue())
    elif kind == "cut":
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    else:
        for _ in range(data.draw(st.integers(1, 8))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "model.pt2"
    path.write_bytes(bytes(raw))
    try:
        assert graph(path, strict=True).operators
    except TopoplanError:
        return  # which has one line, always


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s0", 8),
        ("3*s0 + 1", 25),
        ("Symbol('s0', positive=True, integer=True)", 8),
        ("Add(Mul(Integer(3), Symbol('s0')), Integer(1))", 25),
        ("(s0//2)", 4),
        ("FloorDiv(s0, 3)", 2),
        ("Mod(s0, 3)", 2),
        ("Max(1, s0 - 9)", 1),
        ("s0**2", 64),
    ],
)
def test_sizes_with_symbols(text, value):
    symbols = Symbols("here", 8)
    symbols.bind({"as_expr": {"expr_str": "s0", "hint": {"as_int": 2}}}, "x")
    assert symbols.size({"as_expr": {"expr_str": text, "hint": None}}, "here") == value


@pytest.mark.parametrize(
    "text", ["__import__('os')", "s0.real", "s1", "9**9**9", "(" * 500, "s0 / 3", "", "lambda: 0", "s0 " * 999]
)
def test_what_is_no_size_is_not_evaluated(text):
    symbols = Symbols("here", 8)
    symbols.bind({"as_expr": {"expr_str": "s0", "hint": {"as_int": 2}}}, "x")
    with pytest.raises(TopoplanError, match="here"):
        symbols.size({"as_expr": {"expr_str": text, "hint": None}}, "here")


def test_the_reader_needs_neither_torch_nor_pickle():
    source = Path(read_archive.__code__.co_filename).read_text(encoding="utf-8")
    assert not any(word in source for word in ("import pickle", "import torch", "eval(", "exec("))
