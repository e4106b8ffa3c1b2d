"""The end of a search for a model of language: moves that are faster are in the plan, its file, and what reads it."""

from __future__ import annotations

import functools
import json

import pytest

from topoplan import optimize, stated_plan
from topoplan.plugin.host import Host
from topoplan_engine.exporting import read_plan
from topoplan_engine.replay import simulate_file
from topoplan_engine.reporting.joint import again_text, algorithm_rows, joint_json, joint_rows
from topoplan_engine.search.run_folder import RunFolder

MODEL = "huggingface:preset=gpt2,layers=1,sequence-length=256"


@functools.cache
def searched(searcher="hybrid:planners=no,divided=no,placed=no", topology="bigswitch", **options):
    return optimize(MODEL, searchers=[searcher], servers=16, topology=topology, batch_size=64, **options)


@pytest.fixture(scope="module")
def outcome():
    return searched()


def test_small_messages_among_many_hosts_leave_rings(outcome):
    """8 hosts: halving and doubling has 6 latencies where a ring has 14, and as many bytes.

    A parameter server has 2, and 4 times the bytes (7 S at the server for 2 (7/8) S), which 6 kB do not show.
    """
    rows = joint_json(outcome.plan)["joint"]["algorithms"]
    assert {(row["axes"], row["shape"]) for row in rows} == {("dp", "8x1")}
    small, large = sorted(rows, key=lambda row: row["least_bytes"])
    assert (small["algorithm"], large["algorithm"]) == ("parameter-server", "halving-doubling")
    assert small["most_bytes"] < 1e4 < 1e6 < large["least_bytes"]
    without = searched("hybrid:planners=no,divided=no,placed=no,joint=no")
    assert "joint" not in without.plan.provenance
    assert outcome.seconds < without.seconds == joint_json(outcome.plan)["joint"]["seconds_with_rings"]
    assert outcome.result.evaluations > without.result.evaluations


def test_the_plan_is_that_of_its_searcher_with_algorithms(outcome):
    assert outcome.origin.name == "constructed by hybrid"
    record = joint_json(outcome.plan)["joint"]
    rules = record["collectives"]
    words = outcome.plan.provenance["reports"]["hybrid"]["short"]
    named = stated_plan(MODEL, words, servers=16, batch_size=64, simulator=f"fluid:algorithms={rules}")
    assert named.timeline.makespan == pytest.approx(outcome.seconds, rel=1e-12)
    assert again_text(outcome.plan) == "".join(f" --collective {rule}" for rule in rules.split(";"))
    assert dict(joint_rows(outcome.plan))["collective algorithms"].endswith("faster than rings of the network")


def test_files_keep_the_algorithms(outcome, tmp_path):
    host, path = Host.discover(), tmp_path / "plan.json"
    path.write_bytes(host.make("exporter", "json", {}).write(outcome.plan))
    plan = read_plan(host, path)
    assert joint_rows(plan) == joint_rows(outcome.plan)
    assert simulate_file(path).timeline.makespan == outcome.timeline.makespan


def test_what_a_user_names_stays():
    algorithms = "all-reduce=ring;all-gather=ring;reduce-scatter=ring"
    named = searched("hybrid:shortlist=1", simulator=f"fluid:algorithms={algorithms}")
    assert "joint" not in named.plan.provenance
    options = next(part["options"] for part in named.plan.provenance["components"] if part["kind"] == "simulator")
    assert options["algorithms"] == algorithms


def rows_of(plan):
    """Return the axes, shape, algorithm and most bytes of the all-reduces whose algorithms a user named."""
    return [(row["axes"], row["shape"], row["algorithm"], row["most_bytes"]) for row in joint_json(plan)["algorithms"]]


def test_each_group_and_size_has_an_algorithm_of_those_that_are_named():
    """By hand, S at I inside a host and 8 B between hosts: NVLS takes (1 + 1/8) S / I for 2 (7/8) S / I of a ring.

    Among three hosts a ring takes 2 (2/3) S, a tree 2 S, a parameter server 4 S, which small tensors do not show: it
    has 2 latencies, a ring 4.
    """
    model = "huggingface:preset=llama-3-8b,layers=1,sequence-length=256"
    named = {"machine": "dgx-h100", "simulator": "fluid:algorithms=all-reduce=auto+nvls"}
    plan = stated_plan(model, "tp=8,dp=3,sp=no", servers=3, batch_size=3, **named)
    small, large, inside = sorted(rows_of(plan), key=lambda row: (row[0], row[3]))
    assert (small[:3], large[:3]) == (("dp", "3x1", "parameter-server"), ("dp", "3x1", "rings"))
    assert inside[:3] == ("tp", "1x8", "nvls")
    assert small[3] < 1e4 < 1e8 < large[3]
    assert [text.split(" (")[0] for _, text in algorithm_rows(plan)] == [
        "dp 3x1 all-reduce by parameter-server",
        "dp 3x1 all-reduce by rings",
        "tp 1x8 all-reduce by nvls",
    ]
    assert dict(joint_rows(plan))["collective algorithms"].startswith("dp all-reduce by parameter-server (8.19 kB), ")


def test_a_search_takes_one_algorithm_inside_hosts_and_another_between_them():
    found = optimize(
        "huggingface:preset=llama-3-8b,layers=2,sequence-length=512",
        searchers=["pipeline"],
        machine="dgx-h100",
        servers=6,
        batch_size=48,
        simulator="fluid:algorithms=all-reduce=auto+nvls",
    )
    algorithms = {(shape, name) for _, shape, name, _ in rows_of(found.plan)}
    assert ("1x8", "nvls") in algorithms
    assert {name for shape, name in algorithms if not shape.startswith("1x")} == {"tree"}


def test_a_search_of_no_proposals_ends_as_it_began():
    outcome = searched(budget=0)
    assert outcome.result.evaluations == 1
    assert "joint" not in outcome.plan.provenance


@pytest.mark.slow
def test_chains_in_any_number_of_processes_end_equally():
    one, two = (searched(budget=20, chains=2, executor=f"processes:workers={n}") for n in (1, 2))
    assert one.seconds == two.seconds
    assert one.result.evaluations == two.result.evaluations
    assert joint_json(one.plan) == joint_json(two.plan)


@pytest.mark.slow
def test_a_network_that_follows_demand_says_for_which_plan_it_is_wired():
    record = joint_json(searched(topology="topoopt").plan)["joint"]
    assert record["wired_anew"] is ("seconds_on_first_wiring" in record)
    assert record["seconds"] <= record.get("seconds_on_first_wiring", record["seconds"])


@pytest.mark.slow
def test_a_run_that_is_resumed_ends_equally(tmp_path, outcome):
    folder = RunFolder.create(tmp_path / "run", outcome.experiment, {})
    first = optimize(outcome.experiment, folder=folder)
    again = optimize(outcome.experiment, folder=folder)
    assert (tmp_path / "run" / "joint-0-0.csv").exists()
    assert again.seconds == first.seconds == outcome.seconds
    assert again.result.evaluations == first.result.evaluations
    assert (
        json.loads((tmp_path / "run" / "best.json").read_bytes())["provenance"]["joint"]
        == joint_json(first.plan)["joint"]
    )
