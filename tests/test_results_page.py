"""``benchmarks/results.py`` runs what every experiment says of itself, and docs/results.md shows what came of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
EXPERIMENTS = sorted(path.stem for path in (ROOT / "experiments").glob("*.toml"))


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_experiment_is_a_figure_of_the_page(results):
    assert sorted(results.FIGURES) == EXPERIMENTS


def test_a_figure_runs_as_its_first_line_says(results):
    page = Path("docs/results.md")
    wanted = ["compare", "experiments/degree.toml", "--write", "docs/results.md", "--jobs", "3"]
    assert results.command("degree", 3, page) == wanted
    wanted = ["share", "experiments/shared-cluster.toml", "--write", "other.md"]
    assert results.command("shared-cluster", 3, Path("other.md")) == wanted


def test_the_head_leads_to_pipelines_where_they_have_a_page(results, tmp_path):
    assert "pipelines.md" not in results.head(tmp_path / "results.md")
    (tmp_path / "pipelines.md").touch()
    assert "(pipelines.md)" in results.head(tmp_path / "results.md")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_has_a_section_with_its_command_and_its_plot(name):
    text = PAGE.read_text()
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
    assert len(re.findall(r"pairs are in the order that was measured; errors are", body)) == 3
