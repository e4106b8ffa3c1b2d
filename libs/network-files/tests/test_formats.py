"""Formats of networks: a round trip keeps everything, and what is wrong is named with file and field."""

from __future__ import annotations

import json
import warnings

import attrs
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Fabric, LinkKind, Routes, TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan.testing import reference
from topoplan_network_files import Defaults, read_network
from topoplan_network_files.graphs import write_graphml, write_node_link
from topoplan_network_files.infragraph import write as write_infragraph
from topoplan_network_files.links import write_dot, write_ns3
from topoplan_network_files.quantities import latency, rate

DEFAULTS = Defaults(bandwidth=12.5e9, latency=1e-6)
COLUMNS = ("link_src", "link_dst", "link_count", "link_bandwidth", "link_latency")


@st.composite
def fabrics(draw, one_way):
    """Return fabrics of any links: of several cables, rates and latencies, to switches and between hosts."""
    hosts, switches = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    nodes = st.integers(0, hosts + switches - 1)
    pairs = draw(st.sets(st.tuples(nodes, nodes).filter(lambda ends: ends[0] != ends[1]), max_size=12))
    rates = st.sampled_from([1.0, 12.5e9, 1e10 / 3, 5e10, 1.1e11])
    rows = []
    for source, target in sorted(pairs if one_way else {(min(pair), max(pair)) for pair in pairs}):
        count = draw(st.integers(1, 3))
        rest = draw(rates), draw(st.sampled_from([0.0, 1e-6, 5e-7, 1 / 3e6])), count
        rows += [(source, target, *rest)] + ([] if one_way else [(target, source, *rest)])
    expanded = [row[:4] for row in rows for _ in range(row[4])]
    table = np.array(expanded, dtype=np.float64).reshape(-1, 4)
    return Fabric.from_links(
        name="drawn", n_hosts=hosts, n_switches=switches, links=table[:, :2], bandwidth=table[:, 2], latency=table[:, 3]
    )


@given(fabrics(one_way=True), st.sampled_from([(".json", write_node_link), (".graphml", write_graphml)]))
@settings(max_examples=100, deadline=None)
def test_graphs_keep_everything(fabric, form):
    suffix, write = form
    assert read_network(write(fabric), f"net{suffix}", DEFAULTS) == fabric
    assert write(fabric) == write(fabric)


@given(fabrics(one_way=False))
@settings(max_examples=100, deadline=None)
def test_infragraph_keeps_links_counts_rates_and_latencies(fabric):
    read = read_network(write_infragraph(fabric, Cluster.uniform(n_hosts=fabric.n_hosts)), "net.yaml", DEFAULTS)
    assert (read.n_hosts, read.n_switches) == (fabric.n_hosts, fabric.n_switches)
    for name in COLUMNS[:3]:
        assert np.array_equal(getattr(read, name), getattr(fabric, name)), name
    for name in COLUMNS[3:]:
        assert getattr(read, name) == pytest.approx(getattr(fabric, name), rel=1e-14), name


def everything():
    """Return a fabric that uses all that a fabric can say."""
    ring = reference.ring()
    routes = Routes(
        pairs=[(0, 1), (0, 2), (1, 1)],
        pair_ptr=[0, 1, 3, 3],
        path_ptr=[0, 1, 3, 5],
        links=[*ring.link_rows([0], [1]), *ring.link_rows([0, 1], [1, 2]), *ring.link_rows([0, 3], [3, 2])],
        weight=[1.0, 0.25, 0.75],
    )
    rings = {4: ((1,), (3,)), 2: ((1, 3),)}
    changed = {"cycles": ((0, 1, 2, 3),), "max_paths": 4, "switching": "patch-panel", "rings": rings, "routes": routes}
    return attrs.evolve(ring, **changed, link_kind=[LinkKind.LANE] * ring.n_links)


@pytest.mark.parametrize(("suffix", "write"), [(".json", write_node_link), (".graphml", write_graphml)])
def test_graphs_keep_routes_rings_and_kinds(suffix, write):
    assert read_network(write(everything()), f"net{suffix}", DEFAULTS) == everything()


def test_infragraph_names_what_it_cannot_say():
    with pytest.warns(UserWarning, match="the format cannot say") as warned:
        write_infragraph(everything(), Cluster.uniform(n_hosts=4))
    (warning,) = warned
    for what in ("rings", "explicit routes", "the number of equal paths", "what links pass", "kinds of links"):
        assert what in str(warning.message)


def test_what_networkx_writes_is_read():
    """Any graph of its generators; what it does not say comes from the defaults."""
    graph = nx.hypercube_graph(3)
    named = nx.relabel_nodes(graph, {node: "".join(map(str, node)) for node in graph})
    data = json.dumps(nx.node_link_data(named, edges="links")).encode()
    fabric = read_network(data, "net.json", Defaults(bandwidth=1e9, latency=1e-6, max_paths=6))
    assert (fabric.n_hosts, fabric.n_links, fabric.max_paths) == (8, 24, 6)
    assert set(fabric.link_bandwidth) == {1e9}


def test_parallel_edges_and_units():
    nodes = [{"id": "a", "kind": "host"}, {"id": "s", "kind": "switch"}, {"id": "b", "kind": "host"}]
    cable = {"bandwidth": "400 Gbps", "latency": "500 ns"}
    edges = [{"source": "a", "target": "s", **cable}, {"source": "a", "target": "s", **cable}]
    edges.append({"source": "b", "target": "s", "bandwidth": "100 GB/s", "latency": 5e-7, "count": 2})
    data = json.dumps({"multigraph": True, "nodes": nodes, "edges": edges}).encode()
    fabric = read_network(data, "net.json", DEFAULTS)
    assert fabric.link_count.tolist() == [2, 2, 2, 2]
    assert fabric.link_bandwidth.tolist() == [100e9] * 4
    assert set(fabric.link_latency) == {5e-7}


def graph(edges, nodes=("a", "b"), **more):
    return json.dumps({"nodes": [{"id": node} for node in nodes], "edges": edges, **more}).encode()


def graphml(*rows, direction="undirected", more=""):
    head = f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{more and FLAG}<graph edgedefault="{direction}">'
    nodes = "".join(f'<node id="{node}"/>' for node in "abc")
    edges = "".join(f'<edge source="{a}" target="{b}"/>' for a, b in rows)
    return f"{head}{more}{nodes}{edges}</graph></graphml>".encode()


FLAG = '<key id="m" for="graph" attr.name="multigraph" attr.type="boolean"/>'


def rows_of(*pairs, **more):
    return graph([{"source": a, "target": b} for a, b in pairs], nodes=("a", "b", "c"), **more)


BOTH_WAYS = ["ab", "bc", "ba", "cb"]
AGAIN = "joins 'b' to 'a', and {} joins 'a' to 'b': one cable both ways, or two cables? (list each cable once, or write"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("net.json", rows_of(*BOTH_WAYS), f"net.json: edges[2]: {AGAIN.format('net.json: edges[0]')}"),
        ("net.json", rows_of("ab", "ba", directed=False), "where a row is one way; of two cables, one with count: 2"),
        ("net.json", rows_of("ab", "ba", multigraph=False), "as net.json: edges[0] does, and multigraph is false"),
        ("net.json", rows_of("ab", "ab", multigraph=False), "joins 'a' to 'b', as net.json: edges[0] does, and"),
        ("net.json", rows_of("ab", "ba", "ab", directed=True, multigraph=False), "edges[2]: joins 'a' to 'b', as"),
        ("net.json", rows_of("ab", "ba", directed="true"), "net.json: directed is 'true' (expected true or false)"),
        ("net.json", rows_of("ab", multigraph="no"), "net.json: multigraph is 'no' (expected true or false)"),
        ("net.graphml", graphml(*BOTH_WAYS), f"net.graphml: edge 2: {AGAIN.format('net.graphml: edge 0')}"),
        ("net.graphml", graphml("ab", "ba"), 'write edgedefault="directed" where'),
    ],
)
def test_a_cable_that_is_listed_both_ways_is_named(name, data, message):
    """It was two cables, so that the network had twice the bandwidth."""
    with pytest.raises(TopoplanError) as error:
        read_network(data, name, DEFAULTS)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "data", "counts"),
    [
        ("net.json", rows_of("ab", "bc"), [1, 1]),
        ("net.json", rows_of("ab", "ab", "bc"), [2, 1]),
        ("net.json", rows_of("ab", "ba", "bc", multigraph=True), [2, 1]),
        ("net.json", rows_of(*BOTH_WAYS, directed=True), [1, 1]),
        ("net.json", rows_of(*BOTH_WAYS, "ab", "ba", directed=True), [2, 1]),
        ("net.graphml", graphml("ab", "ab", "bc"), [2, 1]),
        ("net.graphml", graphml(*BOTH_WAYS, direction="directed"), [1, 1]),
        ("net.graphml", graphml("ab", "ba", "bc", more='<data key="m">true</data>'), [2, 1]),
    ],
)
def test_cables_of_a_pair_are_counted_as_networkx_does(name, data, counts):
    fabric = read_network(data, name, DEFAULTS)
    assert fabric.link_count[fabric.link_src < fabric.link_dst].tolist() == counts
    assert fabric.link_count[fabric.link_src > fabric.link_dst].tolist() == counts


@pytest.mark.parametrize(("write", "suffix"), [(nx.node_link_data, ".json"), (nx.write_graphml, ".graphml")])
def test_parallel_edges_that_networkx_writes_stay_several(write, suffix, tmp_path):
    """By hand: its graphs have no direction of an edge, and two edges of a multigraph are two."""
    several = nx.MultiGraph([("a", "b"), ("b", "a"), ("b", "c")])
    path = tmp_path / f"net{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(write(several, edges="edges")))
    else:
        write(several, path)
    fabric = read_network(path.read_bytes(), path.name, DEFAULTS)
    assert fabric.link_count[fabric.link_src < fabric.link_dst].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400 Gbps", 50e9), ("50GB/s", 50e9), ("8 bps", 1.0), ("1e3 kB/s", 1e6), ("1.5 Tbit/s", 187.5e9), (12.5, 12.5)],
)
def test_rates(text, expected):
    assert rate(text, "x") == expected


def test_latencies():
    assert [latency(text, "x") for text in ("2 us", "2 µs", "0 ns", 1e-9)] == [2e-6, 2e-6, 0, 1e-9]


EDGE = {"source": "a", "target": "b"}
WRONG = {
    "one-way link": (graph([EDGE], directed=True), "net.json: one-way link from 'a' to 'b' (add"),
    "unknown unit": (graph([{**EDGE, "bandwidth": "4 Gbaud"}]), "net.json: edges[0]: bandwidth is '4 Gbaud': unknown"),
    "a rate beyond all floats": (graph([{**EDGE, "bandwidth": 10**400}]), "edges[0]: bandwidth is 1000"),
    "negative rate": (graph([{**EDGE, "bandwidth": -1}]), "net.json: edges[0]: bandwidth is -1 (expected 1 to 1e+18"),
    "negative rate with a unit": (graph([{**EDGE, "bandwidth": "-4 Gbps"}]), "bandwidth is '-4 Gbps' (expected"),
    "no rate": (graph([{**EDGE, "bandwidth": None}]), "edges[0]: bandwidth is None (expected a number of bytes/s"),
    "negative latency": (graph([{**EDGE, "latency": "-1 ns"}]), "latency is '-1 ns' (expected 0 to 1000 seconds)"),
    "unknown host": (graph([{**EDGE, "target": "c"}]), "net.json: edges[0]: target: unknown host or switch 'c'"),
    "no end": (graph([{"source": "a"}]), "net.json: edges[0]: target is None (expected a number or a name)"),
    "to itself": (graph([{**EDGE, "target": "a"}]), "edges[0]: leads from 'a' to itself"),
    "count": (graph([{**EDGE, "count": 0}]), "edges[0]: count is 0 (expected 1 to"),
    "kind of link": (graph([{**EDGE, "link": "magic"}]), "net.json: graph: edge 'a' - 'b' has link 'magic'"),
    "kind of node": (
        json.dumps({"nodes": [{"id": 0, "kind": "router"}], "edges": []}).encode(),
        "net.json: graph: node 0 has kind 'router'",
    ),
    "twice": (graph([], nodes=("a", "a")), "net.json: nodes: id 'a' stands there twice"),
    "no nodes": (b"{}", "net.json: nodes is None (expected a list of objects)"),
    "no object": (b"[]", "net.json: is no JSON object"),
    "no JSON": (b"{", "net.json: is no JSON ("),
    "rings": (graph([EDGE], graph={"rings": [1]}), "net.json: graph attribute rings is [1]"),
    "routes": (graph([EDGE], graph={"routes": [[0, 1, [[1.0, [0, 7, 1]]]]]}), "leads over a link that is not there"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_graph_is_named(what):
    data, message = WRONG[what]
    with pytest.raises(TopoplanError) as error:
        read_network(data, "net.json", DEFAULTS)
    assert message in str(error.value)


def graphml(body, keys=""):
    head = f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}<graph edgedefault="undirected">'
    return f'{head}<node id="a"/><node id="b"/>{body}</graph></graphml>'.encode()


RATE = '<key id="r" for="edge" attr.name="bandwidth" attr.type="string"/>'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (graphml('<edge source="a" target="c"/>'), "net.graphml: edge 0: target: unknown host or switch 'c'"),
        (
            graphml('<edge source="a" target="b"><data key="r">4 lanes</data></edge>', RATE),
            "net.graphml: edge 'a' - 'b': bandwidth is '4 lanes': unknown unit 'lanes'",
        ),
        (b"<graphml", "net.graphml: is no GraphML ("),
        (
            b'<?xml version="1.0" encoding="ut8"?><graphml/>',
            "net.graphml: is no GraphML (LookupError: unknown",
        ),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><graphml/>', "net.graphml: declares a document type"),
        (b"<graphml/>", "net.graphml: is no GraphML ("),
    ],
)
def test_what_is_wrong_with_graphml_is_named(data, message):
    with pytest.raises(TopoplanError) as error:
        read_network(data, "net.graphml", DEFAULTS)
    assert message in str(error.value)


def infragraph(edges="[]", link="gigabits_per_second: 100", choice="gigabits_per_second", **more):
    lines = [
        "devices:",
        "- {name: server, components: [{name: xpu, count: 8, choice: xpu}, {name: nic, count: 4, choice: nic}]}",
        "- {name: tor, components: [{name: asic, count: 1, choice: cpu}, {name: port, count: 32, choice: port}]}",
        "instances: [{name: h, device: server, count: 4}, {name: s, device: tor, count: 1}]",
        "links:",
        f"- {{name: c, physical: {{bandwidth: {{choice: {choice}, {link}}}, latency: {{choice: ns, ns: 500}}}}}}",
        f"edges: {edges}",
        *(f"{key}: {value}" for key, value in more.items()),
    ]
    return "\n".join(lines).encode()


def edge(first, second, scheme="one2one", link="c"):
    ends = [f"{{instance: '{end[0]}', component: '{end[1]}'}}" for end in (first, second)]
    return f"[{{ep1: {ends[0]}, ep2: {ends[1]}, scheme: {scheme}, link: {link}}}]"


@pytest.mark.parametrize(
    ("edges", "counts"),
    [
        (edge(("h[0:4]", "nic[0]"), ("s[0]", "port[0:4]")), [1, 1, 1, 1]),
        (edge(("h", "nic[0:2]"), ("s", "port[:8]")), [2, 2, 2, 2]),
        (edge(("h[1]", "nic[-1]"), ("s[0]", "port[5]")), [1]),
        (edge(("h[0:2]", "nic[0]"), ("h[2:4]", "nic[1]"), "many2many"), [1, 1, 1, 1]),
    ],
)
def test_slices_and_schemes_of_infragraph(edges, counts):
    fabric = read_network(infragraph(edges), "net.yaml", DEFAULTS)
    up = fabric.link_src < fabric.link_dst
    assert (fabric.n_hosts, fabric.n_switches) == (4, 1)
    assert fabric.link_count[up].tolist() == counts
    assert fabric.link_bandwidth[up].tolist() == [12.5e9 * count for count in counts]
    assert set(fabric.link_latency) == {5e-7}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (infragraph(edge(("x[0]", "nic[0]"), ("s", "port"))), "edges[0]: ep1: instance: unknown host or switch 'x'"),
        (infragraph(edge(("h[4]", "nic[0]"), ("s", "port[0]"))), "edges[0]: ep1: instance 'h': index 4 of 4"),
        (
            infragraph(
                edge(("h[0]", "nic[1]"), ("s[0]", "port[3]"))[:-1]
                + ", "
                + edge(("s[0]", "port[3]"), ("h[0]", "nic[1]"))[1:]
            ),
            "edges[1]: joins 's[0].port[3]' to 'h[0].nic[1]', as net.yaml: edges[0] does the other way (list each",
        ),
        (infragraph(edge(("h[0]", "fan"), ("s", "port"))), "ep1: component: 'fan' is none of device 'server'"),
        (infragraph(link="furlongs: 1", choice="furlongs"), "links[0]: physical: bandwidth: unknown unit 'furlongs'"),
        (infragraph(link="gigabits_per_second: -4"), "links[0]: physical: bandwidth is '-4.0 Gbps' (expected"),
        (infragraph(edge(("h[0]", "nic"), ("s", "port"), link="d")), "edges[0]: link: 'd' is no link of the file"),
        (infragraph(edge(("h[0]", "nic[0]"), ("s", "port[0]"), "ring")), "edges[0]: scheme is 'ring'"),
        (
            infragraph(connections="[]"),
            "connections: the file is of a later release (expected InfraGraph 3.1.0: devices, ",
        ),
        (b"devices: [{name: d, components: [{name: c, type: xpu}]}]", "components[0]: choice is None"),
        (b"edges: 3", "edges is 3 (expected a list of mappings)"),
        (b"[", "is no YAML"),
        (b"!!python/object/apply:os.system [ls]", "is no YAML"),
        (b"- 1", "is no YAML mapping"),
        (b"name: x", "instances: none is a host"),
    ],
)
def test_what_is_wrong_with_infragraph_is_named(data, message):
    with pytest.raises(TopoplanError) as error:
        read_network(data, "net.yaml", DEFAULTS)
    assert str(error.value).startswith("net.yaml: ")
    assert message in str(error.value)


def test_a_suffix_that_nobody_reads():
    with pytest.raises(
        TopoplanError, match=r"^net.xml: no format of networks has this suffix \(have: .json, .* networkx reads"
    ):
        read_network(b"", "net.xml", DEFAULTS)


def test_ns3():
    links = [(0, 2), (0, 2), (2, 0), (2, 0), (1, 2), (2, 1)]
    latency = [1.5e-6] * 4 + [1.9996e-6] * 2
    fabric = Fabric.from_links(
        name="star", n_hosts=2, n_switches=1, links=links, bandwidth=[12.5e9] * 4 + [3.125e9] * 2, latency=latency
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write_ns3(fabric).decode() == "3 1 2\n2\n0 2 200000000000bps 1500ns 0\n1 2 25000000000bps 2000ns 0\n"


def test_ns3_says_what_its_program_cannot_run():
    with pytest.warns(TopoplanWarning, match="^ns3: no switches join host 0 to host 2, and hosts of the simulator"):
        write_ns3(attrs.evolve(reference.ring(), routes=None))
    links = [pair for host in range(257) for pair in ((host, 257), (257, host))]
    large = Fabric.from_links(name="star", n_hosts=257, n_switches=1, links=links, bandwidth=1e9, latency=0)
    with pytest.warns(TopoplanWarning, match="^ns3: switch 0 has 257 links; switches of the simulator have 256$"):
        write_ns3(large)


@pytest.mark.parametrize("write", [write_ns3, lambda fabric: write_infragraph(fabric, Cluster.uniform(n_hosts=4))])
def test_formats_of_cables_refuse_links_that_lead_one_way(write):
    ring = reference.ring()
    slower = attrs.evolve(ring, link_bandwidth=[2e9, *ring.link_bandwidth[1:]])
    with pytest.raises(TopoplanError, match=r"the link from host 0 to host 1 differs from the link back in rate, lat"):
        write(slower)
    ahead = Fabric.from_links(name="r", n_hosts=4, links=[(h, (h + 1) % 4) for h in range(4)], bandwidth=1e9, latency=0)
    with pytest.raises(
        TopoplanError, match=r"the link from host 0 to host 1 has no link back, which the format cannot"
    ):
        write(ahead)


def test_a_drawing_has_a_line_for_each_pair():
    text = write_dot(reference.two_switches()).decode()
    assert text.count("->") == 8
    assert 'n4 [label="switch 0", shape=box];' in text
    assert 'n0 -> n4 [label="1 x 8 Gbps"];' in text
    ahead = Fabric.from_links(name="r", n_hosts=2, links=[(0, 1)], bandwidth=1e9, latency=0)
    assert 'n0 -> n1 [label="1 x 8 Gbps", dir=forward];' in write_dot(ahead).decode()


GOOD = [
    ("net.json", write_node_link(everything())),
    ("net.json", graph([{**EDGE, "bandwidth": "4 Gbps"}])),
    ("net.graphml", write_graphml(everything())),
    ("net.yaml", infragraph(edge(("h[0:4]", "nic[0]"), ("s[0]", "port[0:4]")))),
]


@pytest.mark.filterwarnings("ignore:No key type:UserWarning", "ignore:.*not read of links:UserWarning")
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_is_one_line_or_a_fabric(data):
    name, content = data.draw(st.sampled_from(GOOD))
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        pieces = [b"", b"-", b"9", b"}", b"[", b'"', b"null", b"1e999", b"\xff", b"a:", b"&a", b"*a"]
        put = data.draw(st.sampled_from(pieces))
        changed[at : at + data.draw(st.integers(0, 3))] = put
    try:
        message = read_network(bytes(changed), name, DEFAULTS).name and name
    except TopoplanError as error:
        message = str(error)
    assert message.startswith(name)
    assert "\n" not in message


#: What is written for a link -> what would be right.
MEANT = {
    "capacity": "bandwidth",
    "bw": "bandwidth",
    "bandwith": "bandwidth",
    "Bandwidth": "bandwidth",
    "speed_gbps": "bandwidth",
    "weight": "bandwidth",
    "delay": "latency",
    "latencyy": "latency",
    "rtt_us": "latency",
    "nCables": "count",
    "conut": "count",
}


@pytest.mark.parametrize("name", MEANT)
def test_an_attribute_that_looks_like_one_that_is_read_is_refused(name):
    right = MEANT[name]
    with pytest.raises(
        TopoplanError, match=rf"^net\.json: edges\[0\]: '{name}' of a link is not read \(write {right}: "
    ):
        read_network(graph([{**EDGE, name: 4}]), "net.json", DEFAULTS)
    key = f'<key id="r" for="edge" attr.name="{name}" attr.type="long"/>'
    body = '<edge source="a" target="b"><data key="r">4</data></edge>'
    with pytest.raises(TopoplanError, match=rf"^net\.graphml: edge 'a' - 'b': '{name}' of a link .* \(write {right}: "):
        read_network(graphml(body, key), "net.graphml", DEFAULTS)
    drawn = nx.path_graph(2)
    drawn.edges[0, 1].update({"bandwidth": 1e9, "latency": 1e-6, "count": 1})
    del drawn.edges[0, 1][right]
    drawn.edges[0, 1][name] = 4
    with pytest.raises(TopoplanError, match=rf"^graph: edge 0 - 1: '{name}' of a link is not read \(write {right}: "):
        Fabric.from_networkx(drawn, bandwidth=1e9, latency=1e-6)


@pytest.mark.parametrize("named", ["kind", "type", "linkType"])
def test_a_kind_of_link_under_another_name(named):
    with pytest.raises(TopoplanError, match=rf"edges\[0\]: '{named}' of a link is not read \(write link: inside\)$"):
        read_network(graph([{**EDGE, named: "inside"}]), "net.json", DEFAULTS)


def test_other_attributes_of_links_are_named_once():
    edges = [{**EDGE, "color": "red", "cable": "DAC", "weight": 1, "bandwidth": "4 Gbps", "capacity": 7}] * 2
    with pytest.warns(TopoplanWarning) as warned:
        fabric = read_network(graph(edges), "net.json", DEFAULTS)
    assert [str(each.message) for each in warned] == [
        "net.json: not read of links: 'color', 'cable', 'weight', 'capacity' (read are bandwidth, latency, count, link)"
    ]
    assert fabric.link_bandwidth.tolist() == [1e9, 1e9]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (graph([{**EDGE, "link": {}}]), "net.json: edges[0]: link is {} (expected network, lane or inside)"),
        (graph([EDGE], cycles=[[0, 1]]), 'net.json: cycles is not read there (it belongs into "graph": {...})'),
        (graph([EDGE], graph={"maxPaths": 4}), "net.json: graph attribute 'maxPaths' is not read (write max_paths)"),
        (
            json.dumps({"nodes": [{"id": "a"}, {"id": "b", "type": "switch"}], "edges": [EDGE]}).encode(),
            "net.json: nodes[1]: 'type' of a node is not read (write kind: switch)",
        ),
    ],
)
def test_what_would_change_the_network_silently_is_refused(data, message):
    with pytest.raises(TopoplanError) as error:
        read_network(data, "net.json", DEFAULTS)
    assert str(error.value) == message


def test_attributes_of_nodes_and_of_the_graph_that_nobody_reads_are_named():
    document = {
        "graph": {"owner": "lab"},
        "nodes": [{"id": 0, "pos": [0, 1]}, {"id": 1, "buffer": "16 MB", "latency": "1 us"}],
        "edges": [{"source": 0, "target": 1, "bandwidth": 1e9}],
    }
    with pytest.warns(TopoplanWarning) as warned:
        read_network(json.dumps(document).encode(), "net.json", DEFAULTS)
    assert sorted(str(each.message) for each in warned) == [
        "net.json: not read of nodes: 'buffer', 'latency' (read are kind, label)",
        "net.json: not read of the graph: 'owner' (read are name, max_paths, rings, cycles, rings_along_links, "
        "switching, routes, one_way)",
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("bandwidth: {", "bandwith: {"), "links[0]: physical: 'bandwith' of a link is not read (write bandwidth"),
        (("physical: {", "rate: 4, physical: {"), "links[0]: 'rate' of a link is not read (write bandwidth"),
        (("scheme:", "delay: 3, scheme:"), "edges[0]: 'delay' of a link is not read (write latency: under physical"),
        (("instances:", "infrastructure:"), "net.yaml: infrastructure: the file is of a later release"),
        (("links:", "lnks:"), "net.yaml: 'lnks' is not read (write links)"),
    ],
)
def test_attributes_of_infragraph_that_nobody_reads(changed, message):
    data = infragraph(edge(("h[0:4]", "nic[0]"), ("s[0]", "port[0:4]"))).decode().replace(*changed, 1).encode()
    with pytest.raises(TopoplanError) as error:
        read_network(data, "net.yaml", DEFAULTS)
    assert message in str(error.value)


def test_a_network_of_astra_sim_is_named():
    with pytest.raises(TopoplanError, match=r"^net\.yml: npus_count: the file is a network of ASTRA-sim, which is not"):
        read_network(b"topology: [Ring]\nnpus_count: [8]\nbandwidth: [50]\nlatency: [500]", "net.yml", DEFAULTS)


def test_infragraph_as_json():
    import yaml

    data = infragraph(edge(("h[0:4]", "nic[0]"), ("s[0]", "port[0:4]")))
    document = json.dumps(yaml.safe_load(data)).encode()
    assert read_network(document, "net.json", DEFAULTS) == read_network(data, "net.yaml", DEFAULTS)


NAMED = [{"id": "rail0", "kind": "switch"}, {"id": "gpu-a", "kind": "host"}, {"id": "gpu|b", "kind": "host"}]


@pytest.mark.parametrize(("suffix", "write"), [(".json", write_node_link), (".graphml", write_graphml)])
def test_names_of_hosts_and_switches_stay(suffix, write):
    cables = [{"source": "rail0", "target": node["id"], "bandwidth": 1e9} for node in NAMED[1:]]
    fabric = read_network(json.dumps({"nodes": NAMED, "edges": cables}).encode(), "net.json", DEFAULTS)
    again = read_network(write(fabric), f"net{suffix}", DEFAULTS)
    assert again == fabric
    assert again.node_names == fabric.node_names == ("gpu-a", "gpu|b", "rail0")
    assert 'n0 [label="gpu-a"];' in write_dot(fabric).decode()
    from topoplan_network_files.cabling import as_csv, as_markdown, connections

    rows = connections(fabric, Cluster.uniform(n_hosts=2, interfaces=1))
    assert "gpu-a:0,,,rail0:0,both ways,8" in as_csv(rows).decode()
    assert "gpu\\|b:0" in as_markdown(rows).decode()


def test_numbers_and_labels_as_names():
    """A label goes before an id; a number is no name, but is kept where it is not the node's own."""
    nodes = [{"id": 0, "kind": "switch"}, {"id": 7, "kind": "host"}, {"id": 8, "kind": "host"}]
    edges = [{"source": 0, "target": 7}, {"source": 0, "target": 8}]
    read = read_network(json.dumps({"nodes": nodes, "edges": edges}).encode(), "net.json", DEFAULTS)
    assert read.node_names == ("host 7", "host 8", "switch 0")
    assert read_network(write_graphml(read), "net.graphml", DEFAULTS).node_names == read.node_names
    labelled = [{**node, "label": label} for node, label in zip(nodes, ("tor", "left", "x\x1b[31m"), strict=True)]
    read = read_network(json.dumps({"nodes": labelled, "edges": edges}).encode(), "net.json", DEFAULTS)
    assert read.node_names == ("left", "x\\x1b[31m", "tor")
    plain = read_network(graph([{"source": 0, "target": 1}], nodes=(0, 1)), "net.json", DEFAULTS)
    assert plain.node_names == ()
    assert (plain.node_name(0), reference.two_switches().node_name(4)) == ("host 0", "switch 0")


def test_instances_of_infragraph_keep_their_names():
    data = infragraph(edge(("h[0:4]", "nic[0]"), ("s[0]", "port[0:4]")))
    assert read_network(data, "net.yaml", DEFAULTS).node_names == ("h 0", "h 1", "h 2", "h 3", "s")
