"""``topoplan sensitivity``: plans made under wrong costs, priced under true ones."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import attrs
import pytest

from topoplan import Host, TopoplanError
from topoplan_command_sensitivity.analysis import PerturbationResult, sensitivity
from topoplan_command_sensitivity.more import more_json, more_of_each
from topoplan_command_sensitivity.provenance import experiment_of
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions, build_cluster, optimize
from topoplan_engine.exporting import read_plan
from topoplan_engine.perturbation import Perturbation
from topoplan_samples.long_tail import at_night

TABLES = {"arch-embedding-size": "1000-1000", "arch-mlp-bot": "64-64-64", "arch-mlp-top": "192-64-1"}
#: A network so slow that a search which believes it to be fast does badly.
EXPERIMENT = Experiment(
    model=Choice("dlrm", TABLES),
    cluster=ClusterOptions(servers=2, interface_bandwidth_gbps=1.0, degree=1),
    topology="bigswitch",
    searchers=["exhaustive:tied=true"],
    run=RunOptions(batch_size=4096, budget=100),
)
WORDS = (
    "optimize",
    "dlrm",
    "-o",
    "arch-embedding-size=1000-1000",
    "--batch-size",
    "64",
    "--servers",
    "4",
    "-t",
    "topoopt",
    "-s",
    "totientperm",
    "--degree",
    "2",
    "--budget",
    "20",
    "--seed",
    "4",
)


@pytest.mark.slow
def test_more_of_each_by_hand():
    """One device: an iteration is compute alone, and a tenth more of it leaves 1 / 1.1; nothing else matters."""
    alone = attrs.evolve(EXPERIMENT, cluster=ClusterOptions(servers=1))
    plan = optimize(alone).plan
    rows = more_of_each(alone, plan, 0.1, Host.discover(), lambda done, name: None)
    assert [row.name for row in rows] == ["as it is", "10% more bandwidth", "10% more compute", "10% more memory"]
    seconds = plan.timeline.makespan
    for row, expected in zip(rows, (1.0, 1.0, 1 / 1.1, 1.0), strict=True):
        assert row.same == pytest.approx(seconds * expected)
        assert row.anew == pytest.approx(seconds * expected)
    slow = more_of_each(EXPERIMENT, None, 1.0, Host.discover(), lambda done, name: None)
    assert slow[0].same is None
    assert slow[1].anew < slow[0].anew
    assert [line["planned_anew_s"] for line in more_json(slow)] == [row.anew for row in slow]


def test_plans_on_machines_name_their_experiment():
    """What the machine says is not recorded, as it would look like what a user says; what a user says is."""
    cluster = ClusterOptions(machine="dgx-h100", servers=1, gpus_per_server=2)
    made = Experiment(model="alexnet", cluster=cluster, searchers=["baseline:rule=ddp"], run=RunOptions(batch_size=16))
    plan = optimize(made).plan
    again = experiment_of(plan, "plan")
    assert (again.cluster.machine, again.cluster.gpus_per_server) == ("dgx-h100", 2)
    assert build_cluster(again.cluster).n_devices == build_cluster(made.cluster).n_devices == 2
    assert build_cluster(again.cluster).device_preset == plan.cluster.device_preset


@pytest.mark.slow
def test_a_search_that_proves_its_answer_loses_by_perturbation_only():
    perturbations = [Perturbation(), Perturbation(compute_noise=0.5), Perturbation(communication_scale=1e4)]
    study = sensitivity(EXPERIMENT, perturbations, seeds=2)
    none, noisy, fast = study.results
    assert none.slowdowns == (1.0, 1.0)
    assert min(noisy.slowdowns) >= 1.0
    assert none.worst == 1.0 < fast.mean == fast.worst
    assert study.reference == optimize(EXPERIMENT).plan.timeline.makespan
    assert fast.seconds[0] > study.reference
    assert not study.interrupted


def test_a_plan_that_does_not_fit_is_no_slowdown():
    row = PerturbationResult(
        perturbation=Perturbation(), seeds=(0, 1), seconds=(1.0, 2.0), fits=(False, True), reference=1.0
    )
    assert row.slowdowns == (float("inf"), 2.0)
    assert row.worst == float("inf")


def test_a_plan_made_under_perturbation_says_so():
    plan = optimize(EXPERIMENT, perturbation=Perturbation(communication_scale=2.0)).plan
    assert plan.provenance["distortion"] == {
        "compute_noise": 0.0,
        "communication_scale": 2.0,
        "compute_scale": 1.0,
        "profile_noise": 0.0,
        "seed": 0,
    }
    assert plan.timeline.makespan < optimize(EXPERIMENT).plan.timeline.makespan
    with pytest.raises(TopoplanError, match="made under perturbed costs"):
        experiment_of(plan, "p.json")


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "searcher",
    at_night(
        [component.name for component in Host.discover().components("searcher")], "mcmc", "pipeline", "totientperm"
    ),
)
def test_every_searcher_takes_part(searcher):
    if searcher == "exhaustive":
        searcher = "exhaustive:tied=true"  # the whole space is too large
    experiment = attrs.evolve(
        EXPERIMENT, searchers=[searcher], topology=Choice("topoopt"), run=RunOptions(batch_size=64, budget=6)
    )
    study = sensitivity(experiment, [Perturbation(compute_noise=0.3, communication_scale=0.5)], seeds=1)
    assert study.results[0].seconds[0] > 0


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished():
    def stop(finished, name):
        if finished == 3:
            signal.raise_signal(signal.SIGINT)

    perturbations = [Perturbation(), Perturbation(compute_noise=0.5), Perturbation(communication_scale=2.0)]
    study = sensitivity(EXPERIMENT, perturbations, seeds=2, on_progress=stop)
    assert study.interrupted
    assert [row.seeds for row in study.results] == [(0, 1)]


def test_a_plan_of_a_search_that_only_time_limits_gives_its_limit_back():
    """Such a plan has no budget; studies of it search as long as its own search could."""
    limited = RunOptions(batch_size=64, time_limit="5s")
    plan = optimize(Experiment(model="dlrm", searchers=["baseline:rule=ddp"], run=limited)).plan
    assert plan.provenance["budget"] is None
    again = experiment_of(plan, "plan").run
    assert again.ends_by_time_alone
    assert again.seconds == limited.seconds == 5.0


@pytest.mark.parametrize("asked", ["file", "option"])
def test_a_plan_for_a_trainer_is_compared_with_plans_for_it(asked):
    """AlexNet on four hosts has a plan that is 8 % faster and that torch does not run: no slowdown of 0.93."""
    files = ((Choice("dtensor", {}), "alexnet.dtensor"),) if asked == "file" else ()
    trainers = ("torch",) if asked == "option" else ()
    run = RunOptions(batch_size=64, budget=1, trainers=trainers)
    experiment = Experiment(
        model="alexnet", cluster=ClusterOptions(servers=4), searchers=["spmd"], run=run, outputs=files
    )
    outcome = optimize(experiment)
    assert outcome.free is not None
    assert outcome.free.seconds < outcome.seconds
    again = experiment_of(outcome.plan, "plan")
    assert ([choice.name for choice, _ in again.outputs], again.run.trainers) == (["dtensor"] * len(files), trainers)
    assert optimize(again).seconds == outcome.seconds


@pytest.mark.slow
def test_a_plan_gives_its_experiment_back(run):
    assert run(*WORDS, "--gpus-per-device", "2", "-x", "json=p.json")[0] == 0
    host = Host.discover()
    plan = read_plan(host, Path("p.json"))
    assert (plan.cluster.gpus_per_device, plan.provenance["cluster"]["big_gpu"]) == (2, 2)
    assert optimize(experiment_of(plan, "p.json"), host=host).plan == plan


@pytest.mark.slow
def test_a_saved_plan_is_what_others_are_compared_with(run):
    assert run(*WORDS, "-x", "json=p.json")[0] == 0
    status, out, err = run(
        "sensitivity", "p.json", "--compute-noise", "0.4", "--communication-scale", "", "--seeds", "2", "--json"
    )
    found = json.loads(out)
    assert (status, err) == (0, "")
    made = json.loads(Path("p.json").read_text())
    assert found["iteration_time_s"] == made["timeline"]["makespan"]
    assert [(row["compute_noise"], row["communication_scale"]) for row in found["rows"]] == [(0, 1), (0.4, 1)]
    assert found["rows"][0]["slowdowns"][0] == 1.0
    assert found["rows"][0]["seeds"] == [4, 5]
    assert not found["interrupted"]


def test_an_experiment_gives_a_table(run, tmp_path):
    (tmp_path / "e.toml").write_text(
        '[model]\nuse = "alexnet"\n[cluster]\nservers = 2\n[run]\nbudget = 3\nbatch-size = 64\n'
    )
    status, out, _ = run("sensitivity", "e.toml", "--seeds", "1", "--communication-scale", "0.5", "--budget", "2")
    assert status == 0
    for text in ("mean slowdown", "compute x 0.5..1.5", "bandwidth x 0.5", "alexnet, auto"):
        assert text in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--compute-noise", "1"), "--compute-noise: 1.0 is too large (less than 1)"),
        (("--compute-noise", "nan"), "--compute-noise: expected number, got 'nan'"),
        (("--compute-noise", "0"), "--compute-noise: 0.0 is too small (more than 0)"),
        (("--communication-scale", "2,x"), "--communication-scale: expected number, got 'x'"),
        (("--communication-scale", "inf"), "--communication-scale: expected number, got 'inf'"),
        (("--seeds", "0"), "--seeds: 0 is too small (at least 1)"),
        ((), "missing.toml: cannot be read"),
    ],
)
def test_bad_words_are_named(run, words, told):
    status, out, err = run("sensitivity", "missing.toml", *words)
    assert (status, out) == (2, "")
    assert told in err
    assert err.startswith("error: ")


def test_plans_that_cannot_be_repeated_are_refused(run, tmp_path):
    assert run(*WORDS, "-x", "json=p.json", "-x", "flatbuffer=t.fbuf")[0] == 0
    assert "does not say how it was made" in run("sensitivity", "t.fbuf")[2]
    assert run(*WORDS, "--strategy", "p.json", "-x", "json=again.json")[0] == 0
    assert "started from the strategy p.json" in run("sensitivity", "again.json")[2]
    document = json.loads((tmp_path / "p.json").read_text())
    document["provenance"]["components"] = [{}]
    (tmp_path / "p.json").write_text(json.dumps(document))
    status, _, err = run("sensitivity", "p.json")
    assert status == 2
    assert "p.json: provenance: is damaged" in err


# Prices of the planner itself ----------------------------------------------------------------------------------------

#: The second profile of HiDup's config.py.
FAST = ",".join(
    (
        "hidup:preset=released",
        "all-gather-bytes-per-s=3714984161",
        "all-reduce-bytes-per-s=2210910765",
        "reduce-scatter-bytes-per-s=3768950561",
        "all-to-all-bytes-per-s=12725517750",
    )
)
HIDUP = ("optimize", "bert-sgmoe", "-o", "world-size=8", "-o", "experts=8", "--devices", "[8]", "-s", "hidup")


def studied(run, *words):
    status, out, err = run("sensitivity", "p.json", "--compute-noise", "", *words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.mark.slow  # the command of the README runs by default
def test_hidups_study_by_its_own_objective(run):
    """Plans of the released search under its noise: 0.8 to 2.3 % worse; communication x 1.5: 1.7 %, x 1.2: 0.01 %."""
    assert run(*HIDUP, "-e", FAST, "-x", "json=p.json")[0] == 0
    words = ("--priced-by", "planner", "--communication-scale", "0.6666666667,0.8333333333,1.25", "--seeds", "3")
    study = studied(run, *words, "--profile-noise", "0.2")
    assert (study["priced_by"], study["iteration_time_s"], study["all_alike"]) == ("planner", None, False)
    assert study["objective"] == pytest.approx(2.28305995671607, rel=1e-12)
    none, noise, slow, slower, fast = study["rows"]
    assert none["slowdowns"] == [1.0] * 3
    assert noise["profile_noise"] == 0.2
    assert [round(slowdown, 4) for slowdown in noise["slowdowns"]] == [1.0168, 1.0001, 1.0231]
    assert round(slow["mean_slowdown"], 3) == 1.017
    assert round(slower["mean_slowdown"], 4) == 1.0001
    assert fast["slowdowns"] == pytest.approx([1.0] * 3, abs=1e-12)


@pytest.mark.slow
def test_a_study_without_differences_warns(run):
    assert run(*HIDUP, "-o", "layers=2", "-e", "hidup", "-x", "json=p.json")[0] == 0
    words = ("sensitivity", "p.json", "--seeds", "1", "--compute-noise", "", "--communication-scale", "0.5")
    status, out, err = run(*words)
    assert status == 0
    assert out.count("1.0000") == 4
    assert err.startswith("warning: all plans cost the same")
    assert "--priced-by planner" in err
    assert json.loads(run(*words, "--json")[1])["all_alike"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--priced-by", "planner"), "searcher mcmc has no costs"),
        (("--priced-by", "wishes"), "--priced-by: 'wishes' is none of simulator, planner"),
        (("--profile-noise", "0.2"), "profile-noise: estimator roofline has no option noise"),
        (("--profile-noise", "1"), "--profile-noise: 1.0 is too large (less than 1)"),
    ],
)
def test_prices_that_do_not_exist_are_named(run, words, message):
    assert run(*WORDS, "-x", "json=p.json")[0] == 0
    status, out, err = run("sensitivity", "p.json", "--seeds", "1", *words)
    assert (status, out) == (2, "")
    assert message in err
