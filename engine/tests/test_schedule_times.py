"""Iteration times, bubbles and peak memory of pipelines whose stages take equally long, in closed form.

With S stages, M micro-batches, and f and b seconds for a forward and a backward pass of one micro-batch:

- GPipe and 1F1B, deep or not: (M + S - 1) (f + b).  Every stage is busy for M (f + b) and idle while the first
  micro-batch comes and the last one goes (Narayanan et al., SC'21, section 2.2.1).
- interleaved with v chunks per device: M (f + b) + (S - 1) (f + b) / v (the same, section 2.2.2).
- ZB-H1, where w of the b seconds are the gradients of weights, w <= f, w <= b - w and M >= S: the last stage starts
  after (S - 1) f, ends its last gradient of inputs M (f + b - w) + (M - S) w later, and the first stage ends its own
  (S - 1) (b - w) and one w after that: M (f + b) + (S - 1) (f + b - 2 w), the bubble of Qi et al., ICLR 2024, table 1.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, CostFunction, PartCosts
from topoplan_engine.lowering import Lowering
from topoplan_engine.simulation.idle import bubble_fraction
from topoplan_operators import GraphBuilder
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.fabrics import star
from topoplan_samples.pipelines import peaks_over_time, rescheduled
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

PER_STAGE = 3
SHARES = np.array([1.0, 2.0, 3.0]) / 6


@attrs.frozen
class Even(CostFunction):
    """Three operators on each stage that take unequal shares of what the whole stage takes, per batch."""

    forward: float
    backward: float
    weights: float | None = None

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        share = np.full(len(devices), SHARES[op % PER_STAGE] / len(devices))
        gradient = None if self.weights is None else self.weights * share
        return PartCosts(
            forward=self.forward * share,
            backward=self.backward * share,
            memory=1000.0 + 600.0 * share,
            kept=np.full(len(devices), 1000.0),
            weight_gradient=gradient,
        )


def chain(stages, batch):
    b = GraphBuilder("chain", batch)
    x = b.input((4,))
    for _ in range(PER_STAGE * stages):
        x = b.linear(x, 4)
    return b.build()


def run(kind, depth, count, costs, rounds=1, simulation=None, recompute=()):
    """Simulate a pipeline on one device per group, with a network that takes no time."""
    stages = depth * rounds
    graph, cluster = chain(stages, 2 * count), Cluster.uniform(n_hosts=max(depth, 2), latency=0.0)
    parts = [(range(PER_STAGE * s, PER_STAGE * (s + 1)), [s % depth]) for s in range(stages)]
    strategy = staged_strategy(graph, parts, count, kind, recompute)
    lowering = Lowering(graph, cluster, costs)
    taskgraph = lowering.lower(strategy)
    simulate = simulation or Fluid().build()
    timeline = simulate(taskgraph, star(cluster.n_hosts, bandwidth=1e18, latency=0.0), cluster)
    return graph, lowering, strategy, taskgraph, timeline


def per_micro_batch(f, b, count, rounds=1, w=None):
    """Costs of a stage (or chunk) for a whole batch, of which a device has ``rounds``."""
    return Even(f * count / rounds, b * count / rounds, None if w is None else w * count / rounds)


TIMES = st.sampled_from([1.0, 0.7, 1.3, 2.0, 0.25])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["gpipe", "1f1b", "1f1b-deep"]), st.integers(1, 6), st.integers(1, 9), TIMES, TIMES)
def test_gpipe_and_1f1b(kind, depth, count, f, b):
    timeline = run(kind, depth, count, per_micro_batch(f, b, count))[-1]
    passes = (count + depth - 1) * (f + b)
    assert timeline.makespan == pytest.approx(passes, rel=1e-12)
    assert bubble_fraction(timeline) == pytest.approx((depth - 1) / (count + depth - 1), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), TIMES, TIMES)
def test_interleaved(depth, rounds, turns, f, b):
    count = depth * turns
    timeline = run("interleaved", depth, count, per_micro_batch(f, b, count, rounds), rounds)[-1]
    assert timeline.makespan == pytest.approx(count * (f + b) + (depth - 1) * (f + b) / rounds, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 6), TIMES, TIMES, st.sampled_from([0.1, 0.5, 1.0]))
def test_zero_bubble(depth, more, f, inputs, share):
    count, w = depth + more, share * min(f, inputs)
    b = inputs + w
    timeline = run("zero-bubble", depth, count, per_micro_batch(f, b, count, w=w))[-1]
    assert timeline.makespan == pytest.approx(count * (f + b) + (depth - 1) * (f + b - 2 * w), rel=1e-12)


def test_gradients_of_weights_are_half_of_the_backward_pass_unless_costs_say_otherwise():
    timeline = run("zero-bubble", 4, 8, per_micro_batch(1.0, 2.0, 8))[-1]
    assert timeline.makespan == pytest.approx(8 * 3 + 3 * 1, rel=1e-12)
    one_f_one_b = run("1f1b", 4, 8, per_micro_batch(1.0, 2.0, 8))[-1]
    assert one_f_one_b.makespan == pytest.approx(11 * 3, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "rounds", "wanted"),
    [("gpipe", 1, 33), ("1f1b", 1, 33), ("interleaved", 2, 28.5), ("zero-bubble", 1, 27)],
)
def test_flexnet_says_the_same(kind, rounds, wanted):
    # Times that float32 holds, in milliseconds, as multiples of 6/1024: the network alone is left, which takes some.
    unit = 6 / 1024
    costs = per_micro_batch(unit, 2 * unit, 8, rounds)
    simulation = Flexnet().build()
    timeline = run(kind, 4, 8, costs, rounds, simulation)[-1]
    assert timeline.makespan == pytest.approx(wanted * unit, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 5), st.integers(1, 6))
def test_recomputation_adds_a_forward_pass(kind, depth, count):
    costs = per_micro_batch(1.0, 2.0, count)
    timeline = run(kind, depth, count, costs, recompute=[True] * depth)[-1]
    # A stage can run the forward pass again while it waits for the gradient.
    slowest = (count + depth - 1) * 4.0
    assert count * 4.0 + (depth - 1) * 3.0 - 1e-9 <= timeline.makespan <= slowest + 1e-9


@pytest.mark.parametrize(
    ("kind", "flying"),
    [
        ("gpipe", [8, 8, 8, 8]),
        ("1f1b", [4, 3, 2, 1]),
        ("1f1b-deep", [7, 5, 3, 1]),
        ("zero-bubble", [4, 4, 4, 4]),  # no stage more than the first one of 1F1B
    ],
)
def test_micro_batches_in_flight(kind, flying):
    _, lowering, strategy, taskgraph, timeline = run(kind, 4, 8, per_micro_batch(1.0, 2.0, 8))
    expected = 3 * 1000.0 + 600.0 / 8 * np.array(flying)
    assert lowering.memory(strategy) == pytest.approx(expected, rel=1e-12)
    levels = lowering.memory_levels(strategy, taskgraph, timeline)
    assert peaks_over_time(levels, len(expected)) == pytest.approx(expected, rel=1e-12)


def test_interleaving_keeps_more_in_flight():
    _, lowering, strategy, *_ = run("interleaved", 4, 8, per_micro_batch(1.0, 2.0, 8, 2), rounds=2)
    # Warm-up of 2 (S - s - 1) + (v - 1) S passes of a chunk, and the one that follows.
    expected = 6 * 1000.0 + 600.0 / 8 * np.array([11, 9, 7, 5])
    assert lowering.memory(strategy) == pytest.approx(expected, rel=1e-12)


def test_a_stage_that_recomputes_keeps_its_inputs():
    _, lowering, strategy, taskgraph, timeline = run(
        "gpipe", 2, 4, per_micro_batch(1.0, 2.0, 4), recompute=(True, True)
    )
    # Eight samples of four floats enter the second stage; the first one takes training data, which nobody counts.
    expected = 3 * 1000.0 + np.array([600.0 / 4, 600.0 / 4 + 8 * 4 * 4])
    assert lowering.memory(strategy) == pytest.approx(expected, rel=1e-12)
    levels = lowering.memory_levels(strategy, taskgraph, timeline)
    assert peaks_over_time(levels, len(expected)) == pytest.approx(expected, rel=1e-12)


def test_outputs_come_and_go_unless_costs_say_otherwise():
    class Silent(Even):
        def price(self, op, degrees, devices):
            return attrs.evolve(super().price(op, degrees, devices), kept=None)

    graph = chain(2, 8)
    strategy = attrs.evolve(staged_strategy(graph, [(range(3), [0]), (range(3, 6), [1])], 4, "1f1b"))
    lowering = Lowering(graph, Cluster.uniform(n_hosts=2), Silent(1.0, 1.0))
    whole = 3 * 1000.0 + 600.0
    outputs = 3 * 8 * 4 * 4.0
    assert lowering.memory(strategy) == pytest.approx([whole - outputs / 2, whole - outputs * 3 / 4])
    assert lowering.memory(rescheduled(strategy, schedule="gpipe")) == pytest.approx([whole, whole])
