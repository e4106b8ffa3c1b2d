"""Fat-tree: sizes, structure, equal-cost paths and oversubscription."""

import attrs
import numpy as np
import pytest

from topoplan import Cluster, TopologyContext, TopoplanError
from topoplan.options import structure
from topoplan_engine.network.routing import paths
from topoplan_topology_fattree import FatTree


def make(n, interfaces=1, **options):
    cluster = Cluster.uniform(n_hosts=n, interfaces=interfaces, interface_bandwidth=1e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return structure(FatTree, options, "topology fattree").build(context)


@pytest.mark.parametrize(("n", "k"), [(1, 2), (2, 2), (3, 4), (16, 4), (17, 6), (54, 6), (128, 8), (432, 12)])
def test_smallest_tree_that_fits(n, k):
    fabric = make(n)
    assert fabric.n_switches == k * k + k * k // 4
    assert fabric.n_links == 2 * (n + k * (k // 2) ** 2 * 2)
    assert set(fabric.link_bandwidth) == {1e9}


def test_switches_use_all_their_ports():
    fabric = make(16)
    ports = np.bincount(fabric.link_src, minlength=fabric.n_nodes)
    assert ports.tolist() == [1] * 16 + [4] * 20


def test_hosts_and_switches_use_all_interfaces():
    one, three = make(16), make(16, interfaces=3)
    assert (three.link_count == 3).all()
    assert three.link_bandwidth.tolist() == (3 * one.link_bandwidth).tolist()
    ratio = make(54, interfaces=3, oversubscription=1.5)
    assert (ratio.link_count == 3).all()


def test_of_hosts_that_differ_the_widest_says_how_switches_are_joined():
    cluster = attrs.evolve(Cluster.uniform(n_hosts=2), interfaces=[1, 2], interface_bandwidth=[3e9, 1e9])
    tree = FatTree().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    up = tree.link_src < 2
    assert (tree.link_count[up].tolist(), tree.link_bandwidth[up].tolist()) == ([1, 2], [3e9, 2e9])
    between = (tree.link_src >= 2) & (tree.link_dst >= 2)
    assert (set(tree.link_count[between]), set(tree.link_bandwidth[between])) == ({1}, {3e9})


def test_lengths_and_numbers_of_paths():
    fabric = make(54, paths=100)  # k = 6
    found = paths(fabric, [0, 0, 0], [1, 3, 9])  # same rack, same pod, another pod
    assert np.diff(found.pair_ptr).tolist() == [1, 3, 9]
    assert np.diff(found.path_ptr).tolist() == [2] + [4] * 3 + [6] * 9
    cut = paths(make(54, paths=4), [0], [9])
    assert np.diff(cut.pair_ptr).tolist() == [4]
    assert len(set(cut.links[1::6].tolist())) == 3  # all three aggregation switches


def test_oversubscription_takes_aggregation_switches_away():
    fabric = make(128, oversubscription=2)  # k = 8, two uplinks of each rack
    assert fabric.n_switches == 8 * 4 + 8 * 2 + 2 * 4
    up = (fabric.link_src >= 128) & (fabric.link_src < 160) & (fabric.link_dst >= 160)
    assert np.bincount(fabric.link_src[up])[128:].tolist() == [2] * 32
    assert set(fabric.link_bandwidth) == {1e9}


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 3.0, 7.0])
def test_oversubscription_of_a_rack_is_exact(ratio):
    fabric = make(54, oversubscription=ratio)
    rack = 54
    up = fabric.link_bandwidth[(fabric.link_src == rack) & (fabric.link_dst > rack)].sum()
    down = fabric.link_bandwidth[(fabric.link_src == rack) & (fabric.link_dst < 54)].sum()
    assert down / up == pytest.approx(ratio)
    found = paths(fabric, [0], [53])
    assert found.pair_ptr[1] >= 1


def test_forced_k():
    assert make(4, k=6).n_switches == 45
    with pytest.raises(TopoplanError, match=r"room for 16 hosts, not 17 \(use k=6\)"):
        make(17, k=4)
    with pytest.raises(TopoplanError, match="k 5 is odd"):
        make(4, k=5)


# ── Two levels, and real ports ──────────────────────────────────────────────────────────────────────────


def ports_of(fabric):
    """Return how many ports all switches use."""
    return int(fabric.link_count[fabric.link_src >= fabric.n_hosts].sum())


@pytest.mark.parametrize(
    ("options", "leaves", "spines", "ports"),
    [
        ({"levels": 2, "radix": 64}, 16, 8, 1536),
        ({"levels": 2, "radix": 128}, 8, 4, 1536),
        ({"levels": 3, "radix": 64}, None, None, 2560),
    ],
)
def test_ports_of_64_hosts_with_8_interfaces(options, leaves, spines, ports):
    """Two levels have three ports for each of 512 interfaces, three have five."""
    fabric = make(64, interfaces=8, **options)
    used = fabric
    if leaves is None:  # pods without hosts are there, and are not bought
        from topoplan_studies.prices import bill

        assert sum(item.count for item in bill(used) if item.part == "switch-port") == ports
        return
    assert fabric.n_switches == leaves + spines
    assert ports_of(fabric) == ports
    of_each = np.bincount(fabric.link_src, weights=fabric.link_count, minlength=fabric.n_nodes)[64:]
    assert set(of_each) == {options["radix"]}
    assert set(fabric.link_bandwidth / fabric.link_count) == {1e9}


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize(("n", "interfaces", "radix"), [(64, 8, 64), (60, 4, 32), (128, 1, 48), (1024, 8, 256)])
def test_leaves_and_spines_keep_the_ratio_and_their_ports(n, interfaces, radix, ratio):
    fabric = make(n, interfaces=interfaces, levels=2, radix=radix, oversubscription=ratio)
    of_each = np.bincount(fabric.link_src, weights=fabric.link_count, minlength=fabric.n_nodes)[n:]
    assert of_each.max() <= radix
    down = fabric.link_bandwidth[(fabric.link_src == n) & (fabric.link_dst < n)].sum()
    up = fabric.link_bandwidth[(fabric.link_src == n) & (fabric.link_dst >= n)].sum()
    assert down / up == pytest.approx(ratio, rel=0.05)
    found = paths(fabric, [0], [n - 1])
    assert found.pair_ptr[1] >= 1


def test_one_switch_is_enough_for_few_hosts():
    fabric = make(8, interfaces=8, levels=2)
    assert (fabric.n_switches, ports_of(fabric)) == (1, 64)


def test_what_switches_have_no_room_for():
    with pytest.raises(
        TopoplanError, match=r"two levels of switches of 16 ports have no room for 64 hosts of 8 .*radix=32, or"
    ):
        make(64, interfaces=8, levels=2, radix=16)
    with pytest.raises(TopoplanError, match=r"radix 32 has room for 16 hosts of 8 interfaces, not 64 \(use radix=64\)"):
        make(64, interfaces=8, radix=32)
    with pytest.raises(TopoplanError, match="k 4 with levels=2"):
        make(4, k=4, levels=2)
