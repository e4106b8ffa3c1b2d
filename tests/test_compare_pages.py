"""What ``topoplan compare`` writes: sections of Markdown pages, and plots."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path


def test_a_section_is_replaced_between_its_markers_and_nothing_else(run, finished):
    Path("page.md").write_text("# Head\n\nbefore\n\n<!-- begin small -->\nwhat was here\n<!-- end small -->\n\nafter\n")
    assert run("compare", "small.toml", "--write", "page.md")[0] == 0
    text = Path("page.md").read_text()
    assert text.startswith("# Head\n\nbefore\n\n<!-- begin small -->\n## Small\n")
    assert text.endswith("<!-- end small -->\n\nafter\n")
    assert "what was here" not in text
    assert "    topoplan compare small.toml --write page.md\n" in text
    assert "panel is faster than tree" in text
    assert "estimated from FLOPs and bytes" in text
    assert "![Small](page-small.svg)" in text
    run("compare", "small.toml", "--write", "page.md")
    assert Path("page.md").read_text() == text


def test_a_page_that_is_not_there_is_begun(run, finished):
    run("compare", "small.toml", "--write", "new.md")
    assert Path("new.md").read_text().startswith("<!-- begin small -->\n")


def test_a_page_with_half_a_section_is_left_alone(run, finished):
    Path("page.md").write_text("<!-- begin small -->\n")
    status, _, err = run("compare", "small.toml", "--write", "page.md")
    assert status == 2
    assert "page.md: needs <!-- begin small --> before <!-- end small -->" in err
    assert Path("page.md").read_text() == "<!-- begin small -->\n"
    assert not Path("page-small.svg").exists()


def test_the_plot_has_a_point_for_every_row(run, rows, finished):
    _, out, _ = run("compare", "small.toml", "--plot", "p.svg", "--json")
    root = ET.fromstring(Path("p.svg").read_text())
    assert len(root.findall(".//{*}circle")) == len(rows(out)) == 4
    assert {"panel", "tree", "D"} <= {text.text for text in root.findall(".//{*}text")}
