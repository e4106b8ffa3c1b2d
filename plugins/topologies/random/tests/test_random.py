"""Random graphs: connected, all interfaces used, no links from a host to itself, reproducible."""

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, TopologyContext, TopoplanError
from topoplan_engine.network.routing import full_routes
from topoplan_topology_random import Random


def make(degrees, seed=0):
    cluster = attrs.evolve(Cluster.uniform(n_hosts=len(degrees)), interfaces=degrees)
    return Random().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(seed)))


def used(fabric):
    return np.bincount(fabric.link_src, weights=fabric.link_count, minlength=fabric.n_hosts).astype(int)


def connected(fabric):
    n = fabric.n_hosts
    return len(full_routes(fabric).weight) >= n * (n - 1)


@given(st.integers(2, 24), st.integers(2, 9), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_regular(n, degree, seed):
    fabric = make([degree] * n, seed)
    assert connected(fabric)
    assert used(fabric).max() <= degree
    assert used(fabric).sum() == n * degree - n * degree % 2


@given(st.lists(st.integers(1, 6), min_size=2, max_size=16), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_unequal_hosts(degrees, seed):
    if sum(degrees) < 2 * (len(degrees) - 1):
        with pytest.raises(TopoplanError, match="cannot all be connected"):
            make(degrees, seed)
        return
    fabric = make(degrees, seed)
    assert connected(fabric)
    assert (used(fabric) <= degrees).all()


def test_one_interface_joins_two_hosts_only():
    assert make([1, 1]).n_links == 2
    assert make([1]).n_links == 0
    with pytest.raises(TopoplanError, match="one interface"):
        make([1, 1, 1])


def test_same_seed_same_graph():
    assert make([4] * 20, 5) == make([4] * 20, 5)
    assert make([4] * 20, 5) != make([4] * 20, 6)


def test_no_parallel_links_where_there_is_room():
    assert make([4] * 64).link_count.max() == 1


def test_expander_has_short_routes():
    lengths = np.diff(full_routes(make([4] * 128)).path_ptr)
    assert lengths.max() <= 8  # a ring of 128 has 64; random 4-regular graphs have 6 or 7


def test_the_slower_interface_decides():
    cluster = attrs.evolve(Cluster.uniform(n_hosts=2, interfaces=1), interface_bandwidth=[1e9, 2e9])
    fabric = Random().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    assert fabric.link_bandwidth.tolist() == [1e9, 1e9]
