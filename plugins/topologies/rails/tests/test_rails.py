"""Rails: switches and cables of NVIDIA's reference architectures, and counts of the definition."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from topoplan import Cluster, TopologyContext, TopoplanError
from topoplan.options import structure
from topoplan.testing import parametrize_with_checks
from topoplan_topology_rails import RailOnly, RailOptimized


@parametrize_with_checks(RailOptimized)
def test_rail_optimized_conforms(check):
    check()


@parametrize_with_checks(RailOnly)
def test_rail_only_conforms(check):
    check()


def build(hosts, nics=8, component=RailOptimized, **options):
    cluster = Cluster.uniform(
        n_hosts=hosts, devices_per_host=nics, interfaces=nics, interface_bandwidth=50e9, latency=1e-6
    )
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return structure(component, options, f"topology {component.name}").build(context)


def tiers(fabric):
    """Return the first node of each tier, hosts first, and the number of nodes."""
    names = [name.split()[0] for name in fabric.node_names]
    starts = [names.index(tier) for tier in ("host", "leaf", "spine", "core") if tier in names]
    return [*starts, fabric.n_nodes]


def cables(fabric):
    """Return the cables from each tier to the one above."""
    ends = tiers(fabric)
    source, target = (np.searchsorted(ends, end, side="right") for end in (fabric.link_src, fabric.link_dst))
    return [int(fabric.link_count[(source == tier) & (target == tier + 1)].sum()) for tier in range(1, len(ends) - 1)]


#: Scalable units of 32 nodes of 8 GPUs, switches of 64 ports: nodes, leaf, spine and core switches, cables from nodes
#: to leaves, to spines, to cores.  NVIDIA DGX SuperPOD reference architecture (B200), table of larger component counts.
SUPERPOD = [
    (2, 64, 16, 8, 0, 512, 512, 0),
    (4, 128, 32, 16, 0, 1024, 1024, 0),
    (8, 256, 64, 32, 0, 2048, 2048, 0),
    (16, 512, 128, 128, 64, 4096, 4096, 4096),
    (32, 1024, 256, 256, 128, 8192, 8192, 8192),
    (64, 2048, 512, 512, 256, 16384, 16384, 16384),
]


@pytest.mark.parametrize("pods", ["rail", "units"])
@pytest.mark.parametrize("row", SUPERPOD, ids=lambda row: f"{row[0]} units")
def test_superpods_have_the_published_counts(row, pods):
    _, nodes, leaf, spine, core, *lines = row
    fabric = build(nodes, pods=pods)
    counts = np.diff(tiers(fabric)).tolist()
    assert counts == [nodes, leaf, spine, *([core] if core else [])]
    assert cables(fabric) == [count for count in lines if count]
    ports = np.bincount(fabric.link_src, fabric.link_count, fabric.n_nodes)[nodes:]
    assert ports.max() == ports.min() == 64, "no port is idle"


@pytest.mark.parametrize(
    ("nodes", "spines", "hosts", "switches", "links", "between", "diameter", "mean"),
    [
        (32, 4, 256, 44, 544, 32, 4, 3.701961),
        (64, 8, 512, 88, 1152, 128, 4, 3.851272),
        pytest.param(128, 16, 1024, 176, 2560, 512, 4, 3.925709, marks=pytest.mark.slow),
    ],
)
def test_gpus_on_rails_and_nvswitches(nodes, spines, hosts, switches, links, between, diameter, mean):
    """GPUs as nodes, each on a leaf and on the NVSwitch of its node; leaf and spine count once, however many cables."""
    fabric = build(nodes)
    assert np.diff(tiers(fabric))[2] == spines
    graph = nx.Graph()
    rail = {(host, leaf): number for host in range(nodes) for number, leaf in enumerate(leaves(fabric, host))}
    for source, target in zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True):
        if source < nodes:
            graph.add_edge(("gpu", source * 8 + rail[source, target]), target)
        elif target >= nodes:
            graph.add_edge(source, target)
    for gpu in range(hosts):
        graph.add_edge(("gpu", gpu), ("nvswitch", gpu // 8))
    assert (graph.number_of_nodes() - hosts, graph.number_of_edges()) == (switches, links)
    assert (
        sum(
            source >= nodes and target >= nodes for source, target in zip(fabric.link_src, fabric.link_dst, strict=True)
        )
        == 2 * between
    )
    total, farthest = 0, 0
    for gpu in range(8):  # of one node: all nodes are equal
        lengths = nx.single_source_shortest_path_length(graph, ("gpu", gpu))
        distances = [length for node, length in lengths.items() if isinstance(node, tuple) and node[0] == "gpu"]
        total, farthest = total + sum(distances), max(farthest, *distances)
    assert farthest == diameter
    assert total / 8 / (hosts - 1) == pytest.approx(mean, abs=1e-6)


def leaves(fabric, host):
    return sorted(fabric.link_dst[fabric.link_src == host].tolist())


def test_nic_r_of_each_host_is_on_leaf_r_of_its_unit():
    fabric = build(64)
    for host in range(64):
        names = [fabric.node_names[leaf] for leaf in leaves(fabric, host)]
        assert names == [f"leaf {host // 32} rail {rail}" for rail in range(8)]


def test_separate_rails_never_meet():
    alone = build(32, component=RailOnly)
    assert tiers(alone)[1:] == [32, 40], "one switch for each rail, whose ports all lead to hosts"
    fabric = build(256, component=RailOnly)
    graph = nx.Graph(zip(fabric.link_src[fabric.link_src >= 256], fabric.link_dst[fabric.link_src >= 256], strict=True))
    graph.remove_nodes_from(range(256))
    parts = [
        {fabric.node_names[node].split()[-1] for node in part if "rail" in fabric.node_names[node]}
        for part in nx.connected_components(graph)
    ]
    assert sorted(parts, key=min) == [{str(rail)} for rail in range(8)]
    assert np.diff(tiers(fabric)).tolist() == [256, 64, 32], "8 leaves and 4 spines for each rail"


def test_separate_rails_of_three_tiers():
    fabric = build(128, nics=2, ports=8, component=RailOnly)
    leaf, spine, core = np.diff(tiers(fabric))[1:]
    assert (leaf, spine, core) == (64, 64, 32), "128 hosts on a fat-tree of 8 ports, for each of two rails"
    assert cables(fabric) == [256, 256, 256]


@pytest.mark.parametrize(("ratio", "unit"), [(1.0, 32), (2.0, 42), (3.0, 48), (7.0, 56)])
def test_a_leaf_has_its_hosts_over_its_uplinks(ratio, unit):
    fabric = build(4 * unit, nics=4, oversubscription=ratio)
    ends = tiers(fabric)
    leaf = (fabric.link_src >= ends[1]) & (fabric.link_src < ends[2])
    down, up = (fabric.link_count[leaf & side] for side in (fabric.link_dst < ends[1], fabric.link_dst >= ends[2]))
    leaves_count = ends[2] - ends[1]
    assert down.sum() / leaves_count == unit
    assert down.sum() / up.sum() == pytest.approx(ratio, rel=0.03)
    assert down.sum() + up.sum() <= 64 * leaves_count


def test_racks_of_72_gpus_have_rails_that_share_spines():
    fabric = build(4, nics=72)
    leaf, spine, core = np.diff(tiers(fabric))[1:].tolist()
    assert (leaf, spine, core) == (72, 9, 6), "three pods of 24 leaves with 4 uplinks each"
    assert cables(fabric) == [288, 288, 288]
    ports = np.bincount(fabric.link_src, fabric.link_count, fabric.n_nodes)
    assert ports[4:].max() <= 64


def test_cores_may_be_fewer():
    full, half = build(512), build(512, core_oversubscription=3.0)
    assert cables(full)[1] == cables(half)[1] == 4096
    assert cables(half)[2] == pytest.approx(4096 / 3, rel=0.05)


def test_planes_share_the_rate_of_an_interface():
    fabric = build(32, planes=2)
    assert np.diff(tiers(fabric)).tolist() == [32, 16, 8], "two networks of 8 leaves and 4 spines"
    out = fabric.link_src == 0
    assert fabric.link_bandwidth[out].tolist() == [25e9] * 16
    names = [fabric.node_names[node] for node in leaves(fabric, 0)[:2]]
    assert names == ["leaf 0 rail 0 of plane 0", "leaf 0 rail 0 of plane 1"], "NIC 0 has both"
    one = nx.Graph(zip(fabric.link_src, fabric.link_dst, strict=True))
    one.remove_nodes_from(range(32))
    assert nx.number_connected_components(one) == 2


def test_a_last_unit_may_be_smaller():
    fabric = build(40)
    assert np.diff(tiers(fabric)).tolist() == [40, 16, 8]
    assert all(len(leaves(fabric, host)) == 8 for host in range(40))


def test_one_nic_a_host_makes_one_leaf_or_a_leaf_spine():
    assert np.diff(tiers(build(64, nics=1))).tolist() == [64, 1]
    assert np.diff(tiers(build(65, nics=1))).tolist() == [65, 3, 2]


def test_a_hundred_times_the_size():
    fabric = build(12_500 // 2, nics=4, ports=128)
    counts = np.diff(tiers(fabric)).tolist()
    assert counts[0] == 6250
    assert all(later <= earlier for earlier, later in pairwise(counts[1:]))


def test_errors_name_what_would_be_right():
    cluster = Cluster.uniform(n_hosts=2, interfaces=4)
    uneven = Cluster(
        device_host=[0, 1],
        device_preset=cluster.device_preset,
        device_speed=cluster.device_speed,
        device_memory=cluster.device_memory,
        inside_bandwidth=cluster.inside_bandwidth,
        interfaces=[4, 2],
        interface_bandwidth=cluster.interface_bandwidth,
    )
    context = TopologyContext(cluster=uneven, demand=None, rng=np.random.default_rng(0))
    message = r"rail 2 has no NIC in host 1, which has 2 interfaces of 4 \(hosts need one for each rail; degree=2"
    with pytest.raises(TopoplanError, match=message):
        RailOptimized().build(context)
    with pytest.raises(TopoplanError, match=r"unit 40: a leaf of 64 ports has no room for 40 hosts and 40 uplinks"):
        build(80, unit=40)
    with pytest.raises(TopoplanError, match=r"pods=units: a spine has 4 ports for the 8 leaves of a unit"):
        build(64, ports=8, pods="units")
    with pytest.raises(TopoplanError, match=r"cores join equal pods"):
        build(512 + 33 * 32, pods="units")
    sixteen = Cluster.uniform(n_hosts=16, interfaces=8)
    context = TopologyContext(cluster=sixteen, demand=None, rng=np.random.default_rng(0))
    with pytest.raises(TopoplanError, match=r"topology rail-only: 16 pods need core switches of as many ports, not 2"):
        RailOnly(ports=2).build(context)
