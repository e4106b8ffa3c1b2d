"""Bytes of estimates are those of lowered plans: random degrees, schedules, recomputation and kernels of trainers."""

from __future__ import annotations

import json
import random

import pytest

from topoplan import Host, TopoplanError
from topoplan_engine.keywords import experiment_of
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.setup import set_up_search
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.problems import state_of
from topoplan_searcher_stated.construct import Rules, strategy_of
from topoplan_searcher_stated.estimates import Estimates
from topoplan_searcher_stated.plan_kernels import price_plans
from topoplan_searcher_stated.settings import Settings

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 2048,
    "max_position_embeddings": 256,
}
MIXTURE = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
WORDS = {**LLAMA, "vocab_size": 65536}
DEVICES = 16


def settings(draw: random.Random, experts: bool) -> Settings:
    """Return a random plan, which perhaps does not fit the model."""
    tp, cp, pp = draw.choice([1, 1, 2, 4]), draw.choice([1, 1, 1, 2]), draw.choice([1, 1, 2, 4, 8])
    zero = draw.choice([0, 1, 2, 3, 3])
    return Settings(
        tp=tp,
        cp=cp,
        pp=pp,
        ep=draw.choice([1, 2, 4]) if experts else 1,
        cp_comm=draw.choice(["gather", "ring", "ulysses"]),
        sp=draw.choice([True, False]) if tp > 1 else None,
        micro_batch=draw.choice([1, 2]),
        zero=zero,
        reshard=zero < 3 or draw.choice([True, True, False]),
        recompute=draw.choice(["none", "full", "selective", "op", "every:2", "modules:mlp"]),
        grads=draw.choice(["weights", "fp32"]),
        schedule=draw.choice(["1f1b", "gpipe", "interleaved:2", "zb-h1", "zbv"]) if pp > 1 else "1f1b",
        layers=draw.choice(["", "3+5", "6+2"]) if pp == 2 else "",
    )


@pytest.mark.parametrize(
    ("keys", "kernels", "count"),
    [
        (LLAMA, "torchtitan", 8),
        (MIXTURE, "megatron", 6),
        *(
            pytest.param(keys, kernels, 200, marks=pytest.mark.slow)
            for keys in (LLAMA, WORDS, MIXTURE)
            for kernels in (None, "megatron", "torchtitan", "torchtitan-2024", "torchtitan-eager")
        ),
    ],
)
def test_estimated_bytes_are_those_of_lowered_plans(tmp_path, keys, kernels, count) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys))
    options = {"servers": 2, "gpus_per_server": 8, "batch_size": 64, "device": "h100", "precision": "bf16"}
    options |= {} if kernels is None else {"kernels": kernels}
    problem = set_up_search(Host.discover(), experiment_of(HuggingFace(config=str(path)), **options)).problem
    estimates = Estimates(problem, state_of(problem).fabric, Rules(problem.graph))
    lowering, draw, compared = Lowering(problem.graph, problem.cluster, problem.costs), random.Random(count), 0
    while compared < count:
        plan = settings(draw, experts="num_local_experts" in keys)
        try:
            strategy, _ = strategy_of(plan, problem.graph, DEVICES)
        except TopoplanError:
            continue
        try:
            estimate = estimates.of(plan).memory
        except TopoplanError:
            continue
        assert estimate == pytest.approx(lowering.memory(strategy).max(), rel=0.02), plan
        compared += 1
    assert len(price_plans.signatures) == 1  # each layout of columns would be compiled anew
