"""Runs of ``topoplan compare`` are kept: nothing is run twice, nothing is lost, nothing old is taken for new."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from kept_searches import without_clock

from topoplan import Host
from topoplan_engine import sources
from topoplan_engine.experiment import Experiment
from topoplan_studies.prices import default_prices
from topoplan_studies.runspecs import run_specs
from topoplan_studies.store import Store, inputs
from topoplan_studies.study import study_from

PRICES = Path(__file__).parents[1] / "libs/studies/src/topoplan_studies/prices/default.toml"


def contents(folder):
    return {path.name: without_clock(json.loads(path.read_bytes())) for path in Path(folder).glob("*.json")}


@pytest.mark.slow
def test_one_worker_and_two_find_the_same(run, finished):
    words = ("compare", "small.toml", "--json")
    one = run(*words, "--jobs", "1")
    assert one[0] == 0
    two = run(*words, "--jobs", "2", "--runs", "new")
    assert (one[0], one[2]) == (two[0], two[2])
    assert without_clock(json.loads(one[1])) == without_clock(json.loads(two[1]))
    assert len(contents("new")) == 8
    assert contents("new") == contents(".topoplan-runs")


def test_what_is_kept_is_not_run_again_and_what_is_lost_is(run, finished, tmp_path):
    folder = tmp_path / ".topoplan-runs"
    before = contents(folder)
    lost, damaged, marked, *_ = sorted(folder.glob("*.json"))
    lost.unlink()
    damaged.write_text('{"result"')
    record = json.loads(marked.read_text())
    record["result"]["initial_iteration_time_s"] = 12345.0
    record["digest"] = hashlib.sha256(json.dumps(record["result"], sort_keys=True).encode()).hexdigest()
    marked.write_text(json.dumps(record))
    _, out, _ = run("compare", "small.toml", "--json")
    after = contents(folder)
    assert {name for name in after if after[name] != before[name]} == {marked.name}
    assert "12345.0" in out  # taken from the file, not run again


def test_another_price_repeats_only_what_it_makes_faster_or_slower(run, finished, tmp_path):
    Path("dear.toml").write_text(PRICES.read_text().replace("price = 100\n", "price = 300\n"))
    before = contents(tmp_path / ".topoplan-runs")
    _, out, _ = run("compare", "small.toml", "--prices", "dear.toml", "--json")
    new = set(contents(tmp_path / ".topoplan-runs")) - set(before)
    assert len(new) == 4  # the trees, which may cost more now; two bandwidths and two seeds
    assert json.loads(out)["prices"]["file"] == "dear.toml"


@pytest.mark.slow
def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(run, interrupted, comparison, tmp_path):
    words = ["compare", "small.toml", "--budget", "5", "--seeds", "1", "--jobs", "2", "--json"]
    status, out, err = interrupted(*words, once=".topoplan-runs/*.json")
    folder = tmp_path / ".topoplan-runs"
    before = contents(folder)
    assert status == 130, err
    assert f"interrupted: {len(before)} of 4 runs are kept in .topoplan-runs; the same command goes on" in err
    assert "Traceback" not in err
    assert out == ""
    assert 1 <= len(before) < 4
    assert run(*words)[0] == 0
    after = contents(folder)
    assert len(after) == 4
    assert before.items() <= after.items()
    assert run(*words, "--jobs", "1", "--runs", "fresh")[0] == 0
    assert contents(tmp_path / "fresh") == after


def test_the_first_failure_stops_what_has_not_begun_and_is_told_with_its_run(run):
    # No strategy fits: a device holds a hundred bytes.
    words = ["--networks", "bigswitch,fattree", "--simulator", "fluid:memory=limit", "--memory-gb", "0.0000001"]
    status, _, err = run("compare", "dlrm", "--servers", "4", *words)
    assert status == 2
    assert err.startswith("error: dlrm on bigswitch")
    assert "Traceback" not in err


def test_a_run_depends_on_files_by_content_and_on_the_code_that_takes_part(tmp_path, comparison):
    host, prices = Host.discover(), default_prices()
    for name, text in (("a", "{}"), ("b", "{}"), ("c", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "d.json").write_text(text)
    model = {"use": "dlrm", "measured": {"use": "measured", "file": "d.json"}}
    study = study_from({**comparison, "model": [model]}, "f", "f.toml")
    store = Store(tmp_path / "runs")

    def key_of(name):
        return store.key(inputs(host, run_specs(study, host, prices, tmp_path / name)[0].experiment))

    a, b, c = map(key_of, "abc")
    assert a == b != c
    dependencies = inputs(host, run_specs(study, host, prices, tmp_path / "a")[0].experiment)
    assert {"topoplan-core", "topoplan-engine", "topoplan-machine-nvidia", "topoplan-searcher-totientperm"} <= set(
        dependencies["code"]
    )
    assert "topoplan-directconnect" in dependencies["code"]  # a library of the topology
    assert not any("-exporter-" in name or "-command-" in name for name in dependencies["code"])
    assert all(dependencies["code"].values())


PLUGIN = """
import attrs
from topoplan import hookimpl
from topoplan_searcher_random import Random

@attrs.frozen
class Mine(Random):
    "A searcher of mine."
    name = "mine"

@hookimpl
def topoplan_searchers():
    return [Mine]
"""
MACHINE = """
from topoplan import Device, HostModel, Machine, hookimpl

class Unused(Machine):
    "A machine that no run names."
    name = "unused-1"
    def build(self):
        return HostModel(Device(name="unused-1", memory=1e9, peak_flops={"fp32": 1e12}, memory_bandwidth=1e11))

@hookimpl
def topoplan_machines():
    return [Unused]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Lay a distribution of one module into a folder that is imported from, as an installer does.

    It is editable, from a folder, or from an index of packages (None).
    """

    def install(name, module, text, *, editable=True):
        source = tmp_path / f"of-{module}" if editable else tmp_path
        source.mkdir(exist_ok=True)
        (source / f"{module}.py").write_text(text)
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\nRequires-Dist: topoplan-core\n")
        (info / "entry_points.txt").write_text(f"[topoplan]\n{name.removeprefix('topoplan-')} = {module}\n")
        (info / "RECORD").write_text(f"{module}.py,,\n{info.name}/METADATA,,\n")
        if editable is not None:
            origin = {"url": source.as_uri(), "dir_info": {"editable": True} if editable else {}}
            (info / "direct_url.json").write_text(json.dumps(origin))
        for folder in {tmp_path, source}:
            monkeypatch.syspath_prepend(folder)
        return source / f"{module}.py"

    return install


def key_with_mine(folder):
    for cached in (sources._code_of, sources.source_digest):  # as another process
        cached.cache_clear()
    experiment = Experiment(model="alexnet", searchers=("mine",))
    return Store(folder).key(inputs(Host.discover(), experiment))


@pytest.mark.by_day(2)
@pytest.mark.parametrize(("editable", "again"), [(True, True), (False, True), (None, False)])
def test_new_code_of_a_searcher_is_another_run_unless_its_version_says_what_it_is(tmp_path, install, editable, again):
    """A version from an index never changes; what is developed changes under one number."""
    module = install("topoplan-searcher-mine", f"mine_{editable}".lower(), PLUGIN, editable=editable)
    before = key_with_mine(tmp_path)
    assert key_with_mine(tmp_path) == before
    module.write_text(PLUGIN + "# corrected\n")
    assert (key_with_mine(tmp_path) != before) == again


def test_a_plugin_that_takes_no_part_repeats_nothing(tmp_path, install):
    install("topoplan-searcher-mine", "mine_beside", PLUGIN)
    before = key_with_mine(tmp_path)
    install("topoplan-machine-unused", "machine_unused", MACHINE)
    assert "unused-1" in {row.name for row in Host.discover().listing()}
    assert key_with_mine(tmp_path) == before
