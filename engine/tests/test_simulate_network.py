"""Networks keep what is asked, links that nothing tells apart are one, and that changes no result."""

from __future__ import annotations

import tracemalloc
from itertools import starmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster
from topoplan.arrays import f64, i32, i64
from topoplan_engine.network.link_classes import LinkClasses
from topoplan_engine.network.pairs import PairTable
from topoplan_engine.network.ring_loads import LOAD, ring_loads
from topoplan_engine.network.tables import Network
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_fluid import model as fluid


def graph(devices, transfers=(), groups=()):
    """Transfers (src, dst, bytes) and all-reduces (members, bytes), all at once."""
    return task_graph([*starmap(transfer, transfers), *starmap(collective, groups)], n_devices=devices)


@given(st.lists(st.lists(st.integers(0, 2**40), unique=True, max_size=40), max_size=6))
@settings(max_examples=50, deadline=None)
def test_a_pair_table_is_a_dictionary(batches):
    table, known = PairTable(), {}
    for number, batch in enumerate(batches):
        fresh = [key for key in batch if key not in known]
        known.update({key: 1 + number + i for i, key in enumerate(fresh)})
        table.put(np.array(fresh, dtype=np.int64), np.array([known[key] for key in fresh], dtype=np.int32))
        asked = [*known, 2**41, 7]
        assert table.get(np.array(asked, dtype=np.int64)).tolist() == [known.get(key, 0) for key in asked]


def test_memory_is_proportional_to_the_pairs_that_are_asked():
    hosts = 20_000
    fabric, cluster = star(hosts), Cluster.uniform(n_hosts=hosts)
    Network(star(4), Cluster.uniform(n_hosts=4)).lower(graph(4, [(0, 1, 1)]))  # loads kernels
    tracemalloc.start()
    network = Network(fabric, cluster)
    network.lower(graph(hosts, [(0, 1, 1), (5, 19_999, 1)], [(range(0, hosts, 100), 10**6)]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1000 * hosts  # a square of hosts by hosts has 20,000 entries for each
    assert len(network.paths.row_ptr) - 1 == hosts + 2 + 200


def test_a_group_met_again_costs_nothing():
    network = Network(star(64), Cluster.uniform(n_hosts=64))
    first = network.lower(graph(64, (), [(range(64), 10**6)] * 5))
    assert set(first.ring.tolist()) == {0}
    rings = network.rings
    assert set(network.lower(graph(64, (), [(range(64), 1)] * 9)).ring.tolist()) == {0}
    assert network.rings is rings


def test_links_under_the_same_rings_are_listed_once():
    network = Network(star(8), Cluster.uniform(n_hosts=8))
    network.lower(graph(8, (), [(range(8), 1)]))
    assert len(network.rings.load_links) == 1
    assert len(network.rings_in_full.load_links) == 16
    network.lower(graph(8, (), [(range(4), 1)]))
    assert len(network.rings.load_links) == 2 + 1  # in the second ring, or not
    network.lower(graph(8, [(6, 7, 1)]))
    assert len(network.rings.load_links) == 4 + 1  # the transfer's two links stand alone
    assert network.rings.representative[network.rings.representative].tolist() == network.rings.representative.tolist()


def test_links_of_other_bandwidth_are_no_twins():
    network = Network(star(4, bandwidth=[1e9, 2e9, 1e9, 1e9] * 2), Cluster.uniform(n_hosts=4))
    network.lower(graph(4, (), [(range(4), 1)]))
    assert len(network.rings.load_links) == 2


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_twins_change_no_time_and_no_byte(data):
    hosts = data.draw(st.integers(2, 8))
    device = st.integers(0, hosts - 1)
    speeds = data.draw(st.sampled_from([[1e9], [1e9, 4e9]]))
    fabric = star(hosts, bandwidth=[speeds[h % len(speeds)] for h in range(hosts)] * 2)
    cluster = Cluster.uniform(n_hosts=hosts)
    sizes = st.sampled_from([1, 40_000, 5_000_000])
    apart = Network(fabric, cluster)
    apart._link_classes.isolate(np.arange(apart.n_links))
    together = Network(fabric, cluster)
    for _ in range(3):
        transfers = data.draw(st.lists(st.tuples(device, device, sizes), max_size=3))
        members = st.sampled_from([range(hosts), range(0, hosts, 2)]) | st.lists(device, min_size=1, unique=True)
        groups = data.draw(st.lists(st.tuples(members, sizes), max_size=4))
        if not transfers and not groups:
            continue
        tasks = graph(hosts, transfers, groups)
        model = fluid.Model()
        one, other = (model.simulate(model.prepare(tasks, network)) for network in (apart, together))
        assert one.finish.tobytes() == other.finish.tobytes()
        assert one.link_bytes.tobytes() == other.link_bytes.tobytes()
        assert (one.makespan, one.events) == (other.makespan, other.events)


def test_equal_links_are_split_and_never_joined():
    equal_links = LinkClasses(np.array([1.0, 1.0, 1.0, 2.0]))
    assert equal_links.first().tolist() == [0, 0, 0, 3]
    equal_links.load(np.array([0, 2]), np.array([0, 1]), np.array([5, 5]))
    assert equal_links.first().tolist() == [0, 0, 2, 3]
    equal_links.load(np.array([0, 3]), np.array([0, 1, 2]), np.array([5, 5, 5]))
    assert equal_links.first().tolist() == [0, 0, 2, 3]
    equal_links.isolate(np.array([1, 1]))
    assert equal_links.changed
    assert equal_links.first().tolist() == [0, 1, 2, 3]
    equal_links.isolate(np.array([1]))
    assert not equal_links.changed


def test_rings_split_links_as_they_do_one_by_one():
    draw = np.random.default_rng(0)
    for _ in range(200):
        together, one_by_one = LinkClasses(np.ones(12)), LinkClasses(np.ones(12))
        isolated = draw.choice(12, 2)
        together.isolate(isolated)
        one_by_one.isolate(isolated)
        rings = [np.sort(draw.choice(12, draw.integers(1, 5), replace=False)) for _ in range(6)]
        loads = [draw.integers(1, 3, len(ring)) for ring in rings]
        together.load(np.cumsum([0, *map(len, rings)]), np.concatenate(rings), np.concatenate(loads))
        for ring, load in zip(rings, loads, strict=True):
            one_by_one.load(np.array([0, len(ring)]), ring, load)
        assert together.first().tolist() == one_by_one.first().tolist()


@pytest.mark.parametrize("asked", [[], [3]])
def test_an_empty_table_knows_nothing(asked):
    assert PairTable().get(np.array(asked, dtype=np.int64)).tolist() == [0] * len(asked)


def test_loads_of_rings_are_sums_over_paths():
    """Against sums in numpy, ring by ring: several paths, some of them over the same links."""
    rng = np.random.default_rng(0)
    row_ptr = np.concatenate([[0], np.cumsum(rng.integers(1, 4, 12))])
    path_ptr = np.concatenate([[0], np.cumsum(rng.integers(0, 4, row_ptr[-1]))])
    links = rng.integers(0, 9, path_ptr[-1]).astype(np.int32)
    weight = np.concatenate([np.linspace(0, 1, count + 1)[1:] for count in np.diff(row_ptr)])
    flows = np.array([1, 5, 2])
    rows = rng.integers(0, 12, flows.sum()).astype(np.int32)
    paths = i64(row_ptr), i64(path_ptr), i32(links), f64(weight)  # frozen, as networks have them
    load_ptr, loaded, load = ring_loads(rows, flows, *paths, 9)
    for ring, members in enumerate(np.split(rows, np.cumsum(flows)[:-1])):
        total = np.zeros(9)
        for row in members:
            shares = np.diff(weight[row_ptr[row] : row_ptr[row + 1]], prepend=0.0)
            for path, share in enumerate(shares, row_ptr[row]):
                np.add.at(total, links[path_ptr[path] : path_ptr[path + 1]], share)
        used = np.flatnonzero(total)
        assert loaded[load_ptr[ring] : load_ptr[ring + 1]].tolist() == used.tolist()
        expected = np.maximum(1, np.rint(total[used] * LOAD)).astype(int)
        assert load[load_ptr[ring] : load_ptr[ring + 1]].tolist() == expected.tolist()
