"""What the README tells a reader to type works as printed."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from topoplan.cli import main
from topoplan.testing import check_component
from topoplan_samples.long_tail import at_night

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]


def block(kind, containing):
    (body,) = [text for k, text in BLOCKS if k == kind and containing in text]
    return body


def run(*args, cwd, site=None):
    path = os.pathsep.join(filter(None, [str(site) if site else "", os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def topoplan(*args, cwd, site=None):
    return run("-c", "from topoplan.cli import main; main()", *args, cwd=cwd, site=site)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the README's plugin from a folder of its own, and install the wheel into another one."""
    folder, target = tmp_path_factory.mktemp("chord"), tmp_path_factory.mktemp("site")
    (folder / "topoplan_topology_chord.py").write_text(block("python", "class Chord(Topology)"), encoding="utf-8")
    (folder / "pyproject.toml").write_text(block("toml", "topoplan-topology-chord"), encoding="utf-8")
    run(
        "-c",
        "import sys; from flit_core.buildapi import build_wheel; build_wheel(sys.argv[1])",
        str(target),
        cwd=folder,
    )
    (wheel,) = target.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_there_are_two_commands_and_their_quick_pair():
    pip, uv = COMMANDS[:2], COMMANDS[2:]
    assert [line.split(" && ")[0] for line in pip] == ["python3 -m venv .venv"] * 2
    assert [line.split()[:2] for line in uv] == [["uv", "run"]] * 2
    assert pip[0].split("topoplan optimize")[1] == uv[0].split("topoplan optimize")[1]


#: Where Python of the README runs: at night in a process of its own, which knows nothing but what it imports.
WHERE = at_night(["this process", "another process"], "this process")


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    """Return a function that runs Python in an empty folder, here or in another process; it returns what is printed."""

    def printed(text, where):
        if where == "another process":
            return run("-c", text, cwd=tmp_path)
        monkeypatch.chdir(tmp_path)
        exec(compile(text, "README.md", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return printed


@pytest.mark.slow
def test_the_first_command_prints_what_the_readme_shows(tmp_path):
    words = COMMANDS[0].split("topoplan ")[-1].split()
    printed = [line.rstrip() for line in topoplan(*words, cwd=tmp_path).splitlines()]
    shown = [line for line in block("text", "iteration time").splitlines() if line[0] not in "…┏┡└"]
    assert [line for line in shown if line.rstrip() not in printed] == []


def test_install_commands_name_extras_that_exist():
    extras = re.findall(r'pip install "\.\[(\w+)\]"', README) + re.findall(r"--extra (\w+)", README)
    assert extras
    assert set(extras) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@pytest.mark.parametrize("where", WHERE)
def test_python_example_runs(printed, where):
    assert "->" in printed(block("python", "outcome = optimize("), where)


@pytest.mark.parametrize("where", WHERE)
def test_searchers_run_on_a_problem(printed, where):
    text = block("python", "run_searchers(")
    initial, best = map(float, re.findall(r"[\d.]+", printed(text, where)))
    assert best < initial


def test_a_fabric_is_drawn_with_a_row_for_each_kind_of_node(monkeypatch):
    calls = {}
    monkeypatch.setattr("networkx.draw", lambda graph, positions, **style: calls.update(graph=graph, at=positions))
    exec(compile(block("python", "nx.draw("), "README.md", "exec"), {})
    heights = {"host": set(), "switch": set()}
    for node, kind in calls["graph"].nodes(data="kind"):
        heights[kind].add(calls["at"][node][1])
    assert [len(heights["host"]), len(heights["switch"]), len(heights["host"] | heights["switch"])] == [1, 1, 2]
    assert len({tuple(place) for place in calls["at"].values()}) == len(calls["graph"])


def test_a_fabric_becomes_graphml(monkeypatch, tmp_path):
    monkeypatch.setattr("networkx.draw", lambda *args, **style: None)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(block("python", "nx.draw("), "README.md", "exec"), names)
    exec(compile(block("python", "write_graphml("), "README.md", "exec"), names)
    graph = names["nx"].read_graphml("fattree.graphml")
    assert len(graph) == len(names["graph"])
    assert {kind for _, kind in graph.nodes(data="kind")} == {"host", "switch"}


@pytest.mark.slow
def test_an_experiment_in_a_file_runs(tmp_path):
    (tmp_path / "experiment.toml").write_text(block("toml", "[[searcher]]"), encoding="utf-8")
    printed = topoplan("run", "experiment.toml", "--set", "run.budget=20", "--json", cwd=tmp_path)
    assert '"searcher": "mcmc+totientperm"' in printed
    assert (tmp_path / "dlrm.fbuf").stat().st_size


@pytest.fixture(scope="session")
def mypy(tmp_path_factory):
    """Return a function that checks files without this project's settings: as somebody has it who installed topoplan.

    What mypy has learned of topoplan and of other packages is kept for the next call.
    """
    words = ("-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path_factory.mktemp('mypy')}")
    return lambda *names, cwd: run(*words, *names, cwd=cwd)


@pytest.mark.slow  # .ci/run runs it all the same
def test_python_example_is_typed(mypy, tmp_path):
    (tmp_path / "example.py").write_text(block("python", "outcome = optimize("), encoding="utf-8")
    mypy("example.py", cwd=tmp_path)


def test_own_topology_is_short():
    assert len(block("python", "class Chord(Topology)").splitlines()) < 30


@pytest.mark.slow
def test_own_topology_is_found_by_its_entry_point(site, tmp_path):
    (row,) = [line for line in topoplan("plugins", cwd=tmp_path, site=site).splitlines() if " chord " in line]
    assert row.split()[:4] == ["topology", "chord", "topoplan-topology-chord", "0.1.0"]
    assert "reach" in topoplan("plugins", "show", "chord", cwd=tmp_path, site=site)


def test_own_topology_is_used(site, monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    (words,) = re.findall(r"`topoplan (optimize dlrm -t chord[^`]*)`", README)
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--budget", "0"])
    assert not ended.value.code
    assert capsys.readouterr().out.strip()


def test_own_topology_keeps_its_promises(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    check_component(importlib.import_module("topoplan_topology_chord").Chord)


@pytest.mark.slow
def test_tests_of_the_own_topology_pass(site, tmp_path):
    test = tmp_path / "test_chord.py"
    test.write_text(block("python", "parametrize_with_checks(Chord)"), encoding="utf-8")
    assert re.search(r"\d+ passed", run("-m", "pytest", "-q", str(test), cwd=tmp_path, site=site))


@pytest.mark.parametrize(("module", "cls"), at_night([("greedy", "Greedy"), ("links", "Links")], ("links", "Links")))
def test_other_kinds_keep_their_promises_with_core_alone(tmp_path, module, cls):
    (tmp_path / f"{module}.py").write_text(block("python", f"class {cls}("), encoding="utf-8")
    script = (
        f"import sys; from {module} import {cls}; from topoplan.testing import check_component; "
        f"check_component({cls}); print(*{{name.partition('.')[0] for name in sys.modules if 'topoplan_' in name}})"
    )
    assert run("-c", script, cwd=tmp_path).split() == ["topoplan_testing"]


@pytest.mark.slow  # .ci/run runs it all the same
def test_examples_of_plugins_are_typed(mypy, tmp_path):
    for cls in ("Chord", "Greedy", "Links"):
        (tmp_path / f"{cls.lower()}.py").write_text(block("python", f"class {cls}("), encoding="utf-8")
    mypy("chord.py", "greedy.py", "links.py", cwd=tmp_path)


def test_files_that_the_readme_names_exist():
    for place in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / place).is_file(), place
