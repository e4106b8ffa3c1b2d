"""Rings as lists of hosts: what jumps can say runs as with jumps, and rows of a torus run on their own links."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, Fabric, TopoplanError
from topoplan_engine.interfaces import check_rings
from topoplan_engine.network.rings import cycles_of
from topoplan_samples.tasks import collective, task_graph
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

GBPS = 1e9 / 8
SIMULATORS = {
    "coupled": Fluid(level="coupled").build(),
    "stepped": Fluid(level="stepped").build(),
    "flexnet": Flexnet().build(),
}


def fabric(hosts, links, **rings):
    return Fabric.from_links(name="f", n_hosts=hosts, links=links, bandwidth=10 * GBPS, latency=1e-6, **rings)


def circle(hosts, steps, **rings):
    return fabric(hosts, [(host, (host + step) % hosts) for host in range(hosts) for step in steps], **rings)


def seconds(simulator, made, groups):
    """Return the seconds of one all-reduce for each group, all at once."""
    tasks = task_graph([collective(group, 10_000_000) for group in groups], n_devices=made.n_hosts)
    return SIMULATORS[simulator](tasks, made, Cluster.uniform(n_hosts=made.n_hosts, latency=1e-6)).makespan


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_what_jumps_can_say_runs_as_with_jumps(simulator):
    everybody, halves = [list(range(6))], [[0, 2, 4], [1, 3, 5]]
    jumps = circle(6, (1, 5, 2), rings={6: ((1,), (5,)), 3: ((2,),)})
    cycles = circle(6, (1, 5, 2), cycles=[(0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (2, 4, 0), (1, 3, 5)])
    for groups in (everybody, halves):
        assert seconds(simulator, cycles, groups) == seconds(simulator, jumps, groups)


def torus(**rings):
    """Return a 4 x 4 torus: host 4 i + j in row i and column j."""
    links = [
        (4 * i + j, 4 * ((i + a) % 4) + (j + b) % 4)
        for i in range(4)
        for j in range(4)
        for a, b in ((0, 1), (0, 3), (1, 0), (3, 0))
    ]
    return fabric(16, links, **rings)


ROWS = [[4 * i + j for j in range(4)] for i in range(4)]
COLUMNS = [list(column) for column in zip(*ROWS, strict=True)]
BOTH_WAYS = [one for line in (*ROWS, *COLUMNS) for one in (line, line[::-1])]
#: A Hamiltonian circle: along each row, and down where the next one begins.
SNAKE = [4 * i + (j + 3 * i) % 4 for i in range(4) for j in range(4)]


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_rows_and_columns_of_a_torus_run_at_once_and_both_ways(simulator):
    one_row = seconds(simulator, circle(4, (1, 3), rings={4: ((1,), (3,))}), [[0, 1, 2, 3]])
    network = torus(cycles=BOTH_WAYS)
    assert seconds(simulator, network, [*ROWS, *COLUMNS]) == pytest.approx(one_row, rel=1e-9)
    # Members may be listed in any order, and hosts without cycles of their own run one ring over the routes.
    assert seconds(simulator, network, [[2, 0, 3, 1]]) == pytest.approx(one_row, rel=1e-9)
    assert seconds(simulator, torus(), ROWS) > 1.5 * one_row


def test_a_circle_through_all_hosts_is_faster_than_rings_over_routes():
    listed = seconds("coupled", torus(), [list(range(16))])
    one = seconds("coupled", torus(cycles=[SNAKE]), [list(range(16))])
    both = seconds("coupled", torus(cycles=[SNAKE, SNAKE[::-1]]), [list(range(16))])
    assert both < 0.6 * one
    assert one <= listed * (1 + 1e-9)
    check_rings(torus(cycles=[SNAKE, *BOTH_WAYS]))


def test_places_of_receivers():
    made = torus(cycles=[SNAKE, *BOTH_WAYS])
    assert cycles_of(made, np.array([2, 0, 3, 1])).tolist() == [[2, 3, 1, 0], [3, 2, 0, 1]]
    assert cycles_of(made, np.arange(16)).shape == (1, 16)
    for none in ([0, 1], [0, 1, 2, 5], [0, 1, 2, 3, 3], [7]):
        assert cycles_of(made, np.array(none)).size == 0
    assert cycles_of(circle(4, (1, 3), rings={4: ((1,),)}, cycles=[(3, 2, 1, 0)]), np.arange(4)).size == 0


@pytest.mark.parametrize("cycle", [(0,), (), (0, 1, 1), (0, 1, 16), (-1, 0)])
def test_a_cycle_names_hosts_once(cycle):
    with pytest.raises(TopoplanError, match=r"fabric 'f': the cycle .* must be two or more of 16 hosts, each once"):
        torus(cycles=[cycle])


def test_a_cycle_needs_its_links():
    message = r"fabric 'f': (the|a) cycle .* needs a link from host 3 to host 5"
    broken = torus(cycles=[(0, 1, 2, 3, 5)])
    with pytest.raises(TopoplanError, match=message):
        check_rings(broken)
    with pytest.raises(TopoplanError, match=message):
        seconds("coupled", broken, [[0, 1, 2, 3, 5]])
