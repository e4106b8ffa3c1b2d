"""``topoplan compare`` for one model: a row for every network, what it costs, and what is told of bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest

from topoplan import Cluster, Host, TopologyContext
from topoplan_studies.prices import bill, cost, default_prices

MODEL = ["compare", "dlrm", "-o", "arch-embedding-size=1000-1000", "--servers", "4", "--batch-size", "64"]
SMALL = [*MODEL, "--budget", "20", "--networks", "topoopt,fattree:k=4,bigswitch,random:paths=2"]


def searchers_of(folder):
    """Topology -> searchers of the runs that are kept."""
    records = [json.loads(path.read_text())["inputs"]["components"] for path in folder.glob("*.json")]
    return {
        next(c["name"] for c in one if c["kind"] == "topology"): [c["name"] for c in one if c["kind"] == "searcher"]
        for one in records
    }


def test_every_network_has_its_row(run, rows, tmp_path):
    status, out, err = run(*SMALL)
    assert (status, err) == (0, "")
    for word in (
        "topoopt",
        "fattree:k=4",
        "bigswitch",
        "random:paths=2",
        "lower bound",
        "any wiring",
        "network (USD)",
        "hosts (USD)",
        "time x cost",
    ):
        assert word in out
    assert "operator times: estimated" in out
    assert "prices of topoplan hold assumptions" in out
    table = rows(run(*SMALL, "--json")[1])
    assert [name for name, *_ in table] == ["topoopt", "fattree:k=4", "bigswitch", "random:paths=2"]
    for row in table.values():
        time_ = row["iteration_time_s"]
        assert 0 < row["lower_bound_s"] <= time_["median"] * (1 + 1e-9)
        assert 0 <= row["exposed_communication_s"] < time_["median"]
        assert row["time_cost"] == pytest.approx(time_["median"] * row["total_cost"])
        assert row["total_cost"] == row["network_cost"] + row["hosts_cost"]
        assert row["hosts_cost"] == 15_000 * sum(row["runs"][0]["devices"].values())
        assert row["runs"][0]["evaluations"] == 21
        assert row["bandwidth_tax"] >= 1 - 1e-9
        wiring = row["fabric_lower_bound_s"]
        if row["network"] in ("topoopt", "random:paths=2"):
            assert 0 < wiring <= time_["median"] * (1 + 1e-9)
        else:
            assert wiring is None
    # Only a network that can be rewired gets searchers that rewire.
    assert searchers_of(tmp_path / ".topoplan-runs") == {
        "topoopt": ["auto", "hybrid", "spmd", "pipeline", "totientperm", "relink"],
        "fattree": ["auto", "hybrid", "spmd", "pipeline"],
        "bigswitch": ["auto", "hybrid", "spmd", "pipeline"],
        "random": ["auto", "hybrid", "spmd", "pipeline"],
    }


def test_a_model_whose_option_names_a_file_is_no_study(run, tmp_path):
    file = tmp_path / "mlp.toml"
    file.write_text('[[input]]\nname = "x"\nshape = [64]\n[[layer]]\nkind = "linear"\nout = 64\n')
    words = ("-n", "bigswitch", "--servers", "2", "-s", "mcmc", "--budget", "0", "--json")
    status, out, err = run("compare", f"layers:file={file}", *words)
    assert (status, err) == (0, "")
    assert json.loads(out)["rows"][0]["model"] == "layers"
    status, _, err = run("compare", f"{tmp_path}/absent.toml")
    assert (status, err.count("absent.toml: cannot be read")) == (2, 1)


@pytest.mark.slow
def test_models_machines_and_networks_are_a_run_for_each_of_each(run):
    words = ("-n", "bigswitch,rail-optimized", "-m", "dgx-a100,dgx-h100", "--servers", "2", "--batch-size", "64")
    status, out, err = run(
        "compare", "alexnet", "resnet50", *words, "--searcher", "baseline", "--budget", "0", "--json"
    )
    assert (status, err) == (0, "")
    found = [(row["model"], row["at"]["machine"], row["network"]) for row in json.loads(out)["rows"]]
    assert found == [
        (model, machine, network)
        for model in ("alexnet", "resnet50")
        for machine in ("dgx-a100", "dgx-h100")
        for network in ("bigswitch", "rail-optimized")
    ]
    status, out, err = run("compare", "alexnet", *words, "-m", "dgx-a100,dgx-h10")
    assert (status, out) == (2, "")
    assert "dgx-h10" in err


@pytest.mark.slow
def test_a_stated_plan_is_priced_on_every_network(run, tmp_path):
    words = ("-n", "bigswitch,rail-optimized", "-m", "dgx-h100", "--servers", "2", "--batch-size", "64")
    status, _, err = run("compare", "transformer", *words, "--plan", "tp=2,dp=8")
    assert (status, err) == (0, "")
    assert searchers_of(tmp_path / ".topoplan-runs") == {"bigswitch": ["stated"], "rail-optimized": ["stated"]}
    status, _, err = run("compare", "transformer", *words, "--plan", "tp=2,dp=8", "-s", "mcmc")
    assert (status, err.count("a stated plan is priced, not searched")) == (2, 1)


def test_all_networks_have_the_same_interfaces(run):
    _, out, _ = run(*SMALL, "--budget", "0", "--degree", "4", "--interface-bandwidth-gbps", "25", "--json")
    speeds = {
        row["network"]: (row["interfaces"], row["interfaces_used"], row["interface_bandwidth_gbps"])
        for row in json.loads(out)["rows"]
    }
    assert set(speeds.values()) == {(4, 4, 25)}


@pytest.mark.slow
def test_at_equal_cost_all_that_is_for_sale_costs_the_same(run):
    words = [*SMALL, "--budget", "0", "--at-equal-cost"]
    _, out, _ = run(*words)
    table = {row["network"]: row for row in json.loads(run(*words, "--json")[1])["rows"]}
    cost_of = {name: row["network_cost"] for name, row in table.items()}
    assert cost_of["fattree:k=4"] == pytest.approx(cost_of["topoopt"], rel=1e-6)
    assert cost_of["random:paths=2"] == pytest.approx(cost_of["topoopt"], rel=1e-6)
    assert cost_of["bigswitch"] > cost_of["topoopt"]
    times = f"{cost_of['bigswitch'] / cost_of['topoopt']:.2f}"
    reason = "an ideal switch is not for sale, and keeps its bandwidth"
    assert f"not of equal cost: bigswitch costs {times} times as much as topoopt: {reason}" in out
    assert f"({times}x)" in out
    assert table["topoopt"]["equal_cost"] is None
    assert table["fattree:k=4"]["equal_cost"] == {
        "network": "topoopt",
        "cost": cost_of["topoopt"],
        "equal": True,
        "reason": None,
    }
    assert (table["bigswitch"]["equal_cost"]["equal"], table["bigswitch"]["equal_cost"]["reason"]) == (False, reason)
    # What is bought between two bandwidths of the price list is marked.
    assert [table[name]["priced"] for name in ("topoopt", "random:paths=2", "bigswitch")] == [
        "listed",
        "between",
        "listed",
    ]
    assert f"{table['random:paths=2']['interface_bandwidth_gbps']:.4g}* " in out
    assert "* not for sale at this bandwidth" in out
    # An expander needs no panel, so the same money buys it faster links.
    assert table["random:paths=2"]["interface_bandwidth_gbps"] > table["topoopt"]["interface_bandwidth_gbps"]


def test_a_full_fat_tree_costs_five_ports_and_six_transceivers_a_host():
    component = Host.discover().make("topology", "fattree")
    cluster = Cluster.uniform(n_hosts=16, interfaces=1)
    fabric = component.build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    shares = {item.part: item.count / 16 for item in bill(fabric)}
    assert shares == {"nic": 1, "switch-port": 5, "transceiver": 6, "fibre": 3}


def test_an_ideal_switch_costs_as_the_fat_tree_of_its_bandwidth():
    host, prices, bills = Host.discover(), default_prices(), []
    for name in ("fattree", "bigswitch"):
        component = host.make("topology", name)
        cluster = Cluster.uniform(n_hosts=16, interfaces=1)
        fabric = component.build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
        bills.append(cost(bill(fabric), prices))
    assert bills[0] == pytest.approx(bills[1])


BAD = [
    (["compare", "dlmr", "--networks", "topoopt"], "no frontend named 'dlmr'; did you mean 'dlrm'"),
    ([*MODEL, "--networks", "topopt"], "no topology named 'topopt'; did you mean 'topoopt'"),
    ([*MODEL, "--networks", "fattree,topopt"], "network 'topopt': no topology named 'topopt'"),
    ([*MODEL, "-n", "bigswitch", "-n", "fat", "--at-equal-cost"], "network 'fat': no topology named 'fat'"),
    ([*MODEL, "--networks", "topoopt,topoopt"], "network: 'topoopt' is there twice"),
    ([*MODEL, "--networks", "fattree:k=3"], "k 3 is odd"),
    ([*MODEL, "--networks", "fattree:kk=4"], "no option 'kk'"),
    (MODEL, 'needs at least one [[network]] with use = "..." (--networks, such as -n fattree,topoopt)'),
    ([*MODEL, "-n", "topoopt", "-o", "batch-size=32"], "dlrm: no option 'batch-size' (write --batch-size)"),
    ([*MODEL, "--at-equal-cost"], "--at-equal-cost: needs --networks"),
    ([*SMALL, "--degree", "4,x"], "--degree: expected integer, got 'x'"),
    ([*SMALL, "--degree", "4,4"], "degree: [4, 4] has a value twice"),
    ([*SMALL, "--degree", "0"], "degree: 0 is too small"),
    ([*SMALL, "--interface-bandwidth-gbps", "-1"], "interface-bandwidth-gbps: -1.0 is too small"),
    ([*SMALL, "--batch-size", "1.5"], "--batch-size: expected integer, got '1.5'"),
    ([*SMALL, "--seeds", "1,1"], "seeds: [1, 1] must be one or more different numbers"),
    ([*SMALL, "--seeds", "a"], "seeds: expected integer"),
    ([*SMALL, "--prices", "absent.toml"], "absent.toml: cannot be read"),
    ([*SMALL, "--plot", "absent/a.svg"], "does not exist"),
    ([*SMALL, "--plot", "."], "--plot .: plots are SVG, PDF or PNG"),
    ([*SMALL, "--measures", "absent"], "--measures absent: is not a folder"),
    ([*SMALL, "--plot", "a.gif"], "--plot a.gif: plots are SVG, PDF or PNG (name a file that ends in .svg, .pdf or"),
    ([*SMALL, "-e", "roofline", "-e", "roofline"], "--estimator: is given 2 times (a run has one)"),
    ([*MODEL, "-n", "topoopt,,fattree"], "-n 'topoopt,,fattree': nothing stands before or behind a comma"),
    ([*MODEL, "-n", "fattree,k=4"], "-n 'fattree,k=4': options follow a colon (fattree:k=4)"),
    (
        [*SMALL, "--catalogue", "--interface-bandwidth-gbps", "30"],
        "30: prices of topoplan list no [[nic]] of it (have: 10, 25",
    ),
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


def test_a_table_says_the_rates_of_hosts_that_differ(run):
    """A DGX A100 has eight NICs of 200 Gbps, a DGX H100 eight of 400."""
    words = ("-n", "bigswitch", "-m", "dgx-h100*1+dgx-a100*1", "--batch-size", "64", "--searcher", "baseline")
    status, out, err = run("compare", "alexnet", *words, "--budget", "0")
    assert (status, err) == (0, "")
    assert "8 x 200..400" in out
