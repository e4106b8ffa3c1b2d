"""DAPPLE's planner end to end: layer profiles in, the speedups of the released planner out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from topoplan import Cluster, Experiment
from topoplan.cli import main
from topoplan_estimator_profile import PROFILE
from topoplan_estimator_profile import Options as Prices
from topoplan_frontend_torchgraph import TORCHGRAPH, TorchgraphOptions
from topoplan_searcher_hpgo.baselines import released, released_memory
from topoplan_searcher_hpgo.layers import layers_of, operator_columns
from topoplan_searcher_hpgo.machine import Machine
from topoplan_searcher_hpgo.planning import best_of, finalists, plan
from topoplan_searcher_hpgo.plans import early_backward_speedup

TWO_HOSTS, FLAT = [8, 16], list(range(1, 17))

#: Profile -> states, seconds, activation, parameter and largest crossing bytes, of the profiled batch.
IMPORTED = {
    "amoeba-18-pbs-8": (25, 0.717810, 1277201696, 1914477860, 205520896),
    "amoeba-36-pbs-1": (43, 0.168050, 294523300, 3731135780, 25690112),
    "amoeba-6-pbs-8-complicated": (52, 0.212000, 609234760, 703372580, 263323648),
    "amoeba-6-pbs-8-simplified": (13, 0.212000, 519319368, 703372580, 205520896),
    "bert-24-pbs-6": (31, 0.515357, 340927488, 1340567552, 16524288),
    "bert-48-pbs-2": (55, 0.343757, 219816960, 2549805056, 7873536),
    "gnmt-16-pbs-64": (1495, 0.248916, 988425216, 1162988352, 336936960),
    "gnmt-32-pbs-64-simplified": (62, 0.445611, 903266304, 1834601280, 299499520),
    "vgg-19-pbs-32": (25, 0.144210, 1962128000, 548047022, 384000000),
    "vgg16": (40, 0.672535, 14682148868, 553430176, 1644167168),
    "xlnet-24-pbs-1": (29, 0.201110, 59002000, 1379000000, 9000000),
    "xlnet-36-pbs-1": (41, 0.300710, 83002000, 2003000000, 9000000),
}
#: The only profile whose name does not say it.
PROFILED = {"vgg16": 64}
#: Ways to choose one device for each stage tie; the release decides by the order of a Python set.
TIED = 1e-3


@pytest.fixture(scope="session")
def layers_from(reference_data):
    """Return a function from profile and batch size (None: the profiled one) to layers."""

    def layers_from(name, batch_size=None):
        options = TorchgraphOptions(
            file=str(reference_data / "layer_profiles" / f"{name}.txt"), profile_batch=PROFILED.get(name)
        )
        graph = TORCHGRAPH.build(options, batch_size)
        costs = PROFILE.build(Prices(), graph, Cluster.uniform(n_hosts=1))
        return layers_of(graph, operator_columns(graph, costs), limit=4000, simplify=False)

    return layers_from


@pytest.fixture(scope="session")
def results(reference_data):
    return json.loads((reference_data / "dapple_reference_results.json").read_text())


@pytest.mark.parametrize("name", IMPORTED)
def test_import(layers_from, name):
    layers = layers_from(name)
    states, seconds, activations, parameters, crossing = IMPORTED[name]
    assert layers.count == states
    assert round(float(layers.seconds[-1]), 6) == seconds
    assert layers.activations[-1] == activations
    assert layers.parameters[-1] == parameters
    assert layers.crossing.max() == crossing


def test_speedups_are_those_of_the_released_planner(layers_from, results):
    compared, exact_plans = 0, 0
    for row in results["wheel"]:
        layers = layers_from(row["profile"], row["gbs"])
        found = plan(layers, row["seps"], row["gbs"])
        assert found == plan(layers, row["seps"], row["gbs"])
        if row["speedup"] is None:  # the release panics: fewer layers than devices
            assert layers.count < 16
            assert found.speedup > 1
            continue
        one_each = found.family == "one device each"
        where = f"{row['profile']} of {row['gbs']} on {row['seps']}"
        assert found.speedup == pytest.approx(row["speedup"], rel=TIED if one_each else 1e-9), where
        compared += 1
        # Layers of gnmt-16 that can stand in any order are numbered differently.
        if not one_each and row["profile"] != "gnmt-16-pbs-64":
            got = [[s.start, s.end, s.replication, list(s.devices)] for s in found.stages]
            got[-1][1] -= 1  # the release counts the last layer of the last stage, but not of the others
            assert got == row["stages"], where
            exact_plans += 1
    assert (compared, exact_plans) == (38, 29)


def test_each_family_and_the_second_opinion_are_those_of_the_release(layers_from, results):
    for row in results["source_build"]:
        layers = layers_from(row["name"], row["gbs"])
        machine = Machine.split(TWO_HOSTS if row["dev"] == "H" else FLAT)
        found = finalists(layers, machine, row["gbs"], row["mbs"])
        best = best_of(found)
        where = f"{row['name']} of {row['gbs']} on {row['dev']}"
        wanted = [row["best_pseudo_dp"], *(candidate[0] for candidate in row["cands"])]
        for one, speedup in zip(found, wanted, strict=True):
            tolerance = 1e-9 if one.family in ("one stage", "two stages") else TIED
            assert one.speedup == pytest.approx(speedup, rel=tolerance), (where, one.family)
        assert best.speedup == pytest.approx(row["speedup"], rel=1e-9), where
        assert early_backward_speedup(best, layers, machine) == pytest.approx(row["recursive"], rel=1e-9), where


def test_released_baselines(layers_from, results):
    for row in results["source_build"]:
        layers = layers_from(row["name"], row["gbs"])
        sample = row["papb"] or float(layers.activations[-1]) / row["gbs"]
        machine = Machine.split(TWO_HOSTS if row["dev"] == "H" else FLAT)
        got = released(layers, machine, row["gbs"], released_memory(sample, row["opt"]))
        wanted = (row["dp"], row["dp_p3"], row["ga_inner"], row["ga_p3"])
        assert (got.no_overlap, got.p3, got.accumulated, got.accumulated_p3) == pytest.approx(wanted, rel=1e-9)


@pytest.fixture
def run(capsys):
    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        # Said once on a machine whose kernels are not compiled yet.
        err = "".join(line for line in err.splitlines(keepends=True) if not line.startswith("compiling kernels"))
        return ended.value.code or 0, out, err

    return run


def optimize(file, *args, searcher="hpgo"):
    return ["optimize", "torchgraph", "-o", f"file={file}", "-s", searcher, *args]


def test_command_line_plans_simulates_and_reports(reference_data, results, run):
    row = next(r for r in results["wheel"] if r["profile"] == "bert-48-pbs-2" and r["gbs"] == 64)
    file = reference_data / "layer_profiles" / "bert-48-pbs-2.txt"
    devices = json.dumps(row["seps"])
    status, out, _ = run(*optimize(file, "-o", "profile-batch=2", "--batch-size", 64, "--devices", devices, "--json"))
    found = json.loads(out)
    assert status == 0
    assert found["speedup"] == pytest.approx(row["speedup"], rel=1e-9)
    assert [[s["start"], s["devices"]] for s in found["stages"]] == [[s[0], s[3]] for s in row["stages"]]
    assert found["estimator"] == "profile"
    assert found["split"] == "8|8 @30"
    assert found["planned_iteration_time_s"] > found["lower_bound_s"] > 0
    assert found["baselines"]["no_overlap"] == pytest.approx(4.82224, abs=1e-4)


#: V100 with NVLink inside hosts and 25 Gb/s Ethernet between them, as in DAPPLE's clusters.
DAPPLE = ("--device", "V100", "--memory-gb", 16, "--inter-gpu-bandwidth-gbps", 200, "--degree", 1)
ETHERNET = ("--interface-bandwidth-gbps", 25)


@pytest.mark.parametrize(
    ("name", "batch", "profiled", "ends", "least"),
    [("vgg-19-pbs-32", 1024, 32, TWO_HOSTS, 14.4), ("bert-24-pbs-6", 64, 6, FLAT, 10.8)],
)
def test_pipelines_are_never_slower_than_what_they_replace(reference_data, run, name, batch, profiled, ends, least):
    file = reference_data / "layer_profiles" / f"{name}.txt"
    given = ("-o", f"profile-batch={profiled}", "--batch-size", batch, "--devices", json.dumps(ends), "--json")
    status, out, _ = run(*optimize(file, *given, *DAPPLE, *ETHERNET, searcher="pipeline"))
    found = json.loads(out)
    assert status == 0
    assert found["speedup"] == pytest.approx(found["one_device_s"] / found["iteration_time_s"], rel=1e-9)
    assert least <= found["speedup"] < 16
    assert found["speedup"] >= max(value for value in found["baselines"].values() if value)
    assert found["memory_bytes"] <= 16e9
    taken = [device for stage in found["stages"] for device in stage["devices"]]
    assert len(set(taken)) == len(taken) <= 16
    assert [stage["replication"] for stage in found["stages"]] == [len(stage["devices"]) for stage in found["stages"]]
    assert found["stages"][0]["start"] == 0
    assert all({"first", "last", "end"} <= set(stage) for stage in found["stages"])
    status, out, _ = run(*optimize(file, *given, *DAPPLE, *ETHERNET))
    released = json.loads(out)
    assert found["iteration_time_s"] <= released["iteration_time_s"]
    assert {"first", "last", "devices", "replication"} <= set(released["stages"][0])


def test_an_explosion_of_states_is_told_and_simplified(reference_data, run):
    file = reference_data / "layer_profiles" / "gnmt-32-pbs-64.txt"
    given = ("--batch-size", 1024, "--devices", "[8,16]", "--json")
    status, out, err = run(*optimize(file, *given))
    assert (status, out) == (2, "")
    assert "more than 4000 layers" in err
    assert "hpgo:simplify=true" in err
    assert "Traceback" not in err
    status, out, _ = run(*optimize(file, *given, searcher="hpgo:simplify=true"))
    assert status == 0
    assert json.loads(out)["layers"] == 157


def test_any_model_can_be_planned_for(run):
    args = ("optimize", "alexnet", "--batch-size", 64, "--devices", "2,4", "-s", "hpgo:bandwidths=cluster", "--json")
    status, out, _ = run(*args)
    found = json.loads(out)
    assert (status, found["estimator"]) == (0, "roofline")
    assert 1 < found["speedup"] <= 4


@pytest.mark.parametrize(
    ("searcher", "args", "message"),
    [
        ("hpgo", ("--devices", "[8,4]"), "4 does not come after 8"),
        ("hpgo", ("--devices", "[8,x]"), "expected integer, got 'x'"),
        ("hpgo", ("--devices", ""), "expected integer"),
        ("hpgo:micro-batch=99", (), "micro-batch 99 is larger than the batch of 16 samples"),
        ("hpgo:max-states=3", (), "more than 3 layers"),
        ("hpgo", ("--memory-gb", "0.000008"), "the weights of 'node4.LSTM' take"),
        ("hpgo", ("--memory-gb", "0.0000001"), "its weights take"),
        ("hpgo", ("-o", "profile-batch=0"), "profile-batch: 0 is too small"),
        ("pipeline:micro-batch=99", (), "micro-batch 99 is larger than the batch of 16 samples"),
        ("pipeline", ("--memory-gb", "0.000008"), "GB too much, for 'node"),
        ("pipeline:schedule=pipedream", (), "schedule"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, searcher, args, message):
    file = TORCHGRAPH.example["file"]
    status, out, err = run(*optimize(file, "--batch-size", 16, "--json", *args, searcher=searcher))
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_same_plan_in_every_process(reference_data):
    """Python's order of sets differs from process to process; nothing here may depend on it."""
    file = reference_data / "layer_profiles" / "gnmt-32-pbs-64-simplified.txt"
    script = (
        "from topoplan import Experiment, ClusterOptions, RunOptions, optimize; "
        f"outcome = optimize(Experiment(model='torchgraph:file={file}', searchers=['hpgo'], "
        "cluster=ClusterOptions(devices=tuple(range(1, 17))), run=RunOptions(batch_size=1024))); "
        "print(outcome.plan.provenance['reports'])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert "one device each" in told.pop()


def test_estimator_is_the_frontends_own_unless_given():
    assert Experiment(model="torchgraph").estimator is None
    assert Experiment(model="torchgraph", estimator="roofline").estimator.name == "roofline"
