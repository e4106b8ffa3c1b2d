"""Meshes of several axes: where experts are, joint signatures, and plans that are what was estimated."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest

from topoplan import AxisUse, Cluster, Trial
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, shard
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine import problem_on
from topoplan_engine.experts import expert_dims
from topoplan_engine.lowering import Lowering
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.sharding.mesh import mesh_steps
from topoplan_engine.sharding.programs import why_invalid
from topoplan_estimator_hidup import Hidup
from topoplan_frontend_hidup import BertSgmoe, BertSwitch, VitSgmoe, VitSwitch
from topoplan_operators import GraphBuilder, losses
from topoplan_reference.overlapped import every_plan
from topoplan_reference.spmd_prices import PlainPrices, plain_columns
from topoplan_samples.long_tail import at_night
from topoplan_samples.problems import state_of
from topoplan_searcher_spmd import Spmd
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_simulator_fluid import Fluid
from topoplan_spmd_planning import limits
from topoplan_spmd_planning.bounds import _parameters, with_bound
from topoplan_spmd_planning.columns import forms_of
from topoplan_spmd_planning.machine import Machine
from topoplan_spmd_planning.mesh_planning import fastest_on, fitted
from topoplan_spmd_planning.mesh_prices import Prices, least_bytes, least_exchange, priced
from topoplan_spmd_planning.planning import solve
from topoplan_spmd_planning.space import Joint, Mesh, mesh_program, meshes, outline
from topoplan_spmd_planning.strategy import MICRO_BATCHES
from topoplan_topology_bigswitch import BigSwitch

DATA, MODEL, EXPERT = AxisUse.DATA, AxisUse.MODEL, AxisUse.EXPERT
FRONTENDS = {frontend.name: frontend for frontend in (BertSgmoe, BertSwitch, VitSgmoe, VitSwitch)}
SMALL = {"width": 64, "hidden": 256, "heads": 2, "layers": 2}


def moe(name, devices, **sizes):
    """Return one of HiDup's models, small."""
    more = {"positions": 16, "words": 64} if name.startswith("bert") else {}
    return FRONTENDS[name](world_size=devices, **{**SMALL, **more, **sizes}).build(None)


def problem_of(graph, hosts=2, each=4, gbps=10, memory=32e9):
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=each,
        device_preset="V100",
        device_memory=memory,
        inside_bandwidth=130e9,
        interfaces=1,
        interface_bandwidth=gbps * 1e9 / 8,
        latency=1e-6,
    )
    costs = Hidup(preset="released").build(graph, cluster)
    return problem_on(graph, cluster, costs, BigSwitch())


def planned(problem, mesh, **options):
    fabric = problem.build_fabric(None, None)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    arguments = {"state": "auto", "beam": 10**4, "max_states": 10**6, **options}
    machine = Machine(problem.cluster, fabric)
    plan = fitted(fastest_on(problem, outline(problem.graph), mesh, machine, lowering, **arguments))
    return plan, lowering, fabric


@pytest.mark.slow
def test_plans_within_memory_are_close_to_the_fastest(monkeypatch):
    """Exact search, prices with a search of cuts with too many entries after them, and prices alone, which bound all.

    Exact search has a beam that no cut fills.  What prices alone leave is the duality gap: their lower bound is the
    value of the best mixture of plans that keeps to the memory on average (Geoffrion, Lagrangean relaxation for integer
    programming, 1974).  That is the line between a plan that fits and a faster one that does not, both of which a
    search within their own memory finds; the fastest plan that fits lies above it, by a step of one of few layers.
    """
    roomy, mesh = problem_of(moe("bert-sgmoe", 8, width=256, hidden=1024, layers=2)), Mesh((2, 4), (EXPERT, MODEL))

    def within(memory, patience, max_entries):
        monkeypatch.setattr(limits, "_PATIENCE", patience)
        monkeypatch.setattr(limits, "_ENTRY_BUDGET", max_entries)
        cluster = attrs.evolve(roomy.cluster, device_memory=np.full(8, memory), memory_reserve=0.0)
        return planned(attrs.evolve(roomy, cluster=cluster), mesh, state="sharded", beam=10**6)[0]

    free, _, fabric = planned(roomy, mesh, state="sharded")
    few = least_bytes(Prices(roomy, free.model, Machine(roomy.cluster, fabric), True), free.model, roomy.graph)
    memory = 0.6 * few + 0.4 * free.memory
    exact, counted, bounded = (within(memory, *steps) for steps in ((1 << 40, 0), (0, 1 << 32), (0, 0)))
    assert max(plan.memory for plan in (exact, counted, bounded)) <= memory < free.memory
    assert exact.solution.exact
    assert not bounded.solution.exact
    assert free.seconds < bounded.least <= exact.least == exact.seconds
    assert exact.seconds <= counted.seconds <= bounded.seconds <= 1.005 * exact.seconds
    assert counted.least <= exact.seconds
    above = within(0.2 * few + 0.8 * free.memory, 0, 0)
    share = (memory - bounded.memory) / (above.memory - bounded.memory)
    assert 0 < share < 1
    assert bounded.least == pytest.approx((1 - share) * bounded.seconds + share * above.seconds, rel=limits._CLOSE)


class TestExperts:
    @pytest.mark.parametrize("name", ["bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch"])
    def test_are_found_from_the_gate_to_the_combination(self, name):
        graph = moe(name, 8)
        dims = {op.name: dim for op, dim in zip(graph.operators, expert_dims(graph), strict=True) if dim >= 0}
        steps = [name.split("_", 1)[1] for name in dims if name.startswith("layer1_")]
        assert steps == ["gating", "dispatch", "expert1", "relu", "expert2", "combine"]
        assert len(dims) == len(steps)
        (count,) = {op.dims[dims[op.name]].size for op in graph.operators if op.name in dims}
        assert count == 16

    def test_are_none_where_every_input_meets_the_same_weights(self):
        b = GraphBuilder("plain", 8)
        x = b.relu(b.linear(b.input((4, 8)), 8))
        b.append(losses.total(x), [x], "loss")
        graph = b.build()
        assert set(expert_dims(graph)) == {-1}
        assert {len(mesh.sizes) for mesh in meshes(Cluster.uniform(n_hosts=8), "all", experts=False)} == {1, 2}


class TestMeshes:
    def test_every_split_into_data_model_and_experts_is_there_once(self):
        splits = list(meshes(Cluster.uniform(n_hosts=8), "all", experts=True))
        assert len(set(splits)) == len(splits)
        assert all(np.prod(mesh.sizes) == 8 for mesh in splits)
        three = {(mesh.sizes, mesh.roles) for mesh in splits if len(mesh.sizes) == 3}
        assert three == {((2, 2, 2), (DATA, MODEL, EXPERT)), ((2, 2, 2), (DATA, EXPERT, MODEL))}
        assert [str(mesh) for mesh in splits[:3]] == ["8", "model 2 x expert 4", "expert 2 x model 4"]

    def test_flat_is_flat(self):
        assert list(meshes(Cluster.uniform(n_hosts=8), "flat", experts=True)) == [Mesh((8,), (MODEL,))]

    def test_joint_signatures_cut_evenly(self):
        problem = problem_of(moe("bert-sgmoe", 8))
        for mesh in meshes(Cluster.uniform(n_hosts=8), "all", experts=True):
            model = mesh_program(problem, outline(problem.graph), mesh)
            for instruction in model.program.instructions:
                assert instruction.signatures, (mesh, instruction.name)
                for rule in instruction.signatures:
                    assert isinstance(rule, Joint)
                    values = (*instruction.inputs, *instruction.outputs)
                    for value, forms in zip(values, (*rule.inputs, *rule.outputs), strict=True):
                        shape = model.program.values[value].shape
                        assert all(shape[axis] % n == 0 for axis, n in mesh.pieces(forms).items())

    def test_along_an_axis_of_experts_samples_are_cut_or_experts(self):
        graph = moe("bert-switch", 8)
        model = mesh_program(problem_of(graph), outline(graph), Mesh((4, 2), (MODEL, EXPERT)))
        experts = dict(zip((op.name for op in graph.operators), expert_dims(graph), strict=True))
        for instruction in model.program.instructions:
            if instruction.op >= 0:
                op = graph.operators[instruction.op]
                cut = {rule.rules[1].dim for rule in instruction.signatures}
                assert cut <= {op.sample_dim, experts[op.name]}, op.name
        by_name = {i.name: i for i in model.program.instructions}
        assert {rule.rules[1].dim for rule in by_name["layer1_expert1"].signatures} == {0, 1}
        stored = {rule.outputs[0] for rule in by_name["layer1_expert1.w0"].signatures}
        assert {forms[1] for forms in stored} == {PENDING_GRADIENT, shard(0)}
        assert {rule.outputs[0][1] for rule in by_name["layer0_linear1.kernel"].signatures} == {PENDING_GRADIENT}


def _cases(devices, some=()):
    """Return every mesh, of which others than ``some`` are slow; if there are none, none is."""
    cases = [(mesh, str(mesh)) for mesh in meshes(Cluster.uniform(n_hosts=devices), "all", experts=True)]
    assert set(some) <= {name for _, name in cases}
    slow = [pytest.mark.slow] if some else []
    return [pytest.param(mesh, id=name, marks=[] if name in some else slow) for mesh, name in cases]


def sums_begin_early(tasks):
    """Let gradients be summed before the last micro-batch has passed, as HiDup's recursion (section 3.3) counts it.

    It hides the sum of a stage behind the backward pass that is under way, whichever that is.  In the task graph it is
    another stage's: a sum that is not hidden waits for the last micro-batch of its own, one pass in `MICRO_BATCHES`.
    """
    source, target = tasks.edges()
    sums = (tasks.collective == Collective.ALL_REDUCE) & (tasks.micro_batch < 0)
    kept = ~(sums[target] & (tasks.micro_batch[source] == 0))  # backward passes come in the reverse order
    pointer = np.searchsorted(source[kept], np.arange(tasks.n_tasks + 1))
    return attrs.evolve(tasks, succ_ptr=pointer, succ=target[kept])


#: Each mesh with one model or the other; the other one at night.
TURNS = [
    pytest.param(name, case.values[0], id=f"{name}-{case.id}", marks=pytest.mark.slow if (number + turn) % 2 else ())
    for turn, name in enumerate(("bert-sgmoe", "vit-switch"))
    for number, case in enumerate(_cases(8))
]


@pytest.mark.by_day(2)
@pytest.mark.parametrize(("name", "mesh"), TURNS)
def test_plans_take_what_was_estimated_and_hold_what_was_counted(name, mesh):
    graph = moe(name, 8, width=256, hidden=1024)
    plan, lowering, fabric = planned(problem_of(graph), mesh)
    simulate, cluster, tasks = Fluid().build(), problem_of(graph).cluster, lowering.lower(plan.strategy)
    seconds, sooner = (simulate(each, fabric, cluster).makespan for each in (tasks, sums_begin_early(tasks)))
    assert 0.85 * plan.seconds <= seconds
    assert sooner <= plan.seconds
    backward = tasks.kind == TaskKind.BACKWARD
    busy = np.bincount(tasks.device[backward], tasks.seconds[backward]).max()
    assert seconds <= plan.seconds + busy / MICRO_BATCHES
    assert plan.strategy.program.mesh == mesh.sizes
    # The same plan, found again with bytes as a third thing to weigh, in exactly as much memory as it needs.
    repeat, _, _ = planned(problem_of(graph, memory=plan.memory * (1 + 1e-9)), mesh)
    assert repeat.memory <= plan.memory * (1 + 1e-9)
    assert repeat.seconds == plan.seconds


@pytest.mark.parametrize("mesh", _cases(8, some=("model 4 x expert 2", "data 2 x model 2 x expert 2"))[1:])
def test_bytes_are_counted_as_the_strategy_holds_them(mesh):
    problem = problem_of(moe("vit-sgmoe", 8))
    plan, lowering, fabric = planned(problem, mesh)
    model = mesh_program(problem, outline(problem.graph), mesh)
    prices = PlainPrices(problem, model, Machine(problem.cluster, fabric), plan.strategy.program.sharded_state)
    nbytes = sum(
        prices.persistent_bytes(model.program.instructions[index], rule)
        for stage in plan.solution.stages
        for index, rule in stage.computations
    )
    nbytes += sum(
        prices.crossing(value, source, target)[4]
        for stage in plan.solution.stages
        for value, source, target in stage.conversions
    )
    assert nbytes == pytest.approx(lowering.memory(plan.strategy).max(), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", at_night(["bert-sgmoe", "vit-switch"], "vit-switch"))
def test_prices_are_those_of_one_signature_and_one_conversion_after_the_other(name):
    problem = problem_of(moe(name, 8))
    model, machine = outline(problem.graph), Machine(problem.cluster, problem.build_fabric(None, None))
    for mesh in meshes(problem.cluster, "all", experts=True):
        program = mesh_program(problem, model, mesh)
        for sharded in (False, True):
            columns = priced(Prices(problem, program, machine, sharded), program, 1e9, "m")
            expected = plain_columns(problem, program, machine, sharded, forms_of(program.program))
            for column, values in expected.items():
                assert np.array_equal(getattr(columns, column), values), (mesh, column)


@pytest.mark.slow
def test_an_axis_of_experts_pays_where_hosts_share_a_slow_network():
    """All-to-alls among all devices leave every host; among experts of the hosts alone they are fewer."""
    problem = problem_of(moe("vit-switch", 16, width=256, hidden=1024), hosts=4, each=4, gbps=10)
    best = min(meshes(problem.cluster, "all", experts=True), key=lambda mesh: planned(problem, mesh)[0].seconds)
    assert EXPERT in best.roles


class TestSearch:
    def searched(self, problem, **options):
        evaluator = Evaluator(problem, Fluid().build(), "limit")
        search = SpmdSearch(Spmd(**options), problem)
        state = state_of(problem)
        search.adopt(Trial(state=state, cost=np.inf, demand=lambda: None))
        while candidates := search.ask():
            search.tell([evaluator.price(candidate) for candidate in candidates])
        return search.report(None)

    @pytest.mark.slow
    def test_meshes_that_are_given_up_could_not_have_been_on_the_shortlist(self):
        problem = problem_of(moe("bert-sgmoe", 8, width=256, hidden=1024))
        few, all_ = (self.searched(problem, shortlist=count) for count in (2, 100))
        assert all_["meshes_outdone"] == 0
        assert few["meshes_outdone"] > 0
        assert few["meshes_outdone"] + len(few["meshes"]) == len(all_["meshes"])
        shared = [{k: v for k, v in mesh.items() if k in ("mesh", "axes", "planned_s")} for mesh in all_["meshes"]]
        best = [{k: v for k, v in mesh.items() if k in ("mesh", "axes", "planned_s")} for mesh in few["meshes"]]
        assert best[:2] == shared[:2]
        assert {tuple(mesh["axes"]) for mesh in all_["meshes"]} == {
            ("model",),
            ("data", "model"),
            ("model", "expert"),
            ("expert", "model"),
            ("data", "model", "expert"),
            ("data", "expert", "model"),
        }

    @pytest.mark.parametrize("mesh", _cases(8, some=("8", "model 4 x expert 2", "data 2 x model 2 x expert 2")))
    def test_a_bound_that_can_be_kept_changes_nothing(self, mesh):
        problem = problem_of(moe("vit-sgmoe", 8))
        free, _, _ = planned(problem, mesh)
        kept, _, _ = planned(problem, mesh, bound=free.seconds)
        assert kept.seconds == free.seconds
        assert planned(problem, mesh, bound=0.999 * free.seconds)[0] is None


def test_nothing_is_lost_on_several_axes():
    """Every plan of a small model with experts, one by one, beside the kernel's, with and without a bound."""
    b = GraphBuilder("tiny", 8)
    x = b.linear(b.input((8,)), 8, bias=False)
    b.append(losses.total(x), [x], "loss")
    problem = problem_of(b.build(), gbps=1)
    for mesh in (Mesh((2, 4), (DATA, MODEL)), Mesh((2, 4), (EXPERT, MODEL)), Mesh((2, 2, 2), (DATA, MODEL, EXPERT))):
        model = mesh_program(problem, outline(problem.graph), mesh)
        machine = Machine(problem.cluster, problem.build_fabric(None, None))
        for limit in (np.inf, 2000.0):
            columns = priced(Prices(problem, model, machine, False), model, limit, "m")
            best = min(seconds for seconds, kept in every_plan(model.program, columns) if kept <= limit)
            assert solve(model.program, columns, max_states=10**6, who="m").outcome.objective == pytest.approx(best)
            close = solve(model.program, with_bound(columns, model, best), max_states=10**6, who="m")
            assert close.outcome.objective == pytest.approx(best)
            assert solve(model.program, with_bound(columns, model, 0.99 * best), max_states=10**6, who="m") is None


@pytest.mark.parametrize("name", at_night(sorted(FRONTENDS), "bert-sgmoe", "vit-switch"))
def test_a_mesh_is_given_up_by_the_bound_that_columns_would_have(name):
    problem = problem_of(moe(name, 8))
    model, machine = outline(problem.graph), Machine(problem.cluster, problem.build_fabric(None, None))
    for mesh in meshes(problem.cluster, "all", experts=True):
        program = mesh_program(problem, model, mesh)
        prices = Prices(problem, program, machine, sharded_state=False)
        columns = priced(prices, program, np.inf, "m")
        assert least_exchange(prices, program) == pytest.approx(_parameters(columns, program).sum(), rel=1e-12)
        bound = 0.9 * least_exchange(prices, program)
        if bound > 0:
            assert solve(program.program, with_bound(columns, program, bound), max_states=10**6, who="m") is None


@pytest.mark.parametrize("name", at_night(sorted(FRONTENDS), "bert-sgmoe", "vit-switch"))
def test_equal_instructions_share_their_signatures_and_the_forms_of_their_values(name):
    problem = problem_of(moe(name, 8))
    model = outline(problem.graph)
    apart = attrs.evolve(model, equal=tuple(range(len(model.program.instructions))))
    assert len(set(model.equal)) < len(model.equal) / 1.5
    for mesh in meshes(problem.cluster, "all", experts=True):
        shared, alone = mesh_program(problem, model, mesh).program, mesh_program(problem, apart, mesh).program
        assert shared.instructions == alone.instructions
        expected = [{} for _ in alone.values]
        for i in alone.instructions:
            for rule in i.signatures:
                for value, form in zip((*i.inputs, *i.outputs), (*rule.inputs, *rule.outputs), strict=True):
                    expected[value][form] = None
        assert forms_of(shared) == forms_of(alone) == [tuple(forms) for forms in expected]


def test_conversions_on_several_axes_are_those_of_the_program():
    """What the search allows between two forms of a value, the program can do, and at no cost where it is free."""
    problem = problem_of(moe("bert-sgmoe", 8))
    mesh = Mesh((2, 2, 2), (DATA, MODEL, EXPERT))
    model = mesh_program(problem, outline(problem.graph), mesh)
    machine = Machine(problem.cluster, problem.build_fabric(None, None))
    columns = priced(Prices(problem, model, machine, False), model, np.inf, "m")
    count = 0
    for value, forms in enumerate(forms_of(model.program)):
        for (a, source), (b, target) in itertools.permutations(enumerate(forms, 1), 2):
            steps = mesh_steps(source, target, mesh.sizes)
            assert (steps is not None) == np.isfinite(columns.forward[value, a, b])
            count += steps is not None
    assert count > 500
    assert mesh_steps((REPLICATED, PARTIAL, shard(0)), (REPLICATED, REPLICATED, PENDING_GRADIENT), mesh.sizes) is None


def test_the_three_axes_are_proposed_as_a_strategy_of_three_axes():
    problem = problem_of(moe("bert-switch", 8))
    plan, lowering, _ = planned(problem, Mesh((2, 2, 2), (DATA, EXPERT, MODEL)))
    program = plan.strategy.program
    assert why_invalid(plan.strategy, problem.graph, 8) is None
    assert {len(rules) for rules in program.rules} == {3}
    cut = [sum(rule.dim >= 0 for rule in rules) for rules in program.rules]
    assert max(cut) == 3
    taskgraph = lowering.lower(program_strategy(program, problem.graph))
    sizes = {int(n) for n in np.diff(taskgraph.group_ptr)}
    assert sizes & {2, 4}
