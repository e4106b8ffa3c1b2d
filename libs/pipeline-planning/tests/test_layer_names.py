"""Layers by the names of operators, and the cuts between them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import TopoplanError
from topoplan_pipeline_planning.layer_names import layer_of, layer_states, name_pattern
from topoplan_samples.graphs import layer_graph


def named(names, edges):
    """Return a graph of such operators and edges between them."""
    graph = layer_graph(edges, [1000] * len(names), [100] * len(names), 8)
    renamed = [attrs.evolve(op, name=name) for op, name in zip(graph.operators, names, strict=True)]
    return attrs.evolve(graph, operators=tuple(renamed))


def stages(graph):
    """Return, for each state in order, the operators that it adds."""
    names = np.array([op.name for op in graph.operators])
    closed = layer_states(graph).closed
    before = np.vstack([np.zeros_like(closed[:1]), closed[:-1]])
    assert (closed >= before).all()
    return [names[row].tolist() for row in closed & ~before]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("layers.3.attention.wq", 3),
        ("model.layers.12.mlp.up_proj", 12),
        ("h.3.attn", 3),
        ("block3_linear1", 3),
        ("enc3_attention", 3),
        ("conv2d_3", None),
        ("lm_head", None),
    ],
)
def test_names_tell_layers(name, layer):
    assert layer_of(name) == layer


def test_a_pattern_leaves_the_layer_open():
    assert name_pattern("layers.3.mlp.2") == "layers\\.[0-9]+\\.mlp\\.2"
    assert name_pattern("head.0") == "head\\.0"


def test_states_end_with_embedding_layers_and_head():
    names = ["embed", "layers.0.a", "layers.0.b", "layers.1.a", "layers.1.b", "norm", "head"]
    graph = named(names, [(k, k + 1) for k in range(6)])
    assert stages(graph) == [["embed"], names[1:3], names[3:5], names[5:]]
    assert layer_states(graph).before.sum() == 6


def test_an_operator_without_a_number_counts_to_what_it_depends_on():
    # A mask of the embedding, written down after layer 0, which layer 1 reads, and a sum of layer 0's.
    names = ["embed", "layers.0.a", "mask", "sum", "layers.1.a", "head"]
    graph = named(names, [(0, 1), (0, 2), (1, 3), (3, 4), (2, 4), (4, 5)])
    assert stages(graph) == [["embed", "mask"], ["layers.0.a", "sum"], ["layers.1.a"], ["head"]]


def test_what_later_layers_read_crosses_a_cut():
    names = ["embed", "layers.0.a", "layers.1.a", "head"]
    graph = named(names, [(0, 1), (1, 2), (2, 3), (0, 2)])
    crossing = layer_states(graph).crossing
    assert crossing.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_models_without_such_layers_are_refused():
    with pytest.raises(TopoplanError, match=r"operator 'conv1' is in no layer by its name, nor is any other"):
        layer_states(named(["conv1", "conv2"], [(0, 1)]))
    names = ["enc0_a", "enc1_a", "dec0_a", "dec1_a"]
    with pytest.raises(TopoplanError, match=r"operator 'dec0_a' reads 'enc1_a', which is in a later layer by its name"):
        layer_states(named(names, [(0, 1), (1, 2), (2, 3)]))
