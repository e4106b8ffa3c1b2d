"""One hybrid plan goes through all that takes a plan: tensor, pipeline and data parallel, interleaved, ZeRO 1."""

from __future__ import annotations

import json
import re

import pytest

from topoplan import stated_plan
from topoplan_exporter_json.document import read, write
from topoplan_exporter_perfetto.slices import stages_of

MODEL = "transformer:num-layers=4"
PLAN = "tp=2,pp=2,dp=2,zero=1,schedule=interleaved:2"
SEARCH = [MODEL, "--servers", 8, "--batch-size", 16]


@pytest.fixture(scope="module")
def plan():
    return stated_plan(MODEL, PLAN, servers=8, batch_size=16, record=True)


@pytest.fixture
def file(plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(write(plan))
    return path


def test_a_plan_has_four_chunks_on_two_ranks_and_shares_state(plan):
    strategy = plan.strategy
    assert strategy.order.rank_of.tolist() == [0, 1, 0, 1]
    assert [(stage.mesh.axes, stage.mesh.sizes, stage.zero.level) for stage in strategy.stages] == [
        (("dp", "tp"), (2, 2), 1)
    ] * 4
    assert read(write(plan), "plan.json") == plan


def test_tasks_of_traces_have_the_stage_of_their_operator(plan):
    stage, tasks = stages_of(plan), plan.taskgraph
    named = tasks.op >= 0
    assert set(stage[named].tolist()) == {0, 1, 2, 3}
    assert (plan.strategy.order.rank_of[stage[named & (tasks.device >= 4)]] == 1).all()
    assert (stage[~named] == -1).all()


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    "exporter",
    ["json", "html", "perfetto", "chakra", "astra-sim", "dot", "flatbuffer", "dtensor", "torchrun", "torch-schedule"],
)
def test_formats_of_plans(run, file, tmp_path, exporter):
    status, _, err = run("simulate", file, "-x", f"{exporter}={tmp_path / 'out'}")
    assert (status, err) == (0, "")
    assert (tmp_path / "out").exists()


def test_devices_that_are_slower_beside_messages_stay_so_in_files(run, tmp_path):
    slowed = stated_plan(MODEL, f"{PLAN},slowdown=0.5", servers=8, batch_size=16)
    assert slowed.taskgraph.slowdown.tolist() == [0.5] * 8
    assert slowed.timeline.makespan > stated_plan(MODEL, PLAN, servers=8, batch_size=16).timeline.makespan
    text = write(slowed)
    assert read(text, "plan.json") == slowed
    (tmp_path / "plan.json").write_bytes(text)
    for name in ("plan.json", "plan.et.tar"):
        status, out, _ = run("simulate", tmp_path / name, "--json", "-x", f"chakra={tmp_path / 'plan.et.tar'}")
        assert (status, json.loads(out)["iteration_time_s"]) == (0, slowed.timeline.makespan)
    for name in ("flatbuffer", "astra-sim"):
        status, _, err = run("simulate", tmp_path / "plan.json", "-x", f"{name}={tmp_path / 'out'}")
        assert status == 2
        assert f"{name}: devices compute slower beside messages, slowdown=0.5 (0, or simulator fluid alone)" in err


@pytest.mark.parametrize(
    "exporter", ["cabling", "cabling-markdown", "graphml", "infragraph", "network-dot", "node-link"]
)
def test_formats_of_networks(run, file, tmp_path, exporter):
    status, _, _ = run("simulate", file, "-x", f"{exporter}={tmp_path / 'out'}")
    assert status == 0
    assert (tmp_path / "out").stat().st_size > 100


def test_tables_and_reports(run, file, tmp_path):
    status, out, _ = run("show", file)
    assert status == 0
    assert "4 stages on meshes of dp=2 x tp=2, optimizer state shared (ZeRO 1)" in " ".join(out.split())
    status, _, _ = run("report", file, "-o", tmp_path / "report.html")
    assert status == 0
    page = (tmp_path / "report.html").read_text()
    assert "interleaved" in page
    assert "dp=2 x tp=2" in page


@pytest.mark.slow
def test_a_run_is_resumed_to_the_same_plan(run, file, tmp_path):
    folder = tmp_path / "run"
    status, out, _ = run("optimize", *SEARCH, "--plan", PLAN, "--run", folder, "--json")
    assert status == 0
    first = json.loads(out)
    status, out, _ = run("resume", folder, "--json")
    assert status == 0
    assert json.loads(out)["iteration_time_s"] == first["iteration_time_s"]
    assert json.loads(out)["schedule"] == first["schedule"]


@pytest.mark.slow
def test_chains_start_from_it_and_end_no_slower(run, plan, file):
    words = ["optimize", *SEARCH, "--strategy", file, "-s", "random", "--budget", 4, "--chains", 2, "--json"]
    status, out, _ = run(*words)
    assert status == 0
    assert json.loads(out)["iteration_time_s"] <= plan.timeline.makespan * (1 + 1e-12)


@pytest.mark.slow
def test_it_is_planned_again_under_other_costs(run, file):
    status, out, err = run(
        "sensitivity", file, "--seeds", 1, "--compute-noise", "0.2", "--communication-scale", "2", "--json"
    )
    assert status == 0, err
    assert json.loads(out)


@pytest.mark.slow
def test_networks_are_compared_under_it(run):
    words = [MODEL, "--networks", "bigswitch,fattree", "--servers", 8, "--batch-size", 16]
    status, out, err = run("compare", *words, "-s", f"stated:{PLAN}", "--json")
    assert status == 0, err
    assert out.count("iteration_time_s") >= 2


SHARED = """
title = "shared"
budget = 5

[share]
loads = [100]
trials = 1

[cluster]
servers = 16
interface-bandwidth-gbps = 10

[[model]]
use = "transformer"
num-layers = 4
batch-size = 16
servers = 8

[[network]]
name = "switch"
use = "bigswitch"

[[network]]
name = "tree"
use = "fattree"
oversubscription = 4

[[searcher]]
use = "stated"
tp = 2
pp = 2
dp = 2
zero = 1
schedule = "interleaved:2"
"""


@pytest.mark.slow
def test_jobs_that_run_it_share_a_cluster(run, tmp_path):
    (path := tmp_path / "shared.toml").write_text(SHARED)
    status, out, err = run("share", path, "--json")
    assert status == 0, err
    assert json.loads(out)


@pytest.mark.parametrize(("stated", "words"), [("tp=4", "without computing"), ("pp=4", "in bubbles")])
def test_a_report_calls_waits_of_pipelines_alone_bubbles(run, tmp_path, stated, words):
    model = ("huggingface", "-o", "preset=gemma-2b", "-o", "layers=4", "-o", "sequence-length=64", "--batch-size", "8")
    report = tmp_path / "report.html"
    assert run("optimize", *model, "--servers", "4", "--plan", stated, "-x", f"html={report}")[0] == 0
    assert re.search(rf"devices spend [0-9.]+% of their time {words}", report.read_text(encoding="utf-8"))
