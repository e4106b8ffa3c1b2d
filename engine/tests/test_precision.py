"""Mixed precision: half the bytes wherever tensors are kept or sent, 16 bytes for a parameter, and stated rates."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import (
    Axis,
    Dimension,
    Operator,
    OperatorGraph,
    PlacedStrategy,
    Profile,
    Role,
    Tensor,
    TopoplanError,
)
from topoplan.model.placement import Placement
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan.testing import reference
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import at_speed, in_precision, weight_states
from topoplan_engine.scaling import scaled_costs
from topoplan_engine.sharding.resharding import CollectiveCosts
from topoplan_operators import GraphBuilder


def model():
    """A table, and two layers behind it, one of which reads training data, too."""
    b = GraphBuilder("m", batch_size=8)
    rows = b.embedding(b.input((3,), 8), rows=100, dim=16)
    x = b.linear(b.input((16,)), 16)
    b.linear(b.concat([rows, x], axis=1), 8)
    return b.build()


def test_fp32_is_the_model_itself():
    graph = model()
    assert in_precision(graph, "fp32") is graph


def test_all_tensors_but_training_data_have_half_the_bytes():
    graph, half = model(), in_precision(model(), "bf16")
    assert half.precision == "bf16"
    edge_inputs = {(v, into) for _, _, v, into in graph.edges.tolist()}
    for index, (one, other) in enumerate(zip(graph.operators, half.operators, strict=True)):
        assert [2 * t.nbytes for t in other.outputs] == [t.nbytes for t in one.outputs]
        assert [2 * t.nbytes for t in other.weights] == [t.nbytes for t in one.weights]
        for k, (before, after) in enumerate(zip(one.inputs, other.inputs, strict=True)):
            assert after.nbytes * (2 if (index, k) in edge_inputs else 1) == before.nbytes


def test_the_traffic_of_indices_stays():
    (table,) = (op for op in model().operators if op.kind == "embedding")
    (half,) = (op for op in in_precision(model(), "fp16").operators if op.kind == "embedding")
    read, indices, written = table.traffic
    assert indices.coefficient == 8
    assert [term.coefficient for term in half.traffic] == [read.coefficient / 2, 8, written.coefficient / 2]


@pytest.mark.parametrize(("nbytes", "half"), [(12, 6), (7, 4), (1, 1)])
def test_tensors_told_in_bytes_have_half_of_them(nbytes, half):
    output = Tensor("output", (Axis(4, 0), Axis(nbytes)), itemsize=1)
    layers = [
        Operator(
            name=name,
            kind="layer",
            dims=(Dimension("sample", 4, Role.SAMPLE),),
            inputs=inputs,
            weights=(Tensor("weights", (Axis(10),), itemsize=1),),
            outputs=(output,),
            profile=Profile(forward=1.0, backward=2.0, activation_bytes=4.0 * nbytes),
        )
        for name, inputs in (("a", ()), ("b", (output,)))
    ]
    graph = OperatorGraph(name="m", operators=tuple(layers), edges=[(0, 0, 1, 0)], batch_size=4)
    for op in in_precision(graph, "bf16").operators:
        assert op.outputs[0].shape == (4, half)
        assert op.weights[0].nbytes == 5
        assert op.profile == Profile(forward=1.0, backward=2.0, activation_bytes=2.0 * nbytes)


@pytest.mark.parametrize(("state", "nbytes"), [(0, 8), (1, 12), (2, 16)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bytes_of_a_parameter_are_those_of_zero(state, nbytes, precision):
    """ZeRO, section 3.1: 2 + 2 + 12 bytes under Adam, as many as in fp32."""
    graph = in_precision(model(), precision)
    assert sum(weight_states(graph, state)) * graph.operators[0].weights[0].itemsize == nbytes


def test_tables_keep_no_gradient():
    assert sum(weight_states(model(), 0, gradient=False)) * 4 == 4
    assert sum(weight_states(in_precision(model(), "fp16"), 0, gradient=False)) * 2 == 2 + 4


def test_messages_of_a_strategy_are_half_as_long():
    graph, cluster = reference.graph(), reference.cluster()
    rng = np.random.default_rng(7)
    degrees = [(4, 1, 1), (2, 2, 1), (1, 1, 4)]
    placements = tuple(Placement(cut, rng.permutation(4)) for cut in degrees)
    sizes = []
    for precision in ("fp32", "bf16"):
        model = in_precision(graph, precision)
        tasks = Lowering(model, cluster, reference.Costs()).lower(PlacedStrategy(placements))
        sizes.append({kind: tasks.size[tasks.kind == kind] for kind in (TaskKind.TRANSFER, TaskKind.COLLECTIVE)})
    for kind, before in sizes[0].items():
        assert before.sum() > 0
        assert (2 * sizes[1][kind] == before).all()


class Priced(reference.Costs):
    """A cost function that prices collectives, too: 2 s and a byte a second."""

    n_devices = 4

    def collective(self, kind, nbytes):
        return 2.0 + nbytes


def test_seconds_are_scaled_and_bytes_stay():
    costs, factors = reference.Costs(), [3.0, 1.0, 0.5]
    scaled = scaled_costs(costs, factors)
    assert not isinstance(scaled, CollectiveCosts)
    for op, factor in enumerate(factors):
        arguments = (op, (2, 1, 1), np.arange(2))
        before, after = costs.price(*arguments), scaled.price(*arguments)
        assert (after.forward == before.forward * factor).all()
        assert (after.backward == before.backward * factor).all()
        assert (after.memory == before.memory).all()
        assert scaled.supports(op, (2, 1, 1)) == costs.supports(op, (2, 1, 1))


def test_collectives_are_scaled_but_for_their_latency():
    scaled = scaled_costs(Priced(), np.ones(3), bandwidth=4.0)
    assert isinstance(scaled, CollectiveCosts)
    assert scaled.n_devices == 4
    assert scaled.collective(Collective.ALL_REDUCE, 100) == 2.0 + 25


def estimator(**given):
    from topoplan import Estimator

    return type(Estimator)("One", (Estimator,), {"name": "one", "build": lambda *_: reference.Costs(), **given})()


def test_times_of_fp32_are_divided_by_the_stated_factor():
    graph, costs = in_precision(reference.graph(), "bf16"), reference.Costs()
    fast = at_speed(estimator(), costs, graph, 4.0)
    arguments = (0, (2, 1, 1), np.arange(2))
    assert (fast.price(*arguments).forward == costs.price(*arguments).forward / 4).all()


def test_an_estimator_that_knows_is_left_alone():
    costs = reference.Costs()
    assert at_speed(estimator(knows_precision=True), costs, in_precision(reference.graph(), "bf16"), None) is costs
    assert at_speed(estimator(), costs, reference.graph(), None) is costs


@pytest.mark.parametrize(
    ("knows", "precision", "speedup", "told"),
    [
        (False, "bf16", None, "estimator one are those of fp32: say how much faster bf16 is"),
        (True, "bf16", 2.0, "estimator one knows the rates of devices in bf16"),
        (False, "fp32", 2.0, "choose --precision bf16 or fp16"),
    ],
)
def test_a_factor_that_is_missing_or_useless_is_named(knows, precision, speedup, told):
    graph = in_precision(reference.graph(), precision)
    with pytest.raises(TopoplanError, match=told):
        at_speed(estimator(knows_precision=knows), reference.Costs(), graph, speedup)


def test_precision_is_part_of_the_model():
    assert attrs.evolve(model(), precision="bf16") != model()
