"""SPMD programs: what is refused, their task graphs beside the plain ones, and what collectives take."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import strategies as st

from topoplan import Cluster, CostFunction, PartCosts, TopoplanError
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, arguments, shard
from topoplan.model.spmd import SpmdProgram
from topoplan.model.strategy import PlacedStrategy
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.partition import slice_elements
from topoplan_engine.program_strategies import overlapped_strategy, program_strategy
from topoplan_engine.sharding.mesh import MeshStep, mesh_groups, mesh_steps
from topoplan_engine.sharding.programs import check_strategy, reshards_of
from topoplan_engine.sharding.resharding import CollectiveStep
from topoplan_engine.sharding.signatures import signatures
from topoplan_reference.spmd import members_of
from topoplan_samples.fabrics import star
from topoplan_samples.graphs import computed_weight, linear_chain
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid


class Costs(CostFunction):
    """A second for every operator, shared by its parts; 4 bytes of state for each of a weight."""

    def __init__(self, graph):
        self.graph = graph

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        operator, parts = self.graph.operators[op], len(devices)
        memory = np.zeros(parts)
        for copies, tensors in ((1, operator.outputs), (4, operator.weights)):
            for tensor in tensors:
                memory += copies * tensor.itemsize * slice_elements(operator, tensor, degrees)
        return PartCosts(forward=np.full(parts, 1.0 / parts), backward=np.full(parts, 2.0 / parts), memory=memory)


def model(layers=3, width=16, batch=16):
    return linear_chain(layers, width, batch)


def cut(op, dim):
    """Return the signature of an operator that cuts the dimension at a position; None for the whole one."""
    *cuts, whole = signatures(op)
    return whole if dim is None else next(s for s in cuts if s.dim == dim and PARTIAL not in s.inputs)


def programs(graph, mesh):
    """Draw programs whose conversions exist, more or less: some signature for every operator and axis."""
    rules = []
    for op in graph.operators:
        axes = []
        for size in mesh:
            good = [s for s in signatures(op) if PARTIAL not in s.inputs]
            axes.append(st.sampled_from([s for s in good if s.dim < 0 or op.dims[s.dim].size % size == 0]))
        rules.append(st.tuples(*axes))
    edge_inputs = {(v, into) for _, _, v, into in graph.edges.tolist()}

    def stored(op, index):
        args = []
        for k, tensor in enumerate(arguments(op)):
            if (index, k) in edge_inputs:
                args.append(st.just(()))
            else:
                forms = (
                    [REPLICATED] if k < len(op.inputs) else [PENDING_GRADIENT, shard(0), shard(len(tensor.axes) - 1)]
                )
                args.append(st.tuples(*[st.sampled_from(forms) for _ in mesh]))
        return st.tuples(*args)

    return st.builds(
        lambda r, s: SpmdProgram(mesh=mesh, rules=r, stored=s),
        st.tuples(*rules),
        st.tuples(*[stored(op, i) for i, op in enumerate(graph.operators)]),
    )


def stages(graph, program):
    """Return the stages that begin wherever something is converted."""
    begins = {move.users[0] for move in reshards_of(program, graph) if move.output >= 0}
    return np.cumsum([op in begins and op > 0 for op in range(len(graph.operators))])


GRAPH = model()
CLUSTER = Cluster.uniform(n_hosts=4, devices_per_host=2, latency=1e-6)


def switch(cluster, bandwidth=1e9):
    return star(cluster.n_hosts, bandwidth, cluster.latency)


@pytest.mark.parametrize(
    ("mesh", "axes"), [((8,), (0,)), ((2, 4), (0,)), ((2, 4), (1,)), ((2, 2, 2), (0, 2)), ((8,), ())]
)
def test_groups_are_those_of_equal_coordinates(mesh, axes):
    assert mesh_groups(mesh, axes).tolist() == members_of(mesh, axes)


def alone(kind, nbytes, cluster, fabric, build, **options):
    """Return the seconds of one collective of all devices."""
    devices = range(cluster.n_devices)
    size = nbytes if kind is Collective.ALL_REDUCE else nbytes // 2
    tasks = task_graph([collective(devices, size, kind=kind)], n_devices=cluster.n_devices)
    return build(tasks, fabric, cluster).makespan


def round_by_round(nbytes, rounds, cluster, fabric, build):
    """Return the seconds of a ring as transfers: every member sends a share to the next one, round by round."""
    n = cluster.n_devices
    tasks = [transfer(device, (device + 1) % n, nbytes // n) for _ in range(rounds) for device in range(n)]
    edges = [(task, task // n * n + n + after) for task in range((rounds - 1) * n) for after in range(n)]
    return build(task_graph(tasks, edges, n), fabric, cluster).makespan


@pytest.mark.parametrize("level", ["stepped", "coupled"])
@pytest.mark.parametrize(("kind", "turns"), [(Collective.ALL_GATHER, 1), (Collective.ALL_REDUCE, 2)])
def test_a_collective_takes_what_its_rounds_take(kind, turns, level):
    build, nbytes, cluster = Fluid(level=level).build(), 8 * 8936 * 40, Cluster.uniform(n_hosts=8, latency=1e-6)
    seconds = round_by_round(nbytes, turns * 7, cluster, switch(cluster), build)
    assert alone(kind, nbytes, cluster, switch(cluster), build) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("nbytes", [100, 60_000, 200_000, 1 << 24])
def test_gathering_what_was_scattered_takes_as_long_as_an_all_reduce(nbytes):
    for build in (Fluid().build(), Flexnet().build()):
        half, whole = (
            alone(kind, nbytes, CLUSTER, switch(CLUSTER), build)
            for kind in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
        )
        assert half <= whole
        if nbytes > 1_000_000:
            assert 2 * half == pytest.approx(whole, rel=0.02)


def test_slices_of_slices_are_put_together_from_within():
    both = mesh_steps((shard(0), shard(0)), (REPLICATED, REPLICATED), (2, 4))
    assert both is not None
    assert [(step.step.collective, step.axes, step.share) for step in both[0]] == [
        (Collective.ALL_GATHER, (1,), 1 / 2),
        (Collective.ALL_GATHER, (0,), 1.0),
    ]
    assert mesh_steps((shard(0), shard(0)), (REPLICATED, shard(0)), (2, 4)) is None


def test_slices_are_exchanged_where_they_are_smallest():
    """To experts that four devices have parts of, and back: the all-to-alls carry a quarter of the tensor's slices."""
    there = mesh_steps((shard(0), shard(2)), (shard(1), REPLICATED), (2, 4))
    back = mesh_steps((shard(1), PARTIAL), (shard(0), shard(2)), (2, 4))
    assert there is not None
    assert back is not None
    exchange, gather = ((Collective.ALL_TO_ALL, (0,), 1 / 4), (Collective.ALL_GATHER, (1,), 1 / 2))
    assert [(step.step.collective, step.axes, step.share) for step in there[0]] == [exchange, gather]
    scatter = (Collective.REDUCE_SCATTER, (1,), 1 / 2)
    assert [(step.step.collective, step.axes, step.share) for step in back[0]] == [scatter, exchange]


def test_the_gradient_of_a_replicated_parameter_is_summed_over_the_whole_mesh_at_once():
    steps = mesh_steps((PENDING_GRADIENT, PENDING_GRADIENT), (REPLICATED, REPLICATED), (2, 4))
    assert steps is not None
    assert steps[1] == (MeshStep(CollectiveStep(Collective.ALL_REDUCE), (0, 1), 1.0),)


def test_the_gradient_of_a_stored_slice_is_scattered_before_it_is_summed():
    steps = mesh_steps((PENDING_GRADIENT, shard(0)), (REPLICATED, REPLICATED), (2, 4))
    assert steps is not None
    assert [(s.step.collective, s.axes, s.share) for s in steps[1]] == [
        (Collective.REDUCE_SCATTER, (1,), 1.0),
        (Collective.ALL_REDUCE, (0,), 1 / 4),
    ]


def data_parallel_program(graph, size, stored=PENDING_GRADIENT, sharded_state=False):
    rules = tuple((cut(op, op.sample_dim if op.sample_dim >= 0 else None),) for op in graph.operators)
    edge_inputs = {(v, into) for _, _, v, into in graph.edges.tolist()}
    held = tuple(
        tuple(
            () if (i, k) in edge_inputs else ((shard(0),) if k < len(op.inputs) else (stored,))
            for k in range(len(arguments(op)))
        )
        for i, op in enumerate(graph.operators)
    )
    return SpmdProgram(mesh=(size,), rules=rules, stored=held, sharded_state=sharded_state)


def test_memory_of_storage():
    graph, lowering = GRAPH, Lowering(GRAPH, CLUSTER, Costs(GRAPH))
    outputs = sum(t.nbytes // (8 if t.axes else 1) for op in graph.operators for t in op.outputs)
    weights = graph.parameter_bytes

    def memory(**options):
        return lowering.memory(program_strategy(data_parallel_program(graph, 8, **options), graph))

    assert memory() == pytest.approx(np.full(8, outputs + 4 * weights))
    assert memory(sharded_state=True) == pytest.approx(np.full(8, outputs + weights + 3 * weights / 8))
    assert memory(stored=shard(0)) == pytest.approx(np.full(8, outputs + 4 * weights / 8 + weights))


def refused(match, program, graph=GRAPH, devices=8, stage_of=None, micro_batches=1):
    parts = np.zeros(len(graph.operators)) if stage_of is None else stage_of
    with pytest.raises(TopoplanError, match=match):
        check_strategy(overlapped_strategy(program, graph, parts, micro_batches), graph, devices)


class TestRefused:
    def test_a_mesh_of_another_number_of_devices(self):
        refused("a mesh of 4 for 8 devices", data_parallel_program(GRAPH, 4))

    def test_uneven_slices(self):
        program = attrs.evolve(data_parallel_program(model(batch=12), 8))
        refused("size 12 has no 8 equal parts", program, model(batch=12))

    def test_what_cannot_be_converted(self):
        program = data_parallel_program(GRAPH, 8)
        summed = next(s for s in signatures(GRAPH.operators[-1]) if s.inputs == (PARTIAL,))
        mixed = attrs.evolve(program, rules=(*program.rules[:-1], (summed,)))
        refused("'loss' wants .* which cannot be made of gather_0", mixed)

    def test_terms_of_gradients_that_are_never_added(self):
        refused("weight '.*' is stored as full, .* never summed", data_parallel_program(GRAPH, 8, stored=REPLICATED))
        alone = data_parallel_program(GRAPH, 1, stored=REPLICATED)
        check_strategy(program_strategy(alone, GRAPH), GRAPH, 1)  # of one device there is nothing to add

    def test_terms_of_gradients_of_what_a_weight_is_computed_of(self):
        graph = computed_weight(8, 8, 16, 2)
        whole, samples = cut(graph.operators[0], None), cut(graph.operators[1], 0)

        def program(form):
            stored = ((form,),) * 2, ((shard(0),), ())
            return SpmdProgram(mesh=(8,), rules=((whole,), (samples,)), stored=stored)

        refused("operator 'table': weight 'a' is stored as full, .* never summed", program(REPLICATED), graph)
        check_strategy(program_strategy(program(PENDING_GRADIENT), graph), graph, 8)

    def test_signatures_that_are_not_sound(self):
        program = data_parallel_program(GRAPH, 8)
        wrong = attrs.evolve(cut(GRAPH.operators[0], 0), outputs=(REPLICATED,))
        refused("is none that computes the same", attrs.evolve(program, rules=((wrong,), *program.rules[1:])))

    def test_other_stages(self):
        program, count = data_parallel_program(GRAPH, 8), len(GRAPH.operators)
        refused("stage 1 has no operator", program, stage_of=[0, *[2] * (count - 1)])
        refused("must not fall along an edge", program, stage_of=[*[1] * (count - 1), 0])
        refused("3 micro-batches do not divide a batch", program, micro_batches=3)

    def test_a_stage_that_converts_what_it_makes(self):
        first, *_, loss = range(len(GRAPH.operators))
        program = data_parallel_program(GRAPH, 8)
        rules = list(program.rules)
        rules[1] = (cut(GRAPH.operators[1], 1),)
        assert first < loss
        mixed = attrs.evolve(program, rules=tuple(rules))
        refused("in the same stage", mixed, stage_of=np.zeros(len(GRAPH.operators)), micro_batches=2)


def test_changes_to_placements_leave_the_program():
    strategy = program_strategy(data_parallel_program(GRAPH, 8), GRAPH)
    changed = strategy.with_changes({0: strategy.placements[0]})
    assert changed == PlacedStrategy(strategy.placements)


class Uneven(Costs):
    """The same, but a device takes as many times as long as its number says."""

    def price(self, op, degrees, devices):
        prices = super().price(op, degrees, devices)
        return attrs.evolve(prices, forward=prices.forward * (1 + devices))


def test_devices_that_differ_are_priced_one_by_one():
    cluster = attrs.evolve(CLUSTER, device_speed=np.arange(1.0, 9.0))
    program = data_parallel_program(GRAPH, 8)
    rules = ((cut(GRAPH.operators[0], None),), *program.rules[1:])
    mixed = attrs.evolve(program, rules=rules, stored=(((REPLICATED,), (PENDING_GRADIENT,)), *program.stored[1:]))
    taskgraph = Lowering(GRAPH, cluster, Uneven(GRAPH)).lower(program_strategy(mixed, GRAPH))
    forward = [taskgraph.seconds[(taskgraph.kind == TaskKind.FORWARD) & (taskgraph.op == op)] for op in (0, 1)]
    assert forward[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert forward[1].tolist() == [k / 8 for k in range(1, 9)]


def test_a_program_asks_for_what_it_sends():
    lowering = Lowering(GRAPH, CLUSTER, Costs(GRAPH))
    program = data_parallel_program(GRAPH, 8, stored=shard(0))
    demand = lowering.demand(program_strategy(program, GRAPH))
    # what is gathered and scattered, half an all-reduce each
    assert demand.group_bytes.tolist() == [GRAPH.parameter_bytes]
    assert demand.members(0).tolist() == [0, 1, 2, 3]
    assert not demand.matrix.any()


class Overhead(Costs):
    """A second for every kernel beside its share of the work."""

    def price(self, op, degrees, devices):
        prices = super().price(op, degrees, devices)
        return attrs.evolve(prices, forward=1.0 + prices.forward, backward=1.0 + prices.backward)


@pytest.mark.parametrize("count", [1, 2])
def test_passes_take_what_a_micro_batch_takes(count):
    """On four devices: a kernel, and a quarter of the second that the operator takes for the batch, or an eighth."""
    graph = model()
    strategy = program_strategy(data_parallel_program(graph, 4), graph)
    if count > 1:
        stage = np.arange(len(graph.operators))
        strategy = overlapped_strategy(strategy.program, graph, stage, count)
    cluster = Cluster.uniform(n_hosts=4)
    lowering = Lowering(graph, cluster, Overhead(graph))
    taskgraph = lowering.lower(strategy)
    for kind, seconds in ((TaskKind.FORWARD, 1.0), (TaskKind.BACKWARD, 2.0)):
        own = taskgraph.kind == kind
        assert (taskgraph.seconds[own] == 1.0 + seconds / 4 / count).all()
        assert (taskgraph.device[own] == 0).sum() == count * len(graph.operators)
    memory = lowering.memory(strategy)
    assert memory.tolist() == Lowering(graph, cluster, Costs(graph)).memory(strategy).tolist()
