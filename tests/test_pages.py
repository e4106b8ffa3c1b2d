"""`tools/pages.py` finds a figure that the present code does not give."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = """# Figures

## Ten

| model | devices | time | planned in | by |
|---|--:|--:|--:|---|
| bert | 8 | **1.234 s** | 5 ms | a\\|b @1 |
| bert | 16 | 2,345 ms (-1 %) | 6 ms | c |

## Hundred

| model | devices | time | planned in | by |
|---|--:|--:|--:|---|
| bert | 8 | 9.876 s | 5 ms | c |
"""
SCRIPT = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(pathlib.Path('new.md').read_text())\n"


def tool():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools/pages.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pages"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """The tool in a folder of one page and its script, which writes what is in new.md."""
    module = tool()
    page = module.Page("make.py page.md", "make.py {file}", ("model", "devices"), ("planned in",))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PAGES", {"page.md": page})
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "make.py").write_text(SCRIPT)
    return module


def listed(pages, monkeypatch, capsys, tmp_path, made, *words):
    (tmp_path / "new.md").write_text(made)
    monkeypatch.setattr(sys, "argv", ["pages.py", *words])
    return pages.main(), capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("1.234 s", "1.334 s", "Ten: bert, 8: time: 1.234 s in the page, now 1.334 s"),
        ("9.876 s", "9.666 s", "Hundred: bert, 8: time: 9.876 s in the page, now 9.666 s"),
        ("(-1 %)", "(+2 %)", "Ten: bert, 16: time: 2,345 ms (-1 %) in the page, now 2,345 ms (+2 %)"),
        ("@1", "@2x", "Ten: bert, 8: by: a\\|b @1 in the page, now a\\|b @2x"),
        ("| bert | 16", "| bert | 32", "Ten: the page has no row bert, 32"),
        ("## Hundred", "## Thousand", "Thousand: the page has no table of model, devices, time, planned in, by"),
    ],
)
def test_a_changed_figure_is_found_with_the_old_one_and_the_new_one(
    pages, monkeypatch, capsys, tmp_path, old, new, line
):
    status, out = listed(pages, monkeypatch, capsys, tmp_path, PAGE.replace(old, new))
    assert status == 1
    assert out.splitlines()[0] == f"page.md: {line}"
    assert out.splitlines()[1] == "page.md: is made anew by: python make.py page.md"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.234", "1.240"),  # within a percent
        ("(-1 %)", "(-2 %)"),  # within one in the last digit
        ("| 5 ms |", "| 50 ms |"),  # a time of the machine
        ("| bert | 16 | 2,345 ms (-1 %) | 6 ms | c |\n", ""),  # a sample need not have all rows
        (PAGE, "## Ten\n\n| devices | model | by |\n|---|---|---|\n| 16 | bert | c |\n"),  # nor all columns
    ],
)
def test_what_does_not_matter_is_not_listed(pages, monkeypatch, capsys, tmp_path, old, new):
    status, out = listed(pages, monkeypatch, capsys, tmp_path, PAGE.replace(old, new))
    assert (status, len(out.splitlines())) == (0, 1)


def test_columns_of_one_header_are_compared_in_their_order(pages, monkeypatch, capsys, tmp_path):
    table = (
        "# Errors\n\n| model | ours | error | others | error |\n|---|--:|--:|--:|--:|\n| bert | 1 | 5 % | 2 | 9 % |\n"
    )
    (tmp_path / "page.md").write_text(table)
    assert listed(pages, monkeypatch, capsys, tmp_path, table)[0] == 0
    status, out = listed(pages, monkeypatch, capsys, tmp_path, table.replace("9 %", "7 %"))
    assert (status, out.splitlines()[0]) == (1, "page.md: Errors: bert: error: 9 % in the page, now 7 %")


def test_a_sample_that_fails_is_listed_with_what_it_says(pages, monkeypatch, capsys, tmp_path):
    (tmp_path / "make.py").write_text("raise SystemExit('no such model')\n")
    status, out = listed(pages, monkeypatch, capsys, tmp_path, PAGE)
    assert (status, out.splitlines()[0]) == (1, "page.md: no such model")


def test_tables_that_a_command_prints_are_compared_below_their_heading(pages, monkeypatch, capsys, tmp_path):
    """Where a page has two tables of the same headers, the heading says which; a sample that writes may be beside."""
    printing = pages.Page("make.py", "", ("model", "devices"), ("planned in",), (("Hundred", "print.py"),))
    monkeypatch.setattr(pages, "PAGES", {"page.md": printing})
    (tmp_path / "print.py").write_text("import pathlib; print(pathlib.Path('new.md').read_text())\n")
    hundred = PAGE.partition("## Hundred")[2]
    assert listed(pages, monkeypatch, capsys, tmp_path, hundred)[0] == 0
    status, out = listed(pages, monkeypatch, capsys, tmp_path, hundred.replace("9.876", "9.666"))
    assert (status, out.splitlines()[0]) == (1, "page.md: Hundred: bert, 8: time: 9.876 s in the page, now 9.666 s")


def test_commands_are_printed_and_unknown_pages_refused(pages, monkeypatch, capsys, tmp_path):
    assert listed(pages, monkeypatch, capsys, tmp_path, PAGE, "--commands") == (0, "page.md: python make.py page.md\n")
    with pytest.raises(SystemExit, match="2"):
        listed(pages, monkeypatch, capsys, tmp_path, PAGE, "docs/no.md")


def test_every_page_and_script_is_there():
    """A page or a script that moved would fail in the nightly check alone."""
    module = tool()
    for name, page in module.PAGES.items():
        scripts = [words.split()[0] for words in (page.command, page.sample, *dict(page.printed).values()) if words]
        assert len(scripts) > 1, name
        for path in (name, *scripts):
            assert (ROOT / path).exists(), path
        if "{file}" in page.sample or page.printed:
            headings = {table.heading for table in module.tables((ROOT / name).read_text())}
            assert {heading for heading, _ in page.printed} <= headings, name
            headers = {header for table in module.tables((ROOT / name).read_text()) for header in table.headers}
            assert set(page.ignored) <= headers, name
            assert not page.names or headers & set(page.names), name


def test_every_page_of_figures_is_sampled_or_listed_with_what_checks_it():
    module = tool()
    assert module.uncovered(ROOT) == []
    for name in module.ELSEWHERE:
        assert (ROOT / name).exists(), name
    for name, heading in module.LEFT:
        assert heading in {table.heading for table in module.tables((ROOT / name).read_text())}, name


def test_a_new_page_of_figures_is_found(tmp_path):
    module = tool()
    folder = tmp_path / "docs/guides"
    folder.mkdir(parents=True)
    (folder / "new.md").write_text(PAGE)
    (folder / "words.md").write_text(
        "# Words\n\n| word | meaning |\n|---|---|\n| one | 1 is a number |\n| two | many |\n"
    )
    assert module.uncovered(tmp_path) == ["docs/guides/new.md"]


@pytest.mark.parametrize(("new", "status"), [("1.6 s", 0), ("0.9 s", 0), ("3.9 s", 1), ("-1.2 s", 1)])
def test_figures_of_seconds_agree_within_a_factor(pages, monkeypatch, capsys, tmp_path, new, status):
    page = pages.PAGES["page.md"]._replace(bands=(("model", "time", 1.5),))
    monkeypatch.setattr(pages, "PAGES", {"page.md": page})
    assert listed(pages, monkeypatch, capsys, tmp_path, PAGE.replace("1.234 s", new))[0] == status
