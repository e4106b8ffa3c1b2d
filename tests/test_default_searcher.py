"""What `auto` is as every command's searcher: who takes part, which plans it leaves out, and who found the plan."""

from __future__ import annotations

import json

import pytest

from topoplan import Host, StagedStrategy, optimize
from topoplan_command_sensitivity.provenance import experiment_of
from topoplan_engine import Experiment
from topoplan_engine.experiment import outputs_from
from topoplan_engine.options import ComponentOptions
from topoplan_engine.search.companions import writable
from topoplan_samples.long_tail import at_night
from topoplan_searcher_auto import Auto
from topoplan_studies.options import SEARCHERS

HOST = Host.discover()


def test_it_searches_wherever_nobody_names_a_searcher():
    assert [choice.name for choice in Experiment(model="alexnet").searchers] == ["auto"]
    assert ComponentOptions().searcher == SEARCHERS == ("auto",)


def limited(searchers, *outputs):
    experiment = Experiment(model="alexnet", searchers=searchers, outputs=outputs_from(outputs))
    experiment, line = writable(HOST, experiment)
    return [choice.options for choice in experiment.searchers], line


def test_planners_of_what_an_exporter_cannot_say_stay_away():
    options, line = limited(("auto:alpha=50", "mcmc"), "strategy=a.strategy", "json=a.json")
    assert options == [{"alpha": "50", "programs": False, "pipelines": False, "hybrids": False}, {}]
    assert line == (
        "searched with auto:programs=false,pipelines=false,hybrids=false, because strategy cannot say every kind of "
        "plan (json can)"
    )


@pytest.mark.parametrize(
    ("searcher", "outputs"),
    [
        ("auto", []),
        ("auto", ["json=a.json", "flatbuffer=a.fbuf", "dtensor=a.dtensor"]),
        ("auto:programs=false,pipelines=false,hybrids=false", ["strategy=a.strategy"]),
        ("mcmc", ["strategy-pb=a.pb"]),
    ],
)
def test_all_others_take_part(searcher, outputs):
    assert limited(searcher, *outputs)[1] == ""


def test_a_strategy_file_is_written_without_these_planners(run, tmp_path):
    words = ("optimize", "dlrm", "--servers", "2", "--budget", "5", "-s", "auto")
    code, _, err = run(*words, "-x", "json=a.json", "-x", "strategy=a.strategy")
    assert code == 0
    assert "searched with auto:programs=false,pipelines=false,hybrids=false" in err
    assert (tmp_path / "a.strategy").exists()
    plan = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    (searcher,) = [part for part in plan["provenance"]["components"] if part["kind"] == "searcher"]
    assert [searcher["options"][name] for name in ("programs", "pipelines", "hybrids")] == [False] * 3


@pytest.mark.parametrize("seed", at_night(range(3), 0))
@pytest.mark.parametrize(("searcher", "suffix"), [("auto", "strategy"), ("mcmc", "strategy"), ("auto", "strategy-pb")])
def test_a_search_leaves_out_cuts_that_the_format_cannot_say(run, tmp_path, searcher, suffix, seed):
    words = ("optimize", "dlrm", "--servers", "4", "--budget", "40", "--seed", str(seed), "-s", searcher)
    code, _, err = run(*words, "-x", f"{suffix}=a.{suffix}")
    assert (code, "which its output lacks" in err) == (0, False), err
    assert (tmp_path / f"a.{suffix}").exists()


@pytest.mark.slow
def test_a_plan_says_who_found_it_and_is_planned_again_by_the_same():
    events, origins = [], []

    def report(event, progress):
        events.append(event)
        origins.append(progress.origin)

    outcome = optimize("alexnet", servers=4, searchers="auto", budget=20, on_progress=report)
    planners = ["hybrid", "spmd", "pipeline"]
    founders = {"found by auto", *(f"constructed by {name}" for name in planners)}
    assert outcome.origin.name in founders
    assert set(origins) <= {"initial strategy", *founders}
    assert outcome.origin.name in origins
    plans = [event for event in events if event not in ("first", "evaluated", "new_best")]
    assert plans == [f"planning with {name}" for name in planners]
    names = [part["name"] for part in outcome.plan.provenance["components"] if part["kind"] == "searcher"]
    assert names == ["auto", *planners]
    again = experiment_of(outcome.plan, "plan")
    assert [choice.name for choice in again.searchers] == ["auto"]


def test_programs_and_staged_plans_are_left_out_one_by_one():
    topology = HOST.make("topology", "bigswitch")
    names = {
        kinds: [choice.name for choice in Auto().without(kinds).companions(topology, 8)]
        for kinds in [(), (StagedStrategy,)]
    }
    assert list(names.values()) == [["hybrid", "spmd", "pipeline"], []]


@pytest.mark.parametrize(("devices", "divided"), [(8, True), (16, True), (17, False), (1024, False)])
def test_stages_of_unequal_size_are_planned_on_few_devices(devices, divided):
    hybrid = Auto().companions(HOST.make("topology", "bigswitch"), devices)[0]
    assert hybrid.name == "hybrid"
    assert hybrid.options["divided"] is divided


def test_a_trainer_that_nobody_writes_for_is_told_which_there_are_once(run):
    code, _, err = run("optimize", "alexnet", "--for", "nosuch")
    assert (code, err.count("megatron")) == (2, 1), err
