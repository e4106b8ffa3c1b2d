"""``experiments/results.py`` runs every experiment, and docs/results.md shows what came of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
#: Those of docs/guides/language_models.md are on that page.
OF_A_GUIDE = {"deepseek-v3-2048-h800", "llama-70b-64-h100"}
EXPERIMENTS = sorted({path.stem for path in (ROOT / "experiments").glob("*.toml")} - OF_A_GUIDE)


SHARED = """
title = "Shared"
budget = 2
[share]
loads = [100]
trials = 1
[cluster]
servers = 4
[[model]]
use = "candle-uno"
batch-size = 64
servers = 2
[[network]]
name = "panel"
use = "topoopt"
[[network]]
name = "tree"
use = "fattree"
[[claim]]
faster = "panel"
slower = "tree"
"""


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "experiments" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_experiment_is_a_section_of_the_page(results):
    assert sorted(results.STUDIES) == EXPERIMENTS


def test_the_head_leads_to_pipelines_where_they_have_a_page(results, tmp_path):
    assert results.head(ROOT / "docs" / "results.md") in PAGE.read_text()
    assert "pipelines.md" not in results.head(tmp_path / "results.md")
    (tmp_path / "pipelines.md").touch()
    assert "(pipelines.md)" in results.head(tmp_path / "results.md")


@pytest.fixture
def small(finished, tmp_path, monkeypatch):
    """Write an experiment whose runs are finished, into the folder where commands run; return its path."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(f"# topoplan compare small.toml\n{path.read_text()}")
    return path


def test_a_section_is_replaced_between_its_markers_and_nothing_else(results, small, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Head\n\nbefore\n\n<!-- begin small -->\nwhat was here\n<!-- end small -->\n\nafter\n")
    results.write(small, page, 1)
    text = page.read_text()
    assert text.startswith("# Head\n\nbefore\n\n<!-- begin small -->\n## Small\n")
    assert text.endswith("<!-- end small -->\n\nafter\n")
    assert "what was here" not in text
    assert "    topoplan compare small.toml\n" in text
    assert "**panel is faster than tree**: holds in " in text
    assert "estimated from FLOPs and bytes" in text
    assert "![Small](page-small.svg)" in text
    assert text.count("\n| D | 10 |") == 1 + 2  # times, and all columns of both networks
    picture = (tmp_path / "page-small.svg").read_bytes()
    results.write(small, page, 1)
    assert (page.read_text(), (tmp_path / "page-small.svg").read_bytes()) == (text, picture)


@pytest.mark.slow
def test_a_page_that_is_not_there_is_begun(results, small, tmp_path):
    results.write(small, tmp_path / "new.md", 1)
    assert (tmp_path / "new.md").read_text().startswith("<!-- begin small -->\n")


def test_a_page_with_half_a_section_is_left_alone(results, small, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- begin small -->\n")
    with pytest.raises(SystemExit, match="2"):
        results.write(small, page, 1)
    assert "page.md: needs <!-- begin small --> before <!-- end small -->" in capsys.readouterr().err
    assert page.read_text() == "<!-- begin small -->\n"
    assert not (tmp_path / "page-small.svg").exists()


def test_a_shared_cluster_has_a_section_too(results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs.toml"
    path.write_text(f"# topoplan share jobs.toml\n{SHARED}")
    results.write(path, tmp_path / "page.md", 1)
    text = (tmp_path / "page.md").read_text()
    assert "    topoplan share jobs.toml\n" in text
    assert "partition of its own on panel" in text
    assert "**panel is faster than tree**: in the mean " in text
    assert text.count("| tree |") == 2
    assert (tmp_path / "page-jobs.svg").is_file()


def test_a_section_says_what_was_typed_but_for_what_changes_no_result(run, tmp_path):
    words = ["dlrm", "-o", "arch-embedding-size=1000-1000", "--servers", "4", "--batch-size", "64", "--budget", "0"]
    ignored = ["--jobs", "1", "--runs", "elsewhere", "--json", "--write", "page.md"]
    assert run("compare", *words, "-n", "topoopt,fattree", *ignored)[0] == 0
    text = (tmp_path / "page.md").read_text()
    repeated = "--option arch-embedding-size=1000-1000 --servers 4 --batch-size 64 --budget 0"
    (line,) = [line for line in text.splitlines() if line.startswith("    topoplan ")]
    assert line.startswith("    topoplan compare dlrm ")
    assert "--networks topoopt,fattree" in line
    assert all(word in line.split() for word in repeated.split())
    assert not {"--jobs", "--runs", "--json", "--write"} & set(line.split())
    assert (tmp_path / "page-dlrm.svg").is_file()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_has_a_section_with_its_command_and_its_plot(name):
    text = (ROOT / "docs" / ("hidup.md" if name.startswith("hidup-") else "results.md")).read_text()
    body = text.partition(f"<!-- begin {name} -->\n")[2].partition(f"<!-- end {name} -->\n")[0]
    first = (ROOT / "experiments" / f"{name}.toml").read_text().splitlines()[0]
    assert f"    {first.removeprefix('# ')}\n" in body
    (plot,) = re.findall(r"^!\[.*\]\((.*)\)$", body, re.M)
    assert (ROOT / "docs" / plot).is_file()
    assert "holds" in body


def test_the_page_has_programs_for_all_devices_beside_measured_times():
    body = PAGE.read_text().partition("<!-- begin spmd -->\n")[2].partition("<!-- end spmd -->\n")[0]
    rows = re.findall(
        r"^\| ([a-z-]+), (\d+) devices in (\d) hosts.* \| ([\d.]+) \| ([\d.]+) \| ([+-]\d+)% \|", body, re.M
    )
    assert len(rows) == 16 + 3
    for *_, measured, simulated, error in rows:
        assert round(100 * (float(simulated) / float(measured) - 1)) == pytest.approx(int(error), abs=1)
    assert len(re.findall(r"pairs are in the measured order; errors are", body)) == 3


def test_an_unknown_study_is_named_and_the_page_left_alone(results, tmp_path, monkeypatch, capsys):
    page = tmp_path / "results.md"
    monkeypatch.setattr("sys.argv", ["results.py", "nonsense", "--write", str(page)])
    with pytest.raises(SystemExit, match="2"):
        results.main()
    assert "no study 'nonsense' (have: dedicated-d4," in capsys.readouterr().err
    assert not page.exists()
