"""A cabling list joins what the fabric joins, and no interface twice."""

from __future__ import annotations

import csv
import io
from collections import Counter

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Fabric, TopoplanError
from topoplan.testing import reference
from topoplan_network_files.cabling import as_csv, as_markdown, connections


def panel(links, n_hosts, bandwidth=1e9):
    return Fabric.from_links(
        name="panel", n_hosts=n_hosts, links=links, bandwidth=bandwidth, latency=0, switching="patch-panel"
    )


def fibres(rows):
    """Return the interfaces that send, and that receive, of all rows."""
    sends = [row.first for row in rows] + [row.second for row in rows if row.both_ways]
    receives = [row.second for row in rows] + [row.first for row in rows if row.both_ways]
    return sends, receives


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_fabric_of_hosts(data):
    n = data.draw(st.integers(2, 6))
    host = st.integers(0, n - 1)
    links = data.draw(st.lists(st.tuples(host, host).filter(lambda ends: ends[0] != ends[1]), min_size=1, max_size=20))
    fabric, cluster = panel(links, n), Cluster.uniform(n_hosts=n, interfaces=20)
    rows = connections(fabric, cluster)
    for side in fibres(rows):
        assert max(Counter(side).values()) == 1, "an interface sends or receives over two fibres"
    joined = Counter()
    for row in rows:
        ends = [int(name.removeprefix("host ").partition(":")[0]) for name in (row.first, row.second)]
        joined[tuple(ends)] += 1
        joined[tuple(ends[::-1])] += row.both_ways
    assert +joined == Counter(links)


def test_ports_are_those_that_interfaces_are_wired_to():
    cluster = Cluster.uniform(n_hosts=3, interfaces=2)
    rows = connections(panel([(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)], 3, 3.125e9), cluster)
    assert as_csv(rows).decode() == (
        "from,from_panel_port,to_panel_port,to,direction,Gbps\n"
        "host 0:0,0,2,host 1:0,both ways,25\n"
        "host 1:1,3,4,host 2:0,both ways,25\n"
        "host 2:1,5,1,host 0:1,one way,25\n"
    )
    assert list(csv.reader(io.StringIO(as_csv(rows).decode())))[3][0] == "host 2:1"
    assert as_markdown(rows).decode().splitlines()[2] == "| host 0:0 | 0 | 2 | host 1:0 | both ways | 25 |"


def test_names_in_a_table_begin_no_formula_and_no_row():
    """Python 3.11 does not quote a carriage return where lines end otherwise; readers take it for the end of one."""
    rows = connections(panel([(0, 1), (1, 0)], 2, 3.125e9), Cluster.uniform(n_hosts=2, interfaces=1))
    written = as_csv([attrs.evolve(rows[0], first="a\r+1", second="=1")]).decode()
    _, row = csv.reader(io.StringIO(written, newline=""))
    assert (row[0], row[3]) == (r"a\r+1", "'=1")


def test_switches_have_ports_of_their_own():
    rows = connections(reference.two_switches(), Cluster.uniform(n_hosts=4, interfaces=2))
    assert (rows[0].first, rows[0].first_port, rows[0].second) == ("host 0:0", -1, "switch 0:0")
    assert (rows[1].first, rows[1].second) == ("host 0:1", "switch 1:0")


def test_more_links_than_interfaces():
    with pytest.raises(TopoplanError, match=r"cabling: host 0 has 1 interfaces, but more links \(--degree\)"):
        connections(panel([(0, 1), (0, 1)], 2), Cluster.uniform(n_hosts=2, interfaces=1))


def test_shares_of_interfaces_are_no_cables():
    fabric = Fabric.from_links(name="mesh", n_hosts=2, links=[(0, 1), (1, 0)], bandwidth=1e9, latency=0, kind=1)
    with pytest.raises(TopoplanError, match="are shares of interfaces"):
        connections(fabric, Cluster.uniform(n_hosts=2))
