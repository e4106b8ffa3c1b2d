"""What ``topoplan compare`` writes: sections of Markdown pages, and plots."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

from topoplan_studies.bars import front


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


def test_networks_at_one_place_have_bars_and_stand_beside_their_costs(run):
    words = ["--servers", "4", "--batch-size", "64", "--budget", "0", "-n", "topoopt,fattree,bigswitch"]
    _, out, _ = run("compare", "dlrm", "-o", "arch-embedding-size=1000-1000", *words, "--plot", "p.svg", "--json")
    found = {row["network"]: row for row in json.loads(out)["rows"]}
    root = ET.fromstring(Path("p.svg").read_text())
    bars = root.findall(".//{*}rect[@class='bar']")
    assert [bar.find("{*}title").text for bar in bars] == list(found)
    heights = {bar.find("{*}title").text: float(bar.get("height")) for bar in bars}
    times = {name: row["iteration_time_s"]["median"] for name, row in found.items()}
    for one in found:
        for other in found:
            assert heights[one] / heights[other] == pytest.approx(times[one] / times[other], rel=1e-2)
    points = {dot.find("{*}title").text: float(dot.get("cx")) for dot in root.findall(".//{*}circle")}
    assert points["bigswitch"] > points["topoopt"]
    texts = [text.text for text in root.findall(".//{*}text")]
    assert {"topoopt", "fattree", "bigswitch", "cost (USD)", "dlrm: over cost"} <= set(texts)


def test_the_front_holds_what_nothing_beats_in_time_and_cost():
    def row(name, cost, seconds):
        return SimpleNamespace(network=name, cost=cost, time=SimpleNamespace(median=seconds))

    found = [row("dear", 9, 1.0), row("slow", 3, 5.0), row("cheap", 1, 4.0), row("even", 9, 1.0), row("fast", 5, 2.0)]
    assert [one.network for one in front(found)] == ["cheap", "fast", "dear"]
