"""Names may be anything, and are shown as they are: they steer no terminal, no page, no picture and no spreadsheet."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import attrs
import pytest

from topoplan import Host
from topoplan.errors import printable
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.exporting import export
from topoplan_engine.reporting.figures import empty_figure, figure_text, write_figure
from topoplan_engine.reporting.tables import Column, RowTable, markdown_row, markdown_text, print_line
from topoplan_samples.long_tail import at_night
from topoplan_studies.study import study_from

HOSTILE = {
    "clears": "\x1b[2J\x1b]0;title\x07",
    "turns": "\u202ebackwards\u2066",
    "lines": "one\r\ntwo\u2028three\x85four",
    "formula": "$\\frac$",
    "dollars": "a $ b $ c",
    "cell": "=HYPERLINK(1)",
    "plus": "+1",
    "at": "@a",
    "html": "<script>alert(1)</script>",
    "comment": "<!-- end s -->",
    "link": "[a](javascript:b)",
    "pipe": "a|b\\|c",
    "code": "`a",
    "hidden": "_a",
    "null": "a\0b",
    "half": "\ud800",
}
NAMES = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)


def harmless(text):
    return all(char.isprintable() or char == "\n" for char in text)


@NAMES
def test_tables_and_lines_on_a_terminal(capsys, name):
    RowTable([Column("name", str, names_rows=True), Column(name, str)], [name, "b"]).print(name)
    print_line(name)
    assert harmless(capsys.readouterr().out)


@NAMES
def test_markdown_shows_what_is_there(name):
    row = markdown_row([markdown_text(name), "x"])
    assert harmless(row)
    assert "<" not in row
    assert "](" not in row
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3  # a cell ends at a bar that nothing escapes
    assert RowTable([Column("a", str)], [name]).markdown().count("\n") == 2


#: A file is drawn for each: of names that are neither formulas nor markup, at night.
@pytest.mark.parametrize(
    "name", at_night(HOSTILE.values(), *(HOSTILE[key] for key in ("dollars", "formula", "hidden", "half"))), ids=HOSTILE
)
def test_figures_show_dollars(tmp_path, name):
    figure = empty_figure(1.0, 1.0)
    axes = figure.subplots()
    axes.plot([1], [1], label=figure_text(name))
    axes.set(title=figure_text(name))
    figure.legend()
    write_figure(figure, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    if name.startswith(("$", "a $", "_")):
        assert text.count(printable(name)) == 2  # as title and in the legend


def test_a_study_names_things_and_nothing_else(tmp_path):
    names = list(HOSTILE.values())
    document = {
        "title": "\x1b[2Jt",
        "source": "a\nb",
        "model": [{"use": "alexnet", "name": name} for name in names],
        "network": [{"use": "bigswitch", "name": name} for name in names],
        "claim": [{"faster": names[0], "slower": names[1], "says": names[2]}],
        "published": [{"model": names[0], "of": names[1], "memory": [names[2]]}],
    }
    study = study_from(document, "\x07name", "s.toml")
    said = [study.title, study.source, *(model.name for model in study.models), *study.labels]
    said += [study.hypotheses[0].says, study.hypotheses[0].faster, study.published[0].of]
    said += study.published[0].values["memory"]
    assert all(text.isprintable() for text in said)
    assert study.models[0].name == r"\x1b[2J\x1b]0;title\x07"


STUDY = """
title = "<b>\\u001b[2Jt</b>"
source = "a\\nb <!-- end s -->"
budget = 0
[cluster]
servers = 2
[[model]]
name = "$\\\\frac$"
use = "alexnet"
[[network]]
name = "=1+1"
use = "bigswitch"
[[network]]
name = "@<script>|`"
use = "fattree"
[[claim]]
faster = "=1+1"
slower = "@<script>|`"
says = "\\u202e[a](b)"
"""


@pytest.mark.slow
def test_a_comparison_of_such_names_is_written_everywhere(run, tmp_path):
    (tmp_path / "s.toml").write_text(STUDY, encoding="utf-8")
    status, out, err = run("compare", "s.toml", "--plot", "p.svg", "--write", "page.md", "--table", "t.csv")
    assert (status, harmless(out), err.count("Traceback")) == (0, True, 0)
    page = Path("page.md").read_text(encoding="utf-8")
    assert harmless(page)
    assert "<script" not in page
    assert page.count("<!-- end s -->") == 1
    rows = list(csv.DictReader(Path("t.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["network"] for row in rows} == {"'=1+1", "'@<script>|`"}
    assert "$\\frac$" in Path("p.svg").read_text(encoding="utf-8")
    assert run("compare", "s.toml", "--write", "page.md")[0] == 0  # the section is found again


def test_a_plan_of_such_names_is_shown(run, tmp_path):
    plan = optimize(
        Experiment(model="alexnet", cluster=ClusterOptions(servers=2), run=RunOptions(budget=0)), host=Host.discover()
    ).plan
    name = "\x1b[2Jx\x9b31m\u202e"
    operators = tuple(attrs.evolve(op, name=f"{name}{number}") for number, op in enumerate(plan.graph.operators))
    named = attrs.evolve(plan.graph, name=name, operators=operators)
    export(attrs.evolve(plan, graph=named, fabric=attrs.evolve(plan.fabric, name=name)), "json", tmp_path / "p.json")
    assert name in json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["fabric"]["name"]
    for words in (("show", "p.json"), ("simulate", "p.json"), ("report", "p.json", "-o", "r.html")):
        status, out, err = run(*words)
        assert (status, harmless(out), harmless(err)) == (0, True, True), words
