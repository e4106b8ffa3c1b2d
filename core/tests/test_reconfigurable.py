"""A fabric that is rebuilt in time: what it shares with one that stays, what it has not, and what is refused."""

from __future__ import annotations

import pickle

import attrs
import pytest

from topoplan import AnyFabric, Fabric, ReconfigurableFabric, TopoplanError
from topoplan.testing import reference

RING = attrs.evolve(reference.ring(), switching="ocs", rings={4: ((1,),)}, cycles=((0, 1, 2, 3),), max_paths=2)
STAR = Fabric.from_links(
    name="other", n_hosts=4, links=[(0, host) for host in range(1, 4)], bandwidth=3e9, latency=2e-6, max_paths=2
)
TURNS = ReconfigurableFabric(forward=RING, backward=RING, reduce=STAR, delay=1e-3)


def test_both_kinds_have_what_makes_sense_for_both():
    names = ("name", "n_hosts", "n_switches", "n_nodes", "switching", "key", "wirings", "links", "map_wirings")
    for fabric in (RING, TURNS):
        assert isinstance(fabric, AnyFabric)
        assert all(hasattr(fabric, name) for name in names)
    assert RING.wirings == (RING,)
    assert TURNS.wirings == (RING, RING, STAR)
    assert (TURNS.name, TURNS.n_hosts, TURNS.switching) == ("ring", 4, "ocs")


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Fabric) if field.name.startswith("link_")])
def test_there_is_no_network_to_route_in(name):
    assert not hasattr(TURNS, name)


def test_links_are_those_of_all_phases_each_as_fast_as_it_ever_is():
    links = TURNS.links
    rate = {
        (a, b): speed
        for a, b, speed in zip(
            links.link_src.tolist(), links.link_dst.tolist(), links.link_bandwidth.tolist(), strict=True
        )
    }
    assert rate == {(0, 1): 3e9, (0, 2): 3e9, (0, 3): 3e9} | {
        (a, b): 1e9 for a in range(1, 4) for b in ((a + 1) % 4, (a - 1) % 4)
    }
    assert (links.name, links.max_paths, links.switching) == ("ring", 2, "ocs")
    assert (links.routes, dict(links.rings), links.cycles) == (None, {}, ())


def test_every_wiring_is_changed():
    slower = TURNS.map_wirings(lambda wiring: attrs.evolve(wiring, link_bandwidth=wiring.link_bandwidth / 2))
    assert [set(wiring.link_bandwidth.tolist()) for wiring in slower.wirings] == [{5e8}, {5e8}, {1.5e9}]
    assert slower.delay == TURNS.delay
    assert RING.map_wirings(lambda wiring: attrs.evolve(wiring, name="mine")).name == "mine"


def test_its_key_is_that_of_its_value():
    assert pickle.loads(pickle.dumps(TURNS)).key == TURNS.key == attrs.evolve(TURNS).key
    others = [RING, STAR, attrs.evolve(TURNS, delay=2e-3), attrs.evolve(TURNS, backward=STAR)]
    assert len({TURNS.key, *(other.key for other in others)}) == len(others) + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delay": -1.0}, "delay -1.0 s must be finite and not negative"),
        ({"delay": float("nan")}, "delay nan s must be finite"),
        ({"reduce": TURNS}, r"a phase is ReconfigurableFabric \(must be a Fabric\)"),
        ({"backward": reference.ring(5)}, r"a phase has other nodes \(5, not 4\)"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(TopoplanError, match=message):
        attrs.evolve(TURNS, **change)
