"""What is inside each machine, and messages on machines and their networks beside hand calculations.

.venv/bin/python benchmarks/machines.py                        # all tables
.venv/bin/python benchmarks/machines.py --write docs/machines.md

machine -> `HostModel` -> nodes, links, rates, sources
machine, topology, messages -> `fluid` -> row beside its formula
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from topoplan import Cluster, Fabric, Host, HostNode, Machine, Topology, TopologyContext
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.options import parse_component
from topoplan.plugin.components import Simulator
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_engine.host_models import inside_bandwidth
from topoplan_engine.network.building import build_fabric
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table

GIB = 1 << 30
#: Machines of the page, and what is said beside their names.
MACHINES = (
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "dgx-b200",
    "gb200-nvl72",
    "mi300x",
    "tpu-v4",
    "tpu-v5p",
    "server",
)
HOST = Host.discover()
NODES = ("devices", "switches", "PCIe switches", "CPUs", "NICs")


class Row(NamedTuple):
    """A calculation: seconds by hand and simulated."""

    name: str
    where: str
    formula: str
    by_hand: float
    simulated: float

    @property
    def error(self) -> float:
        """Percent of the calculation."""
        return 100 * (self.simulated / self.by_hand - 1)


class Message(NamedTuple):
    """A transfer, or with ``members`` an all-reduce, of a GiB unless stated."""

    src: int = -1
    dst: int = -1
    members: tuple[int, ...] = ()
    size: int = GIB


class Place(NamedTuple):
    """A cluster of a machine and its network."""

    text: str
    cluster: Cluster
    fabric: Fabric

    def seconds(self, *messages: Message) -> float:
        """Simulate messages that begin together."""
        graph = task_graph(messages, self.cluster.n_devices)
        simulate = HOST.make(Simulator, "fluid", {"protocol": "none"}).build()
        return simulate.makespan(graph, self.fabric, self.cluster)


def place(machine: str, servers: int, topology: str, **options: float) -> Place:
    """Build hosts of a machine, links without latency, and a network."""
    cluster = build_cluster(ClusterOptions(machine=machine, servers=servers, latency_us=0.0, **options), HOST)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = build_fabric(HOST.make(Topology, *parse_component(topology, "topology")), context)
    assert isinstance(fabric, Fabric)
    more = "".join(f" --{key.replace('_', '-')} {value:g}" for key, value in options.items())
    return Place(f"`-m {machine} --servers {servers} -t {topology}{more}`", cluster, fabric)


def task_graph(messages: Sequence[Message], n_devices: int) -> TaskGraph:
    """Return messages that wait for nothing."""
    count = len(messages)
    groups = [message.members for message in messages if message.members]
    number = np.cumsum([bool(message.members) for message in messages]) - 1
    is_group = np.array([bool(message.members) for message in messages])
    return TaskGraph(
        kind=np.where(is_group, int(TaskKind.COLLECTIVE), int(TaskKind.TRANSFER)),
        device=np.full(count, -1),
        seconds=np.zeros(count),
        size=[message.size for message in messages],
        src=[message.src for message in messages],
        dst=[message.dst for message in messages],
        group=np.where(is_group, number, -1),
        op=np.full(count, -1),
        collective=np.where(is_group, int(Collective.ALL_REDUCE), -1),
        succ_ptr=np.zeros(count + 1),
        succ=[],
        group_ptr=np.cumsum([0, *map(len, groups)]),
        group_members=[member for group in groups for member in group],
        n_devices=n_devices,
        op_names=(),
    )


def ring(members: int) -> float:
    """Bytes on each link of a ring of so many members, for an all-reduce of a GiB."""
    return 2 * (members - 1) / members * GIB


def calculations() -> list[Row]:
    """Return all hand calculations."""
    return [*of_flows(), *of_groups(), *of_rails(), *of_planes(), *of_inside()]


def of_flows() -> list[Row]:
    """Return messages between hosts on one switch."""
    h100 = place("dgx-h100", 8, "bigswitch")
    a100 = place("dgx-a100", 2, "bigswitch", interface_bandwidth_gbps=400.0)
    shared = place("server:gpus=4,nics=1,nic-gbps=100", 2, "bigswitch")
    all_nics = [Message(gpu, 8 + gpu) for gpu in range(8)]
    incast = [Message(8 * host, 0) for host in range(1, 8)]
    slot = 16 * 16e9 * 128 / 130 / 8
    return [
        Row("one message, held to its NIC", h100.text, "S / 50 GB/s", GIB / 50e9, h100.seconds(Message(0, 8))),
        Row("a message from each GPU of a host", h100.text, "S / 50 GB/s", GIB / 50e9, h100.seconds(*all_nics)),
        Row("incast: seven hosts send to one GPU", h100.text, "7 S / 50 GB/s", 7 * GIB / 50e9, h100.seconds(*incast)),
        Row(
            "a NIC faster than its slot (PCIe 4.0)", a100.text, "S / 31.5 GB/s", GIB / slot, a100.seconds(Message(0, 8))
        ),
        Row(
            "four GPUs share the NIC of their host",
            shared.text,
            "4 S / 12.5 GB/s",
            4 * GIB / 12.5e9,
            shared.seconds(*[Message(gpu, 4 + gpu) for gpu in range(4)]),
        ),
    ]


def of_groups() -> list[Row]:
    """Return all-reduces of groups that fill hosts, and of others."""
    rails = place("dgx-h100", 64, "rail-optimized")
    switch = place("mi300x", 4, "bigswitch")
    half = place("mi300x", 4, "bigswitch", degree=4)
    odd = place("mi300x", 4, "bigswitch", degree=5)
    rack = place("gb200-nvl72", 4, "bigswitch")
    every = Message(members=tuple(range(512)))
    one = Message(members=tuple(range(0, 512, 8)))
    two = Message(members=tuple(gpu for gpu in range(512) if gpu % 8 < 2))
    return [
        Row(
            "all-reduce that fills 64 hosts",
            rails.text,
            "2 (511/512) S / (8 · 50 GB/s)",
            ring(512) / 400e9,
            rails.seconds(every),
        ),
        Row("of one GPU of each host", rails.text, "2 (63/64) S / 50 GB/s", ring(64) / 50e9, rails.seconds(one)),
        Row(
            "of two GPUs of each host",
            rails.text,
            "2 (127/128) S / (2 · 50 GB/s)",
            ring(128) / 100e9,
            rails.seconds(two),
        ),
        Row(
            "that fills hosts whose GPUs are a mesh",
            switch.text,
            "2 (31/32) S / (8 · 50 GB/s)",
            ring(32) / 400e9,
            switch.seconds(Message(members=tuple(range(32)))),
        ),
        Row(
            "the same with four NICs: four rings, each over links of the mesh (64 GB/s) that no other takes",
            half.text,
            "2 (31/32) S / (4 · 50 GB/s)",
            ring(32) / 200e9,
            half.seconds(Message(members=tuple(range(32)))),
        ),
        Row(
            "the same with five NICs",
            odd.text,
            "2 (31/32) S / (5 · 50 GB/s)",
            ring(32) / 250e9,
            odd.seconds(Message(members=tuple(range(32)))),
        ),
        Row(
            "that fills racks: NVLink, of which a ring's host-to-host steps take none, is slower than 72 NICs",
            rack.text,
            "2 (287/288) (71/72) S / 900 GB/s",
            ring(288) * 71 / 72 / 900e9,
            rack.seconds(Message(members=tuple(range(288)))),
        ),
    ]


def of_rails() -> list[Row]:
    """Return messages across rails, oversubscription, and what failed."""
    joined = place("dgx-h100", 64, "rail-optimized")
    by_spine = place("dgx-h100:cross-rail=fabric", 64, "rail-optimized")
    alone = place("dgx-h100", 64, "rail-only")
    three = place("dgx-h100", 6, "rail-optimized:unit=3,oversubscription=3,ports=16")
    broken = place("dgx-h100", 8, "degraded:of=bigswitch,failed=host 0~switch 0")
    apart = place("dgx-h100", 8, "degraded:of=rail-only,failed=host 0~leaf 0 rail 2+host 4~leaf 0 rail 5")
    everyone = Message(members=tuple(range(64)))
    to_rail_5 = [Message(gpu, 8 + 5) for gpu in range(8)]
    other_unit = [Message(gpu, 24 + gpu) for gpu in range(24)]
    fill = [Message(gpu, 8 + gpu) for gpu in range(8)]
    pairs = place("dgx-a100", 4, "rail-optimized")
    return [
        Row(
            "across rails: over NVLink to the target's rail (PXN)",
            joined.text,
            "S / 50 GB/s",
            GIB / 50e9,
            joined.seconds(Message(0, 13)),
        ),
        Row(
            "four GPUs each to a rail of its own: by the GPUs of these rails, which share no link",
            pairs.text,
            "S / 25 GB/s",
            GIB / 25e9,
            pairs.seconds(*[Message(gpu, 8 + 4 + gpu) for gpu in range(4)]),
        ),
        Row(
            "eight GPUs to one on rail 5: all by NIC 5",
            joined.text,
            "8 S / 50 GB/s",
            8 * GIB / 50e9,
            joined.seconds(*to_rail_5),
        ),
        Row(
            "the same by the spines: each by its own NIC, to one",
            by_spine.text,
            "8 S / 50 GB/s",
            8 * GIB / 50e9,
            by_spine.seconds(*to_rail_5),
        ),
        Row("across rails that never meet", alone.text, "S / 50 GB/s", GIB / 50e9, alone.seconds(Message(0, 13))),
        Row(
            "three hosts share one uplink of each leaf (3:1)",
            three.text,
            "3 S / 50 GB/s",
            3 * GIB / 50e9,
            three.seconds(*other_unit),
        ),
        Row(
            "one of eight NICs failed: two GPUs share one",
            broken.text,
            "2 S / 50 GB/s",
            2 * GIB / 50e9,
            broken.seconds(*fill),
        ),
        Row(
            "all-reduce that fills 8 hosts, of which one has seven NICs left: seven rings",
            broken.text,
            "2 (63/64) S / (7 · 50 GB/s)",
            ring(64) / 350e9,
            broken.seconds(everyone),
        ),
        Row(
            "the same, two hosts without a NIC each, on rails that never meet: six",
            apart.text,
            "2 (63/64) S / (6 · 50 GB/s)",
            ring(64) / 300e9,
            apart.seconds(everyone),
        ),
    ]


def of_planes() -> list[Row]:
    """Return messages and groups on networks of several planes, and of hosts with fewer NICs than GPUs."""
    rails = place("dgx-h100", 64, "rail-optimized:planes=2")
    clos = place("dgx-h100", 64, "multi-plane:of=bigswitch,planes=4")
    half = place("dgx-h100", 64, "rail-optimized", degree=4)
    every = Message(members=tuple(range(512)))
    one = Message(members=tuple(range(0, 512, 8)))
    return [
        Row(
            "two planes: a message takes one, half of a NIC",
            rails.text,
            "S / (50/2 GB/s)",
            2 * GIB / 50e9,
            rails.seconds(Message(0, 8)),
        ),
        Row(
            "two planes: all-reduce of one GPU of each host, over both",
            rails.text,
            "2 (63/64) S / 50 GB/s",
            ring(64) / 50e9,
            rails.seconds(one),
        ),
        Row(
            "four planes: all-reduce that fills 64 hosts",
            clos.text,
            "2 (511/512) S / (8 · 50 GB/s)",
            ring(512) / 400e9,
            clos.seconds(every),
        ),
        Row(
            "four NICs for eight GPUs: all-reduce that fills 64 hosts",
            half.text,
            "2 (511/512) S / (4 · 50 GB/s)",
            ring(512) / 200e9,
            half.seconds(every),
        ),
    ]


def of_inside() -> list[Row]:
    """Return messages and all-reduces inside hosts."""
    h100, mesh = place("dgx-h100", 1, "bigswitch"), place("mi300x", 1, "bigswitch")
    plain, rack = place("server:gpus=4", 1, "bigswitch"), place("gb200-nvl72", 1, "bigswitch")
    eight, all_72 = Message(members=tuple(range(8))), Message(members=tuple(range(72)))
    return [
        Row("from GPU to GPU over NVLink", h100.text, "S / 450 GB/s", GIB / 450e9, h100.seconds(Message(0, 7))),
        Row("all-reduce of eight GPUs", h100.text, "2 (7/8) S / 450 GB/s", ring(8) / 450e9, h100.seconds(eight)),
        Row("all-reduce of 72 GPUs", rack.text, "2 (71/72) S / 900 GB/s", ring(72) / 900e9, rack.seconds(all_72)),
        Row("over one link of a mesh", mesh.text, "S / 64 GB/s", GIB / 64e9, mesh.seconds(Message(0, 7))),
        Row(
            "all-reduce in a mesh, six rings",
            mesh.text,
            "2 (7/8) S / (6 · 64 GB/s)",
            ring(8) / 384e9,
            mesh.seconds(eight),
        ),
        Row("from socket to socket", plain.text, "S / 22 GB/s", GIB / 22e9, plain.seconds(Message(0, 3))),
    ]


# ── Page ─────────────────────────────────────────────────────────────────────────────────────────────────────


def spelled(value: float) -> str:
    """Write seconds in a unit that suits them."""
    return f"{value * 1e3:.4g} ms"


def rate(value: float) -> str:
    """Write bytes/s in GB/s."""
    return f"{value / 1e9:.4g}"


def machines_table() -> str:
    """Return a row for each machine."""
    headers = ["machine", "device", *NODES, "GPU to GPU, GB/s", "NIC, GB/s", "cross-rail"]
    rows = []
    for name in MACHINES:
        model = HOST.make(Machine, name).build()
        counts = [str(model.nodes.count(node)) for node in HostNode]
        device = model.device.name if model.device else "as `--device` says"
        inside = rate(inside_bandwidth(model)) if model.n_devices > 1 else ""
        rule = model.cross_rail if model.n_devices > 1 and model.n_nics > 1 else ""
        rows.append([f"`{name}`", device, *counts, inside, rate(model.nic_bandwidth), rule])
    return markdown_table(headers, rows, headers[2:-1])


def links_table() -> str:
    """Return the kinds of links of each machine, and the sources."""
    headers = ["machine", "links", "between", "GB/s each way"]
    rows, sources = [], []
    for name in MACHINES:
        model = HOST.make(Machine, name).build()
        kinds: dict[tuple[str, float], int] = {}
        for link in model.links:
            ends = " and ".join(sorted((model.nodes[link.first].value, model.nodes[link.second].value)))
            kinds[ends, link.bandwidth] = kinds.get((ends, link.bandwidth), 0) + 1
        kinds |= {("NIC and network", model.nic_bandwidth): model.n_nics}
        for number, ((ends, bandwidth), count) in enumerate(kinds.items()):
            rows.append([f"`{name}`" if number == 0 else "", str(count), ends, rate(bandwidth)])
        sources.append(f"- `{name}`: {'; '.join(model.sources)}.")
    table = markdown_table(headers, rows, ["links", "GB/s each way"])
    return f"{table}\n\n### Sources\n\n" + "\n".join(sources)


def calculations_table(rows: Sequence[Row]) -> str:
    """Return the table of hand calculations."""
    headers = ["message", "command", "by hand", "", "simulated", "error %"]
    lines = [
        [row.name, row.where, row.formula, spelled(row.by_hand), spelled(row.simulated), f"{row.error:+.2f}"]
        for row in rows
    ]
    worst = max(abs(row.error) for row in rows)
    table = markdown_table(headers, lines, ["", "simulated", "error %"])
    return f"{table}\n\nThe largest difference is {worst:.2g} %."


#: Units of 32 hosts of 8 NICs, and the options of the topology.
FABRICS = (
    (1, ""),
    (2, ""),
    (4, ""),
    (8, ""),
    (16, ""),
    (64, ""),
    (16, "oversubscription=3"),
    (16, "rail-only"),
    (8, "planes=2"),
    (8, "multi-plane:of=rail-optimized,planes=4"),
    (8, "multi-plane:of=rail-only,planes=2"),
)


def fabrics_table() -> str:
    """Return the switches and cables of rails."""
    headers = ["topology", "hosts", "GPUs", "leaf", "spine", "core", "host–leaf", "leaf–spine", "spine–core"]
    rows = []
    for units, options in FABRICS:
        is_named = options.startswith(("rail-only", "multi-plane"))
        text = options if is_named else f"rail-optimized:{options}".rstrip(":")
        where = place("dgx-b200", 32 * units, text)
        names = [name.split()[0] for name in where.fabric.node_names]
        tier = np.array([("host", "leaf", "spine", "core").index(name) for name in names])
        counts = np.bincount(tier, minlength=4)
        up = tier[where.fabric.link_dst] - tier[where.fabric.link_src] == 1
        cables = np.bincount(tier[where.fabric.link_src[up]], where.fabric.link_count[up], 3).astype(int)
        rows.append([f"`{text}`", *(f"{n:,}" for n in (counts[0], where.cluster.n_devices, *counts[1:], *cables))])
    return markdown_table(headers, rows, headers[1:])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this Markdown file")
    options = parser.parse_args()
    sections = {
        "machines": machines_table(),
        "calculations": calculations_table(calculations()),
        "fabrics": fabrics_table(),
        "links": links_table(),
    }
    for name, text in sections.items():
        print(text)
        if options.write:
            page = options.write.read_text()
            options.write.write_text(replace_section(page, name, f"{text}\n", str(options.write)))


if __name__ == "__main__":
    main()
