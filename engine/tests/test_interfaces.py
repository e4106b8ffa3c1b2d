"""What a fabric takes of its hosts: interfaces, bandwidth and rings, refused where a host does not have them."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, Fabric, LinkKind, ReconfigurableFabric, TopoplanError
from topoplan_engine.interfaces import check_fabric

GBPS = 1e9 / 8
CLUSTER = Cluster.uniform(n_hosts=4, interfaces=2, interface_bandwidth=25 * GBPS)
RING = [(a, b) for a in range(4) for b in ((a + 1) % 4, (a - 1) % 4)]


def fabric(links=RING, gbps=25.0, switches=0, **given):
    return Fabric.from_links(
        name="mine", n_hosts=4, n_switches=switches, links=links, bandwidth=np.array(gbps) * GBPS, latency=0.0, **given
    )


def test_a_ring_uses_two_interfaces_of_each_host():
    check_fabric(fabric(rings={4: ((1,), (3,)), 2: ((1, 1),)}), CLUSTER)


REFUSED = {
    "more links than interfaces": (
        {"links": [*RING, (0, 2), (2, 0)], "gbps": 10.0},
        "3 links of 30 Gbps together lead from host 0, which has 2 interfaces of 25 Gbps, 50 Gbps together",
    ),
    "more bandwidth than interfaces": (
        {"gbps": 1e6},
        "2 links of 2e+06 Gbps together lead from host 0, which has 2 interfaces of 25 Gbps, 50 Gbps together "
        r"\(degree 80000 would do",
    ),
    "all links into one host": (
        {"links": [(0, 3), (1, 3), (2, 3), (3, 0)], "gbps": 1.0},
        "3 links of 3 Gbps together lead to host 3, which has 2 interfaces",
    ),
    "lanes of too much bandwidth": (
        {"links": [(a, b) for a in range(4) for b in range(4) if a != b], "gbps": 17.0, "kind": LinkKind.LANE},
        "51 Gbps together lead from host 0",
    ),
    "a ring over links that are not there": (
        {"rings": {4: ((1,),), 2: ((2,),)}},
        r"the ring \(2,\) of groups of 2 needs a link from host 0 to host 2",
    ),
    "a ring that leaves hosts out": (
        {"rings": {4: ((1, 1),)}},
        r"the ring \(1, 1\) of groups of 4 does not visit all of them",
    ),
    "a ring of a group that no hosts make": ({"rings": {3: ((1,),)}}, "groups of 3, which do not part 4 hosts evenly"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_hosts_do_not_have_is_refused(given, message):
    with pytest.raises(TopoplanError, match=rf"fabric 'mine': .*{message.replace('+', '.')}"):
        check_fabric(fabric(**given), CLUSTER)


def test_one_phase_that_needs_too_much_is_enough():
    ring, full = fabric(), fabric([(a, b) for a in range(4) for b in range(4) if a != b], 10.0)
    with pytest.raises(TopoplanError, match="3 links of 30 Gbps"):
        check_fabric(ReconfigurableFabric(forward=ring, backward=ring, reduce=full, delay=0.0), CLUSTER)


def test_links_inside_a_host_take_no_interface():
    # Two chassis of two GPUs each, a host apiece: both sides of a switch of the chassis, and a ring of cables.
    inside = [(a, 4 + a // 2) for a in range(4)]
    inside += [(b, a) for a, b in inside]
    kind = [LinkKind.NETWORK] * len(RING) + [LinkKind.INSIDE] * len(inside)
    gbps = [25.0] * len(RING) + [3600.0] * len(inside)
    made = fabric([*RING, *inside], gbps, switches=2, kind=kind)
    check_fabric(made, CLUSTER)
    with pytest.raises(TopoplanError, match=r'as LinkKind\.INSIDE, in a file as "link": "inside"\)$'):
        check_fabric(fabric([*RING, *inside], gbps, switches=2), CLUSTER)


def test_lanes_share_interfaces():
    made = fabric([(a, b) for a in range(4) for b in range(4) if a != b], 10.0, kind=LinkKind.LANE)
    check_fabric(made, CLUSTER)


def test_cables_and_links_inside_a_host_do_not_mix():
    with pytest.raises(TopoplanError, match="links of two kinds from node 0 to node 1"):
        fabric([(0, 1), (0, 1)], kind=[LinkKind.NETWORK, LinkKind.INSIDE])


def test_a_fabric_of_other_hosts_is_refused():
    with pytest.raises(TopoplanError, match="has 4 hosts, the cluster 5"):
        check_fabric(fabric(), Cluster.uniform(n_hosts=5))
