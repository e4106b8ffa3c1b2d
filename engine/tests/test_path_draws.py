"""What is drawn: one of several equal paths, by a stream for each pair of hosts; and times under other draws."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, Fabric
from topoplan_engine.simulation.base import Simulation
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

HOSTS, SIZE = 4, 1_000_000
CLUSTER = Cluster.uniform(n_hosts=HOSTS)


def spines(count=4):
    """Hosts on two leaves, with several spines: as many paths between hosts of different leaves."""
    links = [(h, HOSTS + h % 2) for h in range(HOSTS)]
    links += [(HOSTS + leaf, HOSTS + 2 + spine) for leaf in range(2) for spine in range(count)]
    links += [(b, a) for a, b in links]
    bandwidth = [8e9 if min(ends) < HOSTS else 1e9 for ends in links]
    return Fabric.from_links(
        name="spines",
        n_hosts=HOSTS,
        n_switches=2 + count,
        links=links,
        bandwidth=bandwidth,
        latency=1e-6,
        max_paths=count,
    )


def transfers(pairs):
    return task_graph([transfer(a, b, SIZE) for a, b in pairs], n_devices=HOSTS)


def carried(pairs):
    return Fluid().build()(transfers(pairs), spines(), CLUSTER).link_bytes


def test_what_one_pair_draws_does_not_depend_on_others():
    one, other = [(0, 1)] * 9, [(2, 3)] * 9
    mixed = [pair for both in zip(other, one, strict=True) for pair in both]
    np.testing.assert_allclose(carried(mixed), carried(one) + carried(other), rtol=1e-12)


def test_pairs_have_different_streams():
    """Of 40 messages each, over four spines."""
    up, down = carried([(0, 1)] * 40), carried([(2, 3)] * 40)
    fabric = spines()
    between = (fabric.link_src == HOSTS) & (fabric.link_dst > HOSTS)  # from the leaf of both senders to the spines
    assert up[between].sum() == down[between].sum()
    assert (up[between] > 0).all()
    assert (up[between] != down[between]).any()


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_times_under_several_seeds_are_those_of_as_many_simulators(level):
    taskgraph, fabric = transfers([(0, 1), (2, 3), (0, 3), (2, 1)] * 3), spines()
    simulate = Fluid(level=level, seed=5).build()
    assert isinstance(simulate, Simulation)
    seconds = simulate.makespans(taskgraph, fabric, CLUSTER, range(8))
    for seed in range(8):
        alone = Fluid(level=level, seed=seed).build().makespan(taskgraph, fabric, CLUSTER)
        assert seconds[seed] == alone
        assert simulate.with_seed(seed).makespan(taskgraph, fabric, CLUSTER) == alone
    assert simulate.draws(taskgraph, fabric, CLUSTER)
    assert len(set(seconds.tolist())) > 1


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_on_a_switch_nothing_is_drawn(level):
    taskgraph, fabric = transfers([(0, 1), (2, 3)]), star(HOSTS)
    simulate = Fluid(level=level).build()
    assert not simulate.draws(taskgraph, fabric, CLUSTER)
    assert set(simulate.makespans(taskgraph, fabric, CLUSTER, range(8)).tolist()) == {
        simulate.makespan(taskgraph, fabric, CLUSTER)
    }


def rings(groups):
    """All-reduces at once, one for each group."""
    return task_graph([collective(group, SIZE) for group in groups], n_devices=HOSTS)


@pytest.mark.parametrize("transport", ["wire", "flexnetpacket"])
def test_rings_side_by_side_meet_at_both_levels(transport):
    """Two pairs of hosts over four spines: in some draws both take one spine, and a ring loaded evenly meets nobody."""
    seconds = {}
    for level in ("coupled", "stepped"):
        simulate = Fluid(level=level, transport=transport).build()
        arguments = (rings([(0, 1), (2, 3)]), spines(), CLUSTER)
        assert simulate.draws(*arguments)
        seconds[level] = simulate.makespans(*arguments, range(64))
    assert seconds["coupled"].mean() == pytest.approx(seconds["stepped"].mean(), rel=0.1)
    assert seconds["coupled"].max() > 1.4 * seconds["coupled"].min()


def test_a_ring_of_all_hosts_draws_too():
    """Of its four flows, two in each direction meet on one of four spines in a quarter of the draws."""
    simulate, arguments = Fluid().build(), (rings([(0, 1, 2, 3)]), spines(), CLUSTER)
    assert simulate.draws(*arguments)
    seconds = simulate.makespans(*arguments, range(400))
    alone = 6 * (SIZE / 4 / 1e9 + 4e-6)
    doubled = 6 * (SIZE / 2 / 1e9 + 4e-6)
    assert seconds.min() == pytest.approx(alone, rel=1e-6)
    assert seconds.max() == pytest.approx(doubled, rel=1e-6)
    assert (seconds > 1.5 * alone).mean() == pytest.approx(1 - (3 / 4) ** 2, abs=0.07)


def test_rings_of_single_paths_draw_nothing():
    assert not Fluid().build().draws(rings([(0, 1), (2, 3)]), star(HOSTS), CLUSTER)


def test_another_seed_shares_the_networks(monkeypatch):
    simulate, fabric = Fluid().build(), spines()
    simulate.makespan(transfers([(0, 1)]), fabric, CLUSTER)
    monkeypatch.setattr("topoplan_engine.network.tables.route", None)  # not called again
    simulate.with_seed(1).makespan(transfers([(0, 1)] * 2), fabric, CLUSTER)


def test_flexnet_takes_the_first_path():
    simulate, arguments = Flexnet().build(), (transfers([(0, 1), (0, 3)]), spines(), CLUSTER)
    assert not simulate.draws(*arguments)
    assert len(set(simulate.makespans(*arguments, range(3)).tolist())) == 1
