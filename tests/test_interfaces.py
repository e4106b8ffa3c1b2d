"""All commands use all interfaces of a host, and have the same number of them where nobody says."""

from __future__ import annotations

import json

import pytest

from topoplan import Host
from topoplan.plugin.components import Kind
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_studies import command as comparison
from topoplan_studies.measure import measure
from topoplan_studies.runner import StudyRuns

MODEL = ["dlrm", "-o", "arch-embedding-size=1000-1000", "--servers", "4", "--batch-size", "64"]
SWITCHED, DIRECT = ("bigswitch", "fattree"), ("fully-connected", "ocs", "random", "topoopt")
#: Networks on graphs of their own, whose hosts have as many interfaces as the graph gives them.
GRAPHS = {
    "bcube": False,
    "dragonfly": True,
    "hyperx": True,
    "jellyfish": True,
    "rail-only": True,
    "rail-optimized": True,
}
GRAPHS |= {"slim-fly": True, "torus": False}


@pytest.fixture
def compared(run, monkeypatch):
    """Run `topoplan compare` in this process; return the rows of its networks."""

    def run_all(cells, host, store, executor, report, *, measured, wait):
        results = tuple(measure(host, cell.experiment) for cell in cells)
        return StudyRuns(results=results, stored=0, interrupted=False)

    monkeypatch.setattr(comparison, "run_all", run_all)

    def compared(*words):
        status, out, err = run("compare", *MODEL, *words, "--json")
        assert (status, err) == (0, "")
        return {row["network"]: row for row in json.loads(out)["rows"]}

    return compared


def test_every_topology_that_ships_is_tried_here():
    topologies = {component.name: component.switched for component in Host.discover().components(Kind.TOPOLOGY)}
    for name in ("file", "degraded", "multi-plane"):  # have what their file says, and another topology
        del topologies[name]
    assert topologies == {**dict.fromkeys(SWITCHED, True), **dict.fromkeys(DIRECT, False), **GRAPHS}


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("networks", "degree", "wanted"),
    [
        (SWITCHED, [], 1),
        (DIRECT, [], 4),
        pytest.param((*SWITCHED, *DIRECT), ["--degree", "3"], 3, marks=pytest.mark.slow),
    ],
    ids=["switched", "direct", "all with three"],
)
def test_optimize_and_compare_say_the_same(run, compared, networks, degree, wanted):
    searchers = ["-s", "mcmc", "-s", "totientperm"]
    rows = compared("--budget", "5", "-n", ",".join(networks), *searchers, *degree)
    for name in networks:
        wired = name in ("ocs", "topoopt")
        words = ["--budget", "5", "-t", name, *searchers[: 4 if wired else 2], *degree, "--json"]
        status, out, err = run("optimize", *MODEL, *words)
        assert (status, err) == (0, "")
        single, row = json.loads(out), rows[name]
        assert single["iteration_time_s"] == row["iteration_time_s"]["median"], name
        assert [(report["interfaces"], report["interfaces_used"]) for report in (single, row)] == [(wanted, wanted)] * 2


@pytest.mark.by_day(1)
@pytest.mark.parametrize("switched", [False, True])
def test_networks_on_graphs_are_the_same_in_both(run, compared, switched):
    names = [name for name, has_switches in GRAPHS.items() if has_switches is switched]
    rows = compared("--budget", "0", "-n", ",".join(names), "--servers", "16")
    for name in names:
        status, out, err = run("optimize", *MODEL, "--servers", "16", "--budget", "0", "-t", name, "--json")
        assert (status, err) == (0, ""), name
        assert json.loads(out)["iteration_time_s"] == rows[name]["iteration_time_s"]["median"], name


def test_switches_beside_direct_networks_have_as_many_interfaces(compared):
    rows = compared("-n", "bigswitch,topoopt", "--budget", "0")
    assert {name: row["interfaces"] for name, row in rows.items()} == {"bigswitch": 4, "topoopt": 4}


def test_four_interfaces_are_one_of_four_times_the_bandwidth():
    def seconds(degree, gbps):
        cluster = ClusterOptions(servers=4, degree=degree, interface_bandwidth_gbps=gbps)
        return optimize(
            Experiment(model="dlrm:arch-embedding-size=1000-1000", cluster=cluster, run=RunOptions(budget=0))
        ).plan.timeline.makespan

    assert seconds(4, 10.0) == seconds(1, 40.0) < seconds(1, 10.0)


def test_the_table_says_what_a_host_has(run):
    _, out, _ = run(
        "optimize", *MODEL, "--budget", "0", "--degree", "8", "--interface-bandwidth-gbps", "400", "--details"
    )
    assert "8 x 400 Gbps" in out


@pytest.mark.slow
def test_simulate_and_run_use_all_interfaces(run, tmp_path):
    (tmp_path / "e.toml").write_text(
        'searcher = "mcmc"\n[model]\nuse = "dlrm"\narch-embedding-size = "1000-1000"\n'
        "[run]\nbudget = 0\nbatch-size = 64\n"
        '[cluster]\nservers = 4\ndegree = 3\n[outputs]\nflatbuffer = "e.fbuf"\n'
    )
    status, out, err = run("run", "e.toml", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["interfaces_used"] == 3
    reports = {}
    for words in ([], ["-t", "bigswitch"], ["-t", "fattree"], ["-t", "bigswitch", "--degree", "1"]):
        status, text, err = run("simulate", "e.fbuf", *words, "--simulator", "fluid:transport=wire", "--json")
        assert (status, err) == (0, "")
        reports[" ".join(words)] = json.loads(text)
    assert [report["interfaces_used"] for report in reports.values()] == [3, 3, 3, 1]
    times = [report["iteration_time_s"] for report in reports.values()]
    assert times[0] == times[1] == pytest.approx(json.loads(out)["iteration_time_s"], rel=1e-6)
    assert times[3] > times[1]
    assert "1 x 100 Gbps" in run("simulate", "e.fbuf", "-t", "bigswitch", "--degree", "1")[1]
    # Without a topology the network is the file's own, whatever the hosts are said to have.
    assert "3 of 2 x 100 Gbps" in run("simulate", "e.fbuf", "--degree", "2")[1]
