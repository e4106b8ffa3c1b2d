"""Planes: counts, rates of lanes, hand calculations of messages and groups, and what is refused."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Fabric, Host, Machine, TopologyContext, TopoplanError
from topoplan.model.fabric import Routes
from topoplan.options import structure
from topoplan.testing import parametrize_with_checks
from topoplan_engine.network.building import build_fabric
from topoplan_engine.network.routing import paths
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_fluid import Fluid
from topoplan_topology_multi_plane import MultiPlane
from topoplan_topology_multi_plane.copies import side_by_side

NIC = 50e9
GIB = 2**30
PLANES = ("bigswitch", "fattree", "fattree/levels=2", "rail-only", "rail-optimized", "hyperx", "dragonfly")


@parametrize_with_checks(MultiPlane)
def test_conformance(check):
    check()


def cluster(hosts=8, machine="dgx-h100"):
    host = Host.discover().make(Machine, machine).build() if machine else None
    made = Cluster.uniform(
        n_hosts=hosts, devices_per_host=8, interfaces=8, interface_bandwidth=NIC, latency=0.0, inside_bandwidth=450e9
    )
    return attrs.evolve(made, host=attrs.evolve(host, device=None, servers=None) if host else None)


def build(made, **options):
    context = TopologyContext(cluster=made, demand=None, rng=np.random.default_rng(0))
    return build_fabric(structure(MultiPlane, options, "topology multi-plane"), context)


def seconds(made, fabric, *tasks):
    return Fluid().build().makespan(task_graph(tasks, n_devices=made.n_devices), fabric, made)


def ring(members):
    return 2 * (members - 1) / members * GIB


@pytest.mark.parametrize("of", PLANES)
@pytest.mark.parametrize("planes", [2, 4])
@pytest.mark.by_day(5)
def test_a_host_has_its_whole_rate_in_parts(of, planes):
    made = cluster(machine=None)
    one, several = build(made, of=of, planes=1), build(made, of=of, planes=planes)
    assert several.n_switches == planes * one.n_switches
    for host in range(made.n_hosts):
        out = several.link_src == host
        assert several.link_bandwidth[out].sum() == pytest.approx(8 * NIC)
        assert out.sum() == planes * (one.link_src == host).sum()
    cut = [fabric.link_bandwidth[fabric.link_src >= 8].sum() for fabric in (one, several)]
    assert cut[0] == pytest.approx(cut[1]), "all planes together have the bandwidth of one network"


@pytest.mark.parametrize("of", PLANES)
@pytest.mark.parametrize("machine", ["dgx-h100", None])
@pytest.mark.by_day(5)
def test_a_message_takes_one_lane_and_a_group_all(of, machine):
    """By hand: S / (r / P), and 2 (n - 1) / n S / (8 r); of hosts as one endpoint a message has all interfaces."""
    made = cluster(machine=machine)
    fabric = build(made, of=of, planes=2)
    alone = build(made, of=of, planes=1)
    message = transfer(0, 8, GIB)
    assert seconds(made, fabric, message) == pytest.approx(2 * seconds(made, alone, message))
    if machine:
        assert seconds(made, fabric, message) == pytest.approx(2 * GIB / NIC)
        group = collective(range(64), GIB)
        assert seconds(made, fabric, group) == pytest.approx(ring(64) / (8 * NIC))
    for members in (range(64), range(0, 64, 8), range(0, 64, 4)):
        group = collective(members, GIB)
        assert seconds(made, fabric, group) == pytest.approx(seconds(made, alone, group))


def test_paths_are_spread_over_planes_evenly():
    made = cluster(hosts=16)
    fabric = build(made, of="fattree/k=4", planes=3)
    for target in range(1, 16):
        ways = paths(fabric, [0], [target])
        first = ways.links[ways.path_ptr[:-1]]
        weight = np.bincount((fabric.link_dst[first] - 16) % 3, ways.weight)
        assert weight == pytest.approx([1 / 3] * 3)
        assert ((fabric.link_dst[ways.links[:-1]] - 16) % 3 < 3).all()


def test_nics_have_a_lane_to_each_plane():
    made = cluster()
    fabric = build(made, of="rail-only", planes=2)
    names = [fabric.node_name(node) for node in fabric.link_dst[fabric.link_src == 0]]
    assert names == [f"leaf 0 rail {rail} of plane {plane}" for rail in range(8) for plane in range(2)]
    rails = [transfer(gpu, 8 + gpu, GIB) for gpu in range(8)]
    assert seconds(made, fabric, *rails) == pytest.approx(2 * GIB / NIC)


def test_routes_are_those_of_each_plane():
    star = Fabric.from_links(
        name="star",
        n_hosts=2,
        n_switches=2,
        links=[(0, 2), (2, 1), (0, 3), (3, 1)],
        bandwidth=1e9,
        latency=0,
        routes=Routes(pairs=[[0, 1]], pair_ptr=[0, 2], path_ptr=[0, 2, 4], links=[0, 2, 1, 3], weight=[0.25, 0.75]),
    )
    both = side_by_side(star, 3)
    ways = paths(both, [0], [1])
    assert both.n_switches == 6
    assert len(ways.weight) == 6
    middle = both.link_dst[ways.links[ways.path_ptr[:-1]]]
    assert dict(zip(middle.tolist(), ways.weight.tolist(), strict=True)) == pytest.approx(
        {2 + switch * 3 + plane: share / 3 for switch, share in ((0, 0.25), (1, 0.75)) for plane in range(3)}
    )


def test_a_lane_that_failed_leaves_the_others():
    made = cluster()
    fabric = build(made, of="rail-optimized", planes=2)
    kept = ~((fabric.link_src == 0) & (fabric.link_dst == 8)) & ~((fabric.link_dst == 0) & (fabric.link_src == 8))
    columns = {
        name: getattr(fabric, name)[kept]
        for name in ("link_src", "link_dst", "link_count", "link_bandwidth", "link_latency", "link_kind")
    }
    broken = attrs.evolve(fabric, **columns)
    lane = GIB / (NIC / 2)
    assert seconds(made, broken, transfer(0, 8, GIB)) == pytest.approx(lane)
    assert seconds(made, broken, transfer(0, 8, GIB), transfer(0, 16, GIB)) == pytest.approx(2 * lane), "one is left"
    assert seconds(made, broken, transfer(1, 9, GIB)) == pytest.approx(lane)


def test_a_hundred_times_the_size():
    fabric = build(cluster(hosts=800, machine=None), of="fattree", planes=8)
    assert fabric.link_bandwidth[fabric.link_src == 799].sum() == pytest.approx(8 * NIC)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": "torus"}, r"of=torus joins host \d+ and host \d+ to each other, but planes are networks of switches"),
        ({"of": "topoopt"}, r"of=topoopt is wired for a demand"),
        ({"of": "multi-plane"}, r"of=multi-plane \(name another topology\)"),
        ({"of": "degraded"}, r"write degraded:of=multi-plane/of=.../planes=2"),
        ({"of": "fattre"}, r"topology multi-plane: of: .*fattree"),
        ({"planes": 0}, r"topology multi-plane: planes: 0"),
        ({"planes": 17}, r"topology multi-plane: planes: 17"),
        ({"of": "fattree/levels=4"}, r"topology multi-plane: of: topology fattree: levels"),
    ],
)
def test_errors_name_what_would_be_right(options, message):
    with pytest.raises(TopoplanError, match=message):
        build(cluster(machine=None), **options)
