"""Fabrics as networkx graphs: what goes there and back, and what is refused."""

from __future__ import annotations

import json
import pickle

import attrs
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan import Fabric, LinkKind, Routes, TopoplanError
from topoplan.testing import reference


@st.composite
def fabrics(draw):
    hosts, switches = draw(st.integers(1, 6)), draw(st.integers(0, 3))
    nodes = hosts + switches
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    links = draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    kinds = draw(st.permutations(LinkKind))
    rates = {pair: draw(st.sampled_from([1e9, 2.5e9, 5e10])) for pair in set(links)}
    return Fabric.from_links(
        name="drawn",
        n_hosts=hosts,
        n_switches=switches,
        links=links,
        bandwidth=[rates[pair] for pair in links],
        latency=[1e-6 * (1 + a) for a, _ in links],
        kind=[kinds[(a + b) % 3] for a, b in links],
        max_paths=draw(st.integers(1, 4)),
        rings={hosts: ((1,), (hosts - 1,))} if hosts > 1 else {},
        switching=draw(st.sampled_from(["ocs", None])),
        cycles=draw(st.lists(st.permutations(range(hosts)), max_size=2)) if hosts > 1 else (),
    )


@given(fabrics())
def test_a_fabric_comes_back_from_networkx_as_it_was(fabric):
    assert Fabric.from_networkx(fabric.to_networkx()) == fabric


@given(fabrics())
def test_a_fabric_comes_back_from_node_link_json(fabric):
    data = json.loads(json.dumps(nx.node_link_data(fabric.to_networkx(), edges="links")))
    again = Fabric.from_networkx(nx.node_link_graph(data, edges="links"))
    assert again == fabric
    assert again.switching == fabric.switching


def test_a_generated_graph_is_a_fabric_with_links_both_ways():
    fabric = Fabric.from_networkx(nx.hypercube_graph(3), bandwidth=1e9, latency=1e-6)
    assert (fabric.n_hosts, fabric.n_switches, fabric.n_links) == (8, 0, 24)
    assert np.bincount(fabric.link_src).tolist() == [3] * 8
    assert set(fabric.link_bandwidth) == {1e9}


def test_parallel_edges_are_one_link_of_their_sum():
    graph = nx.MultiDiGraph([("a", "b", {"bandwidth": 1e9}), ("a", "b", {"bandwidth": 2e9, "count": 2})])
    fabric = Fabric.from_networkx(graph, latency=0.0)
    assert (fabric.link_bandwidth.tolist(), fabric.link_count.tolist()) == ([3e9], [3])


def test_switches_come_after_hosts_whatever_their_order():
    graph = nx.Graph(name="star")
    graph.add_node("s", kind="switch")
    graph.add_nodes_from(["x", "y"], kind="host")
    graph.add_edges_from([("s", "x"), ("s", "y")])
    fabric = Fabric.from_networkx(graph, bandwidth=1e9, latency=0.0)
    assert (fabric.name, fabric.n_hosts, fabric.n_switches) == ("star", 2, 1)
    assert list(zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True)) == [
        (0, 2),
        (1, 2),
        (2, 0),
        (2, 1),
    ]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "edge 0 - 1 has no bandwidth"),
        ({"bandwidth": "fast"}, "bandwidth 'fast'"),
        ({"bandwidth": float("nan")}, "bandwidth nan"),
        ({"bandwidth": 1e9, "count": 0}, "count 0"),
        ({"bandwidth": 1e9, "link": "air"}, r"has link 'air' \(it must be network, lane, inside\)"),
        ({"bandwidth": -1e9}, "bandwidth -1"),
    ],
)
def test_what_is_wrong_with_an_edge_is_said(attributes, message):
    graph = nx.Graph()
    graph.add_edge(0, 1, **attributes)
    with pytest.raises(TopoplanError, match=message):
        Fabric.from_networkx(graph, latency=0.0)


def test_nodes_of_no_known_kind_and_graphs_without_hosts_are_refused():
    graph = nx.Graph()
    graph.add_node(0, kind="router")
    with pytest.raises(TopoplanError, match="kind 'router'"):
        Fabric.from_networkx(graph)
    with pytest.raises(TopoplanError, match="no host"):
        Fabric.from_networkx(nx.Graph())


def test_fabrics_have_the_key_of_their_value():
    routes = Routes(pairs=[[0, 1]], pair_ptr=[0, 1], path_ptr=[0, 1], links=[0], weight=[1.0])
    fabric = attrs.evolve(reference.ring(), routes=routes, rings={4: ((1,), (3,)), 2: ((2,),)}, cycles=((0, 1, 2, 3),))
    same = attrs.evolve(fabric, rings={2: ((2,),), 4: ((1,), (3,))}, routes=attrs.evolve(routes))
    assert fabric == same
    assert fabric.key == same.key
    assert hash(fabric.key) == hash(pickle.loads(pickle.dumps(fabric)).key)
    others = [
        attrs.evolve(fabric, name="other"),
        attrs.evolve(fabric, link_latency=fabric.link_latency + 1e-9),
        attrs.evolve(fabric, link_count=fabric.link_count + 1),
        attrs.evolve(fabric, routes=None),
        attrs.evolve(fabric, routes=attrs.evolve(routes, links=[1])),
        attrs.evolve(fabric, rings={4: ((1,), (3,))}),
        attrs.evolve(fabric, cycles=()),
        attrs.evolve(fabric, max_paths=2),
        *(reference.rebuilt(delay) for delay in (1e-3, 2e-3)),
    ]
    assert len({fabric.key, *(other.key for other in others)}) == len(others) + 1
