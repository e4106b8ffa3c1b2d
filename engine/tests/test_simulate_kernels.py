"""Both kernels equal their plain-Python references on random task graphs and fabrics, and respect their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from topoplan import Cluster
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation import flows
from topoplan_engine.simulation.bounds import bounds
from topoplan_engine.simulation.columns import device_busy
from topoplan_engine.simulation.critical_path import critical_path_bound
from topoplan_engine.simulation.messages import Transport
from topoplan_reference.critical_path import reference_critical_path_bound
from topoplan_reference.flexnet import flexnet_reference
from topoplan_reference.fluid import fluid_reference
from topoplan_reference.packets import packets_reference
from topoplan_samples.fabrics import star
from topoplan_samples.random_graphs import networks, slowed_taskgraphs, taskgraphs
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_flexnet import model as flexnet
from topoplan_simulator_fluid import model as fluid
from topoplan_simulator_fluid.prepared import InPackets

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check(model, reference, network, taskgraph):
    taskgraph.check()
    prepared = model.prepare(taskgraph, network)
    fast, slow = model.simulate(prepared), reference(taskgraph, network, model)
    np.testing.assert_array_equal(fast.start, slow.start)
    np.testing.assert_array_equal(fast.finish, slow.finish)
    np.testing.assert_allclose(fast.link_bytes, slow.link_bytes, rtol=1e-12)
    assert fast.makespan == slow.makespan
    assert fast.events == slow.events
    assert (fast.finish >= fast.start).all()
    busy = device_busy(taskgraph, model.run_times(prepared), network.cluster.n_devices)
    lower = bounds(prepared.tasks, model.processing_times(prepared), busy, fast.link_bytes / network.paths.bandwidth)
    assert lower.best <= fast.makespan * (1 + 1e-9) + 1e-12


@SETTINGS
@given(st.data(), st.sampled_from([50_000, 1 << 20]), st.sampled_from([None, 0, 7]))
def test_flexnet_equals_its_reference(data, segment, seed):
    network = data.draw(networks())
    taskgraph = data.draw(taskgraphs(network.cluster.n_devices))
    check(flexnet.Model(segment, seed), flexnet_reference, network, taskgraph)


@SETTINGS
@given(st.data(), st.booleans(), st.integers(0, 3), st.sampled_from(Transport))
def test_fluid_equals_its_reference(data, stepped, seed, transport):
    network = data.draw(networks())
    taskgraph = data.draw(taskgraphs(network.cluster.n_devices))
    check(fluid.Model(stepped, seed, transport), fluid_reference, network, taskgraph)


@SETTINGS
@given(st.data(), st.booleans(), st.integers(0, 3))
def test_fluid_with_slowed_devices_equals_its_reference(data, stepped, seed):
    network = data.draw(networks())
    taskgraph = data.draw(slowed_taskgraphs(network.cluster.n_devices))
    check(fluid.Model(stepped, seed), fluid_reference, network, taskgraph)


def check_early_stop(model, network, taskgraph, share):
    """A run below a cutoff gives the full answer, and never gives up on one that stays below it."""
    prepared = model.prepare(taskgraph, network)
    whole = model.simulate(prepared)
    slower = model.simulate_below(prepared, whole.makespan * (1 + 1e-6) + 1e-12)
    assert slower is not None
    np.testing.assert_array_equal(slower.finish, whole.finish)
    assert slower.makespan == whole.makespan
    sooner = model.simulate_below(prepared, whole.makespan * share)
    assert sooner is None or sooner.makespan == whole.makespan


@SETTINGS
@given(st.data(), st.booleans(), st.sampled_from(Transport))
def test_bounds_of_the_critical_path_equal_their_reference(data, stepped, transport):
    network = data.draw(networks())
    model = fluid.Model(stepped, transport=transport)
    prepared = model.prepare(data.draw(taskgraphs(network.cluster.n_devices)), network)
    times = model.processing_times(prepared)
    uses = flows.link_uses(prepared.entities, prepared.paths, prepared.rings)
    bound, time_to_end = critical_path_bound(prepared.tasks, times, uses, network.n_links, prepared.n_devices)
    slow_bound, slow_time_to_end = reference_critical_path_bound(prepared.tasks, times, uses)
    np.testing.assert_array_equal(time_to_end, slow_time_to_end)
    assert bound == slow_bound


@pytest.mark.slow
@SETTINGS
@given(st.data(), st.sampled_from([50_000, 1 << 20]), st.sampled_from([None, 7]), st.sampled_from([0.3, 0.9, 0.999]))
def test_flexnet_stops_early_only_when_it_may(data, segment, seed, share):
    network = data.draw(networks())
    taskgraph = data.draw(taskgraphs(network.cluster.n_devices))
    check_early_stop(flexnet.Model(segment, seed), network, taskgraph, share)


@pytest.mark.slow
@SETTINGS
@given(st.data(), st.booleans(), st.integers(0, 3), st.sampled_from([0.3, 0.9, 0.999]), st.sampled_from(Transport))
def test_fluid_stops_early_only_when_it_may(data, stepped, seed, share, transport):
    network = data.draw(networks())
    taskgraph = data.draw(taskgraphs(network.cluster.n_devices))
    check_early_stop(fluid.Model(stepped, seed, transport), network, taskgraph, share)


@SETTINGS
@given(st.data(), st.booleans(), st.integers(0, 3), st.sampled_from([0.3, 0.9, 0.999]))
def test_fluid_with_slowed_devices_stops_early_only_when_it_may(data, stepped, seed, share):
    network = data.draw(networks())
    taskgraph = data.draw(slowed_taskgraphs(network.cluster.n_devices))
    check_early_stop(fluid.Model(stepped, seed), network, taskgraph, share)


def test_equal_flows_share_and_order_of_pairs_does_not_matter():
    """Two equal flows into one host take twice as long as one, in both models."""
    network = Network(star(3, latency=0.0), Cluster.uniform(n_hosts=3))
    size = 8936 * 10_000

    def makespan(model, pairs):
        taskgraph = task_graph([transfer(a, b, size) for a, b in pairs], n_devices=3)
        return model.simulate(model.prepare(taskgraph, network)).makespan

    for model in (flexnet.Model(), fluid.Model()):
        one, two = makespan(model, [(0, 2)]), makespan(model, [(0, 2), (1, 2)])
        assert one == pytest.approx(size / 1e9, rel=0.02)
        assert two == pytest.approx(2 * size / 1e9, rel=0.02)
        assert makespan(model, [(0, 2), (1, 0)]) == pytest.approx(one, rel=1e-6)
        assert makespan(model, [(1, 2), (0, 2)]) == two


@settings(SETTINGS, max_examples=30)
@given(st.data(), st.booleans(), st.integers(0, 3), st.sampled_from([0.3, 0.9, 0.999]))
def test_packets_equal_their_reference(data, stepped, seed, share):
    network = data.draw(networks())
    taskgraph = data.draw(taskgraphs(network.cluster.n_devices))
    model = fluid.Model(stepped, seed, Transport.FLEXNETPACKET, most_packets=5_000)
    assume(isinstance(model.prepare(taskgraph, network), InPackets))
    check(model, packets_reference, network, taskgraph)
    check_early_stop(model, network, taskgraph, share)


@pytest.mark.slow
def test_packets_that_wait_too_long_are_sent_again_as_in_their_reference():
    """Fifteen bursts reach one host at a Gbit/s: the last first packets wait 100 ms, and are taken for lost."""
    network = Network(star(6, bandwidth=1.25e8), Cluster.uniform(n_hosts=6))
    rows = [transfer(h, 5, 90 * 8936) for h in range(5) for _ in range(6)]
    rows += [transfer(h, (h + 1) % 6, 300 * 8936) for h in range(6)] + [collective(range(6), 6 * 20 * 8936)]
    taskgraph = task_graph(rows, n_devices=6)
    model = fluid.Model(True, 0, Transport.FLEXNETPACKET, most_packets=1 << 20)
    check(model, packets_reference, network, taskgraph)
    sent = model.simulate(model.prepare(taskgraph, network)).link_bytes.sum()
    assert sent > 2 * 8936 * (30 * 90 + 6 * 300 + 6 * 10 * 20)  # some of it twice
