"""What devices keep, by what it is for: parts add up exactly, and what fits goes before what does not."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Cluster, CostFunction, PartCosts, Placement, Search, Simulate
from topoplan.errors import NoPlanFitsError
from topoplan.model.sharding import PENDING_GRADIENT, REPLICATED, arguments, shard
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import StagedStrategy
from topoplan.search.protocol import Run
from topoplan_engine.fitting import bytes_by_purpose, check_fits_somewhere, fullest_device, least_memory, no_plan_fits
from topoplan_engine.lowering import Lowering
from topoplan_engine.partition import slice_elements
from topoplan_engine.precision import in_precision, optimizer_of, weight_states
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.whole_run import drive
from topoplan_engine.sharding.signatures import signatures
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.graphs import linear_chain
from topoplan_samples.problems import star_problem
from topoplan_samples.staged import order_of


class Costs(CostFunction):
    """Weights, gradients, optimizer state of the model's optimizer, and outputs; seconds are those of parts."""

    def __init__(self, graph, known=True):
        self.graph, self.known, self.states = graph, known, np.array(weight_states(graph))[:, None]

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        operator, share = self.graph.operators[op], np.full(len(devices), 1.0 / len(devices))
        weights, outputs = (
            sum((t.itemsize * slice_elements(operator, t, degrees).astype(float) for t in tensors), 0.0 * share)
            for tensors in (operator.weights, operator.outputs)
        )
        states = self.states * weights
        return PartCosts(
            forward=share,
            backward=2 * share,
            memory=states.sum(axis=0) + outputs,
            states=states if self.known else None,
        )


def model(dialect="standard"):
    return linear_chain(layers=4, width=24, batch=16, dialect=dialect)


@pytest.mark.parametrize(
    ("total", "capacity", "device"),
    [
        ([2.0, 0.0], [73.6, 14.7], 0),  # an H100, and a V100 that is empty
        ([60.0, 14.0], [73.6, 14.7], 1),
        ([70.0, 11.0], [73.6, 14.7], 0),
        ([80.0, 16.0], [73.6, 14.7], 0),  # of two that lack something, the one that lacks more
        ([73.0, 16.0], [73.6, 14.7], 1),
        ([3.0, 5.0, 5.0], [8.0, 8.0, 8.0], 1),
    ],
)
def test_the_fullest_device_lacks_most_or_has_filled_most(total, capacity, device):
    assert fullest_device(np.array(total), np.array(capacity)) == device


def lowering(graph, costs=None, devices=4):
    return Lowering(graph, Cluster.uniform(n_hosts=devices), costs or Costs(graph))


def whole_stages(graph, kind, micro_batches, recompute=()):
    stages = [(range(4), [0, 1]), (range(4, len(graph.operators)), [2, 3])]
    return staged_strategy(graph, stages, micro_batches, kind, recompute)


def check_sums(made, strategy):
    use, total = made.memory_use(strategy), made.memory(strategy)
    columns = (use.weights, use.gradients, use.optimizer, use.activations, use.undivided)
    assert np.array_equal(sum(columns), use.total)
    assert np.abs(use.total - total).max() <= 0.5
    assert all((column >= 0).all() and np.array_equal(column, np.rint(column)) for column in columns)
    for device in range(len(total)):
        assert sum(bytes_by_purpose(use, device).values()) == use.total[device]
    return use


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_parts_add_up_and_are_those_of_adam(precision):
    graph = in_precision(model(), precision)
    lowerer = lowering(graph)
    strategy = whole_stages(graph, "1f1b", 4)
    use = check_sums(lowerer, strategy)
    weights = 2 * 24 * 24 * 4  # two layers on each device, in fp32
    half = 1 if precision == "fp32" else 2
    assert use.weights.tolist() == use.gradients.tolist() == [weights / half] * 4
    assert use.optimizer.tolist() == [weights * (2 if precision == "fp32" else 3)] * 4
    # 1F1B: two micro-batches of four on the first stage, one on the last one.
    assert use.at_once.tolist() == [0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("recompute", [(), (True, True)])
@pytest.mark.parametrize("known", [True, False])
def test_parts_add_up_under_schedules(kind, recompute, known):
    graph = model()
    use = check_sums(lowering(graph, Costs(graph, known)), whole_stages(graph, kind, 8, recompute))
    assert bool(use.undivided.any()) is not known
    assert bool(use.weights.any()) is known


def data_parallel_program(graph, stored, sharded):
    """Return the program that cuts samples over four devices; matrices are stored in the form ``stored``."""
    edge_inputs = {(v, into) for _, _, v, into in graph.edges.tolist()}

    def forms(index, k):
        if (index, k) in edge_inputs:
            return ()
        return (stored,) if k >= len(graph.operators[index].inputs) else (REPLICATED,)

    return SpmdProgram(
        mesh=(4,),
        rules=tuple((next(s for s in signatures(op) if s.dim == op.sample_dim),) for op in graph.operators),
        stored=tuple(tuple(forms(i, k) for k in range(len(arguments(op)))) for i, op in enumerate(graph.operators)),
        sharded_state=sharded,
    )


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("stored", "sharded", "states"),
    [(PENDING_GRADIENT, False, 4.0), (PENDING_GRADIENT, True, 1.75), (shard(0), False, 2.0)],
)
def test_parts_add_up_in_programs(stored, sharded, states, known):
    """Adam's 4 numbers for each weight; shared, 1 and a quarter of 3; in quarters, 1 and what is put together."""
    graph = model()
    program = data_parallel_program(graph, stored, sharded)
    use = check_sums(lowering(graph, Costs(graph, known)), program_strategy(program, graph))
    weights = 4 * 24 * 24 * 4
    if known:
        assert (use.weights + use.gradients + use.optimizer).tolist() == [states * weights] * 4
        assert (use.optimizer == 2 * use.gradients).all()
    else:
        assert use.undivided.tolist() == [states * weights] * 4


@pytest.mark.parametrize(("optimizer", "copies"), [("adam", 2), ("adam-bf16", 1), ("momentum", 1), ("sgd", 0), ("", 2)])
def test_optimizers_are_selected_by_name(optimizer, copies):
    graph = attrs.evolve(model(), optimizer=optimizer)
    assert weight_states(graph) == (1, 1, copies)
    assert weight_states(in_precision(graph, "fp16")) == (1, 1, 2 + 2 * copies)


def test_flexnets_dialect_keeps_its_accounting():
    assert optimizer_of(model(dialect="flexnet")) == "momentum"
    assert optimizer_of(attrs.evolve(model(dialect="flexnet"), optimizer="adam")) == "adam"


class TaskCount(Simulate):
    """Iteration time = number of tasks; a run stops at its cutoff, as those of simulators do."""

    lower_bounds = True

    def __call__(self, taskgraph, fabric, cluster):
        raise AssertionError("only the makespan is asked for while searching")

    def makespan(self, taskgraph, fabric, cluster, cutoff_seconds=float("inf")):
        return float(taskgraph.n_tasks) if taskgraph.n_tasks < cutoff_seconds else float("inf")

    def link_seconds(self, taskgraph, fabric, cluster):
        return np.zeros((int(taskgraph.op.max()) + 1, 2 * cluster.n_hosts))


def search_problem(memory):
    graph = model()
    return star_problem(graph, Cluster.uniform(n_hosts=4, device_memory=memory), Costs(graph))


class Proposing(Search):
    """Asks for given strategies, one by one, each of which must beat a time that is given with it."""

    def __init__(self, changes):
        self.changes, self.told = list(changes), []

    def ask(self):
        if not self.changes:
            return []
        placements, beat = self.changes.pop(0)
        return [Candidate(base=self.state, placements=placements, cutoff_seconds=beat)]

    def tell(self, trials):
        self.told += trials


def searched(memory, policy, changes):
    problem = search_problem(memory)
    search = Proposing([(change(problem), beat) for change, beat in changes])
    run = Run(problem=problem, budget=9, seed=0, searchers=("proposing",))
    evaluator = Evaluator(problem, TaskCount(), policy)
    first = problem.space.initial()
    result = drive(run, evaluator, first, [("strategy", search)], np.random.default_rng(0))
    return result, search.told, evaluator


def all_on_one(problem):
    ops = problem.graph.operators
    return {op: problem.space.place((1,) * len(operator.dims), 0) for op, operator in enumerate(ops)}


def each_cut_by_channels(problem):
    """Cut the matrices over the devices, which sends a lot and keeps a quarter of each."""
    ops = problem.graph.operators
    return {op: problem.space.place((1, 4, 1), 0) for op, operator in enumerate(ops) if operator.weights}


#: Adam keeps 16 bytes for each of 4 x 24 x 24 parameters, 36,864 bytes, and 64 bytes of 9 x 24 activations less.
ROOM = 25_000.0


def test_what_fits_is_better_than_what_costs_less():
    changes = [(all_on_one, float("inf")), (each_cut_by_channels, float("inf"))]
    result, (one, cut), evaluator = searched(ROOM, "penalty", changes)
    assert (one.fits, cut.fits) == (False, True)
    assert one.cost < cut.cost  # the penalty is milliseconds, tasks are seconds here
    assert evaluator.fits(result.best.strategy)
    assert result.best_cost == cut.cost
    assert result.history[-1, 2] == cut.cost
    ignored, _, evaluator = searched(ROOM, "ignore", changes)
    assert ignored.best_cost == int(one.cost)
    assert evaluator.fits(ignored.best.strategy)


def test_the_first_that_fits_need_not_beat_what_its_chain_says():
    """A chain would reject it, so that a simulator may stop early; but nothing better is known."""
    result, (cut,), evaluator = searched(ROOM, "penalty", [(each_cut_by_channels, 1.0)])
    assert cut.cost > 1.0
    assert evaluator.fits(result.best.strategy)
    result, (cut, one), _ = searched(1e9, "penalty", [(each_cut_by_channels, 1.0), (all_on_one, float("inf"))])
    assert cut.cost == float("inf")
    assert result.best_cost == one.cost


def test_least_memory_is_that_of_every_strategy_or_less():
    """Weights and activations once: what cuts, replicas, stages and programs of all devices together never undercut."""
    graph = model()
    least = least_memory(graph, Costs(graph))
    weights = 4 * 4 * 24 * 24
    assert (least.weights, least.states) == (weights, 4 * weights)
    outputs = sum(op.outputs[0].nbytes for op in graph.operators)
    assert least.activations == outputs
    made = lowering(graph)
    sharded = program_strategy(data_parallel_program(graph, shard(0), True), graph)
    for strategy in (search_problem(1e9).space.initial(), sharded):
        assert made.memory(strategy).sum() >= least.needed(whole_batch=True)
    pipeline = whole_stages(graph, "1f1b", 8)
    assert least.needed(whole_batch=True) > made.memory(pipeline).sum() / 2 >= least.needed(whole_batch=False) / 2


def test_what_fits_nowhere_is_refused_before_the_search():
    least = least_memory(model(), Costs(model()))
    enough = least.needed(whole_batch=True) / 4
    check_fits_somewhere(search_problem(enough), whole_batch=True)
    short = search_problem(enough * 0.99)
    check_fits_somewhere(short, whole_batch=False)
    message = (
        r"its weights take 9.0 KiB, with gradients and optimizer state 36.0 KiB, and the activations of 16 samples "
        r".* but the 4 devices hold .* together; what would help: \(1\) micro-batches and recomputation \(-s pipeline; "
        r"states take at least .* a device\); \(2\) at least 5 devices of .* \(now 4; --servers\); \(3\) devices of"
    )
    with pytest.raises(NoPlanFitsError, match=message):
        check_fits_somewhere(short, whole_batch=True)


def test_what_a_plan_lacks_is_said_with_what_would_help():
    problem = search_problem(ROOM)
    made, strategy = Lowering(problem.graph, problem.cluster, problem.costs), problem.space.initial()
    use = made.memory_use(strategy)
    error = no_plan_fits(problem, strategy, use)
    needed = use.total[0]
    assert needed == 16 * 4 * 24 * 24 + use.activations[0] > ROOM
    assert "device 0 needs 39.0 KiB of 24.4 KiB, 14.6 KiB too much (weights 9.0 KiB, gradients 9.0 KiB," in error
    assert "; the nearest plan that fits: this one on devices of 39.1 KiB; what would help: (1)" in error
    for way in (
        "-s spmd; at least 12.0 KiB a device",
        "-s pipeline; states take at least 9.0 KiB",
        "devices of 39.1 KiB",
    ):
        assert way in error
    assert "a batch of at most" not in error  # the states alone do not fit
    assert "-s pipeline" not in no_plan_fits(search_problem(9_000.0), strategy, use)  # nor those of one operator
    with_room = attrs.evolve(
        problem, cluster=attrs.evolve(problem.cluster, device_memory=np.full(4, needed - use.activations[0] / 2))
    )
    assert "a batch of at most about 8 samples" in no_plan_fits(with_room, strategy, use)
    whole = [Placement((1,) * len(op.dims), [0]) for op in problem.graph.operators]
    for micro_batches, helps in ((8, True), (16, False)):  # of 16 samples; one of one sample has none to lose
        stages = StagedStrategy.placed(whole, [0] * len(whole), order_of("1f1b", 1, micro_batches))
        assert ("a batch of at most" in no_plan_fits(with_room, stages, use)) is helps
