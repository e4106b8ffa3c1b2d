"""What components build that cannot be is one line that names the component."""

from __future__ import annotations

import contextlib

import attrs
import numpy as np
import pytest

from topoplan import (
    Candidate,
    CollectiveAlgorithm,
    CollectiveGroup,
    CollectiveRounds,
    Device,
    Estimator,
    Frontend,
    Host,
    HostModel,
    Machine,
    OperatorGraph,
    PartCosts,
    PassOrder,
    PipelineSchedule,
    Profile,
    Term,
    TopoplanError,
)
from topoplan.model.taskgraph import Collective
from topoplan.testing import landscape, reference
from topoplan_engine.allowed import Allowed
from topoplan_engine.checked_prices import build_costs
from topoplan_engine.checked_values import build_graph, build_machine, build_order, build_rounds

GRAPH = reference.plan().graph
FIRST = GRAPH.operators[0]
GPU = Device(name="g", peak_flops={"fp32": 1e13}, memory_bandwidth=1e12, memory=1e10, kernel_overhead=1e-6)


def made(kind, method, build):
    """A component in a host of its own, whose one method is a function of its arguments."""
    members = {"name": "mine", "__doc__": "Mine.", method: lambda self, *given: build(*given)}
    if kind is CollectiveAlgorithm:
        members["collectives"] = ("all-reduce",)
    host = Host()
    host.add(attrs.frozen(type("Mine", (kind,), members)))
    return host.make(kind, "mine")


def with_first(**changes):
    return attrs.evolve(GRAPH, operators=(attrs.evolve(FIRST, **changes), *GRAPH.operators[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: attrs.evolve(GRAPH, batch_size=0), "whose batch_size is 0 "),
        (lambda: attrs.evolve(GRAPH, batch_size=2.5), "whose batch_size is 2.5 "),
        (lambda: attrs.evolve(GRAPH, precision="fp7"), "whose precision is 'fp7' "),
        (lambda: with_first(work=(Term(float("nan"), (0,)),)), "has a term of nan "),
        (lambda: with_first(traffic=(Term(-1.0, (0,)),)), "has a term of -1.0 "),
        (lambda: with_first(profile=Profile(forward=1.0, backward=-1.0, activation_bytes=1.0)), "backward is -1.0 "),
        (lambda: with_first(name=""), "with an operator named '' "),
        (lambda: OperatorGraph(name="none", operators=(), edges=[], batch_size=1), "model 'none': has no operators"),
    ],
)
def test_models_that_cannot_be(change, message):
    with pytest.raises(TopoplanError, match=r"^frontend 'mine'") as error:
        build_graph(made(Frontend, "build", lambda _batch: change()), 8)
    assert message in str(error.value)


def test_a_model_of_numpys_numbers_is_one():
    graph = with_first(work=(Term(np.float64(1.0), (0,)),))
    graph = attrs.evolve(graph, batch_size=np.int64(graph.batch_size))
    assert build_graph(made(Frontend, "build", lambda _batch: graph), 8) == graph


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peak_flops": {"fp32": float("nan")}}, "whose peak_flops of fp32 is nan "),
        ({"memory_bandwidth": -1e12}, "whose memory_bandwidth is -1000000000000.0 "),
        ({"memory": float("inf")}, "whose memory is inf "),
        ({"kernel_overhead": -1e-6}, "whose kernel_overhead is -1e-06 s "),
    ],
)
def test_machines_that_cannot_be(changes, message):
    with pytest.raises(TopoplanError, match=r"^machine 'mine'.*: build returned a device ") as error:
        build_machine(made(Machine, "build", lambda: HostModel(device=attrs.evolve(GPU, **changes))))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ({"chunks": 0}, "0 chunks "),
        ({"source": [], "target": [], "chunk": []}, "no message"),
        ({"target": [99]}, r"target is 99 \(must be 0 to 2\)"),
        ({"source": [1]}, "from member 1 to itself"),
        ({"chunk": 3}, r"chunk is 3 \(must be 0 to 0\)"),
        ({"repeats": 0}, r"repeats is 0 \(must be at least 1\)"),
    ],
)
def test_rounds_that_cannot_be(rounds, message):
    given = {"chunks": 1, "source": [0], "target": [1], "chunk": 0, **rounds}
    algorithm = made(CollectiveAlgorithm, "rounds", lambda *_: CollectiveRounds(**given))
    with pytest.raises(TopoplanError, match=f"^collective 'mine'.*: rounds returned .*{message}"):
        build_rounds(algorithm, Collective.ALL_REDUCE, CollectiveGroup((1, 1)))


def test_an_all_to_all_has_a_tensor_of_each_member():
    # Chunk n i + j is what member i has for member j: member 1 of two sends chunk 2, and has no chunk 4.
    for last, message in ((2, None), (4, r"chunk is 4 \(must be 0 to 3\)")):
        rounds = CollectiveRounds(chunks=2, source=[0, 1], target=[1, 0], chunk=[1, last])
        algorithm = made(CollectiveAlgorithm, "rounds", lambda *_, rounds=rounds: rounds)
        expected = pytest.raises(TopoplanError, match=message) if message else contextlib.nullcontext()
        with expected:
            assert build_rounds(algorithm, Collective.ALL_TO_ALL, CollectiveGroup((1, 1))) is rounds


def test_a_pass_order_that_cannot_be_names_its_schedule():
    def order(ranks, micro_batches):
        return PassOrder(name="mine", rank_ptr=[0, 2], kind=[2, 0], chunk=[0, 0], micro_batch=[0, 0])

    with pytest.raises(TopoplanError, match=r"^schedule 'mine'.*comes before its forward pass"):
        build_order(made(PipelineSchedule, "order", order), 1, 1)


class Costs(landscape.problem().costs.__class__):
    def __init__(self, price, assumptions=None, supports=True):
        self.price, self.assumptions, self._supports = price, assumptions or {}, supports

    def supports(self, op, degrees):
        return self._supports


ONE = np.ones(1)
PRICE = PartCosts(forward=ONE, backward=ONE, memory=ONE)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (
            {"price": attrs.evolve(PRICE, states=np.ones((3, 1)))},
            "the sum of states is 3.0 bytes, more than memory",
        ),
        ({"price": attrs.evolve(PRICE, kept=2 * ONE)}, "kept is 2.0 bytes, more than memory, 1.0 bytes"),
        (
            {"price": attrs.evolve(PRICE, weight_gradient=2 * ONE)},
            "weight_gradient is 2.0 s, more than backward",
        ),
        ({"price": PRICE, "supports": "no"}, "supports returned 'no' "),
        ({"price": PRICE, "assumptions": {"rate": object()}}, "assumptions of what build returned 'rate' with "),
        ({"price": PRICE, "assumptions": {"rate": float("nan")}}, "returned 'rate' with nan "),
        ({"price": PRICE, "assumptions": {3: 1.0}}, "returned 3 with 1.0 "),
    ],
)
def test_costs_that_cannot_be(costs, message):
    price = costs.pop("price")
    estimator = made(Estimator, "build", lambda *_: Costs(lambda *_: price, **costs))
    with pytest.raises(TopoplanError, match=r"^estimator 'mine'") as error:
        build_costs(estimator, GRAPH, reference.cluster())
    assert message in str(error.value)


@pytest.mark.parametrize("cutoff", [float("nan"), -1.0, "1", None])
def test_a_cutoff_is_a_number_of_at_least_0(cutoff):
    problem = landscape.problem()
    start = landscape.start(problem)
    allowed = Allowed(problem, "strategy")
    allowed.give(start)
    assert "cutoff_seconds" in allowed.why_wrong(Candidate(base=start, cutoff_seconds=cutoff))
    assert allowed.why_wrong(Candidate(base=start, cutoff_seconds=np.float32(1.0))) == ""


@pytest.mark.parametrize(
    ("kind", "attribute", "value"),
    [(Frontend, "estimator", 5), (Estimator, "knows_precision", "yes"), (CollectiveAlgorithm, "tuned_as", None)],
)
def test_an_attribute_of_another_type_is_refused_where_the_class_is_registered(kind, attribute, value):
    host = Host()
    members = {"name": "mine", "collectives": ("all-reduce",), attribute: value}
    for method in kind.__abstractmethods__:
        members[method] = lambda self, *given: None
    with pytest.raises(TopoplanError, match=rf"'mine': {attribute} is .* \(must be a "):
        host.add(attrs.frozen(type("Mine", (kind,), members)))
