"""Fabrics that are rebuilt between phases, from the search to the files: times, the break-even delay, and formats."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from topoplan import Fabric, Host, ReconfigurableFabric, Topology, TopologyContext
from topoplan.cli import main
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.simulation.phases import phased_demand
from topoplan_engine.simulation.reconfiguration import break_even, rebuilds
from topoplan_studies.measure import measure
from topoplan_studies.notes import notes
from topoplan_studies.prices import default_prices
from topoplan_studies.results import network_results
from topoplan_studies.runspecs import RunSpec

CLUSTER = ["--servers", "16", "--interface-bandwidth-gbps", "25", "--seed", "1"]
#: The strategy that the search starts with has transfers and all-reduces.
MODEL = ["dlrm", "-o", "preset=dlrm16", "--budget", "0", *CLUSTER]
FIRST = [*MODEL, "-t", "ocs:delay-ms=3"]


def command(capsys, *args):
    with pytest.raises(SystemExit) as ended:
        main([*args])
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


@pytest.fixture(scope="module")
def outcome():
    return optimize(
        Experiment(
            model="dlrm:preset=dlrm16",
            cluster=ClusterOptions(servers=16, interface_bandwidth_gbps=25.0),
            topology="ocs:delay-ms=3",
            run=RunOptions(budget=0, seed=1),
        )
    )


def delayed(fabric, delay):
    return attrs.evolve(fabric, delay=delay)


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["fluid", "flexnet"])
def test_the_break_even_delay(outcome, simulator):
    plan, host = outcome.plan, Host.discover()
    component = host.make("simulator", simulator)
    simulate = component.build()
    topology = host.make("topology", "ocs")
    demand = phased_demand(plan.taskgraph, plan.cluster)
    context = TopologyContext(cluster=plan.cluster, demand=demand, rng=np.random.default_rng(0))
    static = topology.static_fabrics(context)
    # A static fabric that is worse makes rebuilding pay, for some delay.
    for fabrics in (static, [attrs.evolve(static[0], link_bandwidth=static[0].link_bandwidth / 4)]):
        delay = break_even(simulate, plan.taskgraph, plan.fabric, fabrics, plan.cluster)
        assert delay.rebuilds == rebuilds(plan.taskgraph, plan.fabric, plan.cluster) == 2
        assert delay.delay == pytest.approx(3e-3)
        best = min(simulate(plan.taskgraph, fabric, plan.cluster).makespan for fabric in fabrics)
        assert delay.static == best
        if fabrics is static and delay.break_even_delay <= 0:
            assert simulate(plan.taskgraph, delayed(plan.fabric, 0.0), plan.cluster).makespan >= best
        else:
            even = delayed(plan.fabric, delay.break_even_delay)
            assert simulate(plan.taskgraph, even, plan.cluster).makespan == pytest.approx(best, rel=1e-12)


def test_the_search_compares_its_plan(outcome):
    comparison, plan = outcome.break_even, outcome.plan
    assert plan.timeline.makespan == pytest.approx(comparison.at_once + 2 * 3e-3)
    assert comparison.break_even_delay == (comparison.static - comparison.at_once) / 2


def test_what_the_command_prints(capsys):
    code, out, err = command(capsys, "optimize", *FIRST, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert set(report["rebuilding"]) == {
        "rebuilds",
        "delay_s",
        "iteration_time_without_delay_s",
        "static_iteration_time_s",
        "break_even_delay_s",
    }
    assert report["lower_bound_s"] <= report["iteration_time_s"]
    seconds = report["draws"]["written_iteration_time_s"]
    assert seconds == pytest.approx(report["rebuilding"]["iteration_time_without_delay_s"] + 6e-3)
    assert report["iteration_time_s"] == pytest.approx(seconds, rel=0.01)
    code, out, err = command(capsys, "optimize", *FIRST, "--details")
    assert "break-even delay" in out
    assert "+ 2 x 3.0000 ms" in out


@pytest.mark.slow
def test_a_long_delay_leaves_the_fabric_as_it_is(capsys):
    """With searchers that propose both kinds, the one that stays wins, and the report still compares."""
    late = [*MODEL, "-t", "ocs:delay-ms=1000", "-s", "mcmc", "-s", "totientperm", "-s", "rewire", "--budget", "20"]
    code, out, err = command(capsys, "optimize", *late, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["initial_iteration_time_s"] > 2.0
    assert report["iteration_time_s"] < 1.0
    draws = report["draws"] or {"written_iteration_time_s": report["iteration_time_s"]}
    assert report["rebuilding"]["static_iteration_time_s"] <= draws["written_iteration_time_s"] * (1 + 1e-12)


@pytest.mark.slow
def test_a_plan_file_keeps_the_phases_and_gives_the_same_time(capsys, tmp_path):
    code, out, err = command(capsys, "optimize", *FIRST, "--json", "-x", f"json={tmp_path / 'plan.json'}")
    assert code == 0, err
    seconds = json.loads(out)["draws"]["written_iteration_time_s"]
    code, out, err = command(capsys, "simulate", str(tmp_path / "plan.json"), "--json")
    assert code == 0, err
    assert json.loads(out)["iteration_time_s"] == seconds
    faster = [
        "simulate",
        str(tmp_path / "plan.json"),
        "--json",
        "--interface-bandwidth-gbps",
        "50",
        "--latency-us",
        "2",
    ]
    code, out, err = command(capsys, *faster)
    assert code == 0, err
    assert json.loads(out)["iteration_time_s"] < seconds


def test_a_format_without_phases_refuses(capsys, tmp_path):
    path = tmp_path / "plan.fbuf"
    code, _, err = command(capsys, "optimize", *FIRST, "-x", f"flatbuffer={path}")
    assert code == 2
    assert "rebuilt between the phases of an iteration" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_task_graph_of_others_on_a_rebuilt_fabric(capsys, tmp_path):
    path, small = tmp_path / "plan.fbuf", ["--batch-size", "64", "--servers", "6", "--budget", "0"]
    static = ["optimize", "dlrm", *small, "-t", "bigswitch", "-x", f"flatbuffer={path}"]
    code, _, err = command(capsys, *static)
    assert code == 0, err
    code, out, err = command(capsys, "simulate", str(path), "-t", "ocs:delay-ms=3", "--degree", "4", "--json")
    assert code == 0, err
    late = json.loads(out)["iteration_time_s"]
    code, out, err = command(capsys, "simulate", str(path), "-t", "ocs:delay-ms=0", "--degree", "4", "--json")
    assert late - json.loads(out)["iteration_time_s"] == pytest.approx(6e-3)


@pytest.mark.slow
def test_only_other_topologies_say_nothing_of_it(capsys):
    code, out, err = command(capsys, "optimize", "ncf", "-t", "topoopt", "--budget", "5", *CLUSTER, "--json")
    assert code == 0, err
    assert "rebuilding" not in json.loads(out)


@attrs.frozen
class Turns(Topology):
    """A ring and its reverse, in turns: a topology that names no static fabrics."""

    name = "turns"
    rebuilds = True

    def build(self, context):
        hosts = np.arange(context.cluster.n_hosts)
        there = Fabric.from_links(
            name="turns",
            n_hosts=len(hosts),
            links=np.stack([hosts, np.roll(hosts, -1)], axis=1),
            bandwidth=context.cluster.interface_bandwidth.min(),
            latency=context.cluster.latency,
        )
        back = attrs.evolve(there, link_src=there.link_dst, link_dst=there.link_src)
        return ReconfigurableFabric(forward=there, backward=back, reduce=there, delay=1e-3)


@pytest.fixture(scope="module")
def turning():
    return Experiment(
        model="dlrm:preset=dlrm16", cluster=ClusterOptions(servers=16), topology=Turns, run=RunOptions(budget=0, seed=1)
    )


def test_without_static_fabrics_of_its_own_a_topology_is_compared_with_its_phases(turning):
    outcome = optimize(turning)
    plan, simulate = outcome.plan, Host.discover().make("simulator", "fluid").build()
    held = [simulate(plan.taskgraph, phase, plan.cluster).makespan for phase in plan.fabric.wirings]
    assert outcome.break_even.rebuilds == 2
    assert outcome.break_even.static == min(held)


def test_a_network_that_does_not_say_what_its_links_pass_is_priced_and_named(turning):
    result = measure(Host.discover(), turning)
    row = network_results(
        [RunSpec(model="N", network="turns", settings={}, experiment=turning)], [result], default_prices()
    )
    assert "turns does not say what its links pass (Fabric.switching): priced as cables and packet switches" in notes(
        row, default_prices()
    )
    assert result["priced_as"] == "packet"
    assert {part for part, *_ in result["parts"]} == {"nic", "transceiver", "fibre"}
    assert "priced_as" not in measure(Host.discover(), attrs.evolve(turning, topology="ocs"))
