"""Strategies in the words of parallel training: what is cut how far, where weights lie, and on which devices."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, PlacedStrategy, Placement
from topoplan.model.plan import Plan
from topoplan.model.sharding import PENDING_GRADIENT, REPLICATED, arguments, shard
from topoplan.model.spmd import SpmdProgram
from topoplan.testing import reference
from topoplan_engine.layout import groups_of
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.reporting.strategy import print_strategy, ranges, strategy_json
from topoplan_engine.sharding.signatures import signatures
from topoplan_operators import GraphBuilder
from topoplan_pipeline_planning.stages import staged_strategy


def model(layers=3):
    b = GraphBuilder("small", 16)
    x = b.input((8, 32))
    for _ in range(layers):
        x = b.relu(b.linear(b.attention(x, x, x, 32, 4), 32, bias=False))
    return b.build()


def placed(graph, cuts):
    """Return a strategy: operators of a kind under degrees, on as many devices from 0 on; all others by samples."""
    made = []
    for operator in graph.operators:
        degrees = cuts.get(operator.kind) or operator.sample_cut(8)
        made.append(Placement(degrees, np.arange(int(np.prod(degrees)))))
    return PlacedStrategy(tuple(made))


def plan_of(graph, strategy, provenance=None):
    devices = Cluster.uniform(n_hosts=4, devices_per_host=2)
    base = reference.plan()
    return Plan(
        cluster=devices,
        fabric=base.fabric,
        taskgraph=base.taskgraph,
        graph=graph,
        strategy=strategy,
        provenance=provenance or {},
    )


def test_degrees_are_told_by_what_is_cut():
    graph = model()
    strategy = placed(graph, {"linear": (2, 1, 2, 2), "attention": (2, 1, 4), "relu": (1, 4, 2)})
    heads, channels, pointwise = groups_of(strategy, graph)
    assert [graph.operators[op].kind for op in (heads.operators[0], channels.operators[0])] == ["attention", "linear"]
    assert (heads.cuts.data, heads.cuts.tensor) == (2, (("heads", 4),))
    assert (channels.cuts.data, channels.cuts.tensor) == (2, (("out", 2), ("in", 2)))
    assert (pointwise.cuts.data, pointwise.cuts.attribute, pointwise.cuts.tensor) == (1, 8, ())
    assert all(len(group.operators) == 3 for group in (heads, channels, pointwise))
    assert channels.devices == (tuple(range(8)),)


def test_weights_of_a_program_are_where_they_are_stored():
    """A mesh named data x model, on which all operators cut samples, is data parallelism with weights in slices."""
    graph = model()
    edge_inputs = {(v, into) for _, _, v, into in graph.edges.tolist()}

    def forms(index, k):
        if (index, k) in edge_inputs:
            return ()
        return (PENDING_GRADIENT, shard(0)) if k >= len(graph.operators[index].inputs) else (REPLICATED, REPLICATED)

    rules = [next(s for s in signatures(op) if s.dim == op.sample_dim) for op in graph.operators]
    program = SpmdProgram(
        mesh=(2, 4),
        rules=tuple((rule, rule) for rule in rules),
        stored=tuple(tuple(forms(i, k) for k in range(len(arguments(op)))) for i, op in enumerate(graph.operators)),
        sharded_state=True,
    )
    strategy = program_strategy(program, graph)
    weighted, pointwise = groups_of(strategy, graph)
    assert weighted.weights == ("Replicate", "Shard(0)")
    assert weighted.gathered
    assert (weighted.cuts.data, weighted.cuts.tensor, pointwise.weights) == (8, (), ())
    description = strategy_json(plan_of(graph, strategy))["strategy"]
    assert (description["mesh"], description["sharded_state"]) == ([2, 4], True)
    assert description["groups"][0]["weights"] == ["Replicate", "Shard(0)"]
    assert sum(len(group["operators"]) for group in description["groups"]) == len(graph.operators)


def test_stages_are_told_one_by_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    graph = model()
    strategy = staged_strategy(graph, [(range(4), range(4)), (range(4, 9), range(4, 8))], 4, "1f1b", (True, False))
    reports = {"reports": {"pipeline": {"split": "4|4 @4"}}}
    print_strategy(plan_of(graph, strategy, reports))
    out = capsys.readouterr().out
    names = [op.name for op in graph.operators]
    first, second = (line for line in out.splitlines() if " .. " in line)
    assert first.split()[1:4] == ["0", "*", "│"]
    assert f"{names[0]} .. {names[3]} (4)" in first
    assert "0-3" in first
    assert f"{names[4]} .. {names[8]} (5)" in second
    assert "* runs its forward pass again" in out
    assert "split: devices of each stage; @" in out


@pytest.mark.parametrize("seed", range(3))
def test_a_strategy_of_any_placements_is_a_short_table_of_80_columns(capsys, monkeypatch, seed):
    monkeypatch.setenv("COLUMNS", "80")
    graph, rng = model(20), np.random.default_rng(seed)
    made = []
    for op in graph.operators:
        degrees = [int(rng.choice([1, 2])) if dim.role is not None else 1 for dim in op.dims]
        made.append(Placement(degrees, rng.choice(8, int(np.prod(degrees)))))
    print_strategy(plan_of(graph, PlacedStrategy(tuple(made))))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 80


def test_what_all_rows_would_say_is_said_once(capsys):
    graph = model()
    print_strategy(plan_of(graph, placed(graph, {})))
    out = capsys.readouterr().out
    assert out.startswith("strategy, devices 0-7 (all)")
    assert "tensor" not in out
    assert "expert" not in out


@pytest.mark.parametrize(
    ("numbers", "told"), [((0, 1, 2, 5, 7, 8), "0-2, 5, 7-8"), ((3,), "3"), ((), ""), ((1, 3), "1, 3")]
)
def test_ranges(numbers, told):
    assert ranges(numbers) == told
