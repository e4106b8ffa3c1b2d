"""Machines as clusters have them: what a machine says of a host, and what users say otherwise.

Data flow: `at_machine` takes cluster options that name a machine, and gives options in which everything is said, and
the `HostModel` of it, or groups of hosts of several machines; `host_text` says in a line what is inside a host, for
tables.
"""

from __future__ import annotations

import re
from typing import Any

import attrs

from topoplan.errors import TopoplanError, shown
from topoplan.model.cluster import Cluster
from topoplan.model.machine import HostLink, HostModel, HostNode
from topoplan.options import parse_component
from topoplan.plugin.components import Machine
from topoplan.plugin.host import Host
from topoplan_engine.checked_values import build_machine
from topoplan_engine.options import MOST_HOSTS, ClusterOptions, HostGroup, is_unnamed, unnamed

__all__ = [
    "at_machine",
    "at_rates",
    "gpu_links",
    "host_text",
    "inside_bandwidth",
    "shares_links",
    "slow_link_of_interfaces",
    "with_inside",
    "with_parts",
]

_BYTES_PER_SECOND_PER_GBPS = 1e9 / 8
#: Several machines, and options that they say.
_SEVERAL = re.compile(r"[\w.-]+\*\d+|[\w.-]+(\*\d+)?(\+[\w.-]+(\*\d+)?)+")
_SAID_BY_MACHINES = (
    "gpus_per_server",
    "degree",
    "device",
    "inter_gpu_bandwidth_gbps",
    "interface_bandwidth_gbps",
)


def at_machine(options: ClusterOptions, host: Host) -> tuple[ClusterOptions, HostModel | None]:
    """Return options that say what their machine says and users do not, and the model of a host; None without one.

    What users say holds: fewer devices and NICs than the machine has are its first ones, a bandwidth is that of each
    GPU's links inside or of each NIC.

    Raises:
        TopoplanError: the machine is unknown or broken, or has not what is asked for.
    """
    if options.machine is None:
        return options, None
    if _SEVERAL.fullmatch(options.machine.replace(" ", "")):
        return _of_several(options, host), None
    _check_name(options.machine)
    name, given_options = parse_component(options.machine, "cluster.machine")
    try:
        model = build_machine(host.make(Machine, name, given_options, allow_code=True))
    except TopoplanError as error:
        raise TopoplanError(f"cluster.machine: {error}") from error.__cause__
    device = options.device if model.device is None or not is_unnamed(options.device) else model.device.name
    options = attrs.evolve(options, device=device)
    if not model.nodes:
        return options, None
    if options.hosts or options.devices or "," in device:
        raise TopoplanError(
            f"cluster.machine: {name} says what every host has (leave it out, or cluster.hosts, cluster.devices and "
            "devices of several kinds)"
        )
    if options.gpus_per_device > 1:
        raise TopoplanError(
            f"cluster.gpus-per-device: {options.gpus_per_device} with machine {name}, whose GPUs are modelled one by "
            "one (leave out one of them)"
        )
    count = model.n_devices if is_unnamed(options.gpus_per_server) else options.gpus_per_server
    degree = options.degree
    nics = model.n_nics if degree is None or is_unnamed(degree) else degree
    for asked, have, flag, what in (
        (count, model.n_devices, "gpus-per-server", "devices"),
        (nics, model.n_nics or nics, "degree", "NICs"),
    ):
        if asked > have:
            raise TopoplanError(f"cluster.{flag}: {asked}, but machine {name} has {have} {what} (at most {have})")
    model = with_parts(model, count, nics)
    if degree is None or is_unnamed(degree):
        nics = _reached_nics(model)
        model = with_parts(model, count, nics)
    inside = options.inter_gpu_bandwidth_gbps
    if not is_unnamed(inside):
        model = with_inside(model, inside * _BYTES_PER_SECOND_PER_GBPS)
    rate = options.interface_bandwidth_gbps
    values: dict[str, Any] = {
        "gpus_per_server": count,
        "degree": nics if model.n_nics else degree,
        "inter_gpu_bandwidth_gbps": inside_bandwidth(model) / _BYTES_PER_SECOND_PER_GBPS or float(inside),
        "interface_bandwidth_gbps": model.nic_bandwidth / _BYTES_PER_SECOND_PER_GBPS
        if nics and is_unnamed(rate)
        else float(rate),
        "servers": model.servers if model.servers and is_unnamed(options.servers) else int(options.servers),
    }
    return attrs.evolve(options, **values), attrs.evolve(model, device=None, servers=None)


def _check_name(machine: str) -> None:
    """Refuse what is meant as a list of machines and is none."""
    if set(machine.partition(":")[0]) & set("*+"):
        raise TopoplanError(
            f"cluster.machine: {shown(machine)} is no list of machines (write NAME*HOSTS+NAME*HOSTS, without options "
            "of theirs)"
        )


def _of_several(options: ClusterOptions, host: Host) -> ClusterOptions:
    """Return options whose hosts are those of several machines, ``dgx-h100*4+dgx-a100*2``: one endpoint each.

    Raises:
        TopoplanError: a machine is unknown or has no device of its own, or other options say the hosts, too.
    """
    text = (options.machine or "").replace(" ", "")
    groups = []
    if "+" not in text:
        name, _, count = text.partition("*")
        raise TopoplanError(f"cluster.machine: {text} names one kind of host (write {name}, and servers={count})")
    for part in text.split("+"):
        name, _, count = part.partition("*")
        if not 1 <= int(count or 1) <= MOST_HOSTS:
            raise TopoplanError(f"cluster.machine: {text}: {count} hosts of {name} (must be 1 to {MOST_HOSTS})")
        try:
            model = build_machine(host.make(Machine, name, {}))
        except TopoplanError as error:
            raise TopoplanError(f"cluster.machine: {error}") from error.__cause__
        if model.device is None or not model.nodes:
            missing_part = "device" if model.nodes else "host"
            raise TopoplanError(f"cluster.machine: {text}: {name} says no {missing_part} of its own")
        inside, rate = inside_bandwidth(model), model.nic_bandwidth if model.n_nics else 0.0
        groups.append(
            HostGroup(
                servers=int(count or 1),
                gpus_per_server=model.n_devices,
                degree=model.n_nics or None,
                device=model.device.name,
                inter_gpu_bandwidth_gbps=inside / _BYTES_PER_SECOND_PER_GBPS or None,
                interface_bandwidth_gbps=rate / _BYTES_PER_SECOND_PER_GBPS or None,
            )
        )
    total = sum(group.servers for group in groups)
    if options.hosts == tuple(groups):  # options that a study has completed come back for each of its runs
        return options
    if not is_unnamed(options.servers) and options.servers != total:
        raise TopoplanError(f"cluster.servers: {options.servers}, but {text} are {total} hosts (leave it out)")
    given_flags = [flag for flag in _SAID_BY_MACHINES if not is_unnamed(getattr(options, flag) or unnamed(0))]
    if options.hosts or options.devices or given_flags or options.gpus_per_device > 1:
        what = (given_flags or ["gpus_per_device" if options.gpus_per_device > 1 else "hosts"])[0].replace("_", "-")
        raise TopoplanError(f"cluster.{what}: {text} says what the hosts of each machine have (leave it out)")
    kinds = "+".join(dict.fromkeys(str(group.device) for group in groups))
    return attrs.evolve(options, hosts=tuple(groups), servers=total, device=kinds)


def with_parts(model: HostModel, devices: int, nics: int) -> HostModel:
    """Return a host with its first devices and NICs alone.

    A NIC of devices that are gone is the host's.  Nodes keep their order; those that no link joins any more stay.
    """
    if (devices, nics) == (model.n_devices, model.n_nics):
        return model
    keep, counts = [], {HostNode.DEVICE: 0, HostNode.NIC: 0}
    most = {HostNode.DEVICE: devices, HostNode.NIC: nics}
    for place, node in enumerate(model.nodes):
        if node in most:
            counts[node] += 1
            if counts[node] > most[node]:
                continue
        keep.append(place)
    number = {place: new for new, place in enumerate(keep)}
    owners = tuple(tuple(owner for owner in each if owner < devices) for each in model.nic_owners[:nics])
    return attrs.evolve(
        model,
        nodes=tuple(model.nodes[place] for place in keep),
        links=tuple(
            attrs.evolve(link, first=number[link.first], second=number[link.second])
            for link in model.links
            if link.first in number and link.second in number
        ),
        nic_owners=owners,
    )


def _reached_nics(model: HostModel) -> int:
    """Return how many NICs, of the first ones, links join to the first device: those of CPUs without devices are not.

    All of them where the first device reaches none, which is an error of the machine.
    """
    joined: dict[int, list[int]] = {}
    for link in model.links:
        joined.setdefault(link.first, []).append(link.second)
        joined.setdefault(link.second, []).append(link.first)
    nodes, waiting = set[int](), [place for place, node in enumerate(model.nodes) if node is HostNode.DEVICE][:1]
    while waiting:
        place = waiting.pop()
        if place not in nodes:
            nodes.add(place)
            waiting += joined.get(place, ())
    nics = [place for place, node in enumerate(model.nodes) if node is HostNode.NIC]
    count = next((number for number, place in enumerate(nics) if place not in nodes), len(nics))
    return count or len(nics)


def gpu_links(model: HostModel) -> list[HostLink]:
    """Return the links over which devices reach each other: to switches and devices, else to PCIe and CPUs."""
    for nodes in ((HostNode.SWITCH, HostNode.DEVICE), (HostNode.PCIE, HostNode.CPU)):
        links = [
            link
            for link in model.links
            for first, second in ((link.first, link.second), (link.second, link.first))
            if model.nodes[first] is HostNode.DEVICE and model.nodes[second] in nodes
        ]
        if links:
            return list(dict.fromkeys(links))
    return []


def inside_bandwidth(model: HostModel) -> float:
    """Return bytes/s of a device's links to the others of its host, each way: of the device that has most; 0 for none.

    >>> from topoplan import HostLink, HostModel, HostNode
    >>> nodes = (HostNode.DEVICE,) * 4
    >>> pairs = [HostLink(a, b, bandwidth=64e9) for a in range(4) for b in range(a)]
    >>> inside_bandwidth(HostModel(device=None, nodes=nodes, links=tuple(pairs)))
    192000000000.0
    """
    total = dict.fromkeys(range(len(model.nodes)), 0.0)
    for link in gpu_links(model):
        for end in (link.first, link.second):
            total[end] += link.bandwidth
    return max((total[place] for place, node in enumerate(model.nodes) if node is HostNode.DEVICE), default=0.0)


def with_inside(model: HostModel, bandwidth: float) -> HostModel:
    """Return a host whose devices have so many bytes/s to the others, with their links in the same proportion."""
    today, links = inside_bandwidth(model), set(gpu_links(model))
    if not links or bandwidth == today:
        return model
    faster = (
        attrs.evolve(link, bandwidth=link.bandwidth * bandwidth / today) if link in links else link
        for link in model.links
    )
    return attrs.evolve(model, links=tuple(faster))


def at_rates(model: HostModel, scale: float) -> HostModel:
    """Return a host whose links and NICs have ``scale`` times their bandwidth."""
    links = tuple(attrs.evolve(link, bandwidth=link.bandwidth * scale) for link in model.links)
    return attrs.evolve(model, links=links, nic_bandwidth=model.nic_bandwidth * scale)


def shares_links(model: HostModel | None) -> bool:
    """Whether hosts hold several devices whose NICs and links inside are modelled: else a host is one endpoint."""
    return model is not None and model.n_devices > 1 and model.n_nics > 0


def slow_link_of_interfaces(cluster: Cluster) -> float | None:
    """Return the bytes/s of the link inside hosts behind an interface, if that is slower than the interface.

    Whatever the network is, hosts send no more by it.

    Returns:
        Of the fastest such links; None where no interface waits for one.
    """
    model = cluster.host
    if model is None or not model.n_nics:
        return None
    rates: dict[int, float] = {number: 0.0 for number, node in enumerate(model.nodes) if node is HostNode.NIC}
    for link in model.links:
        for end in {link.first, link.second} & rates.keys():
            rates[end] += link.bandwidth
    fastest = max(rates.values())
    return fastest if 0 < fastest < float(cluster.interface_bandwidth.min()) * (1 - 1e-9) else None


def host_text(cluster: Cluster, machine: str) -> str:
    """Say what is inside a host of a machine, and how messages cross rails."""
    model = cluster.host
    if model is None:
        return machine
    devices, nics = model.n_devices, int(cluster.interfaces.max())
    text = f"{machine}: {devices} x {cluster.device_preset[0]}"
    if devices > 1:
        text += f" at {cluster.inside_bandwidth[0] * 8e-9:.6g} Gbps inside"
    text += f", {nics} NIC{'s' * (nics > 1)} of {cluster.interface_bandwidth[0] * 8e-9:.6g} Gbps"
    if shares_links(model) and nics > 1:
        owned = any(model.nic_owners)
        text += f" that belong to {'their GPUs' if owned else 'the host'}"
        text += ", rails crossed " + ("over NVLink (PXN)" if model.cross_rail == "nvlink" else "in the fabric")
    return text
