"""Networks as graphs: networkx's node-link JSON, and GraphML.

Nodes have the attribute ``kind``, ``host`` or ``switch``; all are hosts where none has it.  Links have ``bandwidth``
(bytes/s of all ``count`` cables, or a text with a unit), ``latency`` (seconds, or a text), ``count`` and ``link`` (a
`LinkKind`).  The graph has what belongs to no single node or link: ``name``, ``max_paths``, ``rings``, ``cycles``,
``rings_along_links``, ``switching``, ``routes`` and ``one_way``.  GraphML has no lists: there they are texts of JSON.

Nodes keep their names: the attribute ``label`` where all have one, else their ids.  Attributes that are not read are
refused where they look like one that is, and named in a warning otherwise (`topoplan_network_files.unread`).
"""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from topoplan import Fabric, Routes, TopoplanError
from topoplan.errors import shown
from topoplan.model.fabric import MOST_NODES
from topoplan_network_files.listed_pairs import ListedPairs
from topoplan_network_files.quantities import Defaults, latency, rate
from topoplan_network_files.unread import GRAPH_ATTRIBUTES, UnreadAttributes, check_graph_attributes

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["read_graphml", "read_node_link", "write_graphml", "write_node_link"]

#: Attributes of the graph that are lists or objects.
_STRUCTURED = ("rings", "cycles", "routes")
_MOST_CABLES = 1_000_000


def write_node_link(fabric: Fabric) -> bytes:
    """Write a fabric as node-link JSON, one node or link a line."""
    import networkx as nx

    document = nx.node_link_data(_graph(fabric), edges="edges")
    rows = {key: ",\n".join(json.dumps(row) for row in document.pop(key)) for key in ("nodes", "edges")}
    head = json.dumps(document)[:-1]
    return f'{head},\n"nodes": [\n{rows["nodes"]}\n],\n"edges": [\n{rows["edges"]}\n]}}\n'.encode()


def write_graphml(fabric: Fabric) -> bytes:
    """Write a fabric as GraphML."""
    import networkx as nx

    graph = _graph(fabric)
    for key in _STRUCTURED:
        if key in graph.graph:
            graph.graph[key] = json.dumps(graph.graph[key])
    out = io.BytesIO()
    nx.write_graphml(graph, out)
    return out.getvalue() + b"\n"


def _graph(fabric: Fabric) -> nx.DiGraph:
    """Return a fabric as a graph, without attributes that say nothing."""
    import networkx as nx

    graph = fabric.to_networkx()
    graph.graph["rings"] = {str(size): rings for size, rings in graph.graph["rings"].items()}
    routes = fabric.routes
    if routes is not None:
        graph.graph["routes"] = _routes(fabric, routes)
    if (fabric.link_rows(fabric.link_dst, fabric.link_src) < 0).any():
        graph.graph["one_way"] = True
    graph.graph = {key: value for key, value in graph.graph.items() if value not in (None, [], {}) or key == "routes"}
    if fabric.node_names:  # ids of a file are names; what the graph says of hosts says their numbers, in this order
        graph = nx.relabel_nodes(graph, dict(enumerate(fabric.node_names)))
        for node in graph:
            del graph.nodes[node]["label"]
    return graph


def _routes(fabric: Fabric, routes: Routes) -> list[list[Any]]:
    """Return rows of a source, a destination, and the paths between them: their share, and their nodes."""
    rows = []
    for pair, first, last in zip(routes.pairs.tolist(), routes.pair_ptr[:-1], routes.pair_ptr[1:], strict=True):
        paths = []
        for path in range(first, last):
            links = routes.links[routes.path_ptr[path] : routes.path_ptr[path + 1]]
            nodes = [pair[0], *fabric.link_dst[links].tolist()]
            paths.append([float(routes.weight[path]), nodes])
        rows.append([*pair, paths])
    return rows


def read_node_link(data: bytes, name: str, defaults: Defaults) -> Fabric:
    """Read node-link JSON; the links may be called ``edges`` or ``links``.

    Raises:
        TopoplanError: the file is not right; the message names the field.
    """
    import networkx as nx

    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TopoplanError(f"{name}: is no JSON ({error})") from None
    if not isinstance(document, dict):
        raise TopoplanError(f"{name}: is no JSON object (expected node-link data, with nodes and edges)")
    rows: dict[str, list[dict[str, Any]]] = {}
    for field, keys in (("nodes", ("nodes",)), ("edges", ("edges", "links"))):
        value = next((document[key] for key in keys if key in document), None)
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            raise TopoplanError(f"{name}: {field} is {shown(value)} (expected a list of objects)")
        rows[field] = value
    ids = [_id(row.get("id"), f"{name}: nodes[{place}]: id") for place, row in enumerate(rows["nodes"])]
    declared: set[int | str] = set()
    for each in ids:
        if each in declared:
            raise TopoplanError(f"{name}: nodes: id {shown(each)} stands there twice")
        declared.add(each)
    is_directed, multigraph = (_flag(document.get(key), f"{name}: {key}") for key in ("directed", "multigraph"))
    graph = (nx.MultiDiGraph if is_directed else nx.MultiGraph)()
    attributes = document.get("graph", {})
    graph.graph.update(dict(attributes) if isinstance(attributes, dict) else {})
    listed = ListedPairs(is_directed=bool(is_directed), multigraph=multigraph, directions="directed: true")
    misplaced = next((key for key in ("rings", "cycles", "routes", "max_paths", "one_way") if key in document), None)
    if misplaced is not None:
        raise TopoplanError(f'{name}: {misplaced} is not read there (it belongs into "graph": {{...}})')
    unread = UnreadAttributes(name)
    for place, (key, row) in enumerate(zip(ids, rows["nodes"], strict=True)):
        unread.add_node(row, f"{name}: nodes[{place}]")
        graph.add_node(key, kind=row.get("kind"), label=row.get("label"))
    for place, row in enumerate(rows["edges"]):
        ends = [_id(row.get(end), f"{name}: edges[{place}]: {end}") for end in ("source", "target")]
        for end, node in zip(("source", "target"), ends, strict=True):
            if node not in declared:
                what = f"unknown host or switch {shown(node)}"
                raise TopoplanError(f"{name}: edges[{place}]: {end}: {what} (no node has this id)")
        where = f"{name}: edges[{place}]"
        listed.add(ends[0], ends[1], where)
        unread.add(row, where)
        graph.add_edge(*ends, where=where, **{key: row[key] for key in _LINK if key in row})
    unread.finish()
    return _fabric(graph, name, defaults)


def _id(value: object, where: str) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TopoplanError(f"{where} is {shown(value)} (expected a number or a name)")
    return value


def _flag(value: object, where: str) -> bool | None:
    """Return what a file says by true or false, or that it does not say it."""
    if value is not None and not isinstance(value, bool):
        raise TopoplanError(f"{where} is {shown(value)} (expected true or false)")
    return value


#: Attributes of links.
_LINK = ("bandwidth", "latency", "count", "link")


def read_graphml(data: bytes, name: str, defaults: Defaults) -> Fabric:
    """Read GraphML.

    Raises:
        TopoplanError: the file is not right; the message names the field.
    """
    import xml.etree.ElementTree as ET

    import networkx as nx

    try:
        _check_no_document_type(data, name)
        root = ET.fromstring(data)
        declared = {each.get("id") for each in root.iter() if each.tag.endswith("}node") or each.tag == "node"}
        links = [each for each in root.iter() if each.tag.endswith("}edge") or each.tag == "edge"]
        for place, link in enumerate(links):
            for end in ("source", "target"):
                if link.get(end) not in declared:
                    what = f"unknown host or switch {shown(link.get(end))}"
                    raise TopoplanError(f"{name}: edge {place}: {end}: {what} (no node has this id)")
        read = nx.read_graphml(io.BytesIO(data))
    except TopoplanError:
        raise
    except (
        ET.ParseError,
        nx.NetworkXError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        StopIteration,
    ) as error:
        raise TopoplanError(f"{name}: is no GraphML ({type(error).__name__}: {error})") from None
    for key in _STRUCTURED:
        if key in read.graph:
            try:
                read.graph[key] = json.loads(str(read.graph[key]))
            except (ValueError, RecursionError):
                text = shown(read.graph[key])
                raise TopoplanError(f"{name}: graph attribute {key} is {text} (expected JSON)") from None
    graph = (nx.MultiDiGraph if read.is_directed() else nx.MultiGraph)()
    graph.graph.update(read.graph)
    multigraph = _flag(read.graph.get("multigraph"), f"{name}: graph attribute multigraph")
    listed = ListedPairs(is_directed=read.is_directed(), multigraph=multigraph, directions='edgedefault="directed"')
    for place, link in enumerate(links):
        listed.add(link.get("source"), link.get("target"), f"{name}: edge {place}")
    unread = UnreadAttributes(name)
    for node, attributes in read.nodes(data=True):
        unread.add_node(attributes, f"{name}: node {node!r}")
        graph.add_node(node, kind=attributes.get("kind"), label=attributes.get("label"))
    for source, target, attributes in read.edges(data=True):
        where = f"{name}: edge {source!r} - {target!r}"
        unread.add(attributes, where)
        graph.add_edge(source, target, where=where, **{key: attributes[key] for key in _LINK if key in attributes})
    unread.finish()
    return _fabric(graph, name, defaults)


class _InElementsError(Exception):
    """The part of an XML file that may declare entities is behind."""


def _check_no_document_type(data: bytes, name: str) -> None:
    """Raise where XML declares a document type, in any encoding: its entities may be files, or grow without an end."""
    from xml.parsers import expat

    def refuse(*declared: object) -> None:
        raise TopoplanError(f"{name}: declares a document type (write GraphML without one)")

    def begin(*element: object) -> None:
        raise _InElementsError

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.StartElementHandler = begin
    try:
        parser.Parse(data, True)
    except _InElementsError:
        return
    except expat.ExpatError as error:
        raise ValueError(str(error)) from None


def _fabric(graph: nx.Graph, name: str, defaults: Defaults) -> Fabric:
    """Make a fabric of a graph whose links know ``where`` they stand; ours becomes itself to the last bit."""
    if len(graph) > MOST_NODES:
        raise TopoplanError(f"{name}: {len(graph)} nodes (expected at most {MOST_NODES})")
    cables, pairs = 0, set()
    for source, target, link in graph.edges(data=True):
        where = link.pop("where")
        count = link.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_CABLES:
            raise TopoplanError(f"{where}: count is {shown(count)} (expected 1 to {_MOST_CABLES})")
        if not isinstance(link.get("link", ""), str):
            raise TopoplanError(f"{where}: link is {shown(link['link'])} (expected network, lane or inside)")
        if source == target:
            raise TopoplanError(f"{where}: leads from {shown(source)} to itself")
        cables += count
        link["bandwidth"] = rate(link.get("bandwidth", defaults.bandwidth * count), f"{where}: bandwidth")
        link["latency"] = latency(link.get("latency", defaults.latency), f"{where}: latency")
        pairs.add((source, target))
    if cables > _MOST_CABLES:
        raise TopoplanError(f"{name}: {cables} cables (expected at most {_MOST_CABLES})")
    if graph.is_directed() and graph.graph.get("one_way") is not True:
        lonely = next((ends for ends in graph.edges() if ends[::-1] not in pairs), None)
        if lonely is not None:
            raise TopoplanError(
                f"{name}: one-way link from {shown(lonely[0])} to {shown(lonely[1])} (add the link back, or the "
                "graph attribute one_way: true if links lead one way)"
            )
    routes = graph.graph.pop("routes", None)
    graph.graph.setdefault("max_paths", defaults.max_paths)
    _check_attributes(graph.graph, name)
    graph.graph = {key: value for key, value in graph.graph.items() if key in GRAPH_ATTRIBUTES}
    fabric = _exact(Fabric.from_networkx(graph, name=str(graph.graph.get("name") or "file")), graph)
    return fabric if routes is None else attrs.evolve(fabric, routes=_read_routes(fabric, routes, name))


def _check_attributes(attributes: dict[str, Any], name: str) -> None:
    """Raise where an attribute of the graph is of another form than `Fabric.to_networkx` gives it."""
    check_graph_attributes({key for key in attributes if isinstance(key, str)}, name)
    rings, cycles, paths = attributes.get("rings", {}), attributes.get("cycles", []), attributes.get("max_paths", 1)

    def rows(value: object) -> bool:
        return isinstance(value, list) and all(
            isinstance(row, list) and all(type(each) is int for each in row) for row in value
        )

    sized = isinstance(rings, dict) and all(size.isdecimal() and len(size) < 8 for size in rings)
    if not sized or not all(map(rows, rings.values())):
        raise TopoplanError(f"{name}: graph attribute rings is {shown(rings)} (expected lists of jumps by group size)")
    if not rows(cycles):
        raise TopoplanError(f"{name}: graph attribute cycles is {shown(cycles)} (expected lists of hosts)")
    if (flag := attributes.get("rings_along_links", True)) not in (True, False):
        raise TopoplanError(f"{name}: graph attribute rings_along_links is {shown(flag)} (expected true or false)")
    if type(paths) is not int or not 1 <= paths <= 1_000_000:
        raise TopoplanError(f"{name}: graph attribute max_paths is {shown(paths)} (expected 1 to 1000000)")


def _exact(fabric: Fabric, graph: nx.Graph) -> Fabric:
    """Return a fabric with the sums of bandwidth as a directed graph without parallel links says them."""
    if not graph.is_directed() or graph.number_of_edges() != fabric.n_links:
        return fabric
    hosts_first = sorted(graph, key=lambda node: graph.nodes[node].get("kind") == "switch")
    number = {node: place for place, node in enumerate(hosts_first)}
    ends = np.array([(number[source], number[target]) for source, target in graph.edges()]).reshape(-1, 2)
    rows = fabric.link_rows(ends[:, 0], ends[:, 1])
    bandwidth = np.zeros(fabric.n_links)
    bandwidth[rows] = [value for _, _, value in graph.edges(data="bandwidth")]
    return attrs.evolve(fabric, link_bandwidth=bandwidth)


def _read_routes(fabric: Fabric, routes: object, name: str) -> Routes:
    """Read explicit routes as `_routes` wrote them.

    Raises:
        TopoplanError: they are of another form, or lead over a link that is not there.
    """
    where = f"{name}: graph attribute routes"
    pairs, pair_ptr, path_ptr, links, weights = [], [0], [0], list[int](), []
    try:
        for source, target, paths in routes:  # type: ignore[attr-defined]
            pairs.append((int(source), int(target)))
            for weight, nodes in paths:
                if nodes[0] != source or nodes[-1] != target:
                    raise TopoplanError(f"{where}: path {shown(nodes)} does not lead from {source} to {target}")
                rows = fabric.link_rows(nodes[:-1], nodes[1:])
                if (rows < 0).any():
                    raise TopoplanError(f"{where}: path {shown(nodes)} leads over a link that is not there")
                links += rows.tolist()
                path_ptr.append(len(links))
                weights.append(float(weight))
            pair_ptr.append(len(weights))
        sums = [sum(weights[a:b]) for a, b in pairwise(pair_ptr) if b > a]
    except (TypeError, ValueError, IndexError, KeyError, OverflowError):
        raise TopoplanError(f"{where}: expected rows of a source, a destination and paths") from None
    if pairs != sorted(set(pairs)) or any(not 0 <= each < fabric.n_hosts for pair in pairs for each in pair):
        raise TopoplanError(f"{where}: pairs of hosts must be sorted and different, from 0 to {fabric.n_hosts - 1}")
    if any(not abs(each - 1) < 1e-6 for each in sums) or any(not 0 <= each <= 1 for each in weights):
        raise TopoplanError(f"{where}: shares of the paths of a pair must sum to 1")
    return Routes(
        pairs=np.array(pairs).reshape(-1, 2), pair_ptr=pair_ptr, path_ptr=path_ptr, links=links, weight=weights
    )
