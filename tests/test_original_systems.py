"""``experiments/original_systems.py`` runs rows about the original systems, and its page has what they gave."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
#: Letter of a system's rows -> how many there are, in the order of the page.
ROWS = {"N": 37, "F": 25, "H": 34, "T": 33, "D": 27, "S": 14}
#: Rows that the slow test runs: a flag, times of FlexNet, a refusal.
SOME = ("N5", "N28", "N33")


def script():
    name = "original_systems"
    spec = importlib.util.spec_from_file_location(name, ROOT / "experiments" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


PAGES = script()


@pytest.fixture(scope="module")
def systems():
    return PAGES.read_systems()


@pytest.fixture(scope="module")
def page():
    return PAGES.rows_of(PAGES.PAGE.read_text(encoding="utf-8"))


def test_every_point_has_a_row(systems):
    for system, (letter, count) in zip(systems, ROWS.items(), strict=True):
        assert [row.id for row in system.row] == [f"{letter}{number}" for number in range(1, count + 1)]


def test_a_row_says_what_must_hold(systems):
    for system in systems:
        for row in system.row:
            assert row.point
            assert row.source
            assert bool(row.command) or row.lacks, f"{row.id}: neither a command nor what is not there"
            assert bool(row.command) == bool(row.shows or row.out_of_scope), f"{row.id}: a command and its checks"
            assert not (row.out_of_scope and row.lacks), row.id
            assert "/work" not in row.command + row.lacks + "".join(row.files.values()), row.id


def test_the_page_has_the_rows_and_their_commands(systems, page):
    rows = {row.id: row for system in systems for row in system.row}
    assert list(page) == list(rows)
    for name, row in rows.items():
        point, command, outcome, shown = page[name]
        assert (point, command) == (PAGES.cell(row.point), PAGES.command_cell(row.command)), name
        assert outcome == row.declared, f"{name}: {shown}"
        assert shown, name


def test_the_page_is_what_its_findings_give(systems):
    rows = tuple(row for system in systems for row in system.row)
    findings = {row.id: PAGES.run_row(row) for row in rows if not row.command} | PAGES.earlier(rows)
    assert PAGES.page_of(systems, findings) == PAGES.PAGE.read_text(encoding="utf-8")


def test_the_nightly_command_checks_the_page():
    assert "experiments/original_systems.py --check" in (ROOT / ".ci" / "nightly").read_text()


ROW = PAGES.Row(id="N1", point="", source="", command="echo 'time 2.5 s'; echo '{\"a\": [1, 2.0]}' > x.json")


def judged(**changes):
    return PAGES.run_row(attrs.evolve(ROW, **changes))


def test_a_row_whose_needs_are_not_installed_is_not_run(monkeypatch, capsys):
    missing = judged(needs="no_such_module")
    assert (missing.outcome, missing.shown, missing.holds) == ("missing", "no_such_module is not installed", False)
    assert judged(needs="json").holds
    # It stands in the page as it was.
    monkeypatch.setattr(PAGES, "runnable", lambda row: not row.needs)
    monkeypatch.setattr(sys, "argv", ["original_systems.py", "--check", "--only", "N12"])
    assert PAGES.main() == 0
    assert capsys.readouterr().out == "N12  not run       torch is not installed\n"


def test_what_holds_is_shown():
    checks = (
        PAGES.Check(text="time [0-9.]+ s"),
        PAGES.Check(text=r"time ([0-9.]+) s", equals=2.4999, within=1e-3, label="seconds"),
        PAGES.Check(file="x.json", json="a.1", equals=2.0),
        PAGES.Check(file="x.json", json="a.0", between=(0, 3)),
    )
    shown = "time 2.5 s; seconds: 2.4999 (within 0.001); a.1: 2; a.0 within 0 to 3"
    assert judged(shows=checks) == PAGES.Finding("works", shown)
    assert judged(shows=checks, lacks="More.") == PAGES.Finding("partly", f"{shown}; **Not there:** More.")
    assert judged(out_of_scope="^time") == PAGES.Finding("out of scope", "time")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shows": (PAGES.Check(text="volume"),)}, "does not hold: no line has 'volume'"),
        ({"shows": (PAGES.Check(text=r"time (\S+) s", equals=2.6),)}, "does not hold: 2.5, not 2.6"),
        ({"shows": (PAGES.Check(file="x.json", json="a.0", between=(2, 3)),)}, "a.0: 1 is not 2 to 3"),
        ({"shows": (PAGES.Check(file="x.json", json="b"),)}, "b: KeyError('b')"),
        ({"shows": (PAGES.Check(file="y.json", json="b"),)}, "there is no file y.json"),
        ({"command": "echo no >&2; exit 3"}, "exit status 3, not 0: no"),
        ({"out_of_scope": "GPU"}, "no line has 'GPU'"),
    ],
)
def test_what_does_not_hold_is_missing(changes, why):
    finding = judged(**changes)
    assert finding.outcome == "missing"
    assert not finding.holds
    assert why in finding.shown


def test_cells_can_be_read_back():
    row = attrs.evolve(ROW, command="a | b\nc", point="x | y < z")
    line = PAGES.line_of(row, PAGES.Finding("works", "p | q"))
    point, command, outcome, shown = PAGES.rows_of(line)["N1"]
    assert (point, command) == (PAGES.cell(row.point), PAGES.command_cell(row.command))
    assert (outcome, shown) == ("works", "p \\| q")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_row_holds(systems, name):
    row = next(row for system in systems for row in system.row if row.id == name)
    finding = PAGES.run_row(row)
    assert finding.outcome == row.declared, finding.shown
    assert finding.holds
