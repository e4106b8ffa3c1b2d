"""``topoplan compare``: one table for several networks, runs that are kept, figures and pages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from topoplan import Cluster, Host, TopologyContext, TopoplanError
from topoplan.cli import main
from topoplan.comparing.cells import cells
from topoplan.comparing.figure import figure_from
from topoplan.comparing.store import Store, inputs
from topoplan.experiment import read_toml
from topoplan.prices import bill, cost, default_prices

ROOT = Path(__file__).parents[1]
#: Other commands have experiments too.
EXPERIMENTS = sorted(
    path for path in (ROOT / "experiments").glob("*.toml") if path.read_text().startswith("# topoplan compare ")
)
MODEL = ["compare", "dlrm", "-o", "arch-embedding-size=1000-1000", "--servers", "4", "--batch-size", "64"]
SMALL = [*MODEL, "--budget", "20", "--networks", "topoopt,fattree:k=4,bigswitch,random:paths=2"]
FIGURE = """
title = "Small"
source = "nobody"
budget = 5
seeds = [1, 2]
[cluster]
servers = 4
[vary]
interface-bandwidth-gbps = [10, 100]
[[model]]
name = "D"
use = "dlrm"
arch-embedding-size = "1000-1000"
batch-size = 64
[[network]]
name = "panel"
use = "topoopt"
[[network]]
name = "tree"
use = "fattree"
costs-as = "panel"
[[claim]]
faster = "panel"
slower = "tree"
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the command in an empty folder; return (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(args)
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def figure(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(FIGURE)
    return path


def rows_of(path):
    return {(row["network"], *row["at"].values()): row for row in json.loads(Path(path).read_text())["rows"]}


# ── One model ───────────────────────────────────────────────────────────────────────────────────────────


def test_every_network_has_its_row(run):
    status, out, err = run(*SMALL, "--json", "a.json")
    assert (status, err) == (0, "")
    for word in ("topoopt", "fattree:k=4", "bigswitch", "random:paths=2", "lower bound", "cost (USD)", "time x cost"):
        assert word in out
    assert "operator times: estimated" in out
    assert "prices of topoplan hold assumptions" in out
    found = rows_of("a.json")
    assert [name for name, *_ in found] == ["topoopt", "fattree:k=4", "bigswitch", "random:paths=2"]
    for row in found.values():
        time_ = row["iteration_time_s"]
        assert 0 < row["lower_bound_s"] <= time_["median"] * (1 + 1e-9)
        assert 0 <= row["exposed_communication_s"] < time_["median"]
        assert row["time_cost"] == pytest.approx(time_["median"] * row["network_cost"])
        assert row["runs"][0]["evaluations"] == 21
        assert row["bandwidth_tax"] >= 1 - 1e-9


def test_networks_that_use_one_interface_get_the_bandwidth_of_all(run):
    run(*SMALL, "--budget", "0", "--degree", "4", "--interface-bandwidth-gbps", "25", "--json", "a.json")
    speeds = {
        row["network"]: (row["interfaces"], row["interface_bandwidth_gbps"])
        for row in json.loads(Path("a.json").read_text())["rows"]
    }
    assert speeds["topoopt"] == speeds["random:paths=2"] == (4, 25)
    assert speeds["fattree:k=4"] == speeds["bigswitch"] == (1, 100)


def test_at_equal_cost_all_that_is_for_sale_costs_the_same(run):
    run(*SMALL, "--budget", "0", "--at-equal-cost", "--json", "a.json")
    found = {row["network"]: row for row in json.loads(Path("a.json").read_text())["rows"]}
    cost_of = {name: row["network_cost"] for name, row in found.items()}
    assert cost_of["fattree:k=4"] == pytest.approx(cost_of["topoopt"], rel=1e-6)
    assert cost_of["random:paths=2"] == pytest.approx(cost_of["topoopt"], rel=1e-6)
    assert cost_of["bigswitch"] > cost_of["topoopt"]
    # An expander needs no panel, so the same money buys it faster links.
    assert found["random:paths=2"]["interface_bandwidth_gbps"] > found["topoopt"]["interface_bandwidth_gbps"]


def test_only_networks_that_can_be_rewired_get_a_searcher_that_rewires(run, tmp_path):
    run(*SMALL, "--budget", "0")
    kept = [json.loads(path.read_text())["inputs"] for path in (tmp_path / ".topoplan-runs").glob("*.json")]
    searchers = {
        next(c["name"] for c in one["components"] if c["kind"] == "topology"): [
            c["name"] for c in one["components"] if c["kind"] == "searcher"
        ]
        for one in kept
    }
    assert searchers == {
        "topoopt": ["mcmc", "totientperm"], "fattree": ["mcmc"], "bigswitch": ["mcmc"], "random": ["mcmc"],
    }  # fmt: skip


def test_a_full_fat_tree_costs_five_ports_and_six_transceivers_a_host():
    component, options = Host.discover().make("topology", "fattree")
    cluster = Cluster.uniform(n_hosts=16, interfaces=1)
    fabric = component.build(options, TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    found = {item.part: item.count / 16 for item in bill(fabric, component.switching)}
    assert found == {"nic": 1, "switch-port": 5, "transceiver": 6, "fibre": 3}


def test_an_ideal_switch_costs_as_the_fat_tree_of_its_bandwidth():
    host, prices, found = Host.discover(), default_prices(), []
    for name in ("fattree", "bigswitch"):
        component, options = host.make("topology", name)
        cluster = Cluster.uniform(n_hosts=16, interfaces=1)
        fabric = component.build(options, TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
        found.append(cost(bill(fabric, component.switching), prices))
    assert found[0] == pytest.approx(found[1])


BAD = [
    (["compare", "dlmr", "--networks", "topoopt"], "no frontend named 'dlmr'; did you mean 'dlrm'"),
    ([*MODEL, "--networks", "topopt"], "no topology named 'topopt'; did you mean 'topoopt'"),
    ([*MODEL, "--networks", "topoopt,topoopt"], "network: 'topoopt' is there twice"),
    ([*MODEL, "--networks", "fattree:k=3"], "k 3 is odd"),
    ([*MODEL, "--networks", "fattree:kk=4"], "no option 'kk'"),
    (MODEL, "needs at least one [[network]]"),
    ([*MODEL, "--at-equal-cost"], "--at-equal-cost: needs --networks"),
    ([*SMALL, "--degree", "4,x"], "--degree '4,x': expected numbers"),
    ([*SMALL, "--degree", "4,4"], "degree: [4, 4] has a value twice"),
    ([*SMALL, "--degree", "0"], "degree: 0 is too small"),
    ([*SMALL, "--interface-bandwidth-gbps", "-1"], "interface-bandwidth-gbps: -1.0 is too small"),
    ([*SMALL, "--batch-size", "1.5"], "batch-size: expected positive integers"),
    ([*SMALL, "--seeds", "1,1"], "seeds: [1, 1] must be one or more different numbers"),
    ([*SMALL, "--seeds", "a"], "seeds: expected integer"),
    ([*SMALL, "--prices", "absent.toml"], "absent.toml: cannot be read"),
    ([*SMALL, "--measures", "absent"], "--measures absent: is not a folder"),
    ([*SMALL, "--json", "absent/a.json"], "does not exist"),
    ([*SMALL, "-s", "totientperm"], "cannot be rewired and needs a searcher of strategies"),
    (["compare", "absent.toml"], "absent.toml: cannot be read"),
]


@pytest.mark.parametrize(("args", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_ends_with_one_line_and_runs_nothing(run, tmp_path, args, message):
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


# ── Figures ─────────────────────────────────────────────────────────────────────────────────────────────


def changed(**changes):
    document = json.loads(json.dumps(read_document()))
    document.update(changes)
    return document


def read_document():
    import tomllib

    return tomllib.loads(FIGURE)


BAD_FIGURES = [
    (changed(titel="x"), "no section 'titel'; did you mean 'title'"),
    (changed(model=[]), "needs at least one [[model]]"),
    (changed(model=[{"name": "D"}]), 'model[0]: needs use = "name of a component"'),
    (changed(model=[{"use": "dlrm", "batch-size": "x"}]), "model[0]: batch-size: expected a positive integer"),
    (changed(model=[{"use": "dlrm", "measured": "measured"}]), "measured: needs file"),
    (changed(network=[{"use": "topoopt", "name": 3}]), "network[0]: name: expected text"),
    (changed(network=[{"use": "topoopt", "costs-as": "x"}], claim=[]), "costs-as: no network 'x'"),
    (changed(network=[{"use": "topoopt", "costs-as": "topoopt"}], claim=[]), "has no cost of its own to go by"),
    (changed(vary={"device": ["A", "B"]}), "vary: 'device' cannot vary (have: batch-size,"),
    (changed(vary={"degree": 4}), "vary: degree: expected a list of numbers"),
    (changed(vary={"degree": ["x"]}), "vary: degree: expected integer, got 'x'"),
    (changed(claim=[{"faster": "panel", "slower": "trees"}]), "slower: no network 'trees'; did you mean 'tree'"),
    (changed(claim=[{"faster": "panel", "slower": "tree", "by": 2}]), "claim[0]: no key 'by'"),
    (changed(cluster=[1]), "cluster: must be a table"),
    (changed(searcher=3), "searcher: must be a list of tables"),
]


@pytest.mark.parametrize(("document", "message"), BAD_FIGURES, ids=[message for _, message in BAD_FIGURES])
def test_a_bad_figure_is_told_by_section_and_key(document, message):
    with pytest.raises(TopoplanError) as told:
        figure_from(document, "f", "f.toml")
    assert message in str(told.value)
    assert str(told.value).startswith("f.toml: ")


def test_a_network_that_cannot_be_as_cheap_is_told_with_its_place():
    document = changed(
        network=[{"name": "tree", "use": "bigswitch"}, {"name": "all", "use": "fully-connected", "costs-as": "tree"}],
        cluster={"servers": 32},
        claim=[],
    )
    with pytest.raises(TopoplanError, match=r"network 'all', interface-bandwidth-gbps 10: cannot cost as 'tree'"):
        cells(figure_from(document, "f", "f.toml"), Host.discover(), default_prices(), None)


def test_seeds_are_repeated_and_their_spread_shown(run, figure):
    assert run("compare", "small.toml", "--json", "a.json")[0] == 0
    for row in rows_of("a.json").values():
        times = sorted(one["iteration_time_s"] for one in row["runs"])
        assert [one["seed"] for one in row["runs"]] == [1, 2]
        assert row["iteration_time_s"] == {"least": times[0], "median": sum(times) / 2, "most": times[1]}


def test_a_claim_is_judged_at_every_place(run, figure):
    run("compare", "small.toml", "--json", "a.json")
    found, rows = json.loads(Path("a.json").read_text())["claims"][0], rows_of("a.json")
    assert found["claim"] == "panel is faster than tree"
    assert found["holds"] + found["equal"] + found["fails"] == len(found["places"]) == 2
    for one in found["places"]:
        gbps = one["at"]["interface-bandwidth-gbps"]
        ratio = rows["tree", gbps]["iteration_time_s"]["median"] / rows["panel", gbps]["iteration_time_s"]["median"]
        assert one["ratio"] == pytest.approx(ratio)
        assert one["outcome"] == ("equal" if abs(ratio - 1) < 0.0099 else "holds" if ratio > 1 else "fails")


def test_measurements_take_over_where_their_folder_is_given(tmp_path):
    (tmp_path / "d-64.json").write_text("{}")
    model = {"use": "dlrm", "batch-size": 64, "measured": {"use": "measured", "file": "d-{batch-size}.json"}}
    one = figure_from(changed(model=[model]), "f", "f.toml")
    host, prices = Host.discover(), default_prices()
    assert {cell.experiment.estimator for cell in cells(one, host, prices, None)} == {None}
    (estimator,) = {cell.experiment.estimator.options["file"] for cell in cells(one, host, prices, tmp_path)}
    assert estimator == str(tmp_path / "d-64.json")
    model["batch-size"] = 128
    with pytest.raises(TopoplanError, match=r"model 'dlrm': no file .*d-128\.json"):
        cells(figure_from(changed(model=[model]), "f", "f.toml"), host, prices, tmp_path)


# ── Runs that are kept ──────────────────────────────────────────────────────────────────────────────────


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.json")}


def test_one_worker_and_two_find_the_same(run, figure):
    for jobs in "12":
        assert run("compare", "small.toml", "--jobs", jobs, "--runs", f"r{jobs}", "--json", f"{jobs}.json")[0] == 0
    assert Path("1.json").read_bytes() == Path("2.json").read_bytes()
    assert len(contents("r1")) == 8
    assert contents("r1") == contents("r2")


def test_what_is_kept_is_not_run_again_and_what_is_lost_is(run, figure, tmp_path):
    run("compare", "small.toml", "--json", "a.json")
    folder = tmp_path / ".topoplan-runs"
    before = contents(folder)
    lost, damaged, marked, *_ = sorted(folder.glob("*.json"))
    lost.unlink()
    damaged.write_text('{"result"')
    kept = json.loads(marked.read_text())
    kept["result"]["initial_iteration_time_s"] = 12345.0
    marked.write_text(json.dumps(kept))
    run("compare", "small.toml", "--json", "b.json")
    after = contents(folder)
    assert {name for name in after if after[name] != before[name]} == {marked.name}
    assert "12345.0" in Path("b.json").read_text()  # taken from the file, not run again


def test_another_price_repeats_only_what_it_makes_faster_or_slower(run, figure, tmp_path):
    run("compare", "small.toml")
    text = (ROOT / "core/src/topoplan/prices/default.toml").read_text()
    Path("dear.toml").write_text(text.replace("price = 100\n", "price = 300\n"))
    before = contents(tmp_path / ".topoplan-runs")
    run("compare", "small.toml", "--prices", "dear.toml", "--json", "a.json")
    new = set(contents(tmp_path / ".topoplan-runs")) - set(before)
    assert len(new) == 4  # the trees, which may cost more now; two bandwidths and two seeds
    assert json.loads(Path("a.json").read_text())["prices"]["file"] == "dear.toml"


def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(figure, tmp_path):
    words = [sys.executable, "-c", "from topoplan.cli import main; main()"]
    words += ["compare", "small.toml", "--budget", "300", "--json", "a.json"]
    going = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    kept = tmp_path / ".topoplan-runs"
    limit = time.monotonic() + 120
    while not list(kept.glob("*.json")) and going.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    going.send_signal(signal.SIGINT)
    out, err = going.communicate(timeout=120)
    before = contents(kept)
    if going.returncode == 0:
        pytest.skip("the runs were over before they could be interrupted")
    assert going.returncode == 130, err
    assert f"interrupted: {len(before)} of 8 runs are kept in .topoplan-runs; the same command goes on" in err
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "a.json").exists()
    assert 1 <= len(before) < 8
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    after = contents(kept)
    assert len(after) == 8
    assert before.items() <= after.items()
    subprocess.run([*words, "--runs", "fresh"], cwd=tmp_path, check=True, capture_output=True)
    assert contents(tmp_path / "fresh") == after


def test_the_first_failure_stops_what_has_not_begun_and_is_told_with_its_run(run):
    # No strategy fits: a device holds a megabyte.
    status, _, err = run(
        *MODEL, "--networks", "bigswitch,fattree", "--simulator", "fluid:memory=limit", "--memory-gb", "0.000001"
    )
    assert status == 2
    assert err.startswith("error: dlrm on bigswitch")
    assert "Traceback" not in err


def test_a_run_depends_on_files_by_content_and_on_code(tmp_path):
    host, prices = Host.discover(), default_prices()
    for name, text in (("a", "{}"), ("b", "{}"), ("c", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "d.json").write_text(text)
    model = {"use": "dlrm", "measured": {"use": "measured", "file": "d.json"}}
    one = figure_from(changed(model=[model]), "f", "f.toml")
    store = Store(tmp_path / "runs")
    given = [inputs(host, cells(one, host, prices, tmp_path / name)[0].experiment) for name in "abc"]
    a, b, c = map(store.key, given)
    assert a == b != c
    assert {"topoplan-core", "topoplan-topology-topoopt", "topoplan-searcher-totientperm"} <= given[0]["code"].keys()
    assert all(given[0]["code"].values())
    assert store.key({**given[0], "code": {**given[0]["code"], "topoplan-core": "other"}}) != a


# ── Pages and plots ─────────────────────────────────────────────────────────────────────────────────────


def test_a_section_is_replaced_between_its_markers_and_nothing_else(run, figure):
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


def test_a_page_that_is_not_there_is_begun(run, figure):
    run("compare", "small.toml", "--write", "new.md")
    assert Path("new.md").read_text().startswith("<!-- begin small -->\n")


def test_a_page_with_half_a_section_is_left_alone(run, figure):
    Path("page.md").write_text("<!-- begin small -->\n")
    status, _, err = run("compare", "small.toml", "--write", "page.md")
    assert status == 2
    assert "page.md: needs <!-- begin small --> before <!-- end small -->" in err
    assert Path("page.md").read_text() == "<!-- begin small -->\n"
    assert not Path("page-small.svg").exists()


def test_the_plot_has_a_point_for_every_row(run, figure):
    run("compare", "small.toml", "--plot", "p.svg", "--json", "a.json")
    root = ET.fromstring(Path("p.svg").read_text())
    assert len(root.findall(".//{*}circle")) == len(rows_of("a.json")) == 4
    assert {"panel", "tree", "D"} <= {text.text for text in root.findall(".//{*}text")}


# ── The experiments of the repository ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_names_what_exists(path):
    host = Host.discover()
    one = figure_from(read_toml(path), path.stem, str(path))
    todo = cells(one, host, default_prices(), None)
    assert {cell.experiment.topology.name for cell in todo} >= {"topoopt", "fattree", "bigswitch"}
    inputs(host, todo[0].experiment)
    assert path.read_text().startswith(f"# topoplan compare experiments/{path.name} ")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_finds_its_measurements(path, reference_data):
    one = figure_from(read_toml(path), path.stem, str(path))
    todo = cells(one, Host.discover(), default_prices(), reference_data / "measures")
    assert {cell.experiment.estimator.name for cell in todo} == {"measured"}


def test_an_experiment_runs_without_measurements(run):
    words = ["--servers", "4", "--budget", "0", "--seeds", "1", "--interface-bandwidth-gbps", "100", "--json", "a.json"]
    status, out, err = run("compare", str(ROOT / "experiments/dedicated-d4.toml"), *words)
    assert status == 0, err
    assert "operator times: estimated, not measured" in out
    assert len(json.loads(Path("a.json").read_text())["rows"]) == 6 * 4


def test_there_are_experiments():
    assert len(EXPERIMENTS) >= 4
