"""Very late clocks, very long messages and Ctrl-C: kernels end, refuse, or let themselves be interrupted."""

from __future__ import annotations

import contextlib
import signal

import numpy as np
import pytest

from topoplan import Cluster, Collective, TopoplanError
from topoplan.search.stopping import must_end
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.messages import collective_rounds
from topoplan_reference.fluid import fluid_reference
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import compute, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_flexnet import model as flexnet
from topoplan_simulator_flexnet.bounds import flow_bytes
from topoplan_simulator_fluid import Fluid
from topoplan_simulator_fluid import model as fluid
from topoplan_simulator_fluid.prepared import InPackets

HOSTS = 3
CLUSTER = Cluster.uniform(n_hosts=HOSTS)


def chain(rows):
    """Tasks one after the other: seconds of compute on device 0, or (source, destination, bytes)."""
    tasks = [transfer(*row) if isinstance(row, tuple) else compute(0, row) for row in rows]
    return task_graph(tasks, [(task, task + 1) for task in range(len(tasks) - 1)], n_devices=HOSTS)


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_fluid_ends_where_the_clock_is_so_late_that_it_hardly_moves(level):
    """After 1e8 s a double counts in steps of 15 ns, in which 100 Gbit/s are 186 bytes."""
    taskgraph = chain([1e6] * 100 + [(0, 1, 8936 * packets) for packets in range(1, 60)])
    model = Fluid(level=level).build()._model
    network = Network(star(HOSTS, 1.25e10), CLUSTER)
    outcome = model.simulate(model.prepare(taskgraph, network))
    assert outcome.makespan == pytest.approx(1e8, rel=1e-6)
    slow = fluid_reference(taskgraph, network, model)
    np.testing.assert_array_equal(outcome.finish, slow.finish)


def test_flexnet_refuses_more_segments_than_it_can_simulate():
    simulate = Flexnet().build()
    with pytest.raises(TopoplanError, match=r"is 1048576, .*: 1.07e\+09 segments.*segment-bytes=8388608 or more"):
        simulate(chain([(0, 1, 2**50)]), star(HOSTS, 1.25e10), CLUSTER)
    larger = Flexnet(segment_bytes=1 << 40).build()
    assert larger(chain([(0, 1, 2**50)]), star(HOSTS, 1.25e10), CLUSTER).makespan > 2**50 / 1.25e10


@pytest.mark.parametrize(("segment", "larger"), [(1, 128), (9, 128), (64, 128)])
def test_small_segments_are_refused_before_they_take_seconds(segment, larger):
    messages = chain([(0, 1, 10**9)])
    with pytest.raises(TopoplanError, match=rf"^simulator flexnet: segment-bytes is {segment}, .*={larger} or more"):
        Flexnet(segment_bytes=segment).build()(messages, star(HOSTS, 1.25e10), CLUSTER)
    assert Flexnet(segment_bytes=larger).build()(messages, star(HOSTS, 1.25e10), CLUSTER).makespan > 0


@pytest.mark.parametrize(("bandwidth", "is_short"), [(1e9, True), (1e3, True), (1.0, False)])
def test_packets_on_slow_links_are_not_simulated_while_timers_are_looked_at_for_hours(bandwidth, is_short):
    """Ten packets: 90 s at 1 kB/s, and 90,000 looks at timers; a day at 1 B/s, and 90 million."""
    model, network = Fluid(transport="flexnetpacket").build()._model, Network(star(HOSTS, bandwidth), CLUSTER)
    prepared = model.prepare(chain([(0, 1, 10 * 8936)]), network)
    assert isinstance(prepared, InPackets) is is_short
    assert model.simulate(prepared).makespan >= 10 * 8936 / bandwidth


@pytest.mark.parametrize(("kind", "turns"), [(Collective.ALL_GATHER, 1), (Collective.ALL_REDUCE, 2)])
@pytest.mark.parametrize("size", [2**61, 2**62, 2**63 - 1, 2**40 + 7, 54_000, 54_001, 36_000, 35_999])
@pytest.mark.parametrize("members", [2, 3, 4, 100])
def test_schedules_of_huge_collectives_are_those_of_exact_integers(size, members, kind, turns):
    whole = size * 2 // turns
    rounds, share = turns * (members - 1), whole // members
    if whole < 9000 * members:
        rounds, share = 1, whole * turns * (members - 1) // members // members
    elif whole * members <= 18000 * members * (members - 1):
        rounds = 1
    assert collective_rounds(size, members, kind) == (rounds, float(share))


@pytest.mark.parametrize("members", [2, 3, 4, 7])
def test_flows_of_huge_allreduces_are_those_of_exact_integers(members):
    for size in (2**61, 2**60 + 5, 1, 12_345):
        exact = 2 * (members - 1) * size // members
        assert flow_bytes(size, members, 1) == exact if exact < 2**63 else True


@pytest.mark.parametrize(
    ("model", "rows"),
    [(fluid.Model(), [(0, 1, 1), (1, 2, 1)] * 100_000), (flexnet.Model(segment_bytes=1), [(0, 1, 10_000_000)])],
    ids=["fluid", "flexnet"],
)
def test_a_signal_ends_a_kernel(model, rows):
    """Five milliseconds after a run begins that takes ten times as long; where the system is late, it runs again."""
    network = Network(star(HOSTS, 1.25e10), CLUSTER)
    model.simulate(model.prepare(chain(rows[:1]), network))  # loads the kernel
    prepared = model.prepare(chain(rows), network)

    def stop(number, frame):
        raise KeyboardInterrupt

    def simulate_again_and_again():
        for _ in range(20):
            signal.setitimer(signal.ITIMER_PROF, 0.005)
            with contextlib.suppress(SystemError):  # the kernel was returning: `topoplan_engine.interrupt`
                model.simulate(prepared)

    before = signal.signal(signal.SIGPROF, stop)
    try:
        with pytest.raises(KeyboardInterrupt) as interrupt:
            simulate_again_and_again()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    # A kernel returns where the handler raises; what called it raises again.
    assert interrupt.traceback[-1].name != "stop"


def test_a_signal_while_a_kernel_asks_whether_to_end_is_not_lost():
    """The handler of Ctrl-C raises inside of what the kernel calls."""
    network = Network(star(HOSTS, 1.25e10), CLUSTER)
    prepared = fluid.Model().prepare(chain([(0, 1, 1), (1, 2, 1)] * 100_000), network)
    asked = []

    def ends():
        asked.append(None)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return False

    token = must_end.set(ends)
    try:
        with pytest.raises(KeyboardInterrupt):
            fluid.Model().simulate(prepared)
    finally:
        must_end.reset(token)
