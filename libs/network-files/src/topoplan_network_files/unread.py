"""Attributes of a network that are not read, and which of them were meant for one that is.

Networks come from many programs, and each has its own word for the rate of a link.  An attribute that looks like one
that is read (another word for it, the same word with a unit, a slip of the keyboard) would change the result silently
if it were left out, so it is an error that says what to write.  Any other attribute, such as a color, is named once.

>>> meant("capacity"), meant("delay_ns"), meant("bandwith"), meant("Gbps"), meant("nCables"), meant("color")
('bandwidth', 'latency', 'bandwidth', 'bandwidth', 'count', None)
"""

from __future__ import annotations

import difflib
import functools
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from topoplan.errors import TopoplanError, TopoplanWarning, shown

__all__ = [
    "GRAPH_ATTRIBUTES",
    "LINK_ATTRIBUTES",
    "UnreadAttributes",
    "check_graph_attributes",
    "check_node_attributes",
    "meant",
]

#: Attributes of a link that are read -> what to write.
LINK_ATTRIBUTES: Mapping[str, str] = {
    "bandwidth": "bytes/s of all its cables together, or a text such as '400 Gbps'",
    "latency": "seconds, or a text such as '500 ns'",
    "count": "how many cables it is",
    "link": "network, lane or inside",
}
#: Attributes of a graph that are read.
GRAPH_ATTRIBUTES = ("name", "max_paths", "rings", "cycles", "rings_along_links", "switching", "routes", "one_way")
#: Attributes that programs give to edges for themselves: networkx, GraphML and its editors.
_OF_PROGRAMS = frozenset(("id", "key", "source", "target"))
#: Attributes of a node that are read, and those that programs give to nodes and graphs for themselves.
_NODE_ATTRIBUTES = ("kind", "label")
_NODES_OF_PROGRAMS = frozenset(("id", "name", "pos", "x", "y", "z"))
_GRAPHS_OF_PROGRAMS = frozenset(("node_default", "edge_default", "node", "edge", "multigraph", "directed"))
#: Words that other programs have for the attributes of a link.
_WORDS: Mapping[str, tuple[str, ...]] = {
    "bandwidth": (
        *("bandwidth", "bandwidths", "capacity", "capacities", "cap", "bw", "speed", "rate", "throughput"),
        *("datarate", "bitrate", "linkrate", "linkspeed", "gigabits", "gbit", "gbits", "mbit", "gbitps"),
        *("bps", "kbps", "mbps", "gbps", "tbps", "gbs", "gbytes"),
    ),
    "latency": ("latency", "latencies", "delay", "delays", "lat", "rtt", "ping", "alpha", "traveltime", "proptime"),
    "count": (
        *("count", "counts", "cables", "multiplicity", "parallel", "lanes", "quantity", "links", "channels"),
        *("nlinks", "ncables", "nlanes"),
    ),
}
#: Units that stand at the end of a name, such as in ``delay_ns``.
_UNITS = frozenset(("bps", "kbps", "mbps", "gbps", "tbps", "gbit", "gbits", "gbs", "s", "ms", "us", "ns", "ps", "sec"))
#: Words before a word that make it something else: an error rate is no rate of the link.
_OTHERS = frozenset(
    ("error", "err", "loss", "drop", "packet", "clock", "failure", "refresh", "frame", "sample", "label", "edge")
)
#: Words for what a link is built of; they are meant so only where the value is a kind of link.
_KINDS = frozenset(("kind", "type", "linktype", "linkkind"))
#: Words that may be a rate as well as a length: they are meant for the network where they tell its links apart.
_WEIGHTS = frozenset(("weight", "weights"))
#: Words for the kind of a node, and values that say that it is a host or a switch.
_NODE_KINDS = frozenset(("type", "role", "nodetype", "nodekind", "class", "device", "devicetype"))
_SWITCHES = frozenset(("switch", "router", "leaf", "spine", "tor", "core", "agg", "aggregation", "rail", "nvswitch"))
_HOSTS = frozenset(("host", "server", "gpu", "node", "compute", "xpu", "npu"))


@functools.lru_cache(maxsize=1024)
def meant(name: str) -> str | None:
    """Return the attribute of a link that another one looks like; None where it looks like none."""
    words = [word.lower() for word in re.findall(r"[A-Za-z]+?(?=[A-Z][a-z])|[A-Z]+(?![a-z])|[A-Za-z]+", name[:100])]
    joined = "".join(words)
    if not joined or joined in _KINDS:
        return None
    if joined in LINK_ATTRIBUTES:
        return joined
    bare = [word for word in words if word not in _UNITS] or words
    for attribute, synonyms in _WORDS.items():
        if joined in synonyms or (any(word in synonyms for word in bare) and not _OTHERS.intersection(words)):
            return attribute
    slips = {word: attribute for attribute, synonyms in _WORDS.items() for word in synonyms if len(word) > 4}
    for text in (joined, "".join(bare)):
        close = difflib.get_close_matches(text, [*slips, "link"], n=1, cutoff=0.8)
        if close and len(text) > 2:
            return slips.get(close[0], "link")
    return None


@attrs.define
class UnreadAttributes:
    """Collects the attributes of links that are not read, and names them at the end.

    Attributes:
        where: the file or graph, for the warning.
        read: attributes that are read.
        left_out: those that look like none of these, in the order in which they came.
        weights: values of an attribute that may be a rate as well as a length -> where the first stands.
    """

    where: str
    read: Mapping[str, str] = attrs.field(factory=lambda: LINK_ATTRIBUTES)
    left_out: dict[str, None] = attrs.field(factory=dict)
    weights: dict[str, dict[str, str]] = attrs.field(factory=dict)
    of_nodes: dict[str, None] = attrs.field(factory=dict)

    def add_node(self, node: Mapping[str, Any], where: str) -> None:
        """Take the attributes of one node, which stands at ``where``.

        Raises:
            TopoplanError: see `check_node_attributes`.
        """
        check_node_attributes(node, where)
        left_out = (str(name) for name in node if name not in _NODES_OF_PROGRAMS and name not in _NODE_ATTRIBUTES)
        self.of_nodes.update(dict.fromkeys(left_out))

    def add(self, link: Mapping[str, Any], where: str) -> None:
        """Take the attributes of one link, which stands at ``where``.

        Raises:
            TopoplanError: one looks like an attribute that is read, and that the link has not.
        """
        for name, value in link.items():
            if name in self.read or name in _OF_PROGRAMS:
                continue
            words = re.sub(r"[^a-z]", "", str(name).lower())
            attribute = meant(str(name))
            if words in _KINDS and isinstance(value, str) and value.lower() in ("inside", "lane"):
                raise TopoplanError(f"{where}: {shown(name)} of a link is not read (write link: {value.lower()})")
            if attribute == "count" and not str(value).strip().isdecimal():
                attribute = None  # a kind of cable, say, and no number of them
            if attribute is not None and attribute not in link:
                text = f"{attribute}: {self.read[attribute]}" if attribute in self.read else attribute
                raise TopoplanError(f"{where}: {shown(name)} of a link is not read (write {text})")
            if words in _WEIGHTS and "bandwidth" not in link:
                self.weights.setdefault(str(name), {}).setdefault(repr(value), where)
            self.left_out.setdefault(str(name))

    def finish(self, stacklevel: int = 3) -> None:
        """Warn of what was left out.

        Raises:
            TopoplanError: weights tell links apart that have no bandwidth.
        """
        for name, places in self.weights.items():
            if len(places) > 1 or not places.keys() <= {"1", "1.0", "'1'"}:
                raise TopoplanError(
                    f"{next(iter(places.values()))}: {shown(name)} of a link is not read (write bandwidth: "
                    f"{self.read['bandwidth']}; or leave it out)"
                )
        for owners, names, read in (("links", self.left_out, self.read), ("nodes", self.of_nodes, _NODE_ATTRIBUTES)):
            if names:
                _warn_of(self.where, owners, names, read, stacklevel + 1)


def _warn_of(where: str, owners: str, names: Iterable[str], read: Iterable[str], stacklevel: int) -> None:
    """Warn of attributes of links, nodes or a graph that are not read."""
    names = list(names)
    listed = ", ".join(map(shown, names[:8])) + (" ..." if len(names) > 8 else "")
    note = f"{where}: not read of {owners}: {listed} (read are {', '.join(read)})"
    warnings.warn(TopoplanWarning(note), stacklevel=stacklevel)


def check_node_attributes(node: Mapping[str, Any], where: str) -> None:
    """Raise where an attribute of a node that has no ``kind`` says that it is a host or a switch.

    Raises:
        TopoplanError: such as ``type: switch``.
    """
    if node.get("kind") is not None:
        return
    for name, value in node.items():
        word = str(value).lower() if isinstance(value, str) else ""
        words = re.sub(r"[^a-z]", "", str(name).lower())
        if words in _NODE_KINDS and name != "kind" and (word in _SWITCHES or word in _HOSTS):
            kind = "switch" if word in _SWITCHES else "host"
            raise TopoplanError(f"{where}: {shown(name)} of a node is not read (write kind: {kind})")
        if difflib.SequenceMatcher(None, words[:20], "kind").ratio() >= 0.75 and word in ("host", "switch"):
            raise TopoplanError(f"{where}: {shown(name)} of a node is not read (write kind: {word})")


def check_graph_attributes(names: set[str], where: str) -> None:
    """Raise where an attribute of the whole graph is a slip of one that is read, and warn of others.

    Raises:
        TopoplanError: such as ``cycle`` or ``maxPaths``.
    """
    plain = {attribute.replace("_", ""): attribute for attribute in GRAPH_ATTRIBUTES if attribute != "name"}
    for name in sorted(names.difference(GRAPH_ATTRIBUTES)):
        close = difflib.get_close_matches(re.sub(r"[^a-z]", "", name.lower()[:40]), plain, n=1, cutoff=0.8)
        if close:
            raise TopoplanError(f"{where}: graph attribute {shown(name)} is not read (write {plain[close[0]]})")
    left_out = sorted(names.difference(GRAPH_ATTRIBUTES, _GRAPHS_OF_PROGRAMS))
    if left_out:
        _warn_of(where, "the graph", left_out, GRAPH_ATTRIBUTES, 4)
