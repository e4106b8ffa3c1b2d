"""The numbered invariants of the simulators' kernels (docs/simulation.md) hold after every event."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import networks, taskgraphs

from topoplan_simulator_flexnet.kernel import advance, initial_state
from topoplan_simulator_flexnet.model import Model

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
    members, rings = int(prepared.rings.members[group]), int(prepared.rings.parallel[group])
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
