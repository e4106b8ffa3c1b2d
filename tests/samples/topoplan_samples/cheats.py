"""Components that keep every promise of the conformance kit, and changes that each break one."""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs
import numpy as np

from topoplan import (
    Device,
    Estimator,
    Exporter,
    Fabric,
    Frontend,
    HostLink,
    HostModel,
    Machine,
    Placement,
    ReconfigurableFabric,
    Routes,
    Search,
    Searcher,
    Simulate,
    Simulator,
    Topology,
    TopoplanError,
    option,
)
from topoplan.search.protocol import Candidate
from topoplan.testing import reference


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
#: An option whose default reads as three words, though it has two.
SPLIT = {
    "__annotations__": {"names": tuple[str, ...]},
    "names": option(("a-b", "c"), help="which"),
    "decorated": attrs.frozen(kw_only=True),
}
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
        return attrs.evolve(super().price(op, degrees, devices), memory=np.full(len(devices), 1e6))


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
        sent = np.full(fabric.n_links, taskgraph.size.sum() / fabric.n_links / 2)
        return attrs.evolve(times, link_bytes=sent, link_busy=sent / fabric.link_bandwidth)


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


def build_machine_of_lone_devices(options):
    joined = HostLink(0, 1, bandwidth=1e9)
    return attrs.evolve(build_machine(options), nodes=("device",) * 3, links=(joined,), sources=("a test",))


def build_machine_without_sources(options):
    return attrs.evolve(build_machine(options), nodes=("device",))


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


def costs_of_divided_weights(options, graph, cluster):
    class Divided(Picky):
        def price(self, op, degrees, devices):
            return attrs.evolve(super().price(op, degrees, devices), memory=np.full(len(devices), 1e6 / len(devices)))

    return Divided()


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


class Quartering(Walk):
    """Proposes four candidates, and counts on all of their prices."""

    def ask(self):
        return [candidate for _ in range(4) for candidate in super(Quartering, self).ask()]

    def tell(self, trials):
        assert len(trials) == 4
        super().tell(trials)


class Changed(Ideal):
    """Simulates, and changes some of the times then."""

    def __init__(self, **changes):
        self.changes = changes

    def __call__(self, taskgraph, fabric, cluster):
        times = super().__call__(taskgraph, fabric, cluster)
        return attrs.evolve(times, **{field: change(getattr(times, field)) for field, change in self.changes.items()})


class Endless(Ideal):
    """Takes tasks that wait for each other as done."""

    def __call__(self, taskgraph, fabric, cluster):
        return super().__call__(reference.taskgraph(), fabric, cluster)


class Drifting(Picky):
    """Asks more every time."""

    def price(self, op, degrees, devices):
        price = super().price(op, degrees, devices)
        return attrs.evolve(price, forward=price.forward + 1e-6 * next(clock))


class Mute(Picky):
    """Refuses a cut without a name."""

    def price(self, op, degrees, devices):
        if not self.supports(op, degrees):
            raise TopoplanError("no")
        return super().price(op, degrees, devices)


class Forgetful(Picky):
    """Has a price of micro-batches that it says not to support."""

    def supports_micro_batch(self, op, degrees, batch):
        return False


class Useless(Picky):
    def supports(self, op, degrees):
        return False


def graph_fed_twice(options, batch_size):
    graph = build_graph(options, batch_size)
    return attrs.evolve(graph, edges=[(0, 0, 1, 0), (0, 0, 1, 0)])


def graph_of_endless_work(options, batch_size):
    graph = build_graph(options, batch_size)
    work = (reference.Term(float("inf"), (0,)),)
    return attrs.evolve(graph, operators=tuple(attrs.evolve(op, work=work) for op in graph.operators))


def varying_machine(options):
    device = Device(name="abacus", peak_flops={"fp32": 1e12 + next(clock)}, **FIGURES)
    return HostModel(device=device)


def varying_ring(options, context):
    return attrs.evolve(build_ring(options, context), name=f"ring{next(clock)}")


def ring_with_a_route_astray(options, context):
    ring = build_ring(options, context)
    astray = int(np.flatnonzero(ring.link_src != 0)[0])
    routes = Routes(pairs=[[0, 1]], pair_ptr=[0, 1], path_ptr=[0, 1], links=[astray], weight=[1.0])
    return attrs.evolve(ring, routes=routes)


def read_lost_tasks(self, data, name):
    if not data.startswith(b"dense1"):
        raise TopoplanError(f"{name}: no names")
    return reference.plan(names=("dense1",))


def read_another_strategy(self, data, name, graph):
    return attrs.evolve(reference.plan().strategy, placements=(PLACED, PLACED))


PLACED = Placement((1, 1, 1), [0])

CHEATS = [
    ("frontend", {"build": lambda o, b: None}, "check_builds_a_graph"),
    ("frontend", {"build": graph_fed_twice}, "check_each_input_has_one_producer"),
    ("frontend", {"build": graph_of_endless_work}, "check_work_is_finite"),
    ("machine", {"build": varying_machine}, "check_same_machine_twice"),
    ("topology", {"build": varying_ring}, "check_same_seed_same_fabric"),
    ("topology", {"build": ring_with_a_route_astray}, "check_routes_lead_from_source_to_destination"),
    ("estimator", {"build": lambda o, g, c: Drifting()}, "check_same_prices_twice"),
    ("estimator", {"build": lambda o, g, c: Mute()}, "check_supported_cuts_are_priced_and_others_refused"),
    ("estimator", {"build": lambda o, g, c: Forgetful()}, "check_micro_batches_have_prices"),
    ("estimator", {"build": lambda o, g, c: Useless()}, "check_there_is_something_it_prices"),
    ("simulator", {"build": lambda self: Endless()}, "check_a_cycle_is_an_error"),
    ("simulator", {"build": lambda self: Changed(start=np.zeros_like)}, "check_dependencies_are_kept"),
    ("simulator", {"build": lambda self: Changed(start=np.negative)}, "check_every_task_is_timed"),
    ("simulator", {"build": lambda self: Changed(makespan=lambda s: s + next(clock))}, "check_same_timeline_twice"),
    (
        "simulator",
        {"build": lambda self: Changed(device_busy=lambda busy: 1e6 * busy)},
        "check_devices_and_links_are_busy_for_what_they_do",
    ),
    ("simulator", {"memory_policy": "perhaps"}, "check_memory_policy_is_known"),
    ("searcher", {"build": lambda o, p, r: Quartering(p, r)}, "check_shortened_batches_are_survived"),
    ("exporter", {"write": lambda self, plan: None}, "check_writes_bytes"),
    ("exporter", {"read": read_lost_tasks}, "check_task_graph_survives"),
    ("exporter", {"read_strategy": read_another_strategy}, "check_strategy_survives"),
    ("frontend", {"build": varying_graph}, "check_same_graph_twice"),
    ("frontend", {"build": fixed_batch}, "check_batch_size_is_kept"),
    ("frontend", {"build": weights_grow_with_batch}, "check_parameters_do_not_depend_on_batch_size"),
    ("frontend", {"build": weights_grow_with_batch}, "check_work_is_linear_in_batch_size"),
    ("frontend", SILENT, "check_every_option_has_help"),
    ("frontend", LOOSE, "check_options_are_frozen"),
    ("frontend", SPLIT, "check_default_options_can_be_written"),
    ("frontend", {"example": {"colour": "red"}}, "check_example_is_accepted"),
    ("frontend", {"__doc__": "two\nlines"}, "check_summary_is_one_line"),
    ("machine", {"build": build_machine_of_another_name}, "check_device_is_called_as_its_machine"),
    ("machine", {"build": build_machine_that_does_nothing}, "check_figures_can_be_true"),
    ("machine", {"build": build_machine_of_lone_devices}, "check_nodes_are_joined"),
    ("machine", {"build": build_machine_without_sources}, "check_hosts_have_sources"),
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
    ("estimator", {"build": costs_of_divided_weights}, "check_replicas_keep_all_weights"),
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
    ("searcher", {"build": lambda o, p, r: Rewiring(p, r)}, "check_a_fixed_network_stays"),
    ("searcher", {"build": lambda o, p, r: Global(p, r)}, "check_global_randomness_is_untouched"),
    ("searcher", {"build": lambda o, p, r: Global(p, r)}, "check_same_seed_same_search"),
    ("searcher", {"build": lambda o, p, r: Proud(p, r)}, "check_infinite_costs_are_survived"),
]
