"""Tables of many columns: readable at 80 columns, with what never varies said once."""

from __future__ import annotations

import io
import re
from operator import itemgetter
from types import SimpleNamespace

import pytest
from rich import console as rich_console

from topoplan_engine.reporting import tables
from topoplan_engine.reporting.kept import kept_rows
from topoplan_engine.reporting.tables import Column, RowTable, markdown_table
from topoplan_engine.search.optimize import FreePlan

HEADERS = ["model", "servers", "network", "Gbps a host", "iteration time", "exposed", "any wiring", "cost (USD)", "tax"]
ROWS = [
    ["dlrm", "16", "topoopt", "4 x 100", "31.26 ms (30.1..33.0)", "1.236 ms", "-", "65,728", "1.09"],
    ["dlrm", "16", "torus:shape=4-4,paths=2", "4 x 100", "37.60 ms", "7.574 ms", "-", "65,728", "1.01"],
]


@pytest.fixture
def printed(monkeypatch):
    """Return what is printed on a terminal of a width; None is for a file."""

    def run(width, title, headers, rows, *, names, once=()):
        out = io.StringIO()

        def console(**options):
            options = {**options, "file": out, "force_terminal": width is not None, "no_color": True}
            return rich_console.Console(**{"width": width, **options} if width else options)

        monkeypatch.setattr(tables, "Console", console)
        monkeypatch.delenv("COLUMNS", raising=False)
        columns = [
            Column(header, itemgetter(index), names_rows=header in names, said_once=header in once)
            for index, header in enumerate(headers)
        ]
        RowTable(columns, rows).print(title)
        return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())

    return run


def words(text):
    return {word for word in "".join(c if c.isalnum() or c in ".,-:=()" else " " for c in text).split() if word}


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_word_is_broken_and_no_line_is_too_long(printed, width):
    out = printed(width, "title", HEADERS, ROWS, names=("model", "servers", "network"), once=("Gbps a host",))
    assert max(map(len, out.splitlines())) <= width
    for text in ("iteration", "exposed", "31.26", "torus:shape=4-4,paths=2", "65,728", "tax"):
        assert text in words(out)


def test_what_never_varies_is_said_once_and_empty_columns_are_left_out(printed):
    out = printed(80, "title", HEADERS, ROWS, names=("model", "servers", "network"), once=("Gbps a host",))
    assert out.startswith("title, model dlrm, servers 16, Gbps a host 4 x 100")
    assert (out.count("dlrm"), out.count("any")) == (1, 0)
    assert out.count("65,728") == 2  # figures stay, though they are equal


def test_further_tables_repeat_the_names_of_rows(printed):
    assert printed(60, "title", HEADERS, ROWS, names=("model", "servers", "network")).count("topoopt") > 1
    assert printed(200, "title", HEADERS, ROWS, names=("model", "servers", "network")).count("topoopt") == 1


def test_files_get_one_table_as_wide_as_it_is(printed):
    out = printed(None, "title", HEADERS, ROWS, names=("model", "servers", "network"))
    assert out.count("topoopt") == 1
    assert "iteration time" in out


def test_one_row_keeps_its_last_name(printed):
    out = printed(80, "title", HEADERS, ROWS[:1], names=("model", "servers", "network"), once=("Gbps a host",))
    assert out.startswith("title, model dlrm, servers 16, Gbps a host 4 x 100")
    assert "topoopt" in words(out.split("\n", 1)[1])
    assert max(map(len, out.splitlines())) <= 80


def test_a_table_is_the_same_in_markdown():
    table = RowTable([Column("a", str, names_rows=True), Column("b, ms", lambda row: f"{row:.1f}")], [1, 20])
    assert table.headers == ["a", "b, ms"]
    assert table.markdown() == "| a | b, ms |\n|---|---|\n| 1 | 1.0 |\n| 20 | 20.0 |"
    assert markdown_table(["a", "b"], [["1|1", "2"]], numbers=["b"]) == "| a | b |\n|---|--:|\n| 1\\|1 | 2 |"


@pytest.mark.parametrize(
    ("seconds", "fits", "refusal", "row"),
    [
        (
            0.08,
            True,
            "a cut",
            ("free plan (not launchable)", "80 ms, best of 5 candidates; the plan for t takes +25.0%"),
        ),
        (0.08, True, "", ("free plan", "none faster than this one for t among 5 candidates")),
        (0.12, True, "a cut", ("free plan", "none faster than this one for t among 5 candidates")),
        (0.08, False, "a cut", ("free plan", "none faster than this one for t among 5 candidates")),
    ],
)
def test_a_free_plan_is_shown_where_it_is_faster(seconds, fits, refusal, row):
    free = FreePlan(trainers="t", seconds=seconds, fits=fits, refusal=refusal, evaluations=5)
    outcome = SimpleNamespace(
        aside=None,
        origin=SimpleNamespace(name="plan"),
        free=free,
        seconds=0.1,
        fits=True,
        draws=SimpleNamespace(seeds=()),
    )
    assert kept_rows(outcome, None, lambda value: f"{value * 1e3:.0f} ms")[1] == row
