"""Where the time of an iteration goes: by hand for each kind of parallelism, and what holds of all iterations."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from topoplan import Bounds, Cluster, Collective, Host, TaskKind, Timeline, stated_plan
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.precision import in_precision
from topoplan_engine.reporting.parts import iteration_parts, shares_text
from topoplan_engine.simulation import folds
from topoplan_engine.simulation.parts import Part, parts_of_time
from topoplan_engine.simulation.traffic import part_of_tasks
from topoplan_engine.throughput import model_flops, repeated_flops
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.fabrics import star
from topoplan_samples.stated import HIDDEN, LLAMA, MIXTRAL, VOCABULARY, lowered
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

F, B, X = 1.0, 2.0, 0.25


def by_hand(intervals):
    """Return a timeline of tasks that run in these intervals."""
    start, finish = zip(*intervals, strict=True)
    bounds = Bounds(device=0.0, link=0.0, chain=0.0)
    nothing = {"device_busy": [], "link_bytes": [], "link_busy": [], "events": 0}
    return Timeline(start=start, finish=finish, makespan=max(finish), bounds=bounds, **nothing)


def parts_on(device, tasks, timeline, messages):
    """Return the parts that there are, with all messages of one part."""
    part = np.where(tasks.kind >= TaskKind.TRANSFER, messages, Part.COMPUTATION).astype(np.int8)
    part[tasks.kind == TaskKind.UPDATE] = Part.OPTIMIZER
    seconds = parts_of_time(tasks, timeline, device, part)
    assert seconds.sum() == pytest.approx(timeline.makespan)
    return {each: pytest.approx(seconds[each]) for each in Part if seconds[each] > 1e-12}


# ── By hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sums_between_matrices_are_exposed_in_full():
    """Megatron's tensor parallelism: a matrix waits for the sum of the one before, two of these for each layer."""
    rows, intervals, edges = [], [], []
    for layer in range(4):
        rows += [compute(0, F), collective((0, 1), 100)]
        intervals += [((F + X) * layer, (F + X) * layer + F), ((F + X) * layer + F, (F + X) * (layer + 1))]
        edges += [(2 * layer, 2 * layer + 1), (2 * layer + 1, 2 * layer + 2)]
    rows.append(compute(0, F))
    intervals.append((4 * (F + X), 4 * (F + X) + F))
    parts = parts_on(0, task_graph(rows, edges), by_hand(intervals), Part.TENSOR)
    assert parts == {Part.COMPUTATION: 5 * F, Part.TENSOR: 4 * X}


@pytest.mark.parametrize(("seconds", "exposed"), [(0.5, 0.5), (1.0, 1.0), (2.0, 3 * 2.0 - 2 * 1.0)])
def test_sums_of_gradients_are_exposed_behind_the_backward_pass(seconds, exposed):
    """Three layers of 1 s backward, whose sums follow each other: n S - (n - 1) B is left, or one sum."""
    ends = list(itertools.accumulate(range(3), lambda end, k: max(end, k + 1) + seconds, initial=0.0))[1:]
    rows = [*(compute(0, 1.0, TaskKind.BACKWARD) for _ in range(3)), *(collective((0, 1), 100) for _ in range(3))]
    rows.append(compute(0, 0.1, TaskKind.UPDATE))
    intervals = [*((k, k + 1.0) for k in range(3)), *((end - seconds, end) for end in ends), (ends[-1], ends[-1] + 0.1)]
    edges = [(0, 3), (1, 4), (2, 5), (3, 4), (4, 5), (5, 6)]
    parts = parts_on(0, task_graph(rows, edges), by_hand(intervals), Part.DATA)
    assert parts == {Part.COMPUTATION: 3.0, Part.DATA: exposed, Part.OPTIMIZER: 0.1}


def test_all_to_alls_of_transfers_are_exposed_and_late_senders_are_waited_for():
    """Tokens are sent between joins; the second device computes for longer before it has them."""
    rows = [compute(0, 1.0), compute(1, 1.5), collective((0,), 0, kind=Collective.JOIN)]
    rows += [transfer(0, 1, 100), transfer(1, 0, 100), collective((1,), 0, kind=Collective.JOIN)]
    rows += [compute(0, 1.0), compute(1, 1.0)]
    edges = [(0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6), (5, 7)]
    sends = [(1.0, 1.5), (1.5, 2.1), (1.5, 2.0), (1.5, 2.1)]
    timeline = by_hand([(0.0, 1.0), (0.0, 1.5), *sends, (2.1, 3.1), (2.1, 3.1)])
    tasks = task_graph(rows, edges)
    assert parts_on(0, tasks, timeline, Part.EXPERT) == {Part.COMPUTATION: 2.0, Part.EXPERT: 0.6, Part.BUBBLE: 0.5}
    assert parts_on(1, tasks, timeline, Part.EXPERT) == {Part.COMPUTATION: 2.5, Part.EXPERT: 0.6}


def pipeline(ranks, micro_batches, alternating):
    """Return tasks of GPipe, or of 1F1B: forward and backward passes, and messages of X seconds between ranks."""
    rows, edges, number = [], [], {}
    for rank in range(ranks):
        ahead = ranks - 1 - rank if alternating else micro_batches
        ahead = min(ahead, micro_batches)
        order = [("f", k) for k in range(ahead)]
        rest = [("f", k) for k in range(ahead, micro_batches)]
        back = [("b", k) for k in range(micro_batches)]
        order += [each for pair in itertools.zip_longest(rest, back) for each in pair if each]
        for kind, k in order:
            number[rank, kind, k] = len(rows)
            rows.append(compute(rank, F if kind == "f" else B, TaskKind.BACKWARD if kind == "b" else TaskKind.FORWARD))
        edges += [(number[rank, *a], number[rank, *b]) for a, b in itertools.pairwise(order)]
    for rank, k in itertools.product(range(ranks - 1), range(micro_batches)):
        for kind, source, target in (("f", rank, rank + 1), ("b", rank + 1, rank)):
            edges += [(number[source, kind, k], len(rows)), (len(rows), number[target, kind, k])]
            rows.append(transfer(source, target, int(X * 1e6)))
    return task_graph(rows, edges, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_bubbles_of_gpipe(ranks):
    """The first rank waits (p-1)(F+B) and for 2(p-1) messages, of which it receives one; the last one has both ends."""
    tasks, cluster = pipeline(ranks, 6, alternating=False), Cluster.uniform(n_hosts=ranks, latency=0.0)
    timeline = Fluid().build()(tasks, star(ranks, 1e6, 0.0), cluster)
    work, bubble = 6 * (F + B), (ranks - 1) * (F + B)
    first, last = (parts_on(rank, tasks, timeline, Part.PIPELINE) for rank in (0, ranks - 1))
    assert first == {Part.COMPUTATION: work, Part.PIPELINE: X, Part.BUBBLE: bubble + (2 * ranks - 3) * X}
    assert last == {Part.COMPUTATION: work, Part.PIPELINE: 2 * X, Part.BUBBLE: bubble + (2 * ranks - 4) * X}


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_bubbles_of_1f1b(rank):
    """(p-1)(F+B) on every rank, where messages take next to no time."""
    tasks, cluster = pipeline(4, 8, alternating=True), Cluster.uniform(n_hosts=4, latency=0.0)
    timeline = Fluid().build()(tasks, star(4, 1e15, 0.0), cluster)
    assert parts_on(rank, tasks, timeline, Part.PIPELINE)[Part.BUBBLE].expected == pytest.approx(3 * (F + B), rel=1e-6)


def test_a_device_without_tasks_waits_all_the_time():
    tasks = task_graph([compute(0, 1.0), transfer(0, 1, 100)], [(0, 1)])
    timeline = by_hand([(0.0, 1.0), (1.0, 1.5)])
    assert parts_on(3, tasks, timeline, Part.DATA) == {Part.BUBBLE: 1.5}
    assert parts_on(1, tasks, timeline, Part.DATA) == {Part.BUBBLE: 1.0, Part.DATA: 0.5}


# ── Plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    def build(config, batch=8):
        path = tmp_path_factory.mktemp("model") / "config.json"
        path.write_text(json.dumps(config))
        return in_precision(HuggingFace(config=str(path)).build(batch), "bf16")

    return build


@pytest.mark.parametrize(
    ("config", "devices", "plan", "kinds"),
    [
        (LLAMA, 2, {"tp": 2}, {Part.TENSOR}),
        (LLAMA, 2, {"tp": 2, "sp": False, "micro_batch": 8}, {Part.TENSOR}),
        (LLAMA, 2, {"cp": 2, "micro_batch": 8}, {Part.CONTEXT, Part.DATA}),
        (LLAMA, 2, {"cp": 2, "cp_comm": "ring"}, {Part.CONTEXT, Part.DATA}),
        (LLAMA, 2, {"dp": 2, "zero": 3}, {Part.DATA}),
        (LLAMA, 2, {"pp": 2}, {Part.PIPELINE}),
        (MIXTRAL, 2, {"ep": 2, "dp": 2}, {Part.EXPERT, Part.DATA}),
        (LLAMA, 8, {"tp": 2, "pp": 2, "dp": 2, "clip": True}, {Part.TENSOR, Part.PIPELINE, Part.DATA, Part.OPTIMIZER}),
    ],
)
def test_messages_are_of_the_axes_of_their_meshes(model, config, devices, plan, kinds):
    tasks, strategy = lowered(model(config), devices, **plan)
    part = part_of_tasks(tasks, strategy)
    sends = (tasks.kind >= TaskKind.TRANSFER) & (tasks.collective != Collective.JOIN)
    assert {Part(each) for each in np.unique(part[sends])} == kinds
    cluster = build_cluster(ClusterOptions(servers=devices, device="h100"), Host.discover())
    for simulate in (Fluid().build(), Flexnet().build()):
        timeline = simulate(tasks, star(devices, 1e9), cluster)
        for device in range(devices):
            seconds = parts_of_time(tasks, timeline, device, part)
            assert seconds.sum() == pytest.approx(timeline.makespan)
            computed = seconds[[Part.COMPUTATION, Part.RECOMPUTATION, Part.OPTIMIZER]].sum()
            if "clip" not in plan:  # the norm of all gradients is of the optimizer
                assert computed == pytest.approx(timeline.device_busy[device])
            if "pp" not in plan:  # all devices are equal: they wait for traffic, and not for each other
                assert seconds[Part.BUBBLE] <= 1e-6 * timeline.makespan


@pytest.mark.parametrize(("recompute", "share"), [("none", 0.0), ("full", 1.0), ("every:2", 0.5)])
def test_forward_passes_that_run_again(model, recompute, share):
    """Of the layers, whose forward passes have as many tasks as those that run again."""
    graph = model(LLAMA)
    tasks, strategy = lowered(graph, 1, recompute=recompute)
    part = part_of_tasks(tasks, strategy)
    again = (part == Part.RECOMPUTATION).sum()
    layers = sum(".layers." in op.name for op in graph.operators) * strategy.micro_batches
    assert again == share * layers
    # Of 3 passes over each layer there are 4; the head and the last norm do not run again.
    repeated, flops = repeated_flops(graph, strategy), model_flops(graph)
    head = 6 * 8 * 32 * HIDDEN * VOCABULARY
    assert repeated == pytest.approx(share * (flops - head) / 3, rel=0.005)
    once = len(graph.operators) * strategy.micro_batches
    assert (tasks.kind == TaskKind.FORWARD).sum() == once + again


def test_folded_iterations_have_the_same_parts(monkeypatch, model):
    """One device of each class stands for all: 16 devices in 2 hosts, whole and folded."""
    parts = []
    for least in (10**9, 0):
        monkeypatch.setattr(folds, "_FOLDED", least)
        monkeypatch.setattr(folds, "_FOLDED_DRAWS", least)
        plan = stated_plan(
            model(LLAMA), "tp=2,pp=2,zero=1,micro-batch=1", servers=2, gpus_per_server=8, machine="dgx-h100"
        )
        assert bool(getattr(plan.timeline, "simulated", "")) == (not least)
        parts.append(iteration_parts(plan))
    assert parts[0].where.endswith("stage 1")
    assert parts[0].seconds == pytest.approx(parts[1].seconds)
    assert parts[1].total == pytest.approx(plan.timeline.makespan)
    assert shares_text(parts[0]) == shares_text(parts[1])
