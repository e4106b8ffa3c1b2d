"""One part that fails takes nothing else with it: exporters, observers, and what else plugins do wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import warnings

import attrs
import numpy as np
import pytest
from idle_search import IdleSearch

import topoplan
from topoplan import Exporter, Host, Searcher, Simulate, Simulator, Topology, TopoplanError, hookimpl
from topoplan.cli import main
from topoplan.errors import PluginError, TopoplanWarning
from topoplan.model.recording import CriticalPath, LinkUse, MemoryLevels, Recording
from topoplan.testing import reference
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.exporting import write_outputs
from topoplan_studies.store import Store

SMALL = Experiment(
    model="alexnet",
    cluster=ClusterOptions(servers=4, interface_bandwidth_gbps=10.0),
    run=RunOptions(batch_size=64, budget=3, seed=1),
)
FLAGS = ["optimize", "alexnet", "--servers", "4", "--batch-size", "64", "--budget", "2"]


def component(contract, name="bad", summary="does not keep its contract", **members):
    """Return a class of component with these members."""
    return type(contract)("Made", (contract,), {"__doc__": summary, "__module__": __name__, "name": name, **members})


def boom(*given):
    raise ValueError("boom")


def status(args):
    with pytest.raises(SystemExit) as error:
        main(args)
    return error.value.code


@pytest.fixture
def asked_late(monkeypatch):
    """Let a format that cannot say programs be asked at the end alone, as one whose answer depends on the plan."""
    monkeypatch.setattr("topoplan_searcher_spmd.Spmd.proposes", ())
    monkeypatch.setattr("topoplan_exporter_strategy.StrategyFile.unwritable", ())


@pytest.mark.usefixtures("asked_late")
def test_an_exporter_that_cannot_say_the_plan_takes_nothing_with_it(tmp_path, capsys):
    out = {name: tmp_path / f"a.{name}" for name in ("json", "strategy", "dot")}
    outputs = [word for name, path in out.items() for word in ("-x", f"{name}={path}")]
    assert status([*FLAGS, "-s", "spmd", *outputs]) == 2
    said = capsys.readouterr()
    assert "iteration time" in said.out
    assert f"dot written to {out['dot']}" in said.out.replace("\n", "")
    assert [line for line in said.err.splitlines() if line.startswith("error: ")] == [
        "error: strategy: the plan is an SPMD program, whose conversions this format cannot say (json can)"
    ]
    assert [out[name].exists() for name in out] == [True, False, True]


@pytest.mark.usefixtures("asked_late")
def test_the_json_object_holds_what_was_refused(tmp_path, capsys):
    assert status([*FLAGS, "-s", "spmd", "-x", f"strategy={tmp_path / 'a'}", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["outputs"] == {}
    assert said["refused"]["strategy"].startswith("strategy: the plan is an SPMD program")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--gpus-per-server", "2", "-x", "flatbuffer=a.fbuf"], "flatbuffer: the cluster has 2 devices per host"),
        (["-t", "ocs", "-x", "flatbuffer=a.fbuf"], "flatbuffer: topology 'ocs' is rebuilt"),
        (["-x", "json=a", "-x", "dot=a"], "-x json and -x dot both write to it"),
        (["-x", "json=/proc/a"], "cannot be written"),
        (["-x", f"json={'a' * 300}"], "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_search(tmp_path, monkeypatch, capsys, more, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("topoplan_engine.reporting.report.optimize", boom)
    assert status([*FLAGS, *more]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_simulate_writes_the_other_files_too(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    main_ok = [*FLAGS, "--gpus-per-server", "2", "-x", f"json={plan}"]
    assert status(main_ok) in (0, None)
    assert status(["simulate", str(plan), "-x", f"flatbuffer={tmp_path / 'a'}", "-x", f"dot={tmp_path / 'b'}"]) == 2
    said = capsys.readouterr()
    assert "error: flatbuffer" in said.err
    assert (tmp_path / "b").exists()


def test_an_observer_that_raises_is_told_of_once_and_the_run_goes_on():
    plugin, heard = types.SimpleNamespace(), []

    @hookimpl
    def topoplan_run_started(run):
        raise KeyError("oops")

    @hookimpl
    def topoplan_evaluated(progress):
        heard.append(progress)

    plugin.topoplan_run_started, plugin.topoplan_evaluated = topoplan_run_started, topoplan_evaluated
    host = Host.discover()
    host.add(plugin, name="watcher")
    with pytest.warns(TopoplanWarning) as said:
        outcome = optimize(SMALL, host=host)
    assert [str(one.message) for one in said] == [
        "plugin 'watcher': topoplan_run_started raised KeyError: 'oops'; it observes nothing any more"
    ]
    assert heard == []
    assert outcome.result.evaluations == 4


def search(**methods):
    """Return a searcher's build, with methods in the place of `IdleSearch`'s."""
    return lambda self, problem, rng: type("Search", (IdleSearch,), methods)()


def strategies(**methods):
    """Return a searcher of strategies with these methods."""
    return component(Searcher, build=search(**methods), axis="strategy")


def wires(**changes):
    """Return a topology of a ring of four hosts with these changes."""
    ring = {"name": "x", "n_hosts": 4, "links": [(0, 1), (1, 2), (2, 3), (3, 0)], "bandwidth": 1e9, "latency": 0}
    ring["links"] += [(b, a) for a, b in ring["links"]]
    return component(Topology, build=lambda self, context: topoplan.Fabric.from_links(**ring | changes))


def runs(**changes):
    """Return a simulator whose timelines differ so from the right one."""

    class Runs(Simulate):
        def __call__(self, taskgraph, fabric, cluster):
            right = reference.timeline(taskgraph, fabric.links.n_links)
            return attrs.evolve(right, **{name: change(getattr(right, name)) for name, change in changes.items()})

    return component(Simulator, build=lambda self: Runs())


def times(**methods):
    """Return a simulator whose runs are right, with these methods beside them; it says that it has lower bounds."""

    def run(self, taskgraph, fabric, cluster):
        return reference.timeline(taskgraph, fabric.links.n_links)

    return component(
        Simulator,
        build=lambda self: type("Times", (Simulate,), {"lower_bounds": True, "__call__": run, **methods})(),
    )


def assuming(value):
    """Return costs which say that they assume a value."""
    costs = reference.Costs()
    costs.assumptions = value
    return costs


def priced(**changes):
    """Return an estimator whose prices of every operator but the first differ so."""

    class Prices(reference.Costs):
        def price(self, op, degrees, devices):
            right = super().price(op, degrees, devices)
            return attrs.evolve(right, **{name: change(getattr(right, name)) for name, change in changes.items() if op})

    return component(topoplan.Estimator, build=lambda *given: Prices())


class Wrong(Simulate):
    """Runs to a number."""

    def __call__(self, *given):
        return 3.0


@pytest.mark.parametrize(
    ("cls", "chosen", "message"),
    [
        (component(Topology, build=boom), "topology", "topology 'bad' (plugin 'mine'): build raised ValueError: boom"),
        (
            component(Topology, build=lambda *_: {}),
            "topology",
            "build returned dict {} (must return Fabric or ReconfigurableFabric)",
        ),
        (wires(n_hosts=7), "topology", "topology 'bad' (plugin 'mine'): fabric 'x': has 7 hosts, the cluster 4"),
        (wires(bandwidth=float("nan")), "topology", "'mine'): fabric 'x': link 0 -> 1 has bandwidth nan"),
        (wires(bandwidth=1e12), "topology", "(plugin 'mine'): fabric 'x': 2 links of 16000 Gbps together"),
        (wires(links=[(0, 1), (1, 0), (2, 3), (3, 2)]), "topology", "'mine'): fabric 'x': no path from host 1 to host"),
        (component(Simulator, build=boom), "simulator", "build raised ValueError: boom"),
        (component(Simulator, build=lambda self: Wrong()), "simulator", "a run returned float 3.0 (must return Timel"),
        (
            runs(start=lambda start: start[:3]),
            "simulator",
            "a run returned a timeline whose start has shape (3,) (must be (",
        ),
        (runs(finish=lambda finish: finish - 9), "simulator", "a run returned a timeline whose finish is -"),
        (runs(finish=lambda finish: finish / 2), "simulator", "s, before it starts at "),
        (runs(link_bytes=lambda of: of[1:]), "simulator", "one for each of the links)"),
        (runs(device_busy=lambda busy: busy * float("nan")), "simulator", "device_busy is nan at 0 (must be finite"),
        (runs(device_busy=lambda busy: busy * 1e6), "simulator", "s at 0, above its makespan, "),
        (
            runs(device_busy=lambda busy: busy[:1]),
            "simulator",
            "device_busy has shape (1,) (must be (4,), one for each",
        ),
        (runs(link_busy=lambda busy: busy + 1e6), "simulator", "link_busy is 1000000.0 s at 0, above its makespan, "),
        (runs(link_busy=lambda busy: busy - 1), "simulator", "link_busy is -1.0 at 0 (must be finite and at least 0)"),
        (runs(link_bytes=lambda of: of + 1e18), "simulator", "link_bytes are 1e+18 at 0 (must be at most "),
        (runs(makespan=lambda seconds: -1.0), "simulator", "makespan is -1.0 s (must be finite and at least 0)"),
        (runs(makespan=lambda seconds: 1 / 0), "simulator", "a run raised ZeroDivisionError"),
        (runs(makespan=lambda seconds: sys.exit(0)), "simulator", "a run raised SystemExit: 0"),
        (runs(makespan=lambda seconds: "soon"), "simulator", "makespan is str 'soon' (must be a number)"),
        (runs(makespan=lambda seconds: None), "simulator", "makespan is None (must be a number)"),
        (runs(makespan=lambda seconds: 1j), "simulator", "makespan is complex 1j (must be a number)"),
        (runs(makespan=lambda seconds: 0.9 * seconds), "simulator", "above its makespan"),
        (
            runs(makespan=lambda seconds: 0.0, bounds=lambda bounds: attrs.evolve(bounds, device=0.0, chain=0.0)),
            "simulator",
            "makespan is 0.0 s, but a task finishes at",
        ),
        (runs(bounds=lambda bounds: None), "simulator", "whose bounds are None (must be Bounds)"),
        (runs(bounds=lambda bounds: attrs.evolve(bounds, link=float("nan"))), "simulator", "bounds.link is nan s"),
        (runs(events=lambda events: "many"), "simulator", "whose events are str 'many' (must be a whole number)"),
        (times(makespan=lambda *_: "x"), "simulator", "makespan returned str 'x' (must be a number)"),
        (times(makespan=lambda *_: None), "simulator", "makespan returned None (must be a number)"),
        (times(makespan=lambda *_: np.ones(2)), "simulator", "makespan returned an array of float64 of shape (2,)"),
        (times(makespan=boom), "simulator", "makespan raised ValueError: boom"),
        (times(draws=boom), "simulator", "draws raised ValueError: boom"),
        (
            times(draws=lambda *_: True, makespans=lambda *_: np.ones(9)),
            "simulator",
            "numbers, one for each seed",
        ),
        (times(draws=lambda *_: True, with_seed=lambda *_: None), "simulator", "with_seed returned None (must return"),
        (times(link_seconds=lambda *_: None), "simulator", "link_seconds returned None (must be an array of numbers"),
        (times(link_seconds=lambda *_: np.ones((1, 3))), "simulator", "shape (1, 3) (must have at most"),
        (times(link_seconds=lambda *_: np.full((1, 8), np.nan)), "simulator", "link_seconds returned nan s for a link"),
        (
            priced(forward=lambda seconds: -seconds),
            "estimator",
            "price of operator 1 ('pool1') cut by (1, 1, 1, 1): forward is -",
        ),
        (priced(backward=lambda seconds: seconds * float("nan")), "estimator", "backward is nan s (must be finite"),
        (priced(memory=lambda kept: kept + float("inf")), "estimator", "memory is inf bytes (must be finite"),
        (priced(forward=lambda seconds: seconds[:1]), "estimator", "forward has shape (1,) (must be ("),
        (priced(forward=list), "estimator", "forward is a list (must be an array of numbers, one for each part)"),
        (priced(forward=lambda seconds: seconds.astype(str)), "estimator", "forward is an array of <U"),
        (priced(states=lambda _: np.ones((2, 1))), "estimator", "states has shape (2, 1) (must be (3, "),
        (priced(forward=lambda seconds: sys.exit(0)), "estimator", "price raised SystemExit: 0"),
        (
            component(topoplan.Estimator, build=lambda *_: assuming(5)),
            "estimator",
            "assumptions of what build returned int 5 (must return a mapping of names to values)",
        ),
        (component(Searcher, build=lambda *_: None, axis="strategy"), "searchers", "build returned None (must"),
        (strategies(ask=boom), "searchers", "ask raised ValueError: boom"),
        (
            strategies(ask=lambda self: None),
            "searchers",
            "searcher 'bad' (plugin 'mine'): ask returned None (must return a sequence of Candidate)",
        ),
        (
            strategies(ask=lambda self: [1]),
            "searchers",
            "an element of what it returned int 1 (must return Candidate)",
        ),
        (strategies(adopt=boom), "searchers", "adopt raised ValueError"),
        (
            component(topoplan.Estimator, build=lambda *_: 1),
            "estimator",
            "build returned int 1 (must return CostFunction)",
        ),
        (component(topoplan.Frontend, build=lambda *_: None), "model", "build returned None (must return Operator"),
    ],
)
def test_what_a_plugin_does_wrongly_is_told_with_its_name(cls, chosen, message):
    host = Host.discover()
    host.add(cls, name="mine")
    with pytest.raises(TopoplanError) as error:
        optimize(attrs.evolve(SMALL, run=attrs.evolve(SMALL.run, draws=2), **{chosen: "bad"}), host=host)
    assert message in str(error.value)
    assert "(plugin 'mine')" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "returned NoneType None (must be a Timeline and a Recording)"),
        ({"link": [8]}, "returned a recording whose links.link is 8 at 0 (must be from 0 to 7)"),
        ({"nbytes": [-1.0]}, "returned a recording whose links.nbytes is -1.0 at 0 (must be finite and at least 0)"),
    ],
)
def test_a_recording_that_cannot_be_one_names_the_simulator(changes, message):
    def record(self, taskgraph, fabric, cluster):
        row = {"link": [0], "task": [0], "start": [0.0], "finish": [0.0], "nbytes": [0.0]} | changes
        none = {"time": [], "device": [], "kind": [], "nbytes": []}
        path = CriticalPath(task=[0], cause=[0], by=[-1])
        recording = Recording(links=LinkUse(**row), critical=path, memory=MemoryLevels(**none))
        return (self(taskgraph, fabric, cluster), recording) if changes else None

    host = Host.discover()
    host.add(times(record=record), name="mine")
    setting = attrs.evolve(SMALL, run=attrs.evolve(SMALL.run, record=True), simulator="bad")
    with pytest.raises(TopoplanError) as error:
        optimize(setting, host=host)
    assert f"simulator 'bad' (plugin 'mine'): record {message}" in str(error.value)


PLACED = topoplan.Placement((1, 1, 1, 1), [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"placements": {0: 17}}, "17 for operator 0 ('conv1') (must be a Placement)"),
        ({"placements": {0: None}}, "None for operator 0 ('conv1') (must be a Placement)"),
        ({"placements": {0: {"degrees": 1}}}, "{'degrees': 1} for operator 0 ('conv1') (must be a Placement)"),
        ({"placements": {1000: PLACED}}, "a placement of operator 1000 (must be an index from 0 to 12)"),
        ({"placements": {-1: PLACED}}, "a placement of operator -1 (must be an index from 0 to 12)"),
        ({"placements": {"conv1": PLACED}}, "a placement of operator 'conv1' (must be an index from 0 to 12)"),
        ({"placements": [PLACED]}, "(must be a mapping of operators' indices to Placement)"),
        ({"placements": {0: topoplan.Placement((1, 1), [0])}}, "for operator 0 ('conv1'): 2 degrees for"),
        ({"placements": {0: None}, "base": None}, "a change to None (base must be a State"),
        ({"fabric": "ring"}, "fabric 'ring' (must be a Fabric, a ReconfigurableFabric, or None"),
        ({"fabric": reference.ring()}, "a fabric of its own, though its axis is the strategy"),
    ],
)
def test_what_a_search_proposes_wrongly_is_told_with_its_name(change, message):
    def ask(self):
        return [topoplan.Candidate(**{"base": self.state} | change)]

    assert "searcher 'bad' (plugin 'mine'): ask proposed " in (line := refusal(ask))
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize("device", [-1, 4])
def test_a_device_that_the_cluster_lacks_is_told(device):
    def ask(self):
        dims = len(self.state.strategy.placements[0].degrees)
        return [topoplan.Candidate(base=self.state, placements={0: topoplan.Placement((1,) * dims, [device])})]

    assert "for operator 0 ('conv1'): the cluster has devices 0 to 3" in refusal(ask)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda placements: placements[:3], "ask proposed a strategy of 3 placements (the model has 13 operators)"),
        (
            lambda placements: (None, *placements[1:]),
            "ask proposed None for operator 0 ('conv1') (must be a Placement)",
        ),
        (lambda placements: (PLACED, *placements[1:]), "for operator 0 ('conv1'): 4 degrees for"),
    ],
)
def test_a_whole_strategy_that_is_wrong_is_told_when_pricing_it_fails(change, message):
    def ask(self):
        strategy = topoplan.PlacedStrategy(change(self.state.strategy.placements))
        return [topoplan.Candidate(base=topoplan.State(strategy, self.state.fabric))]

    assert message in (line := refusal(ask))
    assert line.startswith("searcher 'bad' (plugin 'mine')")


def refusal(ask):
    """Return what is said of a searcher that asks so."""
    host = Host.discover()
    host.add(strategies(ask=ask), name="mine")
    with pytest.raises(PluginError) as error:
        optimize(attrs.evolve(SMALL, searchers="bad"), host=host)
    return str(error.value)


def test_a_fabric_of_a_searcher_on_which_hosts_do_not_meet_is_told():
    def ask(self):
        fabric = self.state.fabric
        few = (fabric.link_src < 2) == (fabric.link_dst < 2)
        columns = ("link_src", "link_dst", "link_count", "link_bandwidth", "link_latency", "link_kind")
        kept = {name: getattr(fabric, name)[few] for name in columns}
        return [topoplan.Candidate(base=self.state, fabric=attrs.evolve(fabric, routes=None, rings={}, **kept))]

    host = Host.discover()
    host.add(component(Searcher, build=search(ask=ask), axis="network"), name="mine")
    cluster = attrs.evolve(SMALL.cluster, degree=2)
    with pytest.raises(PluginError, match=r"^searcher 'bad' \(plugin 'mine'\): ask proposed a fabric that cannot be"):
        optimize(attrs.evolve(SMALL, cluster=cluster, topology="topoopt", searchers="bad"), host=host)


def test_a_fabric_that_a_searcher_cannot_make_is_its_fault_and_not_the_topologys():
    def ask(self):
        fabric = self.state.fabric
        return [topoplan.Candidate(base=self.state, fabric=attrs.evolve(fabric, link_count=fabric.link_count[1:]))]

    host = Host.discover()
    host.add(component(Searcher, build=search(ask=ask), axis="network"), name="mine")
    cluster = attrs.evolve(SMALL.cluster, degree=2)
    with pytest.raises(
        PluginError, match=r"^searcher 'bad' \(plugin 'mine'\): ask made a fabric that cannot be used: "
    ):
        optimize(attrs.evolve(SMALL, cluster=cluster, topology="topoopt", searchers="bad"), host=host)


def test_code_that_is_called_often_is_found_in_the_traceback():
    class Costs(reference.Costs):
        def supports(self, op, degrees):
            if op:
                raise ZeroDivisionError("by zero")
            return True

    host = Host.discover()
    host.add(component(topoplan.Estimator, build=lambda *_: Costs()), name="mine")
    with pytest.raises(
        TopoplanError, match=r"^plugin 'mine': supports \(test_nothing_lost.py, line \d+\) raised ZeroDiv"
    ):
        optimize(attrs.evolve(SMALL, estimator="bad"), host=host)


@pytest.mark.parametrize("method", ["__call__", "makespan", "makespans"])
def test_an_interrupt_in_compiled_code_is_no_fault_of_a_simulator(method):
    def interrupted(*given):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:  # as the interpreter does where compiled code returns
            raise SystemError("returned a result with an exception set") from error

    host = Host.discover()
    host.add(times(**{method: interrupted, "draws": lambda *_: method == "makespans"}), name="mine")
    with pytest.raises(KeyboardInterrupt):
        optimize(attrs.evolve(SMALL, simulator="bad", run=attrs.evolve(SMALL.run, draws=2)), host=host)


def test_a_report_that_fails_costs_the_report_alone():
    host = Host.discover()
    host.add(component(Searcher, build=search(report=boom), axis="strategy", constructs=True), name="mine")
    with pytest.warns(TopoplanWarning, match="report raised ValueError: boom; it is left out"):
        outcome = optimize(attrs.evolve(SMALL, searchers="bad"), host=host)
    assert "reports" not in outcome.plan.provenance


@pytest.mark.parametrize(("write", "message"), [(boom, "write raised"), (lambda self, plan: "text", "returned str")])
def test_an_exporter_that_is_wrong_is_named(tmp_path, write, message):
    host = Host.discover()
    host.add(component(Exporter, write=write, suffix=".bad"), name="mine")
    plan = optimize(attrs.evolve(SMALL, run=RunOptions(batch_size=64, budget=0)), host=host).plan
    outcomes = write_outputs(host, plan, ((Choice("bad"), str(tmp_path / "a")), (Choice("dot"), str(tmp_path / "b"))))
    assert list(outcomes.paths) == ["dot"]
    assert message in outcomes.refused["bad"]
    assert "exporter 'bad' (plugin 'mine')" in outcomes.refused["bad"]


def test_a_notebook_cell_can_be_run_again():
    host = Host.discover()

    def cell(summary, **how):
        topology = component(Topology, "mine", summary, build=boom)
        host.add(topology, **how)
        return topology

    first = cell("first")
    host.add(first)  # the same one again: nothing changes
    with pytest.raises(TopoplanError, match=r"topology 'mine'.*replace=True takes its place"):
        cell("second")
    assert host.get("topology", "mine").summary == "first"
    cell("second", replace=True)
    cell("third", replace=True)
    assert host.get("topology", "mine").summary == "third"
    with pytest.raises(TopoplanError, match=r"topoplan-topology-fattree.*has one of this name"):
        host.add(component(Topology, "fattree", build=boom))
    host.add(component(Topology, "fattree", "own", build=boom), replace=True)
    assert host.get("topology", "fattree").summary == "own"
    assert not host.conflicts
    with pytest.raises(TopoplanError, match="is no class of component"):
        host.add([object()])


def test_the_traceback_of_a_plugin_is_shown_where_it_is_asked_for(monkeypatch, capsys):
    discover = Host.discover

    def with_plugin(**how):
        host = discover(**how)
        host.add(component(Topology, build=boom), name="mine")
        return host

    monkeypatch.setattr("topoplan_engine.reporting.report.Host.discover", with_plugin)
    assert status([*FLAGS, "-t", "bad"]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[0] == "error: topology 'bad' (plugin 'mine'): build raised ValueError: boom"
    assert "Traceback" not in said
    assert status([*FLAGS, "-t", "bad", "--debug"]) == 2
    assert 'raise ValueError("boom")' in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert status(["--debug", *FLAGS, "-t", "nosuch"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_kept_run_that_was_changed_or_is_damaged_is_no_result(tmp_path):
    store = Store(tmp_path)
    assert store.put("key", {}, {"iteration_time_s": 0.5}) == {"iteration_time_s": 0.5}
    path = tmp_path / "key.json"
    whole = path.read_text()
    assert store.get("key") == {"iteration_time_s": 0.5}
    for text in (whole.replace("0.5", "0.25"), whole[:-9], "", "[]", "null", '{"result":{}}', "[" * 99_999):
        path.write_text(text)
        assert store.get("key") is None


def test_names_with_markup_are_printed_as_they_are(tmp_path, capsys):
    path = tmp_path / "plan.json"
    plan = reference.plan()
    fabric = attrs.evolve(plan.fabric, name="[/x] :warning:")
    outcomes = write_outputs(Host.discover(), attrs.evolve(plan, fabric=fabric), ((Choice("json"), str(path)),))
    assert not outcomes.refused
    assert status(["simulate", str(path)]) in (0, None)
    assert "[/x] :warning:" in capsys.readouterr().out


def test_one_of_two_components_of_a_name_is_chosen_by_its_distribution():
    host = Host()
    for name in ("acme", "other"):
        own = component(Topology, "ring", name, build=boom)
        host.add(types.SimpleNamespace(topoplan_topologies=hookimpl(lambda own=own: [own])), name=name)
    with pytest.raises(TopoplanError, match="write acme/ring or other/ring"):
        host.get("topology", "ring")
    assert host.get("topology", "other/ring").summary == "other"
    with pytest.raises(TopoplanError, match="no topology named 'third/ring'"):
        host.get("topology", "third/ring")


def test_kernels_that_are_not_compiled_are_refused():
    code = "from topoplan.cli import main; main(['optimize', 'alexnet', '--budget', '0', '--servers', '2'])"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert process.stderr.startswith("error: NUMBA_DISABLE_JIT is set")


def test_what_components_print_goes_to_standard_error(monkeypatch, capsys):
    class Loud(IdleSearch):
        def ask(self):
            print("asked")
            return []

    class Prices(reference.Costs):
        def price(self, op, degrees, devices):
            print("priced")
            return super().price(op, degrees, devices)

    discover = Host.discover

    def with_plugins(**how):
        host = discover(**how)
        host.add(component(Searcher, build=lambda *given: Loud(), axis="strategy"), name="searching")
        host.add(component(topoplan.Estimator, build=lambda *given: Prices()), name="pricing")
        return host

    monkeypatch.setattr("topoplan_engine.reporting.report.Host.discover", with_plugins)
    assert status([*FLAGS, "-s", "bad", "-e", "bad", "--json"]) in (0, None)
    said = capsys.readouterr()
    assert json.loads(said.out)["iteration_time_s"] > 0
    assert {"asked", "priced"} <= {*said.err.splitlines()}
