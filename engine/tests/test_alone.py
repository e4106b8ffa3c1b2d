"""Memory of a GPU that trains alone, beside hand calculations; `experiments/one_gpu.py` has it beside measurements."""

from __future__ import annotations

import pytest

from topoplan.model.placement import Placement
from topoplan.model.strategy import PlacedStrategy
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import in_precision
from topoplan_engine.trainer_kernels import with_kernels
from topoplan_estimator_roofline import Roofline
from topoplan_operators import GraphBuilder
from topoplan_operators.handle import Handle
from topoplan_operators.losses import cross_entropy
from topoplan_samples.fabrics import star
from topoplan_samples.words import language_model
from topoplan_simulator_fluid import Fluid

SAMPLES, CHANNELS = 64, 16
DATA = 4 * SAMPLES * CHANNELS + 8 * SAMPLES
HIDDEN = 4 * SAMPLES * CHANNELS


def lowered(graph, devices=1):
    cluster = build_cluster(ClusterOptions(servers=devices))
    return Lowering(graph, cluster, Roofline().build(graph, cluster))


def whole(graph):
    return PlacedStrategy(tuple(Placement((1,) * len(op.dims), [0]) for op in graph.operators))


def test_gradients_of_weights_are_not_there_when_the_loss_holds_the_most():
    """Weights and two moments, data, inputs of two layers, and three tensors of the size of the scores."""
    words = 4096
    graph = language_model(words=words)
    use = lowered(graph).memory_use(whole(graph))
    assert use.total[0] == 3 * graph.parameter_bytes + DATA + 2 * HIDDEN + 12 * SAMPLES * words
    assert use.gradients[0] == 0
    together = lowered(graph, devices=2).memory_use(whole(graph))
    assert together.total[0] == use.total[0] - DATA + graph.parameter_bytes
    assert together.gradients[0] == graph.parameter_bytes


def test_a_head_of_many_words_has_its_gradient_in_the_backward_pass():
    """With 4 samples a gradient of the head is larger than the scores: the pass of the head holds the most."""
    builder = GraphBuilder("words", batch_size=4)
    hidden = builder.linear(builder.input((CHANNELS,)), CHANNELS, bias=False, name="layer")
    scores = builder.linear(hidden, 1000, bias=False, name="scores")
    builder.append(cross_entropy(scores, Handle((4,), 8)), [scores, Handle((4,), 8)], "loss")
    graph = builder.build()
    use = lowered(graph).memory_use(whole(graph))
    head, hidden_bytes, data = 4 * CHANNELS * 1000, 4 * 4 * CHANNELS, 4 * 4 * CHANNELS + 4 * 8
    # What the head reads, the gradients of the scores and of what it reads, and that of its weight.
    assert use.total[0] == 3 * graph.parameter_bytes + data + hidden_bytes + 4 * 4 * 1000 + hidden_bytes + head
    assert use.gradients[0] == head


def test_the_step_in_mixed_precision_reads_gradients_in_fp32():
    """The last of two gradients is cast beside the first in fp32: 4 bytes a parameter, and 2 of the last one."""
    builder = GraphBuilder("wide", batch_size=1)
    x = builder.linear(builder.input((1000,)), 1000, bias=False, name="first")
    builder.linear(x, 1000, bias=False, name="last")
    graph = in_precision(builder.build(), "bf16")
    use = lowered(graph).memory_use(whole(graph))
    parameters, data = 2 * 10**6, 4 * 1000
    assert use.total[0] == 14 * parameters + data + 4 * parameters + 2 * 10**6
    assert use.gradients[0] == 4 * parameters + 2 * 10**6


def test_trainers_with_buffers_keep_gradients_throughout():
    graph = language_model()
    for kernels, is_there in (("megatron", True), ("transformers", False)):
        chosen = with_kernels(graph, kernels)
        assert bool(lowered(chosen).memory_use(whole(chosen)).gradients[0]) is is_there


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bytes_over_time_have_the_same_peak(precision):
    graph = in_precision(language_model(), precision)
    lowering, strategy = lowered(graph), whole(graph)
    taskgraph = lowering.lower(strategy)
    cluster = build_cluster(ClusterOptions(servers=1))
    timeline = Fluid().build()(taskgraph, star(1), cluster)
    levels = lowering.memory_levels(strategy, taskgraph, timeline)
    now, most = {}, 0.0
    for _, device, kind, nbytes in zip(levels.time, levels.device, levels.kind, levels.nbytes, strict=True):
        now[int(device), int(kind)] = nbytes
        most = max(most, sum(now.values()))
    assert most == pytest.approx(lowering.memory(strategy)[0], abs=4)
