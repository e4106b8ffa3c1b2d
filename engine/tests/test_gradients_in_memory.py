"""Gradients of activations in the peak of memory, beside hand calculations."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan.model.placement import Placement
from topoplan.model.strategy import PlacedStrategy
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.gradient_peaks import gradient_order, rises, widest
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_engine.precision import in_precision
from topoplan_estimator_roofline import Roofline
from topoplan_operators import GraphBuilder
from topoplan_operators.handle import Handle
from topoplan_operators.losses import cross_entropy
from topoplan_samples.words import language_model

SAMPLES, CHANNELS, WORDS = 64, 16, 4096
#: Bytes of the scores, and of the activations between two layers, in fp32.
SCORES, HIDDEN = 4 * SAMPLES * WORDS, 4 * SAMPLES * CHANNELS


def lowering(graph, devices=2):
    """Of several devices, which hold gradients of weights throughout; a device alone is in test_alone.py."""
    cluster = build_cluster(ClusterOptions(servers=devices))
    return Lowering(graph, cluster, Roofline().build(graph, cluster))


def whole(graph, device=0):
    return PlacedStrategy(tuple(Placement((1,) * len(op.dims), [device]) for op in graph.operators))


def states(graph, times=4):
    """Bytes of Adam in fp32: weights, gradients, two moments."""
    return times * graph.parameter_bytes


@pytest.mark.parametrize("words", [WORDS, 100 * WORDS])
def test_a_loss_holds_its_scores_three_times(words):
    """The logarithms of probabilities, their gradient, and that of the scores: 12 bytes each."""
    graph = language_model(words=words)
    activations = 2 * HIDDEN  # the inputs of the second layer and of the scores; those of the first one are data
    peak = lowering(graph).memory(whole(graph))[0]
    assert peak == states(graph) + activations + 12 * SAMPLES * words
    half = in_precision(graph, "bf16")
    # Weights and gradients 2 bytes, and 12 of Adam; activations 2; the loss stays in fp32.
    expected = 16 * graph.parameter_bytes / 4 + activations / 2 + 12 * SAMPLES * words
    assert lowering(half).memory(whole(half))[0] == expected


def test_gpt2_has_the_three_tensors_that_a_gpu_has():
    """8 sequences of 1,024 words of a vocabulary of 50,257: 1.647 GB each, of which one is kept in a forward pass."""
    builder = GraphBuilder("head", batch_size=8)
    x = builder.input((1024, 768))
    hidden = builder.linear(x, 768, bias=False, name="last")
    scores = builder.linear(hidden, 50257, bias=False, name="lm_head")
    builder.append(cross_entropy(scores, Handle((8, 1024), 8)), [scores, Handle((8, 1024), 8)], "loss")
    graph = builder.build()
    lowered = lowering(graph)
    rise = lowered.memory(whole(graph))[0] - lowered.resting_memory(whole(graph))[0]
    assert rise == 2 * 8 * 1024 * 50257 * 4
    use = lowered.memory_use(whole(graph))
    assert use.activations[0] == 8 * 1024 * 4 * (768 + 3 * 50257)


def test_a_branch_holds_the_gradient_of_what_it_left():
    """x ─ wide ─ narrow ─┐
    └──────────────────── sum: while the wide layer's gradients are there, that of x waits."""
    builder = GraphBuilder("residual", batch_size=SAMPLES)
    first = builder.linear(builder.input((CHANNELS,)), CHANNELS, bias=False, name="first")
    wide = builder.relu(builder.linear(first, 8 * CHANNELS, bias=False, name="wide"))
    narrow = builder.linear(wide, CHANNELS, bias=False, name="narrow")
    end = builder.add(first, narrow, name="sum")
    builder.linear(end, 1, bias=False, name="end")
    graph = builder.build()
    lowered = lowering(graph)
    rise = lowered.memory(whole(graph))[0] - lowered.resting_memory(whole(graph))[0]
    # Most is there when the activation's pass runs, which reads its output: the gradients of its output and its input,
    # 8 each, and that of "first", which the sum has handed on.  What "end" read, 1, is free by then.
    assert rise == HIDDEN * (8 + 8 + 1 - 1)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("count", [1, 4, 16])
def test_micro_batches_hold_gradients_of_one_at_a_time(kind, count):
    graph = language_model()
    stage = [0, 0, 1, 1]
    placements = tuple(Placement((1,) * len(op.dims), [s]) for op, s in zip(graph.operators, stage, strict=True))
    strategy = pipeline_strategy(placements, stage, kind, count)
    first, last = lowering(graph, 2).memory(strategy)
    flight = count if kind == "gpipe" else 1
    weights = 4 * 4 * CHANNELS * WORDS
    assert last == weights + SCORES * flight / count + 2 * SCORES / count  # its input belongs to the first stage
    in_flight = count if kind == "gpipe" else min(2, count)
    # The last output's gradient comes from the next stage, and the pass makes that of the first layer's output.
    assert first == 4 * 4 * 2 * CHANNELS**2 + 2 * HIDDEN * in_flight / count + 2 * HIDDEN / count


def test_order_and_peak_of_a_chain():
    """Gradients of 3, 5 and 2 bytes; kept 1, 10 and 4: the most is where the second pass has just made the first's."""
    graph = language_model(layers=2)
    order = gradient_order(graph)
    assert order.ptr.tolist() == [0, 0, 1, 2, 3]
    assert order.producer.tolist() == [0, 1, 2]
    outputs, made = np.array([3.0, 5.0, 2.0, 0.0]), np.array([0.0, 3.0, 5.0, 2.0])
    parts, slots = np.arange(5, dtype=np.int32), np.zeros(4, dtype=np.int32)
    kept_nothing = rises(order, parts, slots, np.stack([outputs, made]), np.zeros(4), 1)
    assert kept_nothing.tolist() == [8.0] == [widest(order, outputs, made).max()]
    assert widest(order, outputs, made).tolist() == [3.0, 8.0, 7.0, 2.0]
    kept = np.array([1.0, 10.0, 4.0, 3.0])
    assert rises(order, parts, slots, np.stack([outputs, made]), kept, 1).tolist() == [4.0]
