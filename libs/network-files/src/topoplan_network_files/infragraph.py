"""InfraGraph YAML, release 3.1.0 (PyPI ``infragraph``): devices of components, instances of devices, edges of cables.

A host is an instance of a device with xpus or NICs, a switch one of a device with ports and neither of these.  An edge
between two instances is a cable, both ways.  Edges inside devices are read over: what is inside a host is the cluster's
to say.  Schema: openapi.yaml of the release; slices and schemes as its service resolves them.
"""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import attrs
import numpy as np

from topoplan import Cluster, Fabric, LinkKind, TopoplanError
from topoplan.errors import TopoplanWarning, shown
from topoplan.model.fabric import LONGEST_NAME
from topoplan_network_files.cables import both_ways
from topoplan_network_files.plain_yaml import read_yaml
from topoplan_network_files.quantities import Defaults, latency, rate
from topoplan_network_files.unread import UnreadAttributes

__all__ = ["RELEASE", "read", "write"]

RELEASE = "3.1.0"
_MOST_CABLES = 1_000_000
_RATES = {"gigabits_per_second": "Gbps", "gigabytes_per_second": "GB/s"}
_TIMES = ("ms", "us", "ns")
#: Fields of the schema that are no attributes of a link, of an edge and of a link.
_EDGE = frozenset(("ep1", "ep2", "scheme", "link", "description"))
_LINK = frozenset(("name", "description", "physical"))
#: What to write in place of what is not read, in a link and in an edge.
_OF_LINKS = {
    "bandwidth": "{choice: gigabits_per_second, gigabits_per_second: 400} under physical",
    "latency": "{choice: ns, ns: 500} under physical",
}
_OF_EDGES = {
    "bandwidth": "under physical of one of links, and link: its name in the edge",
    "latency": "under physical of one of links, and link: its name in the edge",
}


def write(fabric: Fabric, cluster: Cluster) -> bytes:
    """Write a fabric of links that lead both ways; a warning names what the format cannot say.

    Raises:
        TopoplanError: a link has none back of the same rate, latency and count.
    """
    cables = both_ways(fabric, "infragraph")
    lost = [
        name
        for name, have in (
            ("rings", fabric.rings or fabric.cycles),
            ("explicit routes", fabric.routes is not None),
            ("the number of equal paths", fabric.max_paths > 1),
            ("what links pass", fabric.switching is not None),
            ("names of nodes", bool(fabric.node_names)),
            ("kinds of links", (fabric.link_kind != LinkKind.NETWORK).any()),
        )
        if have
    ]
    if lost:
        note = f"infragraph: the format cannot say {', '.join(lost)} of fabric {fabric.name!r}; left out"
        warnings.warn(TopoplanWarning(note), stacklevel=2)
    kinds = sorted({(cable.bandwidth, cable.latency) for cable in cables})
    used = np.zeros(fabric.n_nodes, dtype=np.int64)
    edges = []
    for cable in cables:
        for _ in range(cable.count):
            ends = []
            for node in (cable.first, cable.second):
                ends.append(_end(fabric, node, int(used[node])))
                used[node] += 1
            link = kinds.index((cable.bandwidth, cable.latency))
            edges.append(f"- {{ep1: {ends[0]}, ep2: {ends[1]}, scheme: one2one, link: cable{link}}}")
    hosts = fabric.n_hosts
    devices = int(np.bincount(cluster.device_host).max())
    lines = [
        f"# InfraGraph {RELEASE}",
        f"name: {_text(fabric.name)}",
        "devices:",
        *_device("host", "xpu", devices, "nic", max(int(used[:hosts].max(initial=0)), 1)),
        *(_device("switch", "switch", 1, "port", int(used[hosts:].max())) if fabric.n_switches else ()),
        "links:",
        *(_link(f"cable{row_number}", *kind) for row_number, kind in enumerate(kinds)),
        "instances:",
        f"- {{name: host, device: host, count: {hosts}}}",
        *([f"- {{name: switch, device: switch, count: {fabric.n_switches}}}"] if fabric.n_switches else []),
        "edges:" if edges else "edges: []",
        *edges,
    ]
    return ("\n".join(lines) + "\n").encode()


def _text(name: str) -> str:
    import json

    return json.dumps(name)


def _end(fabric: Fabric, node: int, port: int) -> str:
    if node < fabric.n_hosts:
        return f"{{instance: 'host[{node}]', component: 'nic[{port}]'}}"
    return f"{{instance: 'switch[{node - fabric.n_hosts}]', component: 'port[{port}]'}}"


def _device(name: str, core: str, cores: int, port: str, ports: int) -> list[str]:
    """Return a device whose cores are joined to all of its ports."""
    return [
        f"- name: {name}",
        "  components:",
        f"  - {{name: {core}, count: {cores}, choice: {core}, {core}: {{}}}}",
        f"  - {{name: {port}, count: {ports}, choice: {port}, {port}: {{}}}}",
        "  links:",
        "  - {name: inside}",
        "  edges:",
        f"  - {{ep1: {{component: {core}}}, ep2: {{component: {port}}}, scheme: many2many, link: inside}}",
    ]


def _number(value: float) -> str:
    """Return a number as YAML 1.1 has it: one with an exponent needs a dot."""
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _link(name: str, bandwidth: float, seconds: float) -> str:
    text = f"bandwidth: {{choice: gigabits_per_second, gigabits_per_second: {_number(bandwidth * 8e-9)}}}"
    text += f", latency: {{choice: us, us: {_number(seconds * 1e6)}}}"
    return f"- {{name: {name}, physical: {{{text}}}}}"


def read(data: bytes, name: str, defaults: Defaults) -> Fabric:
    """Read a network.

    Raises:
        TopoplanError: the file is not right, or of another release; the message names the field.
    """
    document = read_yaml(data, name)
    if not isinstance(document, dict):
        raise TopoplanError(f"{name}: is no YAML mapping (expected devices, instances, links and edges)")
    _check_release(document, name)
    reader = _Reader(document, name)
    cables = list(reader.cables(defaults))
    rows = [
        row
        for first, second, speed, seconds in cables
        for row in ((first, second, speed, seconds), (second, first, speed, seconds))
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    if not reader.n_hosts:
        raise TopoplanError(f"{name}: instances: none is a host (a device with an xpu)")
    fabric = Fabric.from_links(
        name=str(document.get("name") or "infragraph"),
        n_hosts=reader.n_hosts,
        n_switches=len(reader.number) - reader.n_hosts,
        links=table[:, :2],
        bandwidth=table[:, 2],
        latency=table[:, 3],
        max_paths=defaults.max_paths,
        rings_along_links=True,
    )
    return attrs.evolve(fabric, node_names=reader.node_names())


def _check_release(document: dict[str, Any], name: str) -> None:
    """Raise where a document is of another release, or of another program.

    Raises:
        TopoplanError: the message says which.
    """
    later = next((key for key in ("infrastructure", "connections") if key in document), None)
    if later is not None:
        what = f"the file is of a later release (expected InfraGraph {RELEASE}: devices, instances, links, edges)"
        raise TopoplanError(f"{name}: {later}: {what}")
    if "npus_count" in document:
        what = "the file is a network of ASTRA-sim, which is not read (expected InfraGraph, or node-link JSON)"
        raise TopoplanError(f"{name}: npus_count: {what}")
    unread = set(map(str, document)) - {"name", "description", "devices", "instances", "links", "edges", "annotations"}
    for key in sorted(unread):
        if close := difflib.get_close_matches(key, ("devices", "instances", "links", "edges"), n=1, cutoff=0.75):
            raise TopoplanError(f"{name}: {shown(key)} is not read (write {close[0]})")


@attrs.frozen
class _Device:
    """Components of a device: name -> how many, and what they are."""

    counts: dict[str, int]
    kinds: dict[str, str]


class _Reader:
    """Resolves names of a document.

    Attributes:
        number: (instance, index) -> node of the fabric, hosts first.
        n_hosts: how many of them are hosts.
    """

    def __init__(self, document: dict[str, Any], name: str) -> None:
        self._document, self._name = document, name
        self._devices = {
            each["name"]: self._device(row_number, each) for row_number, each in enumerate(self._rows("devices"))
        }
        self._instances: dict[str, tuple[str, int]] = {}
        hosts: list[tuple[str, int]] = []
        switches: list[tuple[str, int]] = []
        for row_number, each in enumerate(self._rows("instances")):
            where, device = f"{name}: instances[{row_number}]", each.get("device")
            if not isinstance(device, str) or device not in self._devices:
                raise TopoplanError(f"{where}: device: {shown(device)} is no device of the file")
            count = self._count(each, where)
            self._instances[each["name"]] = device, count
            nodes = [(each["name"], index) for index in range(count)]
            (hosts if self._is_host(device, where) else switches).extend(nodes)
            if len(hosts) + len(switches) > _MOST_CABLES:
                raise TopoplanError(f"{where}: more than {_MOST_CABLES} instances")
        self.n_hosts = len(hosts)
        self.number = {node: row_number for row_number, node in enumerate([*hosts, *switches])}

    def node_names(self) -> tuple[str, ...]:
        """Return the names of instances, numbered where there are several; none where all are host or switch."""
        names = [
            f"{name} {index}" if self._instances[name][1] > 1 or name in ("host", "switch") else name
            for name, index in self.number
        ]
        plain = [
            f"host {place}" if place < self.n_hosts else f"switch {place - self.n_hosts}" for place in range(len(names))
        ]
        usable = all(name.isprintable() and 0 < len(name) <= LONGEST_NAME for name in names)
        return tuple(names) if usable and names != plain and len(set(names)) == len(names) else ()

    def _rows(self, field: str) -> list[dict[str, Any]]:
        rows = self._document.get(field) or []
        named = field == "edges"
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise TopoplanError(f"{self._name}: {field} is {shown(rows)} (expected a list of mappings)")
        for row_number, row in enumerate(rows):
            if not named and not isinstance(row.get("name"), str):
                raise TopoplanError(
                    f"{self._name}: {field}[{row_number}]: name is {shown(row.get('name'))} (expected a text)"
                )
        return rows

    def _count(self, row: dict[str, Any], where: str) -> int:
        count = row.get("count", 1)
        if type(count) is not int or not 0 <= count <= _MOST_CABLES:
            raise TopoplanError(f"{where}: count is {shown(count)} (expected 0 to {_MOST_CABLES})")
        return count

    def _device(self, row_number: int, row: dict[str, Any]) -> _Device:
        device = _Device({}, {})
        components = row.get("components") or []
        for number, each in enumerate(components if isinstance(components, list) else [components]):
            where = f"{self._name}: devices[{row_number}]: components[{number}]"
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise TopoplanError(f"{where} is {shown(each)} (expected a mapping with a name)")
            if not isinstance(each.get("choice"), str):
                hint = "; the file is of a later release" if "type" in each else ""
                text = shown(each.get("choice"))
                raise TopoplanError(f"{where}: choice is {text} (expected xpu, nic, port or another{hint})")
            device.counts[each["name"]] = self._count(each, where)
            device.kinds[each["name"]] = each["choice"]
        return device

    def _is_host(self, device: str, where: str) -> bool:
        kinds = self._kinds(device)
        if kinds & {"xpu", "nic"}:
            return True
        if kinds & {"switch", "port"}:
            return False
        raise TopoplanError(f"{where}: device {shown(device)} is no host (no xpu or nic) and no switch (no port)")

    def _kinds(self, device: str) -> set[str]:
        """Return the kinds of components, of composed devices too; each device is looked at once."""
        kinds: set[str] = set()
        seen_devices, waiting = {device}, [device]
        while waiting:
            for name, kind in self._devices[waiting.pop()].kinds.items():
                kinds.add(kind)
                if kind == "device" and name in self._devices and name not in seen_devices:
                    seen_devices.add(name)
                    waiting.append(name)
        return kinds

    def cables(self, defaults: Defaults) -> Iterator[tuple[int, int, float, float]]:
        """Go through the cables: two nodes, bytes/s, seconds."""
        links = {
            each["name"]: self._link(row_number, each, defaults) for row_number, each in enumerate(self._rows("links"))
        }
        total = 0
        unread = UnreadAttributes(self._name, _OF_EDGES)
        listed: dict[tuple[str, ...], str] = {}  # names at both ends -> where
        for row_number, edge in enumerate(self._rows("edges")):
            where = f"{self._name}: edges[{row_number}]"
            unread.add({key: value for key, value in edge.items() if key not in _EDGE}, where)
            name = edge.get("link")
            if name is not None and (not isinstance(name, str) or name not in links):
                raise TopoplanError(f"{where}: link: {shown(name)} is no link of the file")
            kind = links[name] if name is not None else (defaults.bandwidth, defaults.latency)
            first, second = (self._ends(edge.get(end), f"{where}: {end}") for end in ("ep1", "ep2"))
            ends = [(edge[end]["instance"], edge[end]["component"]) for end in ("ep1", "ep2")]
            if (back := listed.get((*ends[1], *ends[0]))) and ends[0] != ends[1]:
                what = f"joins {shown('.'.join(ends[0]))} to {shown('.'.join(ends[1]))}, as {back} does the other way"
                raise TopoplanError(f"{where}: {what} (list each cable once, with the ports that it takes)")
            listed.setdefault((*ends[0], *ends[1]), where)
            scheme = edge.get("scheme", "one2one")
            if scheme not in ("one2one", "many2many"):
                raise TopoplanError(f"{where}: scheme is {shown(scheme)} (expected one2one or many2many)")
            total += len(first) * len(second) if scheme == "many2many" else min(len(first), len(second))
            if total > _MOST_CABLES:
                raise TopoplanError(f"{where}: more than {_MOST_CABLES} cables")
            # As the release's service, one2one joins as many as the shorter side has.
            pairs = product(first, second) if scheme == "many2many" else zip(first, second, strict=False)
            for first_node, second_node in pairs:
                if first_node == second_node:
                    raise TopoplanError(f"{where}: leads from an instance to itself")
                yield first_node, second_node, *kind
        unread.finish()

    def _link(self, row_number: int, row: dict[str, Any], defaults: Defaults) -> tuple[float, float]:
        """Return bytes/s and seconds of a kind of link."""
        where = f"{self._name}: links[{row_number}]: physical"
        physical = row.get("physical") or {}
        if not isinstance(physical, dict):
            raise TopoplanError(f"{where} is {shown(physical)} (expected a mapping)")
        unread = UnreadAttributes(self._name, _OF_LINKS)
        unread.add({key: value for key, value in row.items() if key not in _LINK}, f"{self._name}: links[{row_number}]")
        unread.add(physical, where)
        unread.finish()
        quantities = [defaults.bandwidth, defaults.latency]
        for place, field, units in ((0, "bandwidth", tuple(_RATES)), (1, "latency", _TIMES)):
            value = physical.get(field)
            if value is None:
                continue
            unit = value.get("choice") if isinstance(value, dict) else None
            if unit not in units:
                raise TopoplanError(f"{where}: {field}: unknown unit {shown(unit)} (expected {', '.join(units)})")
            number = value.get(unit)
            if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
                raise TopoplanError(f"{where}: {field}: {unit} is {shown(number)} (expected a number)")
            text = f"{where}: {field}"
            exact = float(number)
            quantities[place] = (
                rate(f"{exact!r} {_RATES[unit]}", text) if place == 0 else latency(f"{exact!r} {unit}", text)
            )
        return quantities[0], quantities[1]

    def _ends(self, end: object, where: str) -> Sequence[int]:
        """Return the nodes at one end of an edge, one for each port."""
        if not isinstance(end, dict) or not all(isinstance(end.get(key), str) for key in ("instance", "component")):
            raise TopoplanError(f"{where} is {shown(end)} (expected an instance and a component)")
        name, indices = _name_and_slice(end["instance"], f"{where}: instance")
        if name not in self._instances:
            raise TopoplanError(f"{where}: instance: unknown host or switch {shown(name)}")
        device, count = self._instances[name]
        nodes = [self.number[name, index] for index in _indices(indices, count, f"{where}: instance {shown(name)}")]
        ports = 1
        for part in end["component"].split("."):
            component, indices = _name_and_slice(part, f"{where}: component")
            if component not in self._devices[device].counts:
                raise TopoplanError(f"{where}: component: {shown(component)} is none of device {shown(device)}")
            have = self._devices[device].counts[component]
            ports *= len(_indices(indices, have, f"{where}: component {shown(component)}"))
            device = component if component in self._devices else device
        if len(nodes) * ports > _MOST_CABLES:
            raise TopoplanError(f"{where}: more than {_MOST_CABLES} ends")
        return [node for node in nodes for _ in range(ports)]


def _name_and_slice(text: str, where: str) -> tuple[str, str]:
    match = re.fullmatch(r"([^\[\].]{1,200})(?:\[([-\d:]{0,60})\])?", text)
    if match is None:
        raise TopoplanError(f"{where} is {shown(text)} (expected a name, and a slice such as [0:4])")
    return match[1], match[2] or ""


def _indices(text: str, count: int, where: str) -> range:
    """Return what a slice of so many takes; a single index must be there."""
    parts = text.split(":")
    try:
        numbers = [int(part) if part else None for part in parts]
        if len(parts) == 1:
            index = numbers[0]
            if index is None:
                return range(count)
            if not -count <= index < count:
                raise TopoplanError(f"{where}: index {index} of {count}")
            return range(index % count, index % count + 1)
        chosen = range(count)[slice(*numbers)]
    except (ValueError, TypeError):
        raise TopoplanError(f"{where}: slice {shown(text)} (expected such as 3, 0:4 or 0:8:2)") from None
    return chosen
