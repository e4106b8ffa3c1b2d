"""Stages under exported files have the loss and the gradients of the module: eight processes on CPUs, with gloo."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topoplan import Host, TopoplanError
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_exporter_dtensor import DTensor
from topoplan_exporter_dtensor.reader import parse
from topoplan_exporter_launch import Torchrun, TorchSchedule
from topoplan_samples import experts, llama
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_trainer_plans import ProposedPlan

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def stated(graph, **options):
    """A plan on one host of eight devices."""
    cluster = build_cluster(ClusterOptions(servers=1, gpus_per_server=8), Host.discover())
    return ProposedPlan(graph, strategy_of(Stated(**options), graph, 8)[0], cluster)


def launched(folder, plans):
    """Start the script of the first plan; return for each plan what all ranks found.

    Args:
        folder: for files.
        plans: (model, layers, plan) of each.
    """
    arguments = []
    for number, (model, layers, plan) in enumerate(plans):
        names = [f"{number}.dtensor"]
        (folder / names[0]).write_bytes(DTensor().write(plan))
        if plan.strategy.micro_batches > 1:
            names.append(f"{number}.csv")
            (folder / names[1]).write_bytes(TorchSchedule().write(plan))
        arguments.append(f"{model}:{layers}:" + ",".join(str(folder / name) for name in names))
    (folder / "launch.sh").write_bytes(Torchrun().write(plans[0][2]))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(llama.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PORT": str(20000 + os.getpid() % 20000),
    }
    script = Path(__file__).with_name("run_stages.py")
    words = ["bash", str(folder / "launch.sh"), "0", "localhost", str(script), str(folder), *arguments]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return list(zip(*(json.loads((folder / f"{rank}.json").read_text()) for rank in range(8)), strict=True))


def check(results):
    for result in results:
        assert result["gradients"] < 1e-12
        assert result["loss"] is None or result["loss"] < 1e-12
    assert any(result["loss"] is not None for result in results)


@needs_torch
@pytest.mark.slow
def test_a_llama_under_tensor_pipeline_and_data_parallelism(tmp_path, monkeypatch):
    """2 x 2 x 2, with sequence parallelism and without, in the order of 1F1B, of the interleaved one and of ZB-H1."""
    monkeypatch.setattr(llama, "LAYERS", 4)
    graph = llama.graph()
    words = [
        {"sp": False},
        {"zero": 1},
        {"schedule": "interleaved:2", "zero": 1},
        {"schedule": "zb-h1"},
        {"schedule": "zbv", "layout": "dp-tp-cp-ep-pp"},
        {"schedule": "gpipe", "layout": "tp-cp-ep-pp-dp", "zero": 3},
    ]
    plans = [("llama", 4, stated(graph, tp=2, pp=2, dp=2, **each)) for each in words]
    found = launched(tmp_path, plans)
    for results in found:
        check(results)
    assert found[0][0]["local"]["layers.0.attention.wq"] == [8, 16]
    assert found[0][0]["local"]["tok_embeddings"] == [16, 16]
    assert [result["stages"] for result in found[2]] == [[0, 2]] * 4 + [[1, 3]] * 4
    assert [result["stages"] for result in found[4]] == [[0, 3]] * 4 + [[1, 2]] * 4
    assert found[5][0]["local"]["layers.0.attention.wq"] == [8, 8]


@needs_torch
@pytest.mark.slow
def test_experts_under_expert_and_data_parallelism(tmp_path):
    graph = experts.graph(tmp_path)
    words = [{"ep": 4}, {"ep": 2, "zero": 1}, {"ep": 2, "tp": 2, "sp": False}]
    found = launched(tmp_path, [("experts", experts.LAYERS, stated(graph, **each)) for each in words])
    for results in found:
        check(results)
    name = "model.layers.0.mlp.experts.gate_proj"
    assert [results[0]["local"][name] for results in found] == [[1, 16, 32], [2, 16, 32], [2, 16, 16]]


def test_stages_have_meshes_of_their_own():
    plan = stated(llama.graph(), tp=2, pp=2, dp=2, zero=1, layout="dp-tp-cp-ep-pp")
    values = json.loads(DTensor().write(plan))
    assert values["meshes"] == {
        "mesh0": {"dim_names": ["dp", "tp"], "devices": [[0, 2], [1, 3]]},
        "mesh1": {"dim_names": ["dp", "tp"], "devices": [[4, 6], [5, 7]]},
    }
    assert values["schedule"]["zero"] == [{"level": 1, "dims": ["dp"]}] * 2
    document = parse(DTensor().write(plan), "plan.dtensor")
    stage = document.stages.stage
    crossing = [edge for edge in document.edges if stage[edge[0]] != stage[edge[2]]]
    assert crossing
    for u, out, v, into in crossing:
        arrives = document.operators[v].inputs[into].stored
        made = document.operators[u].outputs[out].placements
        assert arrives == tuple("Replicate()" if form == "Partial()" else form for form in made)


def test_two_copies_of_the_model_are_refused_by_name():
    plan = stated(llama.graph(), pp=2, tp=2, schedule="dualpipe")
    with pytest.raises(TopoplanError, match=r"^dtensor: the plan has two copies of the model .*schedule dualpipe"):
        DTensor().write(plan)
