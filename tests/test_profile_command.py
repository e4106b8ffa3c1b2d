"""What ``topoplan profile`` writes is what estimators and frontends read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from topoplan import Host
from topoplan_command_profile import operators_command
from topoplan_command_profile.document import document
from topoplan_command_profile.torch_timer import Runs
from topoplan_command_profile.worker import COLLECTIVES
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import build_cluster
from topoplan_operator_times.table import Bench, read

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

#: Bytes/s of each collective, and a latency of a tenth of a millisecond.
BANDWIDTH = dict(zip(COLLECTIVES, (1e9, 2e9, 5e8, 1e10), strict=True))


@pytest.fixture
def file(tmp_path):
    """A file as if measured with two devices."""
    samples = {
        name: [(size, 1e-4 + size / bandwidth) for size in (10**5, 10**7)] for name, bandwidth in BANDWIDTH.items()
    }
    measured = {"samples": samples, "backend": "gloo", "device": "cpu", "world_size": 2, "torch": "2.9"}
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(document(measured)))
    return path


def experiment(**options):
    return Experiment(
        model=Choice("bert-sgmoe", {"world-size": 2, "layers": 2}),
        cluster=ClusterOptions(devices=(2,)),
        estimator=Choice("hidup", options),
        searchers=["hidup"],
        run=RunOptions(budget=1),
    )


def test_measured_lines_price_as_the_same_options_do(file):
    by_hand = {f"{name}_bytes_per_s": int(bandwidth) for name, bandwidth in BANDWIDTH.items()}
    plans = [
        optimize(experiment(**options)).plan for options in ({"file": str(file)}, {**by_hand, "latency_us": 100.0})
    ]
    measured, typed = ((plan.provenance["reports"]["hidup"]["objective"], plan.timeline.makespan) for plan in plans)
    assert measured == pytest.approx(typed, rel=1e-6)
    assert list(plans[0].provenance["inputs"]) == ["measured.json"]


def test_another_number_of_devices_is_refused(file, run):
    status, _, err = run(
        "optimize", "alexnet", "--servers", "4", "-e", f"hidup:file={file}", "--batch-size", "64", "--budget", "0"
    )
    assert status == 2
    assert "measured with 2 devices, the cluster has 4" in err


class FakeTimer:
    """Takes a nanosecond for each byte of a part."""

    bench = Bench("some processor", "2.9", 2, "fp32")

    def __init__(self, *options):
        pass

    def __call__(self, part):
        seconds = 1e-6 + 1e-9 * part.nbytes
        return Runs([seconds], [2 * seconds])


@pytest.fixture
def timed(run, monkeypatch, tmp_path):
    """Run a command in a folder of its own, with times that need no torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(operators_command, "TorchTimer", FakeTimer)
    monkeypatch.setattr(operators_command, "check_torch", lambda word: None)
    return run


MODEL = ("alexnet", "--batch-size", "16")
FAST = ("--servers", "2", "--budget", "30", "--json")


@pytest.mark.by_day(2)
@pytest.mark.parametrize(("dialect", "file"), [("flexnet", "measure_16_2.json"), ("standard", "operators.json")])
def test_operators_that_were_timed_are_planned_with(timed, tmp_path, dialect, file):
    model = (*MODEL, "-o", f"dialect={dialect}")
    status, _, err = timed("profile", "operators", *model, "--servers", "2")
    assert status == 0, err
    status, out, err = timed("optimize", *model, *FAST, "-e", f"measured:file={file}")
    assert status == 0, err
    assert json.loads(out)["iteration_time_s"] > 0


def test_every_cut_of_the_table_is_priced_by_its_own_time(timed, tmp_path):
    """Two convolutions of one FlexNet name and different inputs, and cuts along reductions."""
    assert timed("profile", "operators", *MODEL, "--servers", "2")[0] == 0
    host = Host.discover()
    graph = host.make("frontend", "alexnet", {}).build(16)
    cluster = build_cluster(ClusterOptions(servers=2), host)
    costs = host.make("estimator", "measured", {"file": "operators.json"}).build(graph, cluster)
    table = read(tmp_path / "operators.json")
    assert costs.assumptions == {"measured_on": "some processor, 2 threads, fp32, torch 2.9"}
    last = len(graph.operators) - 2
    assert graph.operators[last].kind == "linear"
    assert costs.supports(last, (1, 1, 2)), "a cut of the reduction"
    price = costs.price(last, (1, 1, 2), np.arange(2, dtype=np.int32))
    samples, outputs, inputs = graph.operators[last].sizes
    halves = (samples, outputs, inputs // 2)
    row = next(row for row in table.rows.values() if row.shape.kind == "linear" and row.shape.sizes == halves)
    assert price.forward.tolist() == [row.forward.median] * 2
    assert not costs.supports(last, (1, 1, 4))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--batch-size", "24", "--servers", "2"), "was not measured (topoplan profile operators"),
        (("--batch-size", "16", "--servers", "2", "--precision", "bf16"), "precision fp32 is not that of the model"),
    ],
)
def test_a_table_for_something_else_is_refused(timed, words, told):
    assert timed("profile", "operators", *MODEL, "--servers", "2")[0] == 0
    speed = ("--precision-speedup", "1") if "bf16" in words else ()
    status, _, err = timed("optimize", "alexnet", *words, *speed, "--budget", "0", "-e", "measured:file=operators.json")
    assert status == 2
    assert told in err


def test_a_table_in_bf16_needs_no_word_of_how_much_faster_that_is(timed, tmp_path):
    words = (*MODEL, "--servers", "2", "--precision", "bf16")
    assert timed("profile", "operators", *words)[0] == 0
    table = tmp_path / "operators.json"
    table.write_text(table.read_text().replace('"precision": "fp32"', '"precision": "bf16"'))
    seconds = []
    for speed in ((), ("--precision-speedup", "1")):
        status, out, err = timed("optimize", *words, *speed, "--budget", "0", "--json", "-e", f"measured:file={table}")
        assert status == 0, err
        seconds.append(json.loads(out)["iteration_time_s"])
    assert seconds[0] == seconds[1] > 0


@pytest.mark.parametrize("searcher", ["hpgo", "pipeline"])
def test_layers_that_were_timed_are_planned_as_a_pipeline(timed, searcher):
    assert timed("profile", "layers", *MODEL)[0] == 0
    words = ("-o", "file=alexnet-pbs-16.txt", "--batch-size", "64", "--devices", "[2,4]", "-s", searcher, "--json")
    status, out, err = timed("optimize", "torchgraph", *words)
    assert status == 0, err
    stages = json.loads(out)["planners"][searcher]["stages"]
    assert stages


def test_a_layer_profile_has_the_times_sizes_and_edges_of_the_model(timed):
    assert timed("profile", "layers", *MODEL)[0] == 0
    host = Host.discover()
    graph = host.make("frontend", "torchgraph", {"file": "alexnet-pbs-16.txt"}).build(None)
    model = host.make("frontend", "alexnet", {}).build(16)
    assert graph.edges.tolist() == model.edges.tolist()
    assert graph.parameter_bytes == model.parameter_bytes
    rows = {row.operator: row for row in read_rows()}
    for layer, operator in zip(graph.operators, model.operators, strict=True):
        assert layer.profile.activation_bytes == operator.outputs[0].nbytes
        row = rows.get(f"alexnet/{operator.name}")
        assert row is None or layer.profile.forward == pytest.approx(row.forward.median, rel=1e-5)
    assert len(rows) > 10


def read_rows():
    return read(Path("operators.json")).rows.values()


@needs_torch
def test_torch_times_a_small_model_and_the_file_is_planned_with(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = ("dlrm", "-o", "arch-embedding-size=500-500", "-o", "dialect=flexnet", "--batch-size", "64")
    words = ("--servers", "4", "--on", "cpu", "--warm-up", "1", "--repeats", "3")
    assert run("profile", "operators", *model, *words)[0] == 0
    for file in ("measure_64_4.json", "operators.json"):
        line = (*model, "--servers", "4", "--budget", "20", "--json", "-e", f"measured:file={file}")
        status, out, err = run("optimize", *line)
        assert status == 0, err
        assert json.loads(out)["iteration_time_s"] > 0
