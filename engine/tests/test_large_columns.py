"""What is done at once for very many devices is what is done one by one."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, Fabric
from topoplan_engine.csr import GrowingColumns, append
from topoplan_engine.lowering.folding.evened import _front
from topoplan_engine.network.round_loads import bytes_on_links, longest_delays
from topoplan_engine.network.tables import Network


def switches(joined: list[tuple[int, int]], hosts: int = 4, n_switches: int = 4) -> Fabric:
    """Return hosts on switches in turn, which are joined; every host has a cable to two of them."""
    ends = [(host, hosts + (host + more) % n_switches) for host in range(hosts) for more in (0, 1)]
    ends += [(hosts + a, hosts + b) for a, b in joined]
    links = ends + [(b, a) for a, b in ends]
    return Fabric.from_links(name="net", n_hosts=hosts, n_switches=n_switches, links=links, bandwidth=1e9, latency=1e-6)


def test_columns_that_grow_are_those_that_are_copied():
    growing, column, copied, views = GrowingColumns(), np.arange(3), np.arange(3), []
    for size in (1, 70_000, 5, 50_000, 0, 200_000):
        more = np.arange(size) + len(column)
        column, copied = growing.append("name", column, more[: size // 2], more[size // 2 :]), append(copied, more)
        views.append((column, len(column)))
        assert not column.flags.writeable
    for view, size in views:
        assert len(view) == size
        assert (view == copied[:size]).all()


def test_a_column_that_is_not_the_last_one_is_copied():
    growing, start = GrowingColumns(), np.arange(70_000)
    first = growing.append("name", start, np.array([1]))
    second = growing.append("name", start, np.array([2]))
    assert (first[-1], second[-1]) == (1, 2)


def test_bytes_on_links_are_those_of_all_messages():
    network = Network(switches([(0, 1), (1, 2), (2, 3), (3, 0)]), Cluster.uniform(n_hosts=4, devices_per_host=1))
    source, target = np.array([0, 0, 1, 3, 2, 0], np.int32), np.array([2, 1, 3, 0, 0, 3], np.int32)
    rows, nbytes, paths = network.rows_between(source, target), np.array([3.0, 0.0, 7.0]), network.paths
    cells, loads = bytes_on_links(rows.reshape(2, 3), nbytes, paths)
    expected = np.zeros(2 * network.n_links)
    for number, row in enumerate(rows.tolist()):
        before = 0.0
        for path in range(paths.row_ptr[row], paths.row_ptr[row + 1]):
            links = paths.links[paths.path_ptr[path] : paths.path_ptr[path + 1]]
            expected[number // 3 * network.n_links + links] += nbytes[number % 3] * (
                paths.cumulative_weight[path] - before
            )
            before = paths.cumulative_weight[path]
    assert cells.tolist() == np.flatnonzero(expected).tolist()
    assert loads == pytest.approx(expected[cells], rel=1e-15)
    longest = [paths.delay[paths.row_ptr[row] : paths.row_ptr[row + 1]].max() for row in rows.tolist()]
    assert longest_delays(rows, paths).tolist() == longest


@pytest.mark.parametrize("seed", range(20))
def test_a_link_is_represented_by_the_first_that_every_flow_keeps_as_busy(seed):
    """By definition, link by link: the busiest first; 1e-9 more is as busy."""
    draw = np.random.default_rng(seed)
    times = draw.integers(0, 4, (draw.integers(1, 120), draw.integers(1, 7))) * (1 + draw.choice([0, 5e-10, 1e-8]))
    front, expected = [], {}
    for number in sorted(range(len(times)), key=lambda each: -times[each].sum()):
        expected[number] = next((each for each in front if (times[number] <= times[each] * (1 + 1e-9)).all()), number)
        front += [number] * (expected[number] == number)
    assert _front(times).tolist() == [expected[number] for number in range(len(times))]
