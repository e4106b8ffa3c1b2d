"""Algorithms of collectives beside hand calculations, from 8 to 16,384 members, 1 kB to 1 GB.

    .venv/bin/python benchmarks/collectives.py                            # the tables
    .venv/bin/python benchmarks/collectives.py --write docs/collectives.md

Each row is one collective of n devices, k in each of q hosts, on one switch.  B is the rate of a device's network
interface, of which a host has k; I that of a device inside its host; d the latency from host to host; S the bytes of
the tensor, of one member's in an all-to-all.  The second table has hosts whose NICs and NVLinks are modelled.  The
first one of the page says which algorithms run the all-reduces of two plans.

    rule, members, size -> task graph, fabric, cluster -> fluid with --collective -> row beside its formula -> page
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from topoplan import Cluster, Fabric, Host, TopologyContext, optimize, stated_plan
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.experiment import build_cluster
from topoplan_engine.options import ClusterOptions
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table

NIC, INSIDE, LINK = 50e9, 450e9, 1e-6
MEMBERS, SIZES, PER_HOST = (8, 64, 1024, 16384), (10**3, 10**6, 10**9), (1, 8)
HOST = Host.discover()
REDUCE, EXCHANGE, BROADCAST = Collective.ALL_REDUCE, Collective.ALL_TO_ALL, Collective.BROADCAST
#: Latency from one host to another, by way of the switch.
WAY = 2 * LINK


class Group(NamedTuple):
    """A group: members, members in a host, hosts."""

    n: int
    k: int
    q: int


class Rule(NamedTuple):
    """An algorithm of a collective, and what it takes by hand.

    Attributes:
        name, collective: of the algorithm.
        formula: in words of the page.
        fits: whether the group has the formula.
        seconds: of a group, with S bytes.
    """

    name: str
    collective: Collective
    formula: str
    fits: Callable[[Group], bool]
    seconds: Callable[[Group, float], float]


def several(group: Group) -> bool:
    """Several hosts."""
    return group.q > 1


def one(group: Group) -> bool:
    """One host alone."""
    return group.q == 1


def _levels(group: Group, nbytes: float) -> float:
    """Inside hosts, and between them, of what is scattered first."""
    return 2 * (group.k - 1) / group.k * nbytes / INSIDE + 2 * (group.q - 1) / group.q * nbytes / (group.k * NIC)


RULES = (
    Rule(
        "ring",
        REDUCE,
        "2 (n-1)/n S/(k B) + 2 (q-1) d",
        several,
        lambda g, s: 2 * (g.n - 1) / g.n * s / (g.k * NIC) + 2 * (g.q - 1) * WAY,
    ),
    Rule("ring", REDUCE, "2 (n-1)/n S/I", one, lambda g, s: 2 * (g.n - 1) / g.n * s / INSIDE),
    Rule(
        "multi-ring",
        REDUCE,
        "2 (n-1)/n S/(k B) + 2 (q-1) d",
        lambda g: several(g) and g.k > 1,
        lambda g, s: 2 * (g.n - 1) / g.n * s / (g.k * NIC) + 2 * (g.q - 1) * WAY,
    ),
    Rule(
        "tree",
        REDUCE,
        "2 S/(k B) + 2 log2(q) d",
        several,
        lambda g, s: 2 * s / (g.k * NIC) + 2 * math.log2(g.q) * WAY,
    ),
    Rule(
        "halving-doubling",
        REDUCE,
        "2 (k-1)/k S/I + 2 (q-1)/q S/(k B) + 2 log2(q) d",
        several,
        lambda g, s: _levels(g, s) + 2 * math.log2(g.q) * WAY,
    ),
    Rule(
        "hierarchical",
        REDUCE,
        "2 (k-1)/k S/I + 2 (q-1)/q S/(k B) + 2 (q-1) d",
        lambda g: several(g) and g.k > 1,
        lambda g, s: _levels(g, s) + 2 * (g.q - 1) * WAY,
    ),
    Rule("nvls", REDUCE, "(1 + 1/n) S/I", one, lambda g, s: (1 + 1 / g.n) * s / INSIDE),
    Rule(
        "sharp",
        REDUCE,
        "max(S/(k B), 2 (k-1)/k S/I) + d",
        several,
        lambda g, s: max(s / (g.k * NIC), 2 * (g.k - 1) / g.k * s / INSIDE) + WAY,
    ),
    Rule(
        "parameter-server",
        REDUCE,
        "2 (n-1) S/B + 2 d",
        lambda g: g.k == 1,
        lambda g, s: 2 * (g.n - 1) * s / NIC + 2 * WAY,
    ),
    Rule("ring", BROADCAST, "S/(k B) + (q-1) d", several, lambda g, s: s / (g.k * NIC) + (g.q - 1) * WAY),
    Rule("direct", EXCHANGE, "(n-k)/n S/B + d", several, lambda g, s: (g.n - g.k) / g.n * s / NIC + WAY),
    Rule("direct", EXCHANGE, "(n-1)/n S/I", one, lambda g, s: (g.n - 1) / g.n * s / INSIDE),
    Rule(
        "pairwise",
        EXCHANGE,
        "(n-1) (S/(n B) + d)",
        lambda g: g.k == 1,
        lambda g, s: (g.n - 1) * (s / g.n / NIC + WAY),
    ),
    Rule(
        "pxn",
        EXCHANGE,
        "(q-1)/q S/B + d",
        lambda g: several(g) and g.k > 1,
        lambda g, s: (g.q - 1) / g.q * s / NIC + WAY,
    ),
)


def tasks(collective: Collective, members: int, size: int) -> TaskGraph:
    """Return the task graph of one collective of devices 0 .. n-1."""
    return TaskGraph(
        kind=[int(TaskKind.COLLECTIVE)],
        device=[-1],
        seconds=[0.0],
        size=[size],
        src=[-1],
        dst=[-1],
        group=[0],
        op=[-1],
        collective=[int(collective)],
        group_ptr=[0, members],
        group_members=range(members),
        succ_ptr=[0, 0],
        succ=[],
        n_devices=members,
    )


def built(topology: str, cluster: Cluster) -> Fabric:
    """Return the fabric of a topology."""
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return HOST.make("topology", topology).build(context)


def on_a_switch(group: Group) -> tuple[Cluster, Fabric]:
    """Return hosts on one switch."""
    cluster = Cluster.uniform(
        n_hosts=group.q,
        devices_per_host=group.k,
        interfaces=group.k,
        interface_bandwidth=NIC,
        inside_bandwidth=INSIDE,
        latency=LINK,
    )
    return cluster, built("bigswitch", cluster)


def cells(rule: Rule, group: Group) -> Iterator[tuple[float, float]]:
    """Yield seconds by hand and simulated, of each size."""
    cluster, fabric = on_a_switch(group)
    chosen = f"{rule.collective.label}={rule.name}"
    run = HOST.make("simulator", "fluid", {"algorithms": chosen, "protocol": "none"}).build()
    for size in SIZES:
        yield rule.seconds(group, size), run.makespan(tasks(rule.collective, group.n, size), fabric, cluster)


def rules_table() -> str:
    """Return the table of rules, with the largest error behind it."""
    rows, worst = [], 0.0
    for rule in RULES:
        for k in PER_HOST:
            for n in MEMBERS:
                group = Group(n, k, n // k)
                if not rule.fits(group):
                    continue
                texts = []
                for by_hand, simulated in cells(rule, group):
                    worst = max(worst, abs(simulated / by_hand - 1))
                    texts.append(f"{spelled(by_hand)} / {spelled(simulated)}")
                rows.append([rule.collective.label, rule.name, rule.formula, f"{n:,}", str(k), *texts])
                print(" | ".join(rows[-1]), flush=True)
    headers = ["collective", "algorithm", "by hand", "n", "k", "1 kB: by hand / simulated", "1 MB", "1 GB"]
    return f"{markdown_table(headers, rows, headers[3:])}\n\nThe largest error is {worst:.2%}.\n"


#: Machine, topology, algorithm, formula and seconds of 1 GB among 8 hosts of 8 GPUs.
MACHINES: tuple[tuple[str, str, Callable[[float], float]], ...] = (
    ("ring", "2 (n-1)/n S/B: one NIC of each host", lambda s: 2 * 63 / 64 * s / 50e9),
    ("multi-ring", "2 (n-1)/n S/(8 B): all NICs", lambda s: 2 * 63 / 64 * s / 400e9),
    ("hierarchical", "2 (k-1)/k S/I + 2 (q-1)/q S/(8 B)", lambda s: 2 * 7 / 8 * s / 450e9 + 2 * 7 / 8 * s / 400e9),
    ("tree", "2 S/(8 B)", lambda s: 2 * s / 400e9),
)


def machines_table() -> str:
    """Return the table of a DGX H100 on rails, without latencies."""
    cluster = build_cluster(ClusterOptions(machine="dgx-h100", servers=8, latency_us=0.0), HOST)
    fabric = built("rail-optimized", cluster)
    rows = []
    for name, formula, seconds in MACHINES:
        run = HOST.make("simulator", "fluid", {"algorithms": f"all-reduce={name}", "protocol": "none"}).build()
        simulated = run.makespan(tasks(REDUCE, 64, 10**9), fabric, cluster)
        by_hand = seconds(1e9)
        rows.append([name, formula, spelled(by_hand), spelled(simulated), f"{simulated / by_hand - 1:+.2%}"])
        print(" | ".join(rows[-1]), flush=True)
    headers = ["algorithm", "by hand", "", "simulated", "error"]
    return markdown_table(headers, rows, headers[2:])


def spelled(value: float) -> str:
    """Write seconds in a unit that suits them."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= unit:
            return f"{value / unit:.4g} {name}"
    return f"{value * 1e9:.4g} ns"


def chosen_table() -> str:
    """Return which algorithms run the all-reduces of a plan that a search finds, and of a stated one."""
    model = "huggingface:preset=llama-3-8b,layers=4,sequence-length=512"
    simulator, machine = "fluid:algorithms=all-reduce=auto+nvls", "dgx-h100"
    searched = optimize(
        model, machine=machine, servers=6, batch_size=48, simulator=simulator, searchers=["pipeline"]
    ).plan
    stated = stated_plan(model, "tp=8,dp=3,sp=no", machine=machine, servers=3, batch_size=6, simulator=simulator)
    rows = []
    for name, plan in (("`-s pipeline`", searched), ("`--plan tp=8,dp=3,sp=no`", stated)):
        for row in plan.provenance["algorithms"]:
            sizes = " to ".join(f"{size:,}" for size in sorted({row["least_bytes"], row["most_bytes"]}))
            rows.append([name, f"{row['axes']} {row['shape']}", f"{sizes} B", row["algorithm"]])
    return markdown_table(["plan", "group", "all-reduce of", "algorithm"], rows)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this Markdown file")
    given = parser.parse_args()
    machines, rules = machines_table(), rules_table()
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8")
        for name, table in (("chosen", f"{chosen_table()}\n"), ("machines", f"{machines}\n"), ("rules", rules)):
            page = replace_section(page, name, table, str(given.write))
        given.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
