"""What searchers may propose: the hardware of the topology, wired anew, along their axis."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Fabric, Placement, Routes, State, TopoplanError
from topoplan.model.fabric import LinkKind
from topoplan.model.reconfigurable import ReconfigurableFabric
from topoplan.testing import landscape, reference
from topoplan_engine.allowed import Allowed
from topoplan_engine.interfaces import check_rewired, check_routes

CLUSTER, RING = reference.cluster(), reference.ring()
PROBLEM = landscape.problem()
START = landscape.start(PROBLEM)


def changed(**columns):
    return attrs.evolve(RING, **columns)


def linked(links, kind=LinkKind.NETWORK, **more):
    return Fabric.from_links(name="mine", n_hosts=4, links=links, bandwidth=1e9, latency=1e-6, kind=kind, **more)


ALL = [(a, b) for a in range(4) for b in range(4) if a != b]


@pytest.mark.parametrize(
    ("fabric", "message"),
    [
        (changed(link_bandwidth=100 * RING.link_bandwidth), r"2 links of 1600 Gbps together lead from host 0"),
        (changed(link_bandwidth=2.1 * RING.link_bandwidth), r"4 interfaces of 8 Gbps, 32 Gbps together"),
        (changed(link_count=3 * RING.link_count), r"6 links of 16 Gbps together"),
        (reference.ring(5), r"has 5 hosts, the cluster 4"),
        (changed(link_latency=0.5 * RING.link_latency), r"latency of 5e-07 s, the topology's own links 1e-06 s"),
        (linked(ALL, LinkKind.INSIDE), r"24 Gbps together inside host 0, where the topology's own has 0 Gbps"),
        (reference.two_switches(), r"has 2 packet switches, the topology's own 0"),
        (reference.rebuilt(0.0), r"is rebuilt during the iteration, which the topology's own is not"),
        (
            linked(ALL, routes=Routes(pairs=[(0, 2)], pair_ptr=[0, 1], path_ptr=[0, 1], links=[0], weight=[1.0])),
            r"a path from host 0 to host 2 does not lead there",
        ),
    ],
)
def test_hardware_that_the_topology_does_not_have_is_refused(fabric, message):
    with pytest.raises(TopoplanError, match=message):
        check_rewired(fabric, RING, CLUSTER)
    network = Allowed(PROBLEM, "network")
    network.give(START)
    for candidate in (
        Candidate(base=START, fabric=fabric),
        Candidate(base=State(START.strategy, fabric)),  # a state that it made itself
    ):
        assert "that cannot be built: " in network.why_wrong(candidate)


def test_the_hardware_may_be_wired_anew_in_every_way():
    for fabric in (RING, linked(ALL), linked([*ALL, (0, 2), (2, 0)]), changed(link_latency=2 * RING.link_latency)):
        check_rewired(fabric, RING, CLUSTER)
    check_rewired(reference.rebuilt(1e-3), reference.rebuilt(1e-3), CLUSTER)
    check_rewired(RING, reference.rebuilt(1e-3), CLUSTER)
    with pytest.raises(TopoplanError, match=r"is rebuilt in 0 s, the topology's own in 0.001 s"):
        check_rewired(reference.rebuilt(0.0), reference.rebuilt(1e-3), CLUSTER)


def test_switches_and_the_inside_of_hosts_keep_their_bandwidth():
    own = reference.two_switches()
    fast = np.where(own.link_src >= 4, 1.5, 1.0) * own.link_bandwidth
    with pytest.raises(TopoplanError, match=r"48 Gbps together at switch 0, where the topology's own has 32 Gbps"):
        check_rewired(attrs.evolve(own, link_bandwidth=fast), own, CLUSTER)
    inside = linked(ALL, LinkKind.INSIDE)
    check_rewired(inside, inside, CLUSTER)
    phases = ReconfigurableFabric(forward=inside, backward=RING, reduce=RING, delay=0.0)
    check_rewired(inside, phases, CLUSTER)


def test_only_what_the_axis_says_moves():
    cut = {0: Placement((1, 1, 1), [0])}
    moves = {
        "placements": Candidate(base=START, placements=cut),
        "fabric": Candidate(base=START, fabric=linked(ALL)),
        "both": Candidate(base=START, placements=cut, fabric=linked(ALL)),
        "made": Candidate(base=State(START.strategy.with_changes(cut), RING)),
    }
    right = {"strategy": {"placements", "made"}, "network": {"fabric"}, "joint": {*moves}}
    for axis, expected in right.items():
        allowed = Allowed(PROBLEM, axis)
        allowed.give(START)
        assert {name for name, candidate in moves.items() if not allowed.why_wrong(candidate)} == expected, axis


def test_a_network_that_cannot_be_rewired_stays_as_it_is():
    fixed = Allowed(attrs.evolve(PROBLEM, reconfigurable=False, topology="fattree"), "joint")
    fixed.give(START)
    same = Candidate(base=START, fabric=reference.ring())  # another object, but the same network
    assert not fixed.why_wrong(same)
    assert fixed.why_wrong(attrs.evolve(same, fabric=linked(ALL))) == (
        "a fabric of its own, but topology 'fattree' cannot be rewired"
    )


def test_a_fabric_is_checked_once(monkeypatch):
    calls = []
    monkeypatch.setattr("topoplan_engine.allowed.check_rewired", lambda *given: calls.append(given))
    allowed = Allowed(PROBLEM, "network")
    allowed.give(START)
    for _ in range(5):
        assert not allowed.why_wrong(Candidate(base=START, fabric=linked(ALL)))
        assert not allowed.why_wrong(Candidate(base=START))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": [0, 4, 1, 5]}, "does not lead there link by link"),
        ({"links": [0, 3, 1, 99]}, "none of the 8 of the fabric"),
        ({"links": [0, 3, 1]}, "path_ptr must rise from 0 to 3"),
        ({"weight": [0.5, 0.6]}, "shares of the paths from host 0 to host 2 must sum to 1"),
        ({"weight": [0.5, np.nan]}, "must sum to 1"),
        ({"weight": [-0.5, 1.5]}, "must sum to 1"),
        ({"path_ptr": [0, 0, 4]}, "a path has no links"),
        ({"pair_ptr": [0, 1]}, "pair_ptr must rise from 0 to 2"),
    ],
)
def test_routes_lead_from_their_source_to_their_end(change, message):
    # Links of the ring by (from, to): 0-1, 0-3, 1-0, 1-2, 2-1, 2-3, 3-0, 3-2.
    right = {"pairs": [(0, 2)], "pair_ptr": [0, 2], "path_ptr": [0, 2, 4], "links": [0, 3, 1, 7], "weight": [0.5, 0.5]}
    check_routes(changed(routes=Routes(**right)))
    with pytest.raises(TopoplanError, match=message):
        check_routes(changed(routes=Routes(**right | change)))
