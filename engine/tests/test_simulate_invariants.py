"""The numbered invariants of the simulators' kernels (docs/simulation.md) hold after every event."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Fabric
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.messages import Transport
from topoplan_samples.random_graphs import networks, taskgraphs
from topoplan_samples.tasks import task_graph, transfer
from topoplan_simulator_flexnet.kernel import advance, initial_state
from topoplan_simulator_flexnet.model import Model
from topoplan_simulator_fluid import kernel as fluid
from topoplan_simulator_fluid import recording
from topoplan_simulator_fluid.bursts import BURST
from topoplan_simulator_fluid.model import Model as Fluid
from topoplan_simulator_fluid.remaining import deadline, is_too_late, no_deadline


@numba.njit
def until(prepared, seed, time_to_end, stop):
    return deadline(prepared, seed, time_to_end, stop)


SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def queued(state):
    return state.queue.ids[: state.queue.length[0]]


def check_queue(state, ended):
    """Invariant 1, and the order of a heap."""
    length = state.queue.length[0]
    ids, times = queued(state), state.queue.times[:length]
    waiting = [n for n in range(state.made[0]) if state.waits[n] == 0 and n not in ended]
    assert sorted(ids) == waiting
    assert times.tolist() == state.ready[ids].tolist()
    child = np.arange(1, length)
    assert (times[(child - 1) // 2] <= times[child]).all()


def check_waits(prepared, state, ended):
    """Invariant 2."""
    tasks, n_tasks = prepared.tasks, len(prepared.tasks.kind)
    waits = np.zeros(state.made[0], int)
    for t in range(n_tasks):
        if state.finish[t] < 0:
            np.add.at(waits, tasks.succ[tasks.succ_ptr[t] : tasks.succ_ptr[t + 1]], 1)
    for n in range(n_tasks, state.made[0]):
        if state.owner[n] >= n_tasks and n not in ended:
            waits[state.owner[n]] += 1
    assert waits.tolist() == state.waits[: state.made[0]].tolist()


def check_bytes(prepared, state):
    """Invariant 4."""
    sent = np.zeros(len(state.link_bytes))
    n_tasks = len(prepared.tasks.kind)
    for n in range(state.made[0]):
        links = prepared.paths.links[state.path_first[n] : state.path_last[n]]
        size = prepared.tasks.size[n] if n < n_tasks else volume(prepared, state, n)
        np.add.at(sent, links, size - state.bytes_left[n] if len(links) else 0)
    np.testing.assert_allclose(state.link_bytes, sent, rtol=1e-12)


def volume(prepared, state, flow):
    """Bytes of the flow of a ring, from what FlexNet says of it."""
    task = state.owner[state.owner[flow]]
    group = prepared.traffic.ring[task]
    members, rings = int(prepared.rings.ranks[group]), int(prepared.rings.parallel[group])
    whole = 2 * (members - 1) * int(prepared.tasks.size[task])
    return whole // members if rings == 1 else int(np.ceil(whole / members / rings))


def check_order(prepared, state):
    """Invariants 5 and 6."""
    tasks, n_tasks = prepared.tasks, len(prepared.tasks.kind)
    for t in np.flatnonzero(state.finish >= 0):
        assert 0 <= state.began[t] <= state.finish[t]
        for successor in tasks.succ[tasks.succ_ptr[t] : tasks.succ_ptr[t + 1]]:
            assert state.began[successor] < 0 or state.began[successor] >= state.finish[t]
    owner = state.owner[n_tasks : state.made[0]]
    collector = n_tasks + np.flatnonzero(owner < n_tasks)
    assert (owner[owner >= n_tasks] == np.repeat(collector, np.diff([*collector, state.made[0]]) - 1)).all()


@SETTINGS
@given(st.data(), st.sampled_from([50_000, 1 << 20]), st.sampled_from([None, 0, 7]))
def test_invariants_of_flexnet_hold_after_every_event(data, segment, seed):
    network = data.draw(networks())
    taskgraph = data.draw(taskgraphs(network.cluster.n_devices))
    model = Model(segment, seed)
    prepared = model.prepare(taskgraph, network)
    state = initial_state(prepared)
    ended: set[int] = set()
    now, free, events = 0.0, (0.0, 0.0), 0
    check_queue(state, ended)
    while state.queue.length[0]:
        number, time = int(state.queue.ids[0]), float(state.queue.times[0])
        events += advance(prepared, state, np.zeros(0), np.inf, 1)
        if number not in queued(state) and (number < len(state.finish) or state.bytes_left[number] == 0):
            ended.add(number)
        ended.update(np.flatnonzero(state.finish >= 0).tolist())
        # An all-reduce under way waits for nothing and is in no queue: its collector stands for it.
        ended.update(int(owner) for owner in state.owner[: state.made[0]] if 0 <= owner < len(state.finish))
        assert time >= now  # invariant 3
        assert state.link_free.sum() >= free[0]
        assert state.device_free.sum() >= free[1]
        now, free = time, (state.link_free.sum(), state.device_free.sum())
        check_queue(state, ended)
        check_waits(prepared, state, ended)
        check_order(prepared, state)
        if events % 8 == 0:
            check_bytes(prepared, state)
    check_bytes(prepared, state)
    outcome = model.simulate(prepared)
    assert (outcome.makespan, outcome.events) == (state.makespan[0] / 1e3, events)


def stepper(prepared, state, seed):
    """Return a function that runs one instant and returns its number of events: with the kernel that records rates.

    That one is compiled, and runs instant by instant; a kernel of this test's own would take as long to compile as
    many tests run.
    """
    pace = recording._pace(prepared)
    rows, never = recording._room(len(pace.link)), no_deadline()

    def one_instant():
        rows.used[0] = 0
        return recording._record(prepared, state, seed, never, pace, rows, 1)

    return one_instant


def check_tasks(prepared, state):
    """Invariants 1, 2 and 4 of the fluid kernel."""
    tasks = prepared.tasks
    assert state.n_ready[0] == 0
    waits = np.zeros(len(tasks.kind), int)
    for t in np.flatnonzero(state.finish < 0):
        np.add.at(waits, tasks.succ[tasks.succ_ptr[t] : tasks.succ_ptr[t + 1]], 1)
    assert waits.tolist() == state.waits.tolist()
    assert (state.running[state.queue_head >= 0] >= 0).all()
    running = state.running[state.running >= 0]
    assert (state.start[running] >= 0).all()
    assert (state.finish[running] < 0).all()


def check_rings(prepared, state):
    """Invariants 5 and 6 of the fluid kernel."""
    flowing = state.sharing.flows["bottleneck"] >= 0
    assert (state.bytes_left[flowing] == 0).all()
    leaders = np.flatnonzero(prepared.entities.ring_size > 0)
    to_go = leaders[state.rounds_left[leaders] > 0]
    assert (state.flows_left[to_go] > 0).all()
    task = prepared.entities.task[to_go]
    assert np.bincount(task, minlength=len(state.open_rings)).tolist() == state.open_rings.tolist()


def check_rows(sharing, wire):
    """Invariants 7 to 12 of the fluid kernel; on the wire, 9 and 10 are those of `check_max_min`."""
    links, flows, slots = sharing.links, sharing.flows, sharing.slots
    assert sharing.counts[1:3].tolist() == [0, 0]
    assert wire or sharing.counts[0] == 0
    assert wire or not links["work_marks"].any()
    for number, link in enumerate(links):
        row = range(link["row"], link["row"] + link["length"])
        here = row[: link["bottlenecked_here"]]
        for place in row:
            slot, flow = sharing.incidence[place]["slot"], sharing.incidence[place]["flow"]
            assert slots[slot]["position"] == place
            assert (flows[flow]["bottleneck"] == number) == (place in here)
            assert sharing.flow_bottleneck[place] == flows[flow]["bottleneck"]
            assert wire or sharing.share[flows[flow]["bottleneck"]] <= sharing.share[number]
        finish = flows["virtual_finish"][sharing.incidence["flow"][here]]
        assert sharing.virtual_finish[here].tolist() == finish.tolist()
        assert slots["load"][sharing.incidence["slot"][row]].sum() == link["load"]
        share = link["capacity"] * LOAD / link["load"] if link["load"] else np.inf
        assert wire or sharing.share[number] == share
        if here:
            assert wire or sharing.limit[number] == max(share, link["reuse_threshold"])
            assert link["soonest_outdated"] or link["soonest"] == finish.min()


def check_max_min(state, exact):
    """Invariants 14 and 15: no link carries more than it can; a flow's bottleneck is full, and nobody faster there."""
    sharing = state.sharing
    flows, slots = sharing.flows, sharing.slots
    flowing = np.flatnonzero(flows["bottleneck"] >= 0)
    rate = {int(flow): float(sharing.share[flows[flow]["bottleneck"]]) for flow in flowing}
    used, fastest = np.zeros(len(sharing.links)), np.zeros(len(sharing.links))
    for flow in flowing:
        for slot in slots[flows[flow]["slot"] : flows[flow]["slot"] + flows[flow]["used"]]:
            used[slot["link"]] += rate[flow] * slot["load"] / LOAD
            fastest[slot["link"]] = max(fastest[slot["link"]], rate[flow])
    capacity = sharing.links["capacity"]
    assert (used <= capacity * (1 + 1e-9)).all()
    if exact:  # rates are those of the flows that are there
        for flow in flowing:
            link = flows[flow]["bottleneck"]
            assert used[link] >= capacity[link] * (1 - 1e-6)
            assert rate[flow] >= fastest[link] * (1 - 1e-6)


def check_bursts(prepared, state):
    """Invariant 13 of the fluid kernel."""
    bursts, entities, now = state.bursts, prepared.entities, state.now[0]
    sent = bursts.link >= 0
    assert (bursts.answered[sent] <= bursts.queued[sent]).all()
    assert (bursts.latest[sent] < bursts.queued[sent]).all()
    first = len(prepared.tasks.kind)
    begins = dict(zip(state.timed.ids.tolist(), state.timed.times.tolist()[: state.timed.counts[0]], strict=False))
    for e in np.flatnonzero(state.bytes_left > 0):  # on its way to its first link
        row, flow = entities.path_set[e], state.sharing.flows[e]
        if row >= 0 and sent[row] and first + e in begins:
            same = entities.volume[e] <= BURST and state.sharing.slots[flow["slot"]]["link"] == bursts.link[row]
            assert now == np.inf or not same or begins[first + e] <= bursts.latest[row]


@SETTINGS
@given(st.data(), st.booleans(), st.integers(0, 3), st.sampled_from(Transport))
def test_invariants_of_fluid_hold_after_every_instant(data, stepped, seed, transport):
    network = data.draw(networks())
    taskgraph = data.draw(taskgraphs(network.cluster.n_devices))
    model = Fluid(stepped, seed, transport)
    prepared = model.prepare(taskgraph, network)
    state = fluid.initial_state(prepared)
    one_instant, events = stepper(prepared, state, seed), 0
    while state.now[0] < np.inf:
        now = float(state.now[0])
        events += one_instant()
        assert state.now[0] >= now
        check_tasks(prepared, state)
        check_rings(prepared, state)
        check_rows(state.sharing, transport == Transport.WIRE)
        if transport == Transport.WIRE:
            check_max_min(state, state.filling.counts[2] == 0)  # no flow has ended since rates were renewed
        else:
            check_bursts(prepared, state)
    outcome = model.simulate(prepared)
    assert (outcome.makespan, outcome.events) == (state.makespan[0], events)


@numba.njit(cache=True)
def too_late(prepared, state, limit):
    return is_too_late(prepared, state.sharing, state.link_bytes, limit, state.now[0])


def seconds_left(prepared, state, limit):
    """(E,) seconds for which links have yet to carry something, flow by flow."""
    sharing, now = state.sharing, state.now[0]
    left = limit.total - state.link_bytes
    for number in np.flatnonzero(sharing.flows["bottleneck"] >= 0):
        flow = sharing.flows[number]
        bottleneck = sharing.links[flow["bottleneck"]]
        served = bottleneck["served"] + sharing.share[flow["bottleneck"]] * (now - bottleneck["since"])
        for slot in sharing.slots[flow["slot"] : flow["slot"] + flow["used"]]:
            if slot["link"] < len(left):  # not a cap
                left[slot["link"]] += max(flow["virtual_finish"] - served, 0.0) * (slot["load"] / LOAD)
    return left / prepared.paths.bandwidth


@pytest.mark.slow
@SETTINGS
@given(st.data(), st.booleans(), st.integers(0, 3), st.sampled_from([0.5, 0.9, 0.999]), st.sampled_from(Transport))
def test_what_links_have_yet_to_carry_bounds_the_end_of_fluid_at_every_instant(data, stepped, seed, share, transport):
    network = data.draw(networks())
    taskgraph = data.draw(taskgraphs(network.cluster.n_devices))
    model = Fluid(stepped, seed, transport)
    prepared = model.prepare(taskgraph, network)
    makespan = model.simulate(prepared).makespan
    state = fluid.initial_state(prepared)
    never, early = (until(prepared, seed, np.zeros(0), makespan * (1 + part)) for part in (1e-9, share - 1))
    one_instant, proven = stepper(prepared, state, seed), False
    while state.now[0] < np.inf:
        bound = state.now[0] + max(0.0, *seconds_left(prepared, state, never))
        assert bound <= makespan * (1 + 1e-9) + 1e-12
        assert not too_late(prepared, state, never)
        if not proven:
            proven = too_late(prepared, state, early)
            assert not proven or bound >= early.late * (1 - 1e-12)
            assert proven or bound < early.late or state.now[0] < early.next_look[0]
        one_instant()
    assert (never.total <= state.link_bytes * (1 + 1e-9)).all()


@pytest.mark.slow
def test_bytes_of_links_are_known_before_where_the_messages_of_a_pair_are_alike():
    links = [(0, 2), (2, 1), (0, 3), (3, 1)]  # two paths between two hosts
    fabric = Fabric.from_links(
        name="two", n_hosts=2, n_switches=2, links=links, bandwidth=1e9, latency=0.0, max_paths=2
    )
    network = Network(fabric, Cluster.uniform(n_hosts=2))
    model = Fluid(seed=3)
    for sizes in ([300_000] * 9, [300_000, 8936]):
        prepared = model.prepare(task_graph([transfer(0, 1, size) for size in sizes], n_devices=2), network)
        total, carried = until(prepared, 3, np.zeros(0), 1.0).total, model.simulate(prepared).link_bytes
        assert (carried[:4] > 0).all() or len(sizes) == 2
        assert (total == carried).all() == (len(sizes) == 9)
        assert (total <= carried).all()
