"""Iteration times of the fluid simulator beside those of the packet simulator FlexNetPacket, row by row.

    .venv/bin/python benchmarks/agreement.py REFERENCE
    .venv/bin/python benchmarks/agreement.py REFERENCE --level stepped
    .venv/bin/python benchmarks/agreement.py REFERENCE --write docs/agreement.md

The folder holds ``packet_reference.csv`` and the task graphs that it names in ``taskgraphs/``.  A row names its
network by FlexNetPacket's program: ``flat`` is the network that the file describes, ``fattree``, ``aggosft`` (a
fat-tree with ``-nup`` aggregation switches in a pod), ``fc`` (a full mesh) and ``abssw`` (one switch) put the file's
hosts on another one.  Links have the row's speed, and the latencies of its arguments.

Seconds are CPU seconds of this process, the best of three, with compiled kernels: ``first`` from a task graph and a
fabric in memory to the iteration time, routes included; ``again`` for a task graph that follows on the same fabric, as
in a search.  Ratios are to the CPU seconds of the packet simulator, which the file gives.

``--write FILE`` does both levels and puts their table between the lines ``<!-- table -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from pathlib import Path
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import Cluster, Fabric, Host, Plan, TopologyContext
from topoplan.exporting import read_plan

#: level -> median, the ninth of ten rows and the worst, in percent; share of the packet simulator's CPU seconds.
TARGETS = {"coupled": (0.5, 5.0, 9.0), "stepped": (0.4, 4.0, 8.0)}
LEVELS = tuple(TARGETS)
START, END = "<!-- table -->", "<!-- end -->"


class Row(NamedTuple):
    """One row, replayed; times in seconds."""

    file: str
    network: str
    gbps: float
    packet: float
    fluid: float
    packet_cpu: float
    first_cpu: float
    again_cpu: float

    @property
    def error(self) -> float:
        """Percent."""
        return 100 * (self.fluid / self.packet - 1)


def fabric_of(row: dict[str, str], plan: Plan, host: Host) -> Fabric:
    """Return the network of a row of the reference."""
    speed = float(row["link_gbps"]) * 1e9 / 8
    given = dict(re.findall(r"-([a-z]+) (\S+)", row["args"]))
    latency = float(given.get("rtt", given.get("rttnet", 1000))) * 1e-9
    if row["network"] == "flat":
        fabric = plan.fabric
        return attrs.evolve(
            fabric,
            link_bandwidth=fabric.link_count * speed,
            link_latency=np.full(fabric.n_links, latency),
        )
    hosts = int(given["nodes"])
    networks = {"fattree": "fattree", "aggosft": "fattree", "fc": "fully-connected", "abssw": "bigswitch"}
    name, options = networks[row["network"]], {}
    if name == "fattree":
        k = next(k for k in range(2, 1000, 2) if k**3 // 4 >= hosts)
        options = {"k": k, "oversubscription": k / 2 / int(given["nup"]) if row["network"] == "aggosft" else 1.0}
    cluster = Cluster.uniform(n_hosts=plan.fabric.n_hosts, interface_bandwidth=speed, latency=latency)
    component, made = host.make("topology", name, options)
    return component.build(made, TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))


def replay(folder: Path, level: str, repeats: int = 3) -> list[Row]:
    """Replay all rows of the reference."""
    host, rows = Host.discover(), []
    component, options = host.make("simulator", "fluid", {"level": level})
    plans: dict[str, Plan] = {}
    with (folder / "packet_reference.csv").open() as file:
        reference = list(csv.DictReader(file))
    for given in reference:
        name = given["file"]
        plan = plans.setdefault(name, read_plan(host, folder / "taskgraphs" / name))
        fabric = fabric_of(given, plan, host)
        cluster = attrs.evolve(plan.cluster, latency=0.0)
        first, again, seconds = np.inf, np.inf, 0.0
        for _ in range(repeats + 1):  # the first one may compile
            simulate = component.build(options)
            begun = time.process_time()
            simulate.makespan(plan.taskgraph, fabric, cluster)
            first = min(first, time.process_time() - begun)
            begun = time.process_time()
            seconds = simulate.makespan(plan.taskgraph, fabric, cluster)
            again = min(again, time.process_time() - begun)
        packet, cpu = float(given["iteration_ms"]) / 1e3, float(given["simulator_cpu_s"])
        rows.append(Row(name, given["network"], float(given["link_gbps"]), packet, seconds, cpu, first, again))
    return rows


def summary(errors: list[float]) -> tuple[float, float, float]:
    """Return median, ninth of ten and largest of absolute errors."""
    size = np.sort(np.abs(errors))
    return float(np.median(size)), float(size[int(np.ceil(0.9 * len(size))) - 1]), float(size[-1])


def show(rows: list[Row], level: str) -> None:
    """Print the rows of one level, and their summary beside what was aimed at."""
    print(f"{'file':32} {'network':8} {'gbps':>5} {'packet ms':>10} {'fluid ms':>10} {'error %':>8}", end="")
    print(f" {'first ms':>9} {'again ms':>9} {'packet/first':>13} {'packet/again':>13}")
    for row in rows:
        print(f"{row.file:32} {row.network:8} {row.gbps:5.0f} {row.packet * 1e3:10.3f} {row.fluid * 1e3:10.3f}", end="")
        print(f" {row.error:8.2f} {row.first_cpu * 1e3:9.2f} {row.again_cpu * 1e3:9.2f}", end="")
        print(f" {row.packet_cpu / row.first_cpu:13.0f} {row.packet_cpu / row.again_cpu:13.0f}")
    found = summary([row.error for row in rows])
    for what, value, target in zip(("median", "nine of ten", "largest"), found, TARGETS[level], strict=True):
        print(f"{what:12} {value:6.2f} %   (aim: at most {target} %)")
    for what in ("first", "again"):
        print(f"least ratio, {what}: {min(row.packet_cpu / getattr(row, f'{what}_cpu') for row in rows):.0f}")


def table(levels: dict[str, list[Row]]) -> str:
    """Return the Markdown table of all rows at all levels, without times of this machine."""
    heads = [f"{level} ms | error %" for level in levels]
    lines = [
        f"| task graph | network | Gbit/s | packet ms | {' | '.join(heads)} |",
        "|---|---|--:|--:|" + "--:|--:|" * len(levels),
    ]
    for several in zip(*levels.values(), strict=True):
        row = several[0]
        cells = [f"{row.file.removesuffix('.fbuf')} | {row.network} | {row.gbps:g} | {row.packet * 1e3:.3f}"]
        cells += [f"{one.fluid * 1e3:.3f} | {one.error:+.2f}" for one in several]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| absolute error, % | median | nine of ten | largest |", "|---|--:|--:|--:|"]
    for level, rows in levels.items():
        lines.append(f"| {level} | {' | '.join(f'{value:.2f}' for value in summary([r.error for r in rows]))} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with packet_reference.csv and taskgraphs/")
    parser.add_argument("--level", choices=LEVELS, help="one level only")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this Markdown file")
    given = parser.parse_args()
    levels = {level: replay(given.folder, level) for level in ([given.level] if given.level else LEVELS)}
    if given.write is None:
        for level, rows in levels.items():
            print(f"\nfluid, {level}")
            show(rows, level)
        return
    text = given.write.read_text()
    before, _, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not end:
        parser.error(f"{given.write} has no lines {START} and {END}")
    given.write.write_text(f"{before}{START}\n{table(levels)}\n{END}{after}")


if __name__ == "__main__":
    main()
