"""Passes at the same time: what is computed has one order, so that more to compute never ends sooner."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, TaskKind
from topoplan.model.pass_order import PassOrder
from topoplan_engine.lowering.paired_passes import in_turns, paired_rows
from topoplan_engine.pass_orders import named_order
from topoplan_samples.fabrics import star
from topoplan_samples.stated import lowered
from topoplan_schedule_dualpipe import DualPipe
from topoplan_simulator_fluid import Fluid

#: What runs again, more with each step.
MORE = [
    "none",
    "modules:layernorm",
    "modules:layernorm+moe_act",
    "modules:layernorm+moe_act+core_attn",
    "full",
]
PLANS = {
    "one stage": {},
    "interleaved": {"pp": 2, "schedule": "interleaved:2"},
    "1f1b": {"pp": 2},
    "zero bubble": {"pp": 2, "schedule": "zb-h1"},
    "dualpipe": {"pp": 2, "schedule": "dualpipe"},
}


def named(order, row, *, with_chunk=False):
    """A pass as orders print it."""
    return f"{'FRBW'[order.kind[row]]}{order.micro_batch[row]}" + (f"/{order.chunk[row]}" if with_chunk else "")


def seconds_of(tasks, devices, bandwidth):
    cluster = Cluster.uniform(n_hosts=devices, interface_bandwidth=bandwidth, interfaces=1, latency=0)
    return Fluid().build().makespan(tasks, star(devices, bandwidth, 0), cluster, np.inf)


def computed(tasks):
    on_devices = tasks.device >= 0
    return np.bincount(tasks.device[on_devices], tasks.seconds[on_devices]).max()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("traffic", [0.3, 1.0, 2.0])
def test_what_runs_again_never_makes_an_iteration_shorter(model, plan, traffic):
    """Traffic of experts takes so many times what is computed."""
    graph, devices = model("mixtral", 16), 2 * plan.get("pp", 1)
    options = {"ep": 2, "micro_batch": 1, "overlap": "experts", **plan}
    plain, _ = lowered(graph, devices, **{**options, "overlap": "all"})
    waits = seconds_of(plain, devices, 1e11) - seconds_of(plain, devices, 1e18)
    bandwidth = 1e11 * waits / computed(plain) / traffic
    seconds = [seconds_of(lowered(graph, devices, **options, recompute=each)[0], devices, bandwidth) for each in MORE]
    assert (np.diff(seconds) > -1e-12).all(), seconds


@pytest.mark.parametrize("traffic", [0.6, 2.0])
@pytest.mark.parametrize("plan", [{"pp": 2, "schedule": "interleaved:2"}, {"pp": 4, "schedule": "gpipe"}], ids=str)
def test_what_runs_again_makes_no_two_micro_batches_shorter(model, plan, traffic):
    """But for messages of both that share a link, which begin at other times."""
    graph, devices = model("llama", 16), 2 * plan["pp"]
    options = {"tp": 2, "micro_batch": 1, **plan}
    plain, _ = lowered(graph, devices, **options)
    waits = seconds_of(plain, devices, 1e11) - seconds_of(plain, devices, 1e18)
    bandwidth = 1e11 * waits / computed(plain) / traffic
    norms = "modules:input_layernorm+post_attention_layernorm"
    seconds = [
        seconds_of(lowered(graph, devices, **options, overlap="hidup", recompute=each)[0], devices, bandwidth)
        for each in ("none", norms, f"{norms}+core_attn", "full")
    ]
    assert (np.diff(seconds) > -1e-3 * seconds[0]).all(), seconds


@pytest.mark.parametrize("overlap", ["all", "experts"])
def test_modules_that_run_again_take_their_forward_passes_more(model, overlap):
    """On one stage, with no time to send: one more forward pass of each for every micro-batch."""
    graph = model("mixtral")
    plain, again = (
        lowered(graph, 2, ep=2, micro_batch=1, overlap=overlap, recompute=way)[0]
        for way in ("none", "modules:layernorm+moe_act")
    )
    names = [op.name for op in graph.operators]
    chosen = [
        k
        for k, name in enumerate(names)
        if name.startswith("model.layers") and (name.endswith(("layernorm", "experts.act_fn", "experts.multiply")))
    ]
    assert len(chosen) == 4 * 4
    forward = (plain.kind == TaskKind.FORWARD) & np.isin(plain.op, chosen) & (plain.device == 0)
    took_longer = seconds_of(again, 2, 1e18) - seconds_of(plain, 2, 1e18)
    assert took_longer == pytest.approx(plain.seconds[forward].sum(), rel=1e-6)


def test_passes_that_pair_are_those_of_deepseeks_program():
    """Ranks 0 and 1 of four, as DualPipe's ``step`` calls ``_forward_backward_chunk`` in its steps 4 and 5."""
    order = DualPipe().order(4, 8)
    pairs = [[named(order, row, with_chunk=True) for row in rows] for rows in paired_rows(order)[0] if len(rows) == 2]
    assert pairs == [["F3/0", "B5/7"], ["F6/7", "B0/0"], ["F7/7", "B1/0"]]


def text_of(order):
    return [" ".join("&".join(named(order, row) for row in item) for item in rows) for rows in paired_rows(order)]


def test_an_interleaved_order_pairs_behind_one_more_forward_pass():
    """Megatron-LM with ``overlap_moe_expert_parallel_comm``; one rank has no other one that waits."""
    assert text_of(named_order("1f1b", 1, 3)) == ["F0 B0&F1 B1&F2 B2"]
    last_rank = paired_rows(named_order("interleaved", 2, 4, 2))[1]
    assert [len(item) for item in last_rank] == [1, 1, 1, 2, 2, 2, 2, 2, 1, 1, 1]


def test_neighbours_of_1f1b_would_wait_for_pairs():
    """A pair holds back what the next rank needs for its own one: passes follow each other."""
    order = named_order("1f1b", 2, 4)
    assert text_of(order) == str(order).replace("rank 0: ", "").replace("rank 1: ", "").split("\n")


def test_pairs_that_wait_for_each_other_are_taken_apart():
    """On rank 1 the backward pass of the pair needs what rank 0 sends behind its own pair."""
    order = PassOrder(
        name="",
        rank_ptr=[0, 4, 8],
        kind=[0, 0, 2, 2, 0, 2, 0, 2],
        chunk=[0] * 4 + [1] * 4,
        micro_batch=[0, 1, 0, 1, 0, 0, 1, 1],
    )
    rows = [item for rank in paired_rows(order) for item in rank]
    assert sorted(row for item in rows for row in item) == list(range(8))


def test_parts_take_turns():
    assert in_turns(["F1"], ["B1", "B2"]) == ["B1", "F1", "B2"]
    assert in_turns(["F1", "F2"], ["B1"]) == ["F1", "B1", "F2"]
    assert in_turns(["F1"], ["B1"]) == ["B1", "F1"]
