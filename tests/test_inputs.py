"""Every file that an option names is an input: plans and kept runs say what it held, and a changed one is reported."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import attrs
import pytest

from topoplan import Host, Topology, TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan.options import option
from topoplan_command_sensitivity.provenance import check_inputs, experiment_of
from topoplan_engine import ClusterOptions, Experiment, RunOptions
from topoplan_engine.experiment import Choice
from topoplan_engine.provenance import digest_of, digests_of, input_files
from topoplan_engine.search.optimize import optimize, provenance
from topoplan_studies.store import Store, inputs

HOST = Host.discover()
ROOT = Path(__file__).parents[1]
NETWORK = {"directed": False, "nodes": [{"id": 0}, {"id": 1}], "edges": [{"source": 0, "target": 1, "bandwidth": 1e10}]}


def experiment(**changed):
    chosen = {
        "model": "alexnet",
        "cluster": ClusterOptions(servers=2, degree=1),
        "run": RunOptions(budget=0),
        **changed,
    }
    return Experiment(**chosen)


@pytest.fixture
def network(tmp_path):
    """Write a network, and return its file and an experiment on it."""
    file = tmp_path / "net.json"
    file.write_text(json.dumps(NETWORK), encoding="utf-8")
    return file, experiment(topology=Choice("file", {"path": str(file)}))


def small_llama(folder):
    folder.mkdir(exist_ok=True)
    shutil.copy(ROOT / "examples/models/llama-3-8b.json", folder / "config.json")
    return folder


def test_files_of_all_options_are_inputs(tmp_path, network):
    _, on_network = network
    assert provenance(HOST, on_network)["inputs"].keys() == {"net.json"}
    for config in (small_llama(tmp_path / "m"), tmp_path / "m" / "config.json"):
        of_config = experiment(model=Choice("huggingface", {"config": str(config)}))
        assert provenance(HOST, of_config)["inputs"].keys() == {"config.json"}
    hints = tmp_path / "hints.toml"
    hints.write_text("", encoding="utf-8")
    hinted = experiment(searchers=(Choice("hidup", {"hints": str(hints)}),))
    assert provenance(HOST, hinted)["inputs"] == {"hints.toml": digest_of(hints)}


def test_an_option_of_anybody_is_an_input(tmp_path):
    @attrs.frozen
    class Wired(Topology):
        """Cables of a list."""

        cables: tuple[str, ...] = option((), help="files")
        plan: Path | None = option(None, help="a file")
        word: str = option("", help="a word")

        name = "wired"

        def build(self, context):
            raise NotImplementedError

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.csv").write_text(name, encoding="utf-8")
    first, second = tmp_path / "a/x.csv", tmp_path / "b/x.csv"
    wired = Wired(cables=(str(first), "none"), plan=second, word="a\0b")
    assert input_files([wired]) == [first, second]
    assert list(digests_of([first, second])) == [first.as_posix(), second.as_posix()]  # two of one name
    with pytest.raises(TopoplanError, match=r"missing: cannot be read"):
        digests_of(input_files([Wired(plan=tmp_path / "missing")]))


def test_a_plan_whose_network_changed_is_refused(network):
    file, on_network = network
    plan = optimize(on_network).plan
    check_inputs(plan, experiment_of(plan, "p.json"), "p.json", HOST)
    file.write_text(json.dumps({**NETWORK, "graph": {}}), encoding="utf-8")
    with pytest.raises(
        TopoplanError, match=r"^p.json: provenance: inputs: net.json is not what the plan was made with"
    ):
        check_inputs(plan, experiment_of(plan, "p.json"), "p.json", HOST)
    file.unlink()
    with pytest.raises(TopoplanError, match=r"net.json: no option names it in /.*go where the plan was made"):
        check_inputs(plan, experiment_of(plan, "p.json"), "p.json", HOST)


def test_a_plan_that_says_nothing_of_its_network_is_warned_of(network):
    _, on_network = network
    plan = optimize(on_network).plan
    silent = attrs.evolve(plan, provenance={**plan.provenance, "inputs": {}})
    with pytest.warns(TopoplanWarning, match=r"inputs: say nothing of net.json"):
        check_inputs(silent, experiment_of(silent, "p.json"), "p.json", HOST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_inputs(plan, experiment_of(plan, "p.json"), "p.json", HOST)


def test_a_kept_run_on_a_network_that_changed_is_not_taken(tmp_path, network):
    file, on_network = network
    store = Store(tmp_path / "runs")
    before = store.key(inputs(HOST, on_network))
    moved = tmp_path / "elsewhere" / "net.json"
    moved.parent.mkdir()
    shutil.move(file, moved)
    there = attrs.evolve(on_network, topology=Choice("file", {"path": str(moved)}))
    assert store.key(inputs(HOST, there)) == before  # folders do not matter
    moved.write_text(json.dumps({**NETWORK, "graph": {}}), encoding="utf-8")
    assert store.key(inputs(HOST, there)) != before
