"""The search: nothing is lost by pruning, prices are what simulation finds, and plans beat those they must beat."""

from __future__ import annotations

import itertools
import json

import attrs
import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from topoplan import AxisUse, Candidate, Cluster, CostFunction, PartCosts, State, TopoplanError, Trial
from topoplan.errors import NoPlanFitsError
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, Signature, shard
from topoplan.model.strategy import PlacedStrategy
from topoplan.model.taskgraph import Collective
from topoplan_engine import problem_on
from topoplan_engine.lowering import Lowering
from topoplan_engine.partition import slice_elements
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.sharding.mesh import mesh_groups
from topoplan_operators import GraphBuilder, losses
from topoplan_reference.overlapped import every_plan
from topoplan_samples.graphs import linear_chain
from topoplan_samples.problems import state_of
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_searcher_spmd import Spmd
from topoplan_searcher_spmd.search import SpmdSearch, data_parallel
from topoplan_simulator_fluid import Fluid
from topoplan_spmd_planning import mesh_planning as planning
from topoplan_spmd_planning.columns import columns_of
from topoplan_spmd_planning.limits import fastest_within, measured
from topoplan_spmd_planning.machine import Machine
from topoplan_spmd_planning.mesh_planning import fastest_on, fitted
from topoplan_spmd_planning.mesh_prices import Prices, least_bytes
from topoplan_spmd_planning.planning import SearchTooLongError, solve
from topoplan_spmd_planning.program import Instruction, Program, Value, Verb
from topoplan_spmd_planning.space import Mesh, mesh_program, meshes, outline
from topoplan_topology_bigswitch import BigSwitch


def plan_on(*given, **options):
    """Return the plan on a mesh."""
    return fitted(fastest_on(*given, **options))


FORMS = (REPLICATED, PARTIAL, shard(0))
GENERATED = (Phase.explicit, Phase.reuse, Phase.generate)


@st.composite
def programs(draw):
    """A few instructions that read values made before, under some signatures."""
    instructions, last, born = [], [], []
    for here in range(draw(st.integers(2, 6))):
        reach = range(max(0, len(born) - 3), len(born))
        inputs = tuple(sorted(draw(st.sets(st.sampled_from(reach), max_size=2)))) if reach else ()
        outputs = (len(born),)
        made = (*FORMS, PENDING_GRADIENT) if not inputs else FORMS
        forms = st.builds(
            Signature, st.tuples(*[st.sampled_from(FORMS) for _ in inputs]), st.tuples(st.sampled_from(made))
        )
        rules = draw(st.lists(forms, min_size=1, max_size=2, unique=True))
        if inputs:
            rules.append(Signature((REPLICATED,) * len(inputs), (REPLICATED,)))
        for value in inputs:
            last[value] = here
        born.append(here)
        last.append(-1)
        instructions.append(Instruction(Verb.RUN, f"i{here}", inputs, outputs, tuple(rules)))
    values = tuple(Value(f"v{k}", (), k % 2, b, e) for k, (b, e) in enumerate(zip(born, last, strict=True)))
    return Program(tuple(instructions), values)


class Nothing:
    """What is replaced by random numbers."""

    def compute(self, instruction, signature):
        return 0.0

    def conversion(self, nbytes, given, wanted):
        from topoplan_engine.sharding.resharding import convert

        return None if convert(given, wanted) is None else (0.0, 0.0)


def random_columns(program, seed, limit):
    base, rng = columns_of(program, Nothing(), "m"), np.random.default_rng(seed)

    def draw(shape):
        return rng.integers(0, 9, shape).astype(float)

    legal = np.where(np.isfinite(base.forward), 0.0, np.inf)
    names = ("forward", "backward", "second_forward", "second_backward", "gathered_bytes")
    crossings = {name: legal + draw(legal.shape) for name in names}
    rows = {name: draw(base.seconds.shape) for name in ("seconds", "back", "sums", "signature_bytes")}
    return base._replace(overlapped=True, limit=limit, **crossings, **rows)


@given(program=programs(), seed=st.integers(0, 99), limit=st.sampled_from([np.inf, 25.0, 12.0]))
@settings(max_examples=60, deadline=None, phases=GENERATED)
def test_pruning_loses_nothing(program, seed, limit):
    columns = random_columns(program, seed, limit)
    within = [seconds for seconds, nbytes in every_plan(program, columns) if nbytes <= limit]
    if not within:
        with pytest.raises(TopoplanError, match="no plan"):
            solve(program, columns, max_states=10**6, who="m")
        return
    assert solve(program, columns, max_states=10**6, who="m").outcome.objective == min(within)


@pytest.mark.slow
@given(
    program=programs(),
    seed=st.integers(0, 99),
    limit=st.sampled_from([25.0, 18.0, 12.0]),
    steps=st.sampled_from(["all", "no exact one", "prices alone"]),
)
@settings(max_examples=80, deadline=None, phases=GENERATED)
def test_prices_of_bytes_bound_what_fits(program, seed, limit, steps):
    """The lower bound and the plan are on either side of the best of all plans; an exact search finds that plan."""
    columns = random_columns(program, seed, limit)
    plans = list(every_plan(program, columns))
    assume(plans)
    fastest = solve(program, columns._replace(limit=np.inf), max_states=10**6, who="m")
    seconds, nbytes = measured(program, columns, fastest.stages)
    assert seconds == fastest.outcome.objective
    assert (seconds, nbytes) in plans
    assume(nbytes > limit)

    def run(columns, bound, *, patience=None, max_entries=None):
        assert (patience is None and max_entries is None) == columns.priced
        if patience is not None and steps != "all":
            raise SearchTooLongError("no patience")
        if max_entries is not None and steps == "prices alone":
            return None
        return solve(program, columns, max_states=10**6, who="m", patience=patience, max_entries=max_entries)

    within = [taken for taken, held in plans if held <= limit]
    if not within:
        with pytest.raises(NoPlanFitsError, match="m: no plan leads to its loss"):
            fastest_within(program, columns, fastest, run, "m")
        return
    found = fastest_within(program, columns, fastest, run, "m")
    taken, held = measured(program, columns, found.solution.stages)
    assert held <= limit
    assert taken == found.solution.outcome.objective
    assert found.least <= min(within) * (1 + 1e-9)
    assert min(within) <= taken
    assert taken == min(within) or not found.solution.exact
    assert steps == "prices alone" or (found.solution.exact and found.least >= min(within) * (1 - 1e-9))


class Costs(CostFunction):
    """Seconds by size; three more bytes for each of a weight."""

    def __init__(self, graph):
        self.graph = graph

    def supports(self, op, degrees):
        return all(degree <= dim.size for degree, dim in zip(degrees, self.graph.operators[op].dims, strict=True))

    def price(self, op, degrees, devices):
        operator, parts = self.graph.operators[op], len(devices)
        seconds = np.full(parts, 1e-9 * np.prod(operator.sizes) / parts)
        memory = np.zeros(parts)
        for copies, tensors in ((1, operator.outputs), (4, operator.weights)):
            for tensor in tensors:
                memory += copies * tensor.itemsize * slice_elements(operator, tensor, degrees)
        return PartCosts(forward=seconds, backward=2 * seconds, memory=memory)


def problem_of(width=256, layers=3, batch=64, memory=1e9, hosts=4, each=2):
    graph = linear_chain(layers, width, batch)
    cluster = Cluster.uniform(
        n_hosts=hosts, devices_per_host=each, device_memory=memory, interfaces=1, interface_bandwidth=1e9, latency=1e-6
    )
    return problem_on(graph, cluster, Costs(graph), BigSwitch())


def searched(problem, **options):
    """Return the evaluator's trials of all that is proposed, and the searcher's report."""
    evaluator = Evaluator(problem, Fluid().build(), "limit")
    search = SpmdSearch(Spmd(**options), problem)
    assert search.ask() == []
    state = state_of(problem)
    search.adopt(Trial(state=state, cost=np.inf, demand=lambda: None))
    trials = []
    while candidates := search.ask():
        batch = [evaluator.price(candidate) for candidate in candidates]
        search.tell(batch)
        trials += batch
    return trials, search.report(None)


def seconds_of_data_parallelism(problem):
    evaluator = Evaluator(problem, Fluid().build(), "limit")
    state = State(data_parallel(problem), problem.build_fabric(None, np.random.default_rng(0)))
    return evaluator.price(Candidate(base=state)).cost


def test_the_best_is_no_slower_than_hidup_and_data_parallelism():
    trials, report = searched(problem_of())
    seconds = report["simulated_s"]
    best = min(trial.cost for trial in trials)
    assert seconds[report["chosen"]] == best
    assert {"hidup", "8 two-microbatch", "8 whole batch"} <= seconds.keys()
    assert seconds_of_data_parallelism(problem_of()) >= best
    assert [tuple(one["mesh"]) for one in report["meshes"]] != []
    json.dumps(report)


def test_strategies_of_placements_come_last_and_need_not_be_simulated():
    """Their cutoff is the time of the fastest program; the report leaves out those that cannot be faster."""
    trials, report = searched(problem_of(), schedule="whole-batch")
    kinds = [isinstance(trial.state.strategy, PlacedStrategy) for trial in trials]
    assert kinds == sorted(kinds)
    assert any(kinds)
    assert trials[-1].cost == np.inf
    assert seconds_of_data_parallelism(problem_of()) > report["simulated_s"][report["chosen"]]
    assert "data parallelism" not in report["simulated_s"]


def test_a_fast_initial_strategy_is_no_cutoff():
    """A constructed plan is reported even where the initial strategy is faster, so the best of them must be found."""
    problem = problem_of()
    search, evaluator = SpmdSearch(Spmd(schedule="whole-batch"), problem), Evaluator(problem, Fluid().build(), "limit")
    search.adopt(Trial(state=state_of(problem), cost=1e-9, demand=lambda: None))
    programs, cutoffs = [], []
    while candidates := search.ask():
        cutoffs += [each.cutoff_seconds for each in candidates if isinstance(each.state().strategy, PlacedStrategy)]
        trials = [evaluator.price(candidate) for candidate in candidates]
        programs += [trial.cost for trial in trials if (trial.state.strategy.program is not None)]
        search.tell(trials)
    assert set(cutoffs) == {min(programs)}


@pytest.mark.parametrize(("large", "share"), [(True, 0.3), (True, 0.95), (False, 0.3)])
def test_meshes_that_cannot_be_better_than_another_searchers_plan_are_left_out(monkeypatch, large, share):
    """The best own plan is found unless another one is far better; each mesh that was planned in vain is a turn."""
    trials, report = searched(problem_of())
    fastest = report["simulated_s"][report["chosen"]]
    problem = problem_of()
    parts = len(problem.graph.operators) * problem.cluster.n_devices
    monkeypatch.setattr("topoplan_searcher_spmd.search._PARTS_LARGE", parts if large else parts + 1)
    search, evaluator = SpmdSearch(Spmd(), problem), Evaluator(problem, Fluid().build(), "limit")
    search.adopt(Trial(state=state_of(problem), cost=np.inf, demand=lambda: None))
    search.know_best(share * fastest)
    costs, in_vain = [], 0
    while (candidates := search.ask()) or search.waits:
        batch = [evaluator.price(candidate) for candidate in candidates]
        search.tell(batch)
        in_vain += search.in_vain
        costs += [trial.cost for trial in batch]
    assert (len(costs) < len(trials)) is large
    assert (in_vain > 0) is large
    assert (fastest in costs) is (share > 0.9 or not large)


def test_its_own_plan_is_not_that_of_another_searcher(monkeypatch):
    monkeypatch.setattr("topoplan_searcher_spmd.search._PARTS_LARGE", 0)
    problem = problem_of()
    search, evaluator = SpmdSearch(Spmd(), problem), Evaluator(problem, Fluid().build(), "limit")
    search.adopt(Trial(state=state_of(problem), cost=np.inf, demand=lambda: None))
    costs = []
    while candidates := search.ask():
        batch = [evaluator.price(candidate) for candidate in candidates]
        search.tell(batch)
        costs += [trial.cost for trial in batch]
        search.know_best(min(costs))
    assert costs == [trial.cost for trial in searched(problem)[0]]


def test_the_whole_batch_at_once_if_so_asked():
    trials, report = searched(problem_of(), schedule="whole-batch")
    assert not [name for name in report["simulated_s"] if "two-microbatch" in name]
    assert "8 whole batch" in report["simulated_s"]
    assert all(trial.state.strategy.whole_batch for trial in trials)


def test_samples_that_cannot_be_halved_go_through_at_once():
    _, report = searched(problem_of(batch=9, hosts=3, each=1), meshes="flat")
    assert {"initial strategy", "3 whole batch"} <= set(report["simulated_s"])
    assert not [name for name in report["simulated_s"] if "two-microbatch" in name]


def test_estimated_seconds_bound_simulated_ones():
    """Streams that need not wait for each other between stages are no slower than those that do."""
    problem = problem_of(width=1024, layers=4, batch=1024)
    fabric = problem.build_fabric(None, None)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for mesh in meshes(problem.cluster, "all", experts=False):
        plan = plan_on(
            problem,
            outline(problem.graph),
            mesh,
            Machine(problem.cluster, fabric),
            lowering,
            state="auto",
            beam=10**4,
            max_states=10**6,
        )
        seconds = Fluid().build()(lowering.lower(plan.strategy), fabric, problem.cluster).makespan
        assert 0.6 * plan.seconds <= seconds <= 1.05 * plan.seconds


def test_memory_that_is_short_is_saved(monkeypatch):
    roomy = problem_of(width=512, batch=8, each=1, hosts=8)
    weights = roomy.graph.parameter_bytes
    needs = {}
    for share in (8.0, 2.5, 1.3):
        tight = attrs.evolve(roomy, cluster=attrs.evolve(roomy.cluster, device_memory=np.full(8, share * weights)))
        lowering = Lowering(tight.graph, tight.cluster, tight.costs)
        machine = Machine(tight.cluster, tight.build_fabric(None, None))
        (flat,) = meshes(tight.cluster, "flat", experts=False)
        plan = plan_on(tight, outline(tight.graph), flat, machine, lowering, state="auto", beam=10**4, max_states=10**6)
        assert plan.memory <= share * weights
        prices = Prices(tight, plan.model, machine, True)
        assert 0.5 * plan.memory < least_bytes(prices, plan.model, tight.graph) <= plan.memory * (1 + 1e-9)
        needs[share] = (plan.strategy.program.sharded_state, plan.seconds)
    assert not needs[8.0][0]
    assert needs[8.0][1] <= needs[2.5][1] <= needs[1.3][1]
    small = attrs.evolve(roomy, cluster=attrs.evolve(roomy.cluster, device_memory=np.full(8, 1000.0)))
    with pytest.raises(
        NoPlanFitsError, match=r"no plan fits: of all meshes devices need the least on 8, and each needs"
    ):
        searched(small, meshes="flat")
    # Where the bound does not say so, the search does.
    monkeypatch.setattr(planning, "least_bytes", lambda *given: 0.0)
    with pytest.raises(NoPlanFitsError, match=r"no plan leads to its loss .* too much \(weights .* what would help"):
        searched(small, meshes="flat")


def test_state_can_be_sharded_at_will():
    _, report = searched(problem_of(), state="sharded", meshes="flat")
    assert [one["sharded_state"] for one in report["meshes"]] == [True]
    _, report = searched(problem_of(memory=1e9), state="whole", meshes="flat")
    assert [one["sharded_state"] for one in report["meshes"]] == [False]


@pytest.mark.parametrize("kind", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.ALL_TO_ALL])
@pytest.mark.parametrize(("mesh", "axes"), [((8,), (0,)), ((2, 4), (0,)), ((2, 4), (1,)), ((4, 2), (1,))])
@pytest.mark.parametrize("nbytes", [10_000, 8 * 8936 * 64])
def test_collectives_are_priced_as_they_are_simulated(kind, mesh, axes, nbytes):
    problem = problem_of()
    fabric, groups = problem.build_fabric(None, None), mesh_groups(mesh, axes)
    if kind is Collective.ALL_TO_ALL:
        share = nbytes // groups.shape[1] ** 2
        tasks = [transfer(*pair, share) for group in groups.tolist() for pair in itertools.permutations(group, 2)]
    else:
        size = nbytes if kind is Collective.ALL_REDUCE else nbytes // 2
        tasks = [collective(group, size, kind=kind) for group in groups.tolist()]
    taskgraph = task_graph(tasks, n_devices=8)
    seconds = Fluid().build()(taskgraph, fabric, problem.cluster).makespan
    machine = Machine(problem.cluster, fabric)
    assert machine.seconds(kind, nbytes, machine.links(groups)) == pytest.approx(seconds, rel=0.1)


def test_groups_are_priced_by_their_size_however_many_devices_there_are():
    """One group of all 512 devices sends more than two of 256, though both list the same devices."""
    problem = problem_of(hosts=2, each=256)
    machine = Machine(problem.cluster, problem.build_fabric(None, None))
    groups = [mesh_groups((2, 256), axes) for axes in ((1,), (0, 1))]
    assert groups[0].tobytes() == groups[1].tobytes()
    halves, whole = (machine.seconds(Collective.ALL_REDUCE, 1e9, machine.links(those)) for those in groups)
    assert whole > 2 * halves


def test_changes_by_another_searcher_leave_a_strategy_of_placements():
    trials, _ = searched(problem_of(), meshes="flat")
    strategy = trials[0].state.strategy
    assert strategy.program is not None
    assert strategy.with_changes({0: strategy.placements[0]}) == PlacedStrategy(strategy.placements)


def wide(branches=10):
    """Many tensors that live at once: the states of an exact search are exponential in them."""
    b = GraphBuilder("wide", 16)
    parts = [b.linear(b.input((16,)), 16, bias=False) for _ in range(branches)]
    x = b.linear(b.concat(parts), 16, bias=False)
    b.append(losses.total(x), [x], "loss")
    return b.build()


def wide_problem(memory):
    graph = wide()
    return problem_on(graph, problem_of(memory=memory).cluster, Costs(graph), BigSwitch())


@pytest.mark.slow
def test_of_many_states_the_fastest_go_on():
    problem = wide_problem(1e9)
    with pytest.raises(TopoplanError, match="more than 20000 states"):
        searched(problem, meshes="flat", beam=10**9, max_states=20_000)
    (few, repeat, many) = (
        searched(problem, meshes="flat", beam=beam, max_states=100_000)[1]["meshes"][0] for beam in (200, 200, 1000)
    )
    assert not few["exact"]
    assert few == repeat
    assert many["planned_s"] <= few["planned_s"] <= 1.05 * many["planned_s"]


@pytest.mark.slow
def test_a_long_search_goes_on_with_a_narrower_beam(monkeypatch):
    def planned():
        return searched(wide_problem(1e9), meshes="flat", beam=1600, max_states=100_000)[1]["meshes"][0]

    patient = planned()
    monkeypatch.setattr("topoplan_spmd_planning.planning._PATIENCE", 2_000)
    hurried = planned()
    assert hurried["states"] < 0.6 * patient["states"]
    assert not hurried["exact"]
    assert patient["planned_s"] <= hurried["planned_s"] <= 1.05 * patient["planned_s"]


@pytest.mark.slow
def test_the_fastest_states_that_go_on_fit():
    """They fit in as little memory as the least of every tensor and operator, each by itself, adds up to."""
    options = {"meshes": "flat", "beam": 200, "max_states": 20_000, "gathered": "kept"}
    roomy, problem = searched(wide_problem(1e9), **options)[1]["meshes"][0]["memory_bytes"], wide_problem(1e9)
    model = mesh_program(problem, outline(problem.graph), Mesh((8,), (AxisUse.MODEL,)))
    machine = Machine(problem.cluster, problem.build_fabric(None, None))
    least = min(
        least_bytes(Prices(problem, model, machine, sharded), model, problem.graph) for sharded in (False, True)
    )
    for memory in (least * (1 + 1e-9), (least + roomy) / 2):
        _, report = searched(wide_problem(memory), **options)
        assert least <= report["meshes"][0]["memory_bytes"] * (1 + 1e-9) <= memory * (1 + 1e-9)
    assert least < 0.95 * roomy
    with pytest.raises(NoPlanFitsError, match="no plan fits"):
        searched(wide_problem(least * (1 - 1e-6)), **options)


@given(program=programs(), seed=st.integers(0, 99), beam=st.sampled_from([4, 16]))
@settings(max_examples=40, deadline=None, phases=GENERATED)
def test_a_beam_finds_a_plan_and_says_whether_it_is_the_best(program, seed, beam):
    columns = random_columns(program, seed, np.inf)
    best = min((seconds for seconds, _ in every_plan(program, columns)), default=np.inf)
    assume(best < np.inf)
    try:
        solution = solve(program, columns, max_states=10**6, who="m", beam=beam)
    except TopoplanError:  # the states that stayed lead nowhere
        return
    assert solution.outcome.objective >= best
    assert not solution.exact or solution.outcome.objective == best


def test_where_nothing_is_better_the_initial_strategy_is_chosen():
    problem = problem_of()
    search = SpmdSearch(Spmd(meshes="flat"), problem)
    state = state_of(problem)
    search.adopt(first := Trial(state=state, cost=1e-9, demand=lambda: None))
    while candidates := search.ask():
        search.tell([attrs.evolve(first, cost=1.0)] * len(candidates))
    assert search.report(None)["chosen"] == "initial strategy"


class WholeCosts(Costs):
    """Prices of ``names`` for the uncut operator alone, as tables of embeddings that were measured whole."""

    names: tuple[str, ...] = ()

    def supports(self, op, degrees):
        whole = self.graph.operators[op].name in self.names and max(degrees) > 1
        return not whole and super().supports(op, degrees)


def whole_problem(**sizes):
    problem = problem_of(**sizes)
    costs = WholeCosts(problem.graph)
    costs.names = (next(op.name for op in problem.graph.operators if op.weights),)
    return problem_on(problem.graph, problem.cluster, costs, BigSwitch())


@pytest.mark.parametrize("memory", [1e9, 1e3])
def test_a_mesh_that_needs_cuts_without_a_price_is_left_out(memory):
    problem = whole_problem(memory=memory)
    machine = Machine(problem.cluster, problem.build_fabric(None, None))
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    message = r"no price of operator .* cut as mesh data \d x model \d needs \(.*/\d; use an estimator"
    for mesh in meshes(problem.cluster, "all", experts=False):
        if len(mesh.sizes) == 1:
            continue
        with pytest.raises(TopoplanError, match=message):
            plan_on(
                problem, outline(problem.graph), mesh, machine, lowering, state="auto", beam=10**4, max_states=10**6
            )
    if memory == 1e9:
        _, report = searched(problem)
        assert {tuple(entry["mesh"]) for entry in report["meshes"]} == {(8,)}
    else:
        with pytest.raises(NoPlanFitsError, match="of all meshes devices need the least on 8"):
            searched(problem)
