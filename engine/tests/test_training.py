"""What trains: gradients that flow and those that do not, and what every lowering leaves out."""

from __future__ import annotations

from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import (
    Cluster,
    Host,
    PlacedStrategy,
    Placement,
    TaskKind,
    TopoplanError,
)
from topoplan.model.costs import MicroBatch
from topoplan.model.graph import Checkpoint
from topoplan.model.machine import HostModel
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, arguments, shard
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.checkpoints import checkpoint_regions, repeated_operators
from topoplan_engine.lowering import Lowering
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_engine.precision import in_precision
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.search.space import Space
from topoplan_engine.sharding.programs import check_strategy
from topoplan_engine.sharding.signatures import signatures
from topoplan_engine.throughput import model_flops
from topoplan_engine.training import frozen, gradient_flow
from topoplan_engine.training_costs import training_costs
from topoplan_estimator_roofline import Roofline
from topoplan_exporter_json.convert import converter
from topoplan_machine_nvidia import DEVICES
from topoplan_operator_times.saved import saved_tensors
from topoplan_operators import GraphBuilder
from topoplan_samples.costs import FlatCosts
from topoplan_samples.fabrics import star
from topoplan_simulator_fluid import Fluid

BATCH, WIDTH = 8, 16
HOST = Host.discover()


def chain(names=("first", "second", "third"), batch=BATCH, width=WIDTH):
    builder = GraphBuilder("chain", batch)
    x = builder.input((width,))
    for name in names:
        x = builder.linear(x, width, bias=False, name=name)
    return builder.build()


def residual():
    """``second`` and ``third`` read ``first``; ``sum`` reads both."""
    builder = GraphBuilder("residual", BATCH)
    x = builder.linear(builder.input((WIDTH,)), WIDTH, bias=False, name="first")
    y, z = (builder.linear(x, WIDTH, bias=False, name=name) for name in ("second", "third"))
    builder.add(y, z, name="sum")
    return builder.build()


def detached(graph, name, place=0):
    """Cut the gradient that flows into an input."""

    def changed(op):
        inputs = [attrs.evolve(x, requires_grad=x.requires_grad and k != place) for k, x in enumerate(op.inputs)]
        return attrs.evolve(op, inputs=tuple(inputs)) if op.name == name else op

    return attrs.evolve(graph, operators=tuple(map(changed, graph.operators)))


def ones(placements, n_devices=2):
    return tuple(Placement((1,) * dims, np.array([device])) for dims, device in placements)


def test_nothing_runs_backward_before_the_first_trained_weight():
    flow = gradient_flow(frozen(chain(), ["first", "second"]))
    assert flow.backward == (False, False, True)
    assert flow.inputs == ((False,), (False,), (False,))
    assert flow.weights == ((False,), (False,), (True,))
    assert flow.edges.tolist() == [False, False]


def test_a_frozen_layer_behind_a_trained_one_passes_gradients_on():
    flow = gradient_flow(frozen(chain(), ["second"]))
    assert flow.backward == (True, True, True)
    assert flow.inputs == ((False,), (True,), (True,))
    assert flow.weights == ((True,), (False,), (True,))
    assert flow.edges.all()


def test_what_only_a_detached_reader_reads_gets_no_gradient():
    graph = detached(chain(), "third")
    assert gradient_flow(graph).backward == (False, False, True)
    assert gradient_flow(graph).weights == ((False,), (False,), (True,))
    one_of_two = gradient_flow(detached(residual(), "second"))
    assert one_of_two.backward == (True, True, True, True)
    assert one_of_two.edges.tolist() == [False, True, True, True]


def test_everything_is_trained_unless_said():
    assert gradient_flow(chain()).everything
    assert not gradient_flow(frozen(chain(), ["first"])).everything
    with pytest.raises(TopoplanError, match="model 'chain': has no operator 'fourth' to freeze"):
        frozen(chain(), ["fourth"])


@pytest.mark.parametrize(
    ("names", "backward_products"),
    [((), 5), (("first",), 3), (("second",), 4), (("third",), 4), (("first", "second"), 1)],
)
def test_backward_flops_are_those_of_gradients_that_are_computed(names, backward_products):
    """A product of a layer is 2 b w^2; roofline's ideal device computes nothing else."""
    graph, cluster = frozen(chain(batch=4096, width=4096), names), cluster_of(1)
    costs = Roofline(compute_tflops=1.0, memory_gb_per_s=1e9, kernel_overhead_us=0.0).build(graph, cluster)
    prices = [costs.price(op, (1, 1, 1), np.zeros(1, np.int32)) for op in range(3)]
    product = 2 * 4096**3 / 1e12
    assert sum(price.forward[0] for price in prices) == pytest.approx(3 * product)
    assert sum(price.backward[0] for price in prices) == pytest.approx(backward_products * product)
    if names:
        assert model_flops(graph) == pytest.approx((3 + backward_products) * product * 1e12)


def cluster_of(hosts, per_host=1):

    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    return attrs.evolve(Cluster.uniform(n_hosts=hosts, devices_per_host=per_host), machines=machines)


@pytest.mark.parametrize(("precision", "states"), [("fp32", (4, 4, 8)), ("bf16", (2, 2, 12))])
def test_a_frozen_weight_has_no_gradient_and_no_optimizer_state(precision, states):
    # One of two devices: a device alone holds gradients and data otherwise, see test_alone.py.
    graph, cluster = in_precision(frozen(chain(), ["first", "third"]), precision), cluster_of(2)
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    use = lowering.memory_use(PlacedStrategy(ones([(3, 0)] * 3)))
    each = WIDTH * WIDTH
    assert use.weights.tolist() == [3 * each * states[0], 0]
    assert use.gradients.tolist() == [each * states[1], 0]
    assert use.optimizer.tolist() == [each * states[2], 0]
    # Only `second` reads its input for its own gradient; `third` reads its weight alone, and makes one gradient.
    assert use.activations.tolist() == [2 * BATCH * WIDTH * states[0], 0]


def test_placements_leave_out_tasks_and_messages():
    graph, cluster = frozen(chain(), ["first", "second"]), cluster_of(2)
    strategy = PlacedStrategy(ones([(3, 0), (3, 0), (3, 1)]))
    tasks = Lowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
    tasks.check()
    kinds = Counter(tasks.kind.tolist())
    assert kinds == {TaskKind.FORWARD: 3, TaskKind.BACKWARD: 1, TaskKind.TRANSFER: 1}
    transfer = tasks.kind == TaskKind.TRANSFER
    assert (tasks.src[transfer].item(), tasks.dst[transfer].item()) == (0, 1)
    demand = Lowering(graph, cluster, Roofline().build(graph, cluster)).demand(strategy)
    assert demand.matrix.tolist() == [[0, BATCH * WIDTH * 4], [0, 0]]


def data_parallel(graph, devices):
    return tuple(Placement(op.sample_cut(devices), np.arange(devices, dtype=np.int32)) for op in graph.operators)


def test_data_parallel_replicas_reduce_trained_weights_alone():
    graph, cluster = frozen(chain(), ["second"]), cluster_of(4)
    tasks = Lowering(graph, cluster, Roofline().build(graph, cluster)).lower(PlacedStrategy(data_parallel(graph, 4)))
    reduces = tasks.kind == TaskKind.COLLECTIVE
    assert [graph.operators[op].name for op in tasks.op[reduces]] == ["first", "third"]
    assert tasks.size[reduces].tolist() == [WIDTH * WIDTH * 4] * 2


def test_any_placements_are_those_of_the_whole_model_without_what_is_left_out():
    """Of the tasks of the fully trained model, those without a gradient are gone, and all edges between the others."""
    whole = residual()
    graph, cluster = detached(frozen(whole, ["first"]), "second"), cluster_of(4)
    graph = detached(whole, "second")
    costs = FlatCosts()
    flow, rng = gradient_flow(graph), np.random.default_rng(3)
    space = Space(graph, cluster, costs)
    for _ in range(20):
        strategy = PlacedStrategy(tuple(space.random_placement(op, rng) for op in range(len(graph.operators))))
        found, full = (Lowering(g, cluster, costs).lower(strategy) for g in (graph, whole))
        found.check()
        missing = found.n_tasks - full.n_tasks
        gone = Counter(rows(full)) - Counter(rows(found))
        assert sum(gone.values()) == -missing
        # One way from `first` to `second`: every transfer back is gone, and no other task.
        assert all(kind == TaskKind.TRANSFER and graph.operators[op].name == "second" for kind, op, *_ in gone)
        assert flow.backward == (True,) * 4
        back = [row for row in rows(full) if row[0] == TaskKind.TRANSFER and graph.operators[row[1]].name == "second"]
        assert 2 * len(list(gone.elements())) == len(back)
        names = [list(edges(tasks, graph)) for tasks in (found, full)]
        assert (TaskKind.BACKWARD, "second", TaskKind.BACKWARD, "first") not in names[0]
        assert Counter(names[0]) == Counter(
            edge for edge in names[1] if edge != (TaskKind.BACKWARD, "second", TaskKind.BACKWARD, "first")
        ) - Counter(edge for edge in names[1] if is_way_back(edge))


def is_way_back(edge):
    return (edge[:2] == (TaskKind.BACKWARD, "second") and edge[2:] == (TaskKind.TRANSFER, "second")) or edge == (
        TaskKind.TRANSFER,
        "second",
        TaskKind.BACKWARD,
        "first",
    )


def rows(tasks):
    return list(zip(*(getattr(tasks, name).tolist() for name in ("kind", "op", "src", "dst", "size")), strict=True))


def edges(tasks, graph):
    for tail, head in zip(*tasks.edges(), strict=True):
        yield tuple(
            part for task in (tail, head) for part in (TaskKind(tasks.kind[task]), graph.operators[tasks.op[task]].name)
        )


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_pipeline_behind_a_frozen_stage_goes_back_no_further(kind, recompute):
    graph, cluster = frozen(chain(("a", "b", "c")), ["a"]), cluster_of(3)
    again = (True,) * 3 if recompute else ()
    strategy = pipeline_strategy(ones([(3, 0), (3, 1), (3, 2)]), range(3), kind, 4, again)
    strategy.check(graph, 3)
    lowering = Lowering(graph, cluster, training_costs(Roofline().build(graph, cluster), graph))
    tasks = lowering.lower(strategy)
    tasks.check()
    computes = tasks.device >= 0
    of_first = Counter(tasks.kind[computes & (tasks.op == 0)].tolist())
    assert of_first == {TaskKind.FORWARD: 4}
    transfers = tasks.kind == TaskKind.TRANSFER
    pairs = Counter(zip(tasks.src[transfers].tolist(), tasks.dst[transfers].tolist(), strict=True))
    assert pairs == {(0, 1): 4, (1, 2): 4, (2, 1): 4}
    timeline = Fluid().build()(tasks, star(3), cluster)
    levels = lowering.memory_levels(strategy, tasks, timeline)
    use = lowering.memory_use(strategy)
    for device in range(3):
        of_device = (levels.device == device) & (levels.kind == 3)
        assert levels.nbytes[of_device].max(initial=0) <= use.activations[device]
        ends = timeline.finish[tasks.device == device], timeline.start[tasks.device == device]
        assert np.isin(levels.time[of_device], np.append(0.0, ends)).all()  # of its own passes, not of messages
    assert np.isfinite(timeline.finish).all()


def test_costs_that_know_nothing_of_training_lose_what_is_not_computed():
    """A second forward and two backward: half of that for the weight."""
    graph = frozen(chain(), ["first", "third"])
    costs = training_costs(FlatCosts(), graph)
    plain = FlatCosts().price(0, (1, 1, 1), np.zeros(1, np.int32))
    prices = [costs.price(op, (1, 1, 1), np.zeros(1, np.int32)) for op in range(3)]
    assert [price.backward[0] / plain.backward[0] for price in prices] == [0.0, 0.5, 0.5]
    assert [price.weight_gradient[0] / plain.backward[0] for price in prices] == [0.0, 0.5, 0.0]
    assert all(price.forward[0] == plain.forward[0] for price in prices)
    assert training_costs(same := FlatCosts(), chain()) is same


def replicated_program(graph, devices):
    """Every operator cut along its samples, parameters whole on all devices."""
    rules = tuple((next(s for s in signatures(op) if s.dim == op.sample_dim),) for op in graph.operators)
    edge_inputs = {(v, into) for _, _, v, into in graph.edges.tolist()}
    stored = tuple(
        tuple(
            () if (v, k) in edge_inputs else (shard(0),) if k < len(op.inputs) else (PENDING_GRADIENT,)
            for k in range(len(arguments(op)))
        )
        for v, op in enumerate(graph.operators)
    )
    return program_strategy(SpmdProgram(mesh=(devices,), rules=rules, stored=stored), graph)


def test_a_program_reduces_trained_weights_alone():
    graph, cluster = frozen(chain(("a", "b", "c")), ["a", "b"]), cluster_of(4)
    strategy = replicated_program(graph, 4)
    check_strategy(strategy, graph, 4)
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    tasks = lowering.lower(strategy)
    tasks.check()
    assert Counter(tasks.kind.tolist()) == {TaskKind.FORWARD: 12, TaskKind.BACKWARD: 4, TaskKind.COLLECTIVE: 1}
    assert tasks.size[tasks.kind == TaskKind.COLLECTIVE].tolist() == [WIDTH * WIDTH * 4]
    use = lowering.memory_use(strategy)
    assert use.gradients.tolist() == [WIDTH * WIDTH * 4] * 4
    assert use.optimizer.tolist() == [WIDTH * WIDTH * 8] * 4


# ── Checkpoints ─────────────────────────────────────────────────────────────────────────────────────────


def checkpointed(graph, *regions, reentrant=False):
    """Put operators, by name, into regions."""
    marks = {name: Checkpoint(begins=k == 0, reentrant=reentrant) for names in regions for k, name in enumerate(names)}
    return attrs.evolve(
        graph, operators=tuple(attrs.evolve(op, checkpoint=marks.get(op.name)) for op in graph.operators)
    )


def test_regions_run_again_up_to_the_last_tensor_that_is_read():
    graph = checkpointed(chain(("a", "b", "c", "d", "e")), ("b", "c"), ("d", "e"))
    assert checkpoint_regions(graph).tolist() == [-1, 0, 0, 1, 1]
    # The last layer of a region reads its input, and its own answer is not needed.
    assert repeated_operators(graph) == (False, True, False, True, False)
    whole = checkpointed(chain(("a", "b", "c", "d", "e")), ("b", "c"), ("d", "e"), reentrant=True)
    assert repeated_operators(whole) == (False, True, True, True, True)
    assert repeated_operators(frozen(graph, ["a", "b", "c"]))[:3] == (False, False, False)


def test_a_layer_that_runs_again_takes_its_forward_pass_once_more():
    plain = chain(("a", "b", "c"))
    graph = checkpointed(plain, ("b", "c"))
    cluster = cluster_of(1)
    costs = training_costs(Roofline().build(graph, cluster), graph)
    before = Roofline().build(plain, cluster)
    for op, again in enumerate((0, 1, 0)):
        new, old = (each.price(op, (1, 1, 1), np.zeros(1, np.int32)) for each in (costs, before))
        assert new.backward[0] == pytest.approx(old.backward[0] + again * old.forward[0])
        assert new.forward[0] == old.forward[0]
    # Equal layers have one price, and a micro-batch is priced as the batch is.
    half = costs.price_micro_batch(1, (1, 1, 1), np.zeros(1, np.int32), MicroBatch.of(graph.operators[1], 2))
    assert half.backward[0] > 0
    strategy = PlacedStrategy(ones([(3, 0)] * 3))
    activations = Lowering(graph, cluster, costs).memory_use(strategy).activations[0]
    whole = Lowering(plain, cluster, before).memory_use(strategy).activations[0]
    assert activations == whole  # one region: its inputs, and what it makes while it runs again


def test_of_several_regions_the_largest_is_held():
    """Each of four regions of two layers keeps its input; one of them what lies between its layers."""
    names = tuple("abcdefgh")
    plain = chain(names)
    graph = checkpointed(plain, *[names[k : k + 2] for k in range(0, 8, 2)])
    value = BATCH * WIDTH * 4
    kept = sum(tensor.nbytes for tensors in saved_tensors(graph) for tensor in tensors)
    assert kept == (3 + 1) * value
    assert sum(tensor.nbytes for tensors in saved_tensors(plain) for tensor in tensors) == 7 * value


@pytest.mark.parametrize("reentrant", [False, True])
def test_collectives_inside_of_a_region_run_again(reentrant):
    """Two layers cut as Megatron does: the second one's partial sums are summed once forward, and once again."""
    names = ("a", "b", "c", "d")
    plain = chain(names)
    graph = checkpointed(plain, names[:3], reentrant=reentrant)
    cluster, tasks = cluster_of(2), []
    for each in (plain, graph):
        strategy = tensor_parallel_program(each, 2)
        check_strategy(strategy, each, 2)
        lowering = Lowering(each, cluster, training_costs(Roofline().build(each, cluster), each))
        tasks.append(lowering.lower(strategy))
        tasks[-1].check()
    sums = [Counter(each.op[each.kind == TaskKind.COLLECTIVE].tolist()) for each in tasks]
    # What `b` makes is summed for `c`, inside of the region; what `d` makes, and gradients, are not in one.
    assert sums[1] - sums[0] == Counter({2: 1})
    assert tasks[1].n_tasks == tasks[0].n_tasks + 1


def tensor_parallel_program(graph, devices):
    """Layers cut along outputs and inputs in turn."""
    rules = []
    for number, op in enumerate(graph.operators):
        wanted = 1 if number % 2 == 0 else 2  # outputs, or what is summed over
        rules.append((next(s for s in signatures(op) if s.dim == wanted and PARTIAL not in s.inputs),))
    edge_inputs = {(v, into) for _, _, v, into in graph.edges.tolist()}
    stored = tuple(
        tuple(
            () if (v, k) in edge_inputs else (REPLICATED,) if k < len(op.inputs) else (rules[v][0].inputs[k],)
            for k in range(len(arguments(op)))
        )
        for v, op in enumerate(graph.operators)
    )
    return program_strategy(SpmdProgram(mesh=(devices,), rules=tuple(rules), stored=stored), graph)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_trains_goes_through_files(seed):
    rng, graph = np.random.default_rng(seed), residual()
    graph = frozen(graph, [op.name for op in graph.operators if rng.random() < 0.5])
    graph = checkpointed(detached(graph, "sum", int(rng.integers(2))), ("second", "third"))
    conversion = converter()
    document = conversion.unstructure(graph)
    assert conversion.structure(document, type(graph)) == graph
    whole = conversion.unstructure(residual())
    assert "requires_grad" not in str(whole)
    assert "checkpoint" not in str(whole)
