"""Plans for trainers have what trainers add to them: sums of gradients in fp32, and clipping."""

from __future__ import annotations

from pathlib import Path

import pytest

import topoplan_studies
from topoplan import Host
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan.plugin.components import Exporter
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice

BLOCKS = Path(topoplan_studies.__file__).parent / "problems" / "files" / "llama-4-blocks.json"
ENDINGS = {"megatron": "sh", "torchtitan-toml": "toml"}


def experiment(*searchers, trainers=(), budget=40, precision="bf16"):
    return Experiment(
        model=Choice("huggingface", {"config": str(BLOCKS), "sequence-length": 128}),
        cluster=ClusterOptions(servers=2, gpus_per_server=4),
        searchers=list(searchers),
        run=RunOptions(batch_size=32, precision=precision, budget=budget, trainers=trainers),
    )


def sums(plan):
    """The bytes of all sums of gradients, and of a norm, of one group each."""
    tasks = plan.taskgraph
    rows = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == Collective.ALL_REDUCE)
    return sorted(tasks.size[rows].tolist())


def parameters(plan):
    return sum(tensor.elements for operator in plan.graph.operators for tensor in operator.weights)


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
@pytest.mark.parametrize(("precision", "nbytes"), [("bf16", 4), ("fp32", 4)])
def test_data_parallelism_for_a_trainer_sums_in_fp32_and_clips(trainer, precision, nbytes):
    """All-reduces of 4 bytes a parameter, and one of the norm, a number; without a trainer 2 in bf16, and no norm."""
    plan = optimize(experiment(Choice("spmd"), trainers=(trainer,), budget=0, precision=precision)).plan
    norm, *gradients = sums(plan)
    assert (norm, sum(gradients)) == (4, nbytes * parameters(plan))
    alone = optimize(experiment(Choice("spmd"), budget=0, precision=precision)).plan
    assert sum(sums(alone)) == (2 if precision == "bf16" else 4) * parameters(alone)
    assert alone.timeline.makespan < plan.timeline.makespan


def test_deepspeed_adds_nothing():
    """Its configuration sums in the precision of the model, and clips only where it says so."""
    plan = optimize(experiment(Choice("spmd"), trainers=("deepspeed",), budget=0)).plan
    assert sum(sums(plan)) == 2 * parameters(plan)


@pytest.mark.parametrize(
    ("trainer", "searcher"),
    [
        ("megatron", Choice("spmd", {"state": "sharded"})),
        ("torchtitan-toml", Choice("pipeline")),
        # The same code with other kinds of plans.
        pytest.param("megatron", Choice("spmd", {"state": "whole"}), marks=pytest.mark.slow),
        pytest.param("megatron", Choice("pipeline"), marks=pytest.mark.slow),
        pytest.param("torchtitan-toml", Choice("spmd", {"state": "whole"}), marks=pytest.mark.slow),
        pytest.param("torchtitan-toml", Choice("spmd", {"state": "sharded"}), marks=pytest.mark.slow),
    ],
)
def test_a_plan_for_a_trainer_takes_what_its_file_takes(trainer, searcher, tmp_path):
    """Of programs and pipelines: read back, the file is a plan with sums in fp32 and clipping."""
    outcome = optimize(experiment(searcher, trainers=(trainer.removesuffix("-toml"),)))
    assert outcome.origin.name != "initial strategy"
    file = tmp_path / f"plan.{ENDINGS[trainer]}"
    file.write_bytes(Host.discover().make(Exporter, trainer, {}).write(outcome.plan))
    back = optimize(experiment(Choice("stated", {"file": str(file)}), budget=1))
    assert outcome.seconds == pytest.approx(back.seconds, rel=1e-9)
    assert outcome.plan.strategy.clips
