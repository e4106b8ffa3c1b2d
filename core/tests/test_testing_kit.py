"""The conformance kit: honest components pass every check, and each kind of cheat is caught by name."""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs
import numpy as np
import pytest

from topoplan import (
    Cluster,
    Device,
    Estimator,
    Exporter,
    Fabric,
    Frontend,
    HostModel,
    Machine,
    Placement,
    ReconfigurableFabric,
    Search,
    Searcher,
    Simulate,
    Simulator,
    Topology,
    TopoplanError,
    option,
)
from topoplan.search.protocol import Candidate
from topoplan.testing import check_component, checks_for, parametrize_with_checks, reference


def made(contract, name, **members):
    """Return a class of component with two options, and these members."""
    options = {
        "__annotations__": {"size": int, "steps": tuple[int, ...]},
        "size": option(2, help="how much", minimum=1),
        "steps": option((1, 2), help="which"),
        "example": {"size": "3", "steps": "1-2"},
    }
    members = {"__doc__": "A test.", "__module__": __name__, "name": name} | options | members
    return attrs.frozen(kw_only=True)(type(contract)("Made", (contract,), members))


def changed(cls, **members):
    """Return a subclass with other members."""
    decorated = members.pop("decorated", lambda cls: cls)
    return decorated(type(cls)("Changed", (cls,), {"__doc__": "A test.", "__module__": __name__, **members}))


def writable(cls):
    """Let the options of a component be changed."""
    cls.__setattr__ = object.__setattr__
    return cls


LOOSE = {"decorated": writable}
SILENT = {"__annotations__": {"size": int}, "size": attrs.field(default=2), "decorated": attrs.frozen(kw_only=True)}


def build_graph(options, batch_size):
    operators = tuple(reference.dense(name, batch_size or 64, 32, 32) for name in ("a", "b"))
    return reference.OperatorGraph(name="m", operators=operators, edges=[(0, 0, 1, 0)], batch_size=batch_size or 64)


def faster(fabric: Fabric, bandwidth: float) -> Fabric:
    """Return a fabric all of whose links have so many bytes/s."""
    return attrs.evolve(fabric, link_bandwidth=np.full(fabric.n_links, bandwidth))


def build_ring(options, context):
    return reference.ring(context.cluster.n_hosts)


def build_costs(options, graph, cluster):
    return Picky()


class Picky(reference.Costs):
    def supports(self, op, degrees):
        return degrees[2] == 1

    def price(self, op, degrees, devices):
        if not self.supports(op, degrees):
            raise TopoplanError(f"operator 'dense1': cut {degrees} cannot be priced")
        return super().price(op, degrees, devices)


def write_names(self, plan):
    return "\n".join(plan.taskgraph.op_names).encode()


class Ideal(Simulate):
    """A network without limits."""

    def __call__(self, taskgraph, fabric, cluster):
        if not isinstance(fabric, Fabric):
            raise TopoplanError("cannot rebuild")
        for a, b in zip(taskgraph.src.tolist(), taskgraph.dst.tolist(), strict=True):
            if a >= 0 and b not in reference.hops(fabric, a):
                raise TopoplanError(f"no path {a} -> {b}")
        waits, queue = taskgraph.predecessor_counts(), []
        queue += np.flatnonzero(waits == 0).tolist()
        for task in queue:
            for after in taskgraph.successors(task).tolist():
                waits[after] -= 1
                queue += [after] if waits[after] == 0 else []
        if len(queue) < taskgraph.n_tasks:
            raise TopoplanError("cycle")
        times = reference.timeline(taskgraph, fabric.n_links)
        return attrs.evolve(times, link_bytes=np.full(fabric.n_links, taskgraph.size.sum() / fabric.n_links / 2))


@attrs.define(eq=False)
class Walk(Search):
    problem: object
    rng: np.random.Generator
    state: object = None
    cost: float = float("inf")

    def adopt(self, trial):
        self.state, self.cost = trial.state, trial.cost

    def ask(self):
        op = int(self.rng.integers(2))
        return [Candidate(base=self.state, placements={op: self.problem.space.random_placement(op, self.rng)})]

    def tell(self, trials):
        for trial in trials:
            if trial.cost < self.cost:
                self.adopt(trial)


def build_walk(options, problem, rng):
    return Walk(problem, rng)


FIGURES = {"memory_bandwidth": 1e12, "memory": 8e9, "kernel_overhead": 1e-6}


def build_machine(options):
    return HostModel(device=Device(name="ABACUS", peak_flops={"fp32": 1e12}, **FIGURES))


def build_machine_of_another_name(options):
    return HostModel(device=Device(name="abacus-2", peak_flops={"fp32": 1e12}, **FIGURES))


def build_machine_that_does_nothing(options):
    return HostModel(device=Device(name="abacus", peak_flops={"fp32": 0.0}, **FIGURES))


HONEST = {
    "frontend": made(Frontend, "chain", build=build_graph),
    "machine": made(Machine, "abacus", build=build_machine),
    "topology": made(Topology, "ring", build=build_ring),
    "estimator": made(Estimator, "even", build=build_costs),
    "simulator": made(Simulator, "ideal", build=lambda self: Ideal()),
    "searcher": made(Searcher, "walk", build=build_walk, axis="strategy"),
    "exporter": made(Exporter, "names", write=write_names, suffix=".txt"),
}
#: The module of this file cannot be imported by name, so these two are tested apart.
BY_NAME = {"check_component_pickles", "check_import_is_light"}


@pytest.mark.parametrize("kind", HONEST)
def test_honest_component_keeps_every_promise(kind):
    for name, check in checks_for(HONEST[kind]).items():
        if name not in BY_NAME:
            check()


clock = itertools.count()


def varying_graph(options, batch_size):
    return attrs.evolve(build_graph(options, batch_size), name=f"m{next(clock)}")


def fixed_batch(options, batch_size):
    return build_graph(options, 64)


def weights_grow_with_batch(options, batch_size):
    operators = (reference.dense("a", batch_size or 64, batch_size or 64, 32),)
    return reference.OperatorGraph(name="m", operators=operators, edges=[], batch_size=batch_size or 64)


def lost_host(options, context):
    n = context.cluster.n_hosts
    links = [(0, 1), (1, 0)]
    return Fabric.from_links(name="lost", n_hosts=n, links=links, bandwidth=1.0, latency=0.0)


def global_random_ring(options, context):
    np.random.rand()  # noqa: NPY002 - the cheat
    return build_ring(options, context)


def demand_ring(options, context):
    return attrs.evolve(build_ring(options, context), max_paths=1 if context.demand is None else 2)


def full_mesh(options, context):
    n = context.cluster.n_hosts
    links = [(a, b) for a in range(n) for b in range(n) if a != b]
    return Fabric.from_links(name="mesh", n_hosts=n, links=links, bandwidth=1.0, latency=0.0)


def fast_ring(options, context):
    return faster(build_ring(options, context), 1e15)


def ring_of_lost_links(options, context):
    return attrs.evolve(build_ring(options, context), rings={context.cluster.n_hosts: ((3,),)})


def ring_of_half_the_hosts(options, context):
    return attrs.evolve(build_ring(options, context), rings={context.cluster.n_hosts: ((1, 1),)})


def broken_ring(bandwidth):
    def build(options, context):
        return faster(build_ring(options, context), bandwidth)

    return build


def torus(options, context):
    if context.cluster.n_hosts != 27:
        raise TopoplanError(f"topology torus: 3 x 3 x 3 has 27 hosts, not {context.cluster.n_hosts}")
    places = np.array(list(np.ndindex(3, 3, 3)))
    links = []
    for step in (*np.eye(3, dtype=int), *-np.eye(3, dtype=int)):
        to = np.ravel_multi_index(((places + step) % 3).T, (3, 3, 3))
        links += list(zip(range(27), to.tolist(), strict=True))
    speed = context.cluster.interface_bandwidth.min()
    return Fabric.from_links(name="torus", n_hosts=27, links=links, bandwidth=speed, latency=0.0)


def mesh_in_between(options, context):
    ring, mesh = build_ring(options, context), full_mesh(options, context)
    return ReconfigurableFabric(forward=ring, backward=mesh, reduce=ring, delay=0.0)


def negative_costs(options, graph, cluster):
    class Negative(Picky):
        def price(self, op, degrees, devices):
            return attrs.evolve(super().price(op, degrees, devices), forward=np.full(len(devices), -1.0))

    return Negative()


def one_row_costs(options, graph, cluster):
    class OneRow(Picky):
        def price(self, op, degrees, devices):
            return attrs.evolve(super().price(op, degrees, devices), memory=np.ones(1))

    return OneRow()


def clock_writer(self, plan):
    return str(next(clock)).encode()


def place_writer(self, plan):
    return str(Path.cwd()).encode()


def ascii_writer(self, plan):
    return "".join(plan.taskgraph.op_names).encode("ascii")


def read_anything(self, data, name):
    return reference.plan()


class Instant(Ideal):
    def __call__(self, taskgraph, fabric, cluster):
        times = super().__call__(taskgraph, fabric, cluster)
        return attrs.evolve(times, start=times.start * 0, finish=times.finish * 0, makespan=0.0)


class Patient(Simulate):
    def __call__(self, taskgraph, fabric, cluster):
        return reference.timeline(taskgraph, fabric.links.n_links)


class Hasty(Ideal):
    def makespan(self, taskgraph, fabric, cluster, cutoff_seconds=np.inf):
        return 0.9 * self(taskgraph, fabric, cluster).makespan


class Clamped(Ideal):
    def makespan(self, taskgraph, fabric, cluster, cutoff_seconds=np.inf):
        return min(self(taskgraph, fabric, cluster).makespan, cutoff_seconds)


class Faint(Ideal):
    """Gives up at half its cutoff."""

    def makespan(self, taskgraph, fabric, cluster, cutoff_seconds=np.inf):
        time = self(taskgraph, fabric, cluster).makespan
        return time if time < cutoff_seconds / 2 or cutoff_seconds == np.inf else np.inf


class Boaster(Ideal):
    lower_bounds = True


class Overloaded(Ideal):
    def link_seconds(self, taskgraph, fabric, cluster):
        return np.full((1, fabric.n_links), 2 * self(taskgraph, fabric, cluster).makespan)


class Repeating(Ideal):
    """Has the times of its first seed for all of them."""

    seed = 0

    def __call__(self, taskgraph, fabric, cluster):
        times = super().__call__(taskgraph, fabric, cluster)
        return attrs.evolve(times, makespan=times.makespan + self.seed)

    def draws(self, taskgraph, fabric, cluster):
        return True

    def with_seed(self, seed):
        other = type(self)()
        other.seed = seed
        return other

    def makespans(self, taskgraph, fabric, cluster, seeds):
        return np.full(len(seeds), self(taskgraph, fabric, cluster).makespan)


class Secretive(Repeating):
    """Draws, and says that it does not."""

    draws = Ideal.draws

    def makespans(self, taskgraph, fabric, cluster, seeds):
        return [self.with_seed(seed)(taskgraph, fabric, cluster).makespan for seed in seeds]


class Misspelt(Ideal):
    def link_second(self, taskgraph, fabric, cluster):
        return np.zeros((0, fabric.n_links))


class Outside(Walk):
    def ask(self):
        return [Candidate(base=self.state, placements={0: Placement((9, 1, 1), range(9))})]


class Still(Walk):
    def ask(self):
        return [Candidate(base=self.state)]


class Rewiring(Walk):
    def ask(self):
        return [attrs.evolve(candidate, fabric=reference.ring()) for candidate in super().ask()]


class Global(Walk):
    def ask(self):
        self.rng = np.random.default_rng(np.random.randint(2**31))  # noqa: NPY002 - the cheat
        return super().ask()


class Proud(Walk):
    def tell(self, trials):
        assert all(trial.cost < float("inf") for trial in trials)


class Following(Walk):
    @property
    def follow(self):
        return True


class Assuming(Picky):
    def assumption(self):
        return {}


PLACED = Placement((1, 1, 1), [0])

CHEATS = [
    ("frontend", {"build": varying_graph}, "check_same_graph_twice"),
    ("frontend", {"build": fixed_batch}, "check_batch_size_is_kept"),
    ("frontend", {"build": weights_grow_with_batch}, "check_parameters_do_not_depend_on_batch_size"),
    ("frontend", {"build": weights_grow_with_batch}, "check_work_is_linear_in_batch_size"),
    ("frontend", SILENT, "check_every_option_has_help"),
    ("frontend", LOOSE, "check_options_are_frozen"),
    ("frontend", {"example": {"colour": "red"}}, "check_example_is_accepted"),
    ("frontend", {"__doc__": "two\nlines"}, "check_summary_is_one_line"),
    ("machine", {"build": build_machine_of_another_name}, "check_device_is_called_as_its_machine"),
    ("machine", {"build": build_machine_that_does_nothing}, "check_figures_can_be_true"),
    ("topology", {"build": lost_host}, "check_all_hosts_are_connected"),
    ("topology", {"build": global_random_ring}, "check_global_randomness_is_untouched"),
    ("topology", {"build": demand_ring}, "check_demand_is_ignored_unless_declared"),
    ("topology", {"build": full_mesh, "follows_demand": True}, "check_links_stay_within_interfaces"),
    ("topology", {"build": mesh_in_between, "follows_demand": True}, "check_links_stay_within_interfaces"),
    ("topology", {"build": full_mesh}, "check_links_stay_within_interfaces"),
    ("topology", {"build": fast_ring}, "check_links_stay_within_interfaces"),
    ("topology", {"build": ring_of_lost_links}, "check_rings_have_their_links"),
    ("topology", {"build": ring_of_half_the_hosts}, "check_rings_have_their_links"),
    ("topology", {"build": torus}, "check_fabric_has_the_hosts_of_the_cluster"),
    ("topology", {"build": lambda o, c: None}, "check_fabric_has_the_hosts_of_the_cluster"),
    ("estimator", {"build": negative_costs}, "check_prices_are_finite"),
    ("estimator", {"build": one_row_costs}, "check_prices_have_one_row_per_part"),
    ("exporter", {"write": clock_writer}, "check_same_bytes_twice"),
    ("exporter", {"write": place_writer}, "check_bytes_name_no_place"),
    ("exporter", {"write": ascii_writer}, "check_any_operator_name_is_written"),
    ("exporter", {"suffix": "txt"}, "check_class"),
    ("exporter", {"suffix": "../a.txt"}, "check_class"),
    ("exporter", {"read": read_anything}, "check_garbage_is_refused_by_name"),
    ("exporter", {"read": read_anything}, "check_phases_survive_or_are_refused"),
    ("exporter", {"read": read_anything}, "check_a_schedule_survives_or_is_refused"),
    ("simulator", {"build": lambda self: Instant()}, "check_never_below_bounds"),
    ("topology", {"build": mesh_in_between}, "check_fabric_has_the_hosts_of_the_cluster"),
    ("simulator", {"build": lambda self: Instant()}, "check_a_device_runs_one_task_at_a_time"),
    ("simulator", {"build": lambda self: Patient()}, "check_an_unreachable_host_is_an_error"),
    ("simulator", {"build": lambda self: Patient()}, "check_traffic_is_counted"),
    ("simulator", {"build": lambda self: Patient()}, "check_a_rebuilt_fabric_takes_its_time"),
    ("simulator", {"build": lambda self: Hasty()}, "check_makespan_is_that_of_a_run"),
    ("simulator", {"build": lambda self: Clamped()}, "check_makespan_is_that_of_a_run"),
    ("simulator", {"build": lambda self: Faint()}, "check_makespan_is_that_of_a_run"),
    ("simulator", {"build": lambda self: Boaster()}, "check_makespan_is_that_of_a_run"),
    ("simulator", {"build": lambda self: Overloaded()}, "check_link_seconds_are_no_more_than_a_run"),
    ("simulator", {"build": lambda self: Repeating()}, "check_makespans_are_those_of_each_seed"),
    ("simulator", {"build": lambda self: Secretive()}, "check_makespans_are_those_of_each_seed"),
    ("searcher", {"build": lambda o, p, r: Outside(p, r)}, "check_candidates_can_be_built"),
    ("searcher", {"build": lambda o, p, r: Still(p, r)}, "check_beats_chance"),
    ("searcher", {"build": lambda o, p, r: Rewiring(p, r)}, "check_only_its_axis_moves"),
    ("searcher", {"build": lambda o, p, r: Global(p, r)}, "check_global_randomness_is_untouched"),
    ("searcher", {"build": lambda o, p, r: Global(p, r)}, "check_same_seed_same_search"),
    ("searcher", {"build": lambda o, p, r: Proud(p, r)}, "check_infinite_costs_are_survived"),
]


@pytest.mark.parametrize(("kind", "change", "check"), CHEATS, ids=[f"{kind}-{check}" for kind, _, check in CHEATS])
def test_cheat_is_caught(kind, change, check):
    with pytest.raises((AssertionError, TopoplanError, UnicodeError)):
        checks_for(changed(HONEST[kind], **change))[check]()


def test_a_simulator_that_knows_one_network_alone_is_told_what_to_do():
    class Narrow(Simulate):
        def __call__(self, taskgraph, fabric, cluster):
            return reference.timeline(taskgraph, fabric.n_links)

    cheat = changed(HONEST["simulator"], build=lambda self: Narrow())
    with pytest.raises(AssertionError, match="simulate its phases, or refuse what is no Fabric"):
        checks_for(cheat)["check_a_rebuilt_fabric_takes_its_time"]()


@pytest.mark.parametrize(
    ("kind", "build", "message"),
    [
        ("simulator", lambda self: Misspelt(), "Misspelt.link_second is none .*Simulate.*link_seconds"),
        ("searcher", lambda o, p, r: Following(p, r), "Following.follow is none .*Search.*follows"),
        ("estimator", lambda *_: Assuming(), "Assuming.assumption is none .*CostFunction.*assumptions"),
    ],
)
def test_a_misspelt_method_is_named_with_the_right_one(kind, build, message):
    with pytest.raises(AssertionError, match=message):
        checks_for(changed(HONEST[kind], build=build))["check_no_optional_name_is_misspelt"]()


@pytest.mark.parametrize(
    ("kind", "name", "right"),
    [
        ("exporter", "raed", "read"),
        ("exporter", "reads", "read"),
        ("exporter", "read_strategie", "read_strategy"),
        ("topology", "follow_demand", "follows_demand"),
        ("topology", "exemple_cluster", "example_cluster"),
        ("searcher", "whole_batches", "whole_batch"),
    ],
)
def test_a_misspelt_name_of_the_class_is_told_with_the_right_one(kind, name, right):
    check = checks_for(changed(HONEST[kind], **{name: True}))["check_no_optional_name_is_misspelt"]
    with pytest.raises(AssertionError, match=rf"Changed\.{name} is none of .* \(did you mean '{right}'\?\)"):
        check()


def test_an_option_may_resemble_an_attribute_of_the_class():
    members = {"__annotations__": {"switches": int}, "switches": option(2, help="how many")}
    wired = changed(HONEST["topology"], decorated=attrs.frozen(kw_only=True), **members)
    checks_for(wired)["check_no_optional_name_is_misspelt"]()


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ({1: 17}, r"placements \{1: 17\} \(must map indices from 0 to 1 to Placement\)"),
        ({0: None}, r"placements \{0: None\}"),
        ({1000: PLACED}, r"placements \{1000: Placement\("),
        ({-1: PLACED}, r"placements \{-1: Placement\("),
        ({0: Placement((1,), [0])}, "for operator 0: 1 degrees for 3 dimensions"),
    ],
)
def test_one_check_tells_that_a_candidate_is_none(placements, message):
    class Astray(Walk):
        def ask(self):
            return [Candidate(base=self.state, placements=placements)]

    reasons = []
    for name, check in checks_for(changed(HONEST["searcher"], build=lambda o, p, r: Astray(p, r))).items():
        if name not in BY_NAME:
            try:
                check()
            except Exception as error:
                reasons.append((name, error))
    ((name, error),) = reasons
    assert name == "check_candidates_can_be_built"
    with pytest.raises(AssertionError, match=message):
        raise error


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (changed(Topology, build=build_ring), r'topology Changed: None is no name of a component \(write name = "'),
        (made(Exporter, "names", write=write_names), "exporter 'names': suffix is missing"),
        (changed(HONEST["searcher"], axis="strat"), "searcher 'walk': axis is 'strat' .must be one of strategy, net"),
    ],
)
def test_a_class_that_cannot_be_registered_has_one_check_that_says_so(cls, message):
    (case,) = parametrize_with_checks(cls).mark.args[1]
    with pytest.raises(TopoplanError, match=message):
        case.values[0]()


@pytest.mark.parametrize("bandwidth", [-1e6, float("nan"), 0.0, float("inf")])
def test_why_there_is_no_fabric_is_told(bandwidth):
    cheat = changed(HONEST["topology"], build=broken_ring(bandwidth))
    with pytest.raises(AssertionError) as told:
        checks_for(cheat)["check_fabric_has_the_hosts_of_the_cluster"]()
    for text in ("example_cluster", "2 hosts: fabric 'ring': link 0 -> 1 has bandwidth", "16 hosts: "):
        assert text in str(told.value)
    assert f"has bandwidth {bandwidth} bytes/s" in str(told.value)


def test_the_author_names_the_cluster_of_the_example():
    cluster = Cluster.uniform(n_hosts=27, interfaces=6, interface_bandwidth=1e9)
    honest = changed(HONEST["topology"], build=torus, example_cluster=lambda: cluster)
    for name, check in checks_for(honest).items():
        if name not in BY_NAME:
            check()
    few = changed(honest, example_cluster=lambda: attrs.evolve(cluster, interfaces=np.full(27, 5)))
    message = "of 27 hosts: fabric 'torus': 6 links of 48 Gbps together lead from host 0, which has 5 interfaces of 8"
    with pytest.raises(AssertionError, match=message):
        checks_for(few)["check_links_stay_within_interfaces"]()


def test_function_inside_a_function_does_not_pickle():
    component = changed(HONEST["topology"], build=lambda self, context: None)
    with pytest.raises(Exception, match="pickle"):
        checks_for(component)["check_component_pickles"]()


def test_heavy_import_is_found(tmp_path, monkeypatch):
    (tmp_path / "acme_heavy.py").write_text("import networkx\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    component = changed(HONEST["topology"], __module__="acme_heavy")
    with pytest.raises(AssertionError, match="networkx"):
        checks_for(component)["check_import_is_light"]()


def test_check_component_names_component_and_promise():
    cheat = changed(HONEST["topology"], __doc__="")
    with pytest.raises(AssertionError, match="topology 'ring': check_summary_is_one_line: no summary"):
        check_component(cheat)


def test_every_check_says_its_promise():
    for component in HONEST.values():
        for name, check in checks_for(component).items():
            assert check.func.__doc__, name


def test_expected_failure_is_strict_and_needs_a_known_name():
    excuse = {"check_options_are_frozen": "the test says so"}
    mark = parametrize_with_checks(HONEST["topology"], expected_failures=excuse).mark
    (case,) = [case for case in mark.args[1] if case.id.endswith("check_options_are_frozen")]
    assert case.marks[0].kwargs == {"strict": True, "reason": "the test says so"}
    with pytest.raises(ValueError, match="no such check: check_nothing"):
        parametrize_with_checks(HONEST["topology"], expected_failures={"check_nothing": "?"})
