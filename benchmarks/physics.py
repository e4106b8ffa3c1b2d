"""Rules of the simulator beside hand calculations, from 8 to 16,384 members, and all-reduces that were measured.

    .venv/bin/python benchmarks/physics.py                        # three tables
    .venv/bin/python benchmarks/physics.py --write docs/physics.md

Every rule of ``fluid`` on the wire is a formula: what a link carries, over its rate, and the latencies that nothing
hides.  The first table runs each rule at several sizes and numbers of members, with one device a host and with eight.
The second one has single calculations, among them those that once were wrong.  The third one has all-reduces that
NVIDIA's nccl-tests measured.

    rule, members, size -> task graph, fabric, cluster -> `fluid` -> row beside its formula -> page
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from topoplan import Cluster, Fabric, Host, Topology, TopologyContext
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table

GBPS = 1e9 / 8
#: One interface of a host, the link of a GPU inside it (bytes/s), and one link (seconds).
NIC, INSIDE, LINK = 400 * GBPS, 3600 * GBPS, 1e-6
MIB, GIB = 1 << 20, 1 << 30
MEMBERS, SIZES, PER_HOST = (8, 64, 1024, 16384), (10**3, 10**6, 10**9), (1, 8)
#: Draws of equal paths that a time is the mean of.
DRAWS = 16
MEASURED = Path(__file__).with_name("nccl_all_reduce.csv")
_TRANSFER, _COLLECTIVE = int(TaskKind.TRANSFER), int(TaskKind.COLLECTIVE)


class Message(NamedTuple):
    """A transfer, or with ``members`` a collective."""

    size: int
    src: int = -1
    dst: int = -1
    members: tuple[int, ...] = ()
    kind: Collective = Collective.ALL_REDUCE


class Row(NamedTuple):
    """A calculation: seconds by hand and simulated, and why both differ, if they may."""

    name: str
    formula: str
    by_hand: float
    simulated: float
    reason: str = ""

    @property
    def error(self) -> float:
        """Percent of the calculation."""
        return 100 * (self.simulated / self.by_hand - 1)


HOST = Host.discover()


def cluster_of(hosts: int, per_host: int = 1, interfaces: int | None = None, rate: float = NIC) -> Cluster:
    """Return equal hosts with an interface for each device unless stated."""
    return Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=per_host,
        interfaces=interfaces or per_host,
        interface_bandwidth=rate,
        inside_bandwidth=INSIDE,
        latency=LINK,
    )


def fabric_of(cluster: Cluster, topology: str = "bigswitch", **options: Any) -> Fabric:
    """Build an installed topology."""
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = HOST.make(Topology, topology, options or None).build(context)
    assert isinstance(fabric, Fabric)
    return fabric


def task_graph(messages: Sequence[Message], devices: int, chain: bool = False) -> TaskGraph:
    """Return the task graph of messages that begin together, or in a chain each behind the one before."""
    groups = [message.members for message in messages if message.members]
    numbers = iter(range(len(groups)))
    count = len(messages)
    return TaskGraph(
        kind=[_COLLECTIVE if message.members else _TRANSFER for message in messages],
        device=[-1] * count,
        seconds=[0.0] * count,
        size=[message.size for message in messages],
        src=[message.src for message in messages],
        dst=[message.dst for message in messages],
        group=[next(numbers) if message.members else -1 for message in messages],
        collective=[int(message.kind) if message.members else -1 for message in messages],
        op=[-1] * count,
        group_ptr=np.cumsum([0, *(len(group) for group in groups)]),
        group_members=[member for group in groups for member in group],
        succ_ptr=np.minimum(np.arange(count + 1), count - 1) if chain else [0] * (count + 1),
        succ=list(range(1, count)) if chain else [],
        n_devices=devices,
    )


def seconds(messages: Sequence[Message], cluster: Cluster, fabric: Fabric | None = None, chain: bool = False) -> float:
    """Simulate messages; the mean over draws of equal paths."""
    simulate = HOST.make("simulator", "fluid").build()
    graph = task_graph(messages, cluster.n_devices, chain)
    return float(simulate.makespans(graph, fabric or fabric_of(cluster), cluster, range(DRAWS)).mean())


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────────────────


class Rule(NamedTuple):
    """A rule of the simulator.

    Attributes:
        name, formula: in words, and with n devices on m hosts of k, S bytes, B the rate of a host, I that of a GPU's
            link inside its host, d the latency from host to host.
        messages: (n, k, S) -> what is sent.
        by_hand: (n, m, k, S, B) -> seconds.
    """

    name: str
    formula: str
    messages: Callable[[int, int, int], list[Message]]
    by_hand: Callable[[int, int, int, int, float], float]


def _ring(n: int, m: int, k: int, size: float, rate: float, turns: int) -> float:
    """Return seconds of a collective that goes round once or twice."""
    passed = turns * (n - 1) / n * size
    return max(passed / rate, (k - 1) / k * passed / INSIDE) + turns * (m - 1) * 2 * LINK


def _group(n: int, kind: Collective = Collective.ALL_REDUCE, parts: int = 1) -> Callable[[int], Message]:
    return lambda size: Message(size // parts, members=tuple(range(n)), kind=kind)


RULES = (
    Rule(
        "message",
        "d + S/B",
        lambda n, k, size: [Message(size, 0, n - 1)],
        lambda n, m, k, size, rate: 2 * LINK + size / rate,
    ),
    Rule(
        "seven senders, one receiver",
        "d + 7 S/B",
        lambda n, k, size: [Message(size, (h + 1) * k % n, 0) for h in range(min(7, n // k - 1))],
        lambda n, m, k, size, rate: 2 * LINK + min(7, m - 1) * size / rate,
    ),
    Rule(
        "seven messages in a chain",
        "7 (d + S/B)",
        lambda n, k, size: [Message(size, (h % 2) * (n - 1), (1 - h % 2) * (n - 1)) for h in range(7)],
        lambda n, m, k, size, rate: 7 * (2 * LINK + size / rate),
    ),
    Rule(
        "all-reduce",
        "max(1/B, (k-1)/(k I)) 2 (n-1)/n S + 2 (m-1) d",
        lambda n, k, size: [_group(n)(size)],
        lambda n, m, k, size, rate: _ring(n, m, k, size, rate, 2),
    ),
    Rule(
        "all-gather",
        "half of an all-reduce",
        lambda n, k, size: [_group(n, Collective.ALL_GATHER, 2)(size)],
        lambda n, m, k, size, rate: _ring(n, m, k, size, rate, 1),
    ),
    Rule(
        "reduce-scatter",
        "half of an all-reduce",
        lambda n, k, size: [_group(n, Collective.REDUCE_SCATTER, 2)(size)],
        lambda n, m, k, size, rate: _ring(n, m, k, size, rate, 1),
    ),
    Rule(
        "two all-reduces at a time",
        "twice the bytes of one, its latency",
        lambda n, k, size: [_group(n)(size)] * 2,
        lambda n, m, k, size, rate: _ring(n, m, k, 2 * size, rate, 2),
    ),
)


def rules() -> Iterator[tuple[Rule, int, int, int, Row]]:
    """Run every rule at every number of members, devices a host and size; hosts that are alone send inside."""
    for rule in RULES:
        for n in MEMBERS:
            for k in PER_HOST:
                if n // k < 2:
                    continue
                cluster = cluster_of(n // k, k)
                for size in SIZES:
                    chain = rule.name.endswith("chain")
                    found = seconds(rule.messages(n, k, size), cluster, chain=chain)
                    yield rule, n, k, size, Row(rule.name, "", rule.by_hand(n, n // k, k, size, k * NIC), found)


# ── Single calculations ──────────────────────────────────────────────────────────────────────────────────────


def all_pairs(hosts: int, size: int) -> list[Message]:
    """Return the messages of an all-to-all."""
    return [Message(size, a, b) for a in range(hosts) for b in range(hosts) if a != b]


def ring(size: int, devices: Sequence[int]) -> Message:
    """Return an all-reduce."""
    return Message(size, members=tuple(devices))


def on_switches() -> Iterator[Row]:
    """Calculations on one switch: one device a host, 8 interfaces where stated."""
    for n, size, k in (
        (2, GIB, 1),
        (8, GIB, 1),
        (64, GIB, 1),
        (64, 64 * MIB, 1),
        (8, MIB, 1),
        (16, MIB, 1),
        (64, MIB, 1),
        (1024, 16 * MIB, 1),
        (1024, 64 * MIB, 1),
        (8, GIB, 8),
        (64, GIB, 8),
    ):
        name = f"all-reduce of {size // MIB:,} MiB, {n} hosts of {k} x 400 Gbps"
        by_hand = 2 * (n - 1) * (size / n / (k * NIC) + 2 * LINK)
        yield Row(name, "2 (n-1) (S/n/B + d)", by_hand, seconds([ring(size, range(n))], cluster_of(n, 1, k)))
    for n, gathers in ((8, Collective.ALL_GATHER), (64, Collective.ALL_GATHER), (64, Collective.REDUCE_SCATTER)):
        one = Message(GIB // 2, members=tuple(range(n)), kind=gathers)
        name = f"{gathers.name.lower().replace('_', '-')} of 1 GiB, {n} hosts"
        yield Row(name, "(n-1) (S/n/B + d)", (n - 1) * (GIB / n / NIC + 2 * LINK), seconds([one], cluster_of(n)))
    for size in (1, 4096, GIB):
        yield Row(f"message of {size:,} bytes, two links", "d + S/B", 2e-6 + size / NIC, _pair(size))
    for n, size in ((8, 64 * MIB), (16, 64 * MIB), (64, 64 * MIB), (64, 64 * 1024)):
        name = f"all-to-all of {size:,} bytes a pair, {n} hosts"
        yield Row(name, "d + (n-1) S/B", 2e-6 + (n - 1) * size / NIC, seconds(all_pairs(n, size), cluster_of(n)))
    for n in (1, 4, 16, 64):
        sent = [Message(GIB, h + 1, 0) for h in range(n)]
        yield Row(f"{n} senders, one receiver, 1 GiB each", "d + n S/B", 2e-6 + n * GIB / NIC, _on(sent, n + 1))
    yield Row(
        "both ways at a time, 1 GiB", "d + S/B", 2e-6 + GIB / NIC, _on([Message(GIB, 0, 1), Message(GIB, 1, 0)], 2)
    )
    shared = [Message(GIB, 0, 2), *(Message(GIB, h, 1) for h in (0, 3, 4, 5, 6, 7))]
    simulate = HOST.make("simulator", "fluid").build()
    first = simulate(task_graph(shared, 8), fabric_of(cluster_of(8)), cluster_of(8)).finish[0]
    yield Row(
        "host 0 to 2, while six send to host 1", "max-min: d + S/(5/6 B)", 2e-6 + GIB / (5 / 6 * NIC), float(first)
    )


def _pair(size: int) -> float:
    return _on([Message(size, 0, 1)], 2)


def _on(messages: list[Message], hosts: int) -> float:
    return seconds(messages, cluster_of(hosts))


def in_hosts() -> Iterator[Row]:
    """Calculations with eight devices a host."""
    one, eight, many = cluster_of(1, 8), cluster_of(8, 8), cluster_of(64, 8)
    inside = 2 * 7 / 8 * GIB / INSIDE
    yield Row("all-reduce of 1 GiB, 8 GPUs of a host", "2 (n-1)/n S/I", inside, seconds([ring(GIB, range(8))], one))
    twice = seconds([ring(GIB, range(8))] * 2, one)
    yield Row("two of them at a time", "twice as long", 2 * inside, twice)
    for cluster in (eight, many):
        n, m = cluster.n_devices, cluster.n_hosts
        by_hand = 2 * (n - 1) / n * GIB / (8 * NIC) + 2 * (m - 1) * 2e-6
        found = seconds([ring(GIB, range(n))], cluster)
        yield Row(f"all-reduce of 1 GiB, {m} hosts of 8 GPUs", "2 (n-1)/n S/(8 B) + 2 (m-1) d", by_hand, found)
    tree, m = fabric_of(many, "fattree"), 64
    by_hand = 2 * 511 / 512 * GIB / (8 * NIC) + _ROUND_TREE
    found = seconds([ring(GIB, range(512))], many, tree)
    reason = "in some draws two flows of the ring meet on a link"
    yield Row("the same on a full fat-tree", "as on a switch, over 2, 4 or 6 links", by_hand, found, reason)
    rails = [ring(GIB, range(gpu, 512, 8)) for gpu in range(8)]
    by_hand = 2 * 63 / 64 * GIB / NIC + 2 * 63 * 2e-6
    yield Row("8 all-reduces of 1 GiB, GPU i of 64 hosts", "2 (m-1)/m S/B + 2 (m-1) d", by_hand, seconds(rails, many))
    topoopt = cluster_of(16, 8)
    by_hand = 2 * 127 / 128 * GIB / (8 * NIC) + 2 * 15 * 1e-6
    found = seconds([ring(GIB, range(128))], topoopt, fabric_of(topoopt, "topoopt"))
    reason = "a ring of TopoOpt may pass several links from a host to the next"
    yield Row("all-reduce of 1 GiB, 16 hosts of 8, TopoOpt", "2 (n-1)/n S/(8 B) + 2 (m-1) d", by_hand, found, reason)
    reason = "without a host model (-m) a host's interfaces are one pipe"
    found = seconds([Message(GIB, 0, 8)], eight)
    yield Row("one GPU to one of another host, 1 GiB", "d + S/B of its own interface", 2e-6 + GIB / NIC, found, reason)


#: Seconds of latency of a ring of 64 hosts on a fat-tree, four under a leaf and sixteen in a pod: twice round, but for
#: two ways of two links.
_ROUND_TREE = (2 * (48 * 2 + 12 * 4 + 4 * 6) - 2 * 2) * 1e-6


def on_trees() -> Iterator[Row]:
    """Calculations on fat-trees of 64 hosts with 8 interfaces of 400 Gbps each."""
    cluster = cluster_of(64, 1, 8)
    for over in (1, 2, 4):
        tree = fabric_of(cluster, "fattree", oversubscription=over)
        crossing = 56 if over > 1 else 63  # of 63 messages, those that leave the eight hosts under a leaf
        by_hand = 64 * MIB * max(63.0, over * crossing) / (8 * NIC) + 6e-6
        found = seconds(all_pairs(64, 64 * MIB), cluster, tree)
        reason = "static ECMP: some links are drawn more often than others"
        yield Row(f"all-to-all of 64 MiB a pair, fat-tree {over}:1", "the fullest link", by_hand, found, reason)
    tree = fabric_of(cluster, "fattree")
    by_hand = 2 * 63 * GIB / 64 / (8 * NIC) + _ROUND_TREE
    found = seconds([ring(GIB, range(64))], cluster, tree)
    reason = "in some draws two flows of the ring meet on a link"
    yield Row("all-reduce of 1 GiB, 64 hosts in order, fat-tree", "2 (n-1)/n S/B + twice round", by_hand, found, reason)
    torus = torus_of(8, 8, 2 * NIC)
    square = cluster_of(64, 1, 8)
    by_hand = 2 * 63 / 64 * GIB / (4 * 2 * NIC) + 2 * 63 * 1e-6
    found = seconds([ring(GIB, range(64))], square, torus)
    yield Row("all-reduce of 1 GiB, torus 8 x 8, two links a neighbour", "over all 8 links", by_hand, found)


def torus_of(width: int, height: int, rate: float) -> Fabric:
    """Return a torus of so many bytes/s a neighbour, without stated rings, as a file would have it."""
    links = [
        (y * width + x, (y + dy) % height * width + (x + dx) % width)
        for y in range(height)
        for x in range(width)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))
    ]
    return Fabric.from_links(
        name="torus", n_hosts=width * height, links=links, bandwidth=rate, latency=LINK, rings_along_links=True
    )


def calculations() -> list[Row]:
    """Return all single calculations."""
    return [*on_switches(), *in_hosts(), *on_trees()]


# ── Measured all-reduces ─────────────────────────────────────────────────────────────────────────────────────


class Measurement(NamedTuple):
    """An all-reduce that was measured, and the seconds that it takes here."""

    gpu: str
    members: int
    size: int
    measured: float
    simulated: float


#: Bytes/s of all NVLinks of a GPU, each way: 12 of 25 GB/s, and 6 of 25 GB/s.
_NVLINK = {"A100": 300e9, "V100": 150e9}


def measurements() -> list[Measurement]:
    """Simulate every all-reduce that was measured, in one host."""
    found = []
    for row in csv.DictReader(MEASURED.read_text().splitlines()):
        gpu, members, size = row["gpu"], int(row["members"]), int(row["bytes"])
        cluster = Cluster.uniform(n_hosts=1, devices_per_host=members, inside_bandwidth=_NVLINK[gpu])
        here = seconds([ring(size, range(members))], cluster)
        found.append(Measurement(gpu, members, size, float(row["microseconds"]) / 1e6, here))
    return found


# ── Page ─────────────────────────────────────────────────────────────────────────────────────────────────────


def spelled(value: float) -> str:
    """Write seconds in a unit that suits them."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= unit:
            return f"{value / unit:.4g} {name}"
    return f"{value * 1e9:.4g} ns"


def rules_table() -> tuple[str, float]:
    """Return the table of rules, and the largest error in percent."""
    cells: dict[tuple[str, int, int], list[str]] = {}
    worst = 0.0
    for rule, n, k, _, row in rules():
        worst = max(worst, abs(row.error))
        text = f"{spelled(row.by_hand)} / {spelled(row.simulated)}"
        cells.setdefault((rule.name, n, k), []).append(text)
    headers = ["rule", "devices", "a host", "1 kB: by hand / simulated", "1 MB", "1 GB"]
    rows = [[name, f"{n:,}", str(k), *texts] for (name, n, k), texts in cells.items()]
    return markdown_table(headers, rows, headers[1:]), worst


def calculations_table(rows: Sequence[Row]) -> str:
    """Return the table of single calculations."""
    headers = ["calculation", "by hand", "", "simulated", "error %", "reason, above 1 %"]
    lines = [
        [
            row.name,
            row.formula,
            spelled(row.by_hand),
            spelled(row.simulated),
            f"{row.error:+.2f}",
            row.reason if abs(row.error) > 1 else "",
        ]
        for row in rows
    ]
    return markdown_table(headers, lines, ["", "simulated", "error %"])


def measured_table(found: Sequence[Measurement]) -> str:
    """Return the table of measured all-reduces: measured microseconds over simulated ones, by size."""
    sizes = (1, 4, 16, 64, 256, 1024)
    headers = ["GPU", "members", *(f"{size} MiB" for size in sizes)]
    lines = []
    for gpu, members in dict.fromkeys((one.gpu, one.members) for one in found):
        of = {one.size // MIB: one for one in found if (one.gpu, one.members) == (gpu, members)}
        cells = [_ratio(of.get(size)) for size in sizes]
        lines.append([gpu, str(members), *cells])
    errors = np.sort([abs(one.simulated / one.measured - 1) for one in found])
    large = np.sort([abs(one.simulated / one.measured - 1) for one in found if one.size >= 256 * MIB])
    table = markdown_table(headers, lines, headers[1:])
    return (
        f"{table}\n\nOf all {len(found)}: median error {np.median(errors):.0%}, ninth decile "
        f"{errors[int(0.9 * len(errors))]:.0%}; of 256 MiB and more: {np.median(large):.0%} and "
        f"{large[int(0.9 * len(large))]:.0%}.\n"
    )


def _ratio(one: Measurement | None) -> str:
    return "" if one is None else f"{one.measured * 1e6:.0f} / {one.simulated * 1e6:.0f} us"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this Markdown file")
    given = parser.parse_args()
    table, worst = rules_table()
    rows = calculations()
    sections = {
        "rules": f"{table}\n\nThe largest difference is {worst:.2g} %.\n",
        "calculations": calculations_table(rows) + "\n",
        "measured": measured_table(measurements()),
    }
    for name, text in sections.items():
        print(text)
        if given.write:
            page = given.write.read_text()
            given.write.write_text(replace_section(page, name, text, str(given.write)))


if __name__ == "__main__":
    main()
