"""Stated plans whose devices compute slower beside messages: each kind of message, by the seconds that it runs beside.

A pass of t seconds, beside which messages of its device run for a part of the time, ends when what is done at a rate of
1 / (1 + s) beside them, and at 1 alone, adds up to t.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Collective, TaskKind
from topoplan.model.machine import HostModel
from topoplan_engine.lowering import Lowering
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_machine_nvidia import DEVICES
from topoplan_samples.fabrics import star
from topoplan_samples.plans_drawn import EXPERTS, write
from topoplan_samples.stated import BATCH
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings
from topoplan_simulator_fluid import Fluid

SLOWDOWN = 0.25
SHARED = {
    **EXPERTS,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
FORWARD, BACKWARD = TaskKind.FORWARD, TaskKind.BACKWARD


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    config = write(tmp_path_factory.mktemp("experts"), num_hidden_layers=2, **SHARED)
    return HuggingFace(config=config, sequence_length=32).build(BATCH)


def simulated(graph, devices, bandwidth, **options):
    """Return tasks of a plan on hosts of one device, and their times."""
    cluster = Cluster.uniform(n_hosts=devices, latency=0.0, interface_bandwidth=bandwidth, interfaces=1)
    cluster = attrs.evolve(cluster, machines={device.name.lower(): HostModel(device=device) for device in DEVICES})
    strategy, _ = strategy_of(Settings(**options), graph, devices)
    tasks = Lowering(graph, cluster, Roofline().build(graph, cluster), one_task=True).lower(strategy)
    tasks.check()
    return tasks, Fluid(protocol="none").build()(tasks, star(devices, bandwidth, 0.0), cluster)


def beside(tasks, timeline, device):
    """(n, 2) when messages of a device are on the way, ascending, those at the same time as one."""
    rows = []
    for task in range(tasks.n_tasks):
        is_transfer = tasks.kind[task] == TaskKind.TRANSFER and device in (tasks.src[task], tasks.dst[task])
        is_member = tasks.kind[task] == TaskKind.COLLECTIVE and device in tasks.members(task)
        if (is_transfer or is_member) and tasks.collective[task] != Collective.JOIN:
            rows.append((timeline.start[task], timeline.finish[task]))
    joined = [[0.0, 0.0]]
    for start, finish in sorted(rows):
        if start > joined[-1][1]:
            joined.append([start, finish])
        joined[-1][1] = max(joined[-1][1], finish)
    return np.array(joined)


#: Plans, and messages that run beside passes of some kind: collectives, or transfers.
KINDS = [
    ({"dp": 4, "bucket_mb": 0.05}, Collective.ALL_REDUCE, BACKWARD),
    ({"dp": 4, "zero": 1, "bucket_mb": 0.05}, Collective.REDUCE_SCATTER, BACKWARD),
    ({"dp": 4, "zero": 3}, Collective.ALL_GATHER, FORWARD),
    ({"dp": 4, "zero": 3}, Collective.ALL_GATHER, BACKWARD),
    ({"cp": 4, "cp_comm": "ring", "micro_batch": BATCH}, None, FORWARD),
    ({"tp": 4, "async_tp": True, "micro_batch": BATCH}, None, FORWARD),
    ({"pp": 4, "schedule": "1f1b"}, None, FORWARD),
]


def assert_slowed(tasks, timeline, message, kind):
    """Every pass takes what the messages beside it say; some of a kind run beside a message of a kind."""
    computes = (tasks.device >= 0) & (tasks.seconds > 0)
    slowed = 0
    for device in range(tasks.n_devices):
        start, finish = beside(tasks, timeline, device).T
        for task in np.flatnonzero(computes & (tasks.device == device)):
            begin, end = timeline.start[task], timeline.finish[task]
            both = np.clip(np.minimum(finish, end) - np.maximum(start, begin), 0.0, None).sum()
            done = both / (1 + SLOWDOWN) + (end - begin - both)
            assert done == pytest.approx(tasks.seconds[task], rel=1e-9, abs=1e-15)
            slowed += tasks.kind[task] == kind and end - begin > tasks.seconds[task] * 1.001
    assert slowed > 0
    chosen = tasks.kind == TaskKind.TRANSFER if message is None else tasks.collective == message
    passes = computes & (tasks.kind == kind)
    assert any(
        ((timeline.start[passes] < timeline.finish[each]) & (timeline.finish[passes] > timeline.start[each])).any()
        for each in np.flatnonzero(chosen)
    )


@pytest.mark.parametrize(("options", "message", "kind"), KINDS)
def test_passes_are_slower_while_messages_of_their_device_are_on_the_way(options, message, kind, model):
    tasks, timeline = simulated(model("llama"), 4, 1e9, slowdown=SLOWDOWN, **options)
    assert_slowed(tasks, timeline, message, kind)
    alone = simulated(model("llama"), 4, 1e9, **options)[1]
    assert alone.makespan < timeline.makespan < alone.makespan * (1 + SLOWDOWN)


def test_shared_experts_are_slower_beside_tokens_on_their_way(experts):
    """With ``overlap=experts`` tokens of one micro-batch travel while shared experts work on those of another one."""
    options = {"dp": 4, "ep": 4, "micro_batch": 1, "overlap": "experts"}
    tasks, timeline = simulated(experts, 4, 1e7, slowdown=SLOWDOWN, **options)
    assert_slowed(tasks, timeline, Collective.ALL_TO_ALL, FORWARD)
    sent = tasks.collective == Collective.ALL_TO_ALL
    shared = [k for k, name in enumerate(tasks.op_names) if "shared_expert" in name]
    rows = np.flatnonzero(np.isin(tasks.op, shared) & (tasks.kind == FORWARD))
    during = timeline.start[rows][:, None] >= timeline.start[sent] - 1e-15
    during &= timeline.finish[rows][:, None] <= timeline.finish[sent] + 1e-15
    rows = rows[during.any(axis=1)]
    assert len(rows) >= 4
    np.testing.assert_allclose((timeline.finish - timeline.start)[rows], 1.25 * tasks.seconds[rows], rtol=1e-9)


def test_a_bucket_beside_the_backward_passes_behind_it(model):
    """One all-reduce outlasts all passes behind its last gradient: each takes a quarter more."""
    tasks, timeline = simulated(model("llama"), 4, 1e6, slowdown=SLOWDOWN, dp=4, bucket_mb=0.05)
    sums = np.flatnonzero(tasks.collective == Collective.ALL_REDUCE)
    first = sums[np.argmin(timeline.start[sums])]
    behind = (tasks.kind == BACKWARD) & (timeline.start >= timeline.start[first] - 1e-15)
    assert behind.sum() >= 4
    last = timeline.finish[behind].max()
    assert timeline.finish[first] > last
    taken = (timeline.finish - timeline.start)[behind]
    np.testing.assert_allclose(taken, 1.25 * tasks.seconds[behind], rtol=1e-9)
    plain = simulated(model("llama"), 4, 1e6, dp=4, bucket_mb=0.05)[1]
    assert last - timeline.start[first] == pytest.approx(1.25 * (plain.finish[behind].max() - plain.start[first]))


def test_pieces_of_a_ring_but_the_last_are_slower_beside_long_messages(model):
    """Keys of three other devices arrive, each later than a piece is done; the last of four pieces has no message."""
    graph = model("llama")
    op = next(k for k, each in enumerate(graph.operators) if each.name.endswith("0.self_attn.attention"))
    tasks, timeline = simulated(graph, 4, 1e6, slowdown=SLOWDOWN, cp=4, cp_comm="ring", micro_batch=BATCH)
    pieces = np.flatnonzero((tasks.kind == FORWARD) & (tasks.device == 0) & (tasks.op == op))
    taken = (timeline.finish - timeline.start)[pieces] / tasks.seconds[pieces]
    np.testing.assert_allclose(taken, [1.25, 1.25, 1.25, 1.0], rtol=1e-9)
