"""Every number of a table has an explanation of one to three sentences, and near misses are suggested."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from topoplan import TopoplanError
from topoplan_command_explain import Explain, meaning
from topoplan_command_explain.command import explain
from topoplan_engine.reporting.explanations import explanation, explanations

ROOT = Path(__file__).resolve().parents[4]
#: Modules that make rows of two-column tables.
ROWS = sorted(
    [
        *ROOT.glob("engine/src/topoplan_engine/reporting/*.py"),
        *ROOT.glob("plugins/commands/*/src/*/command.py"),
    ]
)
#: Modules with columns of tables.
COLUMNS = sorted(
    [
        *ROOT.glob("engine/src/**/*.py"),
        *ROOT.glob("libs/studies/src/**/*.py"),
        *ROOT.glob("plugins/commands/*/src/**/*.py"),
    ]
)


def template(node):
    """The text of a constant or of a formatted string, with * where values are filled in; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
    return None


def row_labels(path):
    """First elements of pairs inside functions that return or add rows."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef) or "row" not in ast.unparse(function):
            continue
        for node in (node for statement in function.body for node in ast.walk(statement)):
            if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.ctx, ast.Load):
                label = template(node.elts[0])
                if label is not None and re.match(r"\s*[*(a-z]", label):
                    yield label


def column_labels(path):
    """First arguments of ``Column``."""
    text = path.read_text(encoding="utf-8")
    if "Column" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        called = node.func if isinstance(node, ast.Call) else None
        name = called.value if isinstance(called, ast.Subscript) else called
        if isinstance(name, ast.Name) and name.id == "Column" and node.args:
            yield from filter(None, map(template, constants(node.args[0])))


def constants(node):
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


#: Pairs in these modules that are no rows of tables.
NO_ROWS = {
    "strategy.py": "parts of a group",
    "figures.py": "metadata of files",
    "tables.py": "how cells are aligned",
}
LABELS = sorted(
    ({label for path in ROWS if path.name not in NO_ROWS for label in row_labels(path)} - {"  *"})  # of memory:
    | {"weights", "gradients", "optimizer state", "activations", "not divided by the estimator"}
    | {label for path in COLUMNS for label in column_labels(path)}
)


def test_there_are_labels():
    assert {"iteration time", "  computation", "wall time of device *", "p99", "*'s own: *", "data"} <= set(LABELS)


@pytest.mark.parametrize("label", LABELS)
def test_every_label_has_an_explanation(label):
    assert explanation(label.replace("*", "7")), f"write what {label!r} is into reporting/explanations.toml"


@pytest.mark.parametrize("label", sorted(explanations()))
def test_explanations_are_short(label):
    text = explanations()[label]
    assert text.endswith(".")
    assert 1 <= len(re.findall(r"[.!?](?= [A-Z]|$)", text)) <= 3


def run(*words):
    return CliRunner().invoke(Explain().app(), list(words))


def test_a_term_is_explained_in_either_case_and_without_quotes():
    assert "do not compute" in run("Bubbles").stdout
    assert "computes longest" in run("wall", "time", "of", "device", "3").stdout


def test_no_term_lists_all():
    lines = run().stdout.splitlines()
    assert len(lines) == len(explanations())
    assert max(map(len, lines)) <= 80
    assert all(any(line.startswith(f"{label} ") for line in lines) for label in explanations())
    assert not any("*" in label for label in explanations())


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("mfu", "Model FLOPs utilization"),
        (" (MFU) ", "Model FLOPs utilization"),
        ("iteration time", "one training iteration"),
        ("  Computation", "that device computes"),
        ("tokens", "tokens a second: Positions"),
        ("memory", "memory per device: Bytes"),
        ("network ($)", "the prices of the study"),
        ("hosts (USD)", "without the network"),
        ("typical error", "packet simulation"),
        ("spmd's own: iteration time", "by its own cost model"),
    ],
)
def test_plain_words_find_their_row(typed, words):
    assert words in " ".join(run(typed).stdout.split())


@pytest.mark.parametrize(
    ("label", "meant"), [("bubles", "'bubbles'"), ("busiest lnik", "'busiest link'"), ("busiest", "'busiest device'")]
)
def test_near_misses_are_suggested(label, meant):
    with pytest.raises(TopoplanError, match=meant):
        explain([label])


def test_what_is_like_nothing_is_refused():
    with pytest.raises(TopoplanError, match="topoplan explain lists all"):
        explain(["xyzzyq"])


@pytest.mark.parametrize(
    ("asked", "key", "word"),
    [
        ("tp", "tp", "tensor parallel"),
        ("zero=1", "zero", "optimizer state"),
        ("micro-batch", "micro-batch", "samples of a micro-batch"),
        ("dp", "dp", "data parallel"),
        ("ep = 8", "ep", "expert parallel"),
        ("cp-comm", "cp-comm", "ring"),
    ],
)
def test_keys_of_the_row_plan_are_explained(asked, key, word) -> None:
    text = meaning(asked)
    assert text.startswith(f"{key} in --plan: ")
    assert word in text


def test_without_stated_plans_a_key_is_no_label(monkeypatch) -> None:
    monkeypatch.setenv("TOPOPLAN_DISABLE_PLUGINS", "topoplan-searcher-stated")
    with pytest.raises(TopoplanError, match="no table has a number 'zero=1'"):
        meaning("zero=1")
