"""Iteration times of the fluid simulator beside those of the packet simulator FlexNetPacket, row by row.

    .venv/bin/python benchmarks/agreement.py
    .venv/bin/python benchmarks/agreement.py --level stepped
    .venv/bin/python benchmarks/agreement.py --write docs/agreement.md

Rows are those of ``tests/reference/packet_times.csv``, on FlexNet's published task graphs, made again.  A folder that
is named has others: ``packet_reference.csv``, and the task graphs that it names in ``taskgraphs/``.  A row names its
network by FlexNetPacket's program: ``flat`` is the network that the file describes, ``fattree``, ``aggosft`` (a
fat-tree of ``-k`` with ``-nup`` aggregation switches in a pod), ``fc`` (a full mesh) and ``abssw`` (one switch) put the
file's hosts on another one.  Links have the row's speed, and the latencies of its arguments.

Seconds are CPU seconds of this process, the best of three, with compiled kernels: ``first`` from a task graph and a
fabric in memory to the iteration time, routes included; ``again`` for a task graph that follows on the same fabric, as
in a search.  Where TOPOPLAN_FLEXNETPACKET names the folder of FlexNetPacket's programs (``htsim_tcp_flat`` and so on),
each row runs in its program as well, between ours, and ratios are to its CPU seconds in this run; that takes minutes.
Without it there is no ratio.  What the file says of CPU seconds was measured on another machine, and is not used.

``--write FILE`` does both levels and puts their table between the lines ``<!-- table -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import attrs
import numpy as np

import beside

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference import tables, task_graphs

from topoplan import Cluster, Fabric, Host, Plan, TopologyContext
from topoplan.exporting import read_plan

#: level -> median, the ninth of ten rows and the worst, in percent.
TARGETS = {"coupled": (0.5, 5.0, 9.0), "stepped": (0.4, 4.0, 8.0)}
LEVELS = tuple(TARGETS)
PEER = ("TOPOPLAN_FLEXNETPACKET", "the folder with htsim_tcp_flat and the like")
START, END = "<!-- table -->", "<!-- end -->"


class Row(NamedTuple):
    """One row, replayed; times in seconds, ``packet_cpu`` of this run (None: not run)."""

    file: str
    network: str
    gbps: float
    packet: float
    fluid: float
    packet_cpu: float | None
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
    networks = {"fattree": "fattree", "aggosft": "fattree", "fc": "fully-connected", "abssw": "bigswitch"}
    name, options = networks[row["network"]], {}
    if name == "fattree":
        if "k" in given:  # aggosft is told k, fattree its hosts
            k = int(given["k"])
        else:
            k = next(k for k in range(2, 1000, 2) if k**3 // 4 >= int(given["nodes"]))
        options = {"k": k, "oversubscription": k / 2 / int(given["nup"]) if row["network"] == "aggosft" else 1.0}
    interfaces = plan.fabric.n_hosts - 1 if name == "fully-connected" else 1
    cluster = Cluster.uniform(
        n_hosts=plan.fabric.n_hosts, interfaces=interfaces, interface_bandwidth=speed, latency=latency
    )
    component, made = host.make("topology", name, options)
    return component.build(made, TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))


def packet_seconds(programs: Path, row: dict[str, str], plan: Plan, host: Host) -> float:
    """Run a row in the packet simulator; return its CPU seconds."""
    program = programs / f"htsim_tcp_{row['network']}"
    if not program.is_file():
        beside.refuse(f"{PEER[0]}={programs}: no program {program.name}, which row {row['file']} ran in")
    exporter = host.get("exporter", "flatbuffer")
    with tempfile.TemporaryDirectory() as empty:
        file = Path(empty, "taskgraph.fbuf")
        file.write_bytes(exporter.build(exporter.options())(plan))
        words = [str(program), "-flowfile", str(file), "-ofile", f"{empty}/flows.txt", *row["args"].split()]
        return beside.command_seconds(words, Path(empty))


def reference(folder: Path | None, host: Host) -> Iterator[tuple[dict[str, str], Plan]]:
    """Yield every row and its plan: those of the tables, or of a folder."""
    if folder is None:
        for row in tables.rows("packet_times"):
            yield {**row, "file": row["task_graph"], "args": row["arguments"]}, task_graphs.plan(row["task_graph"])
        return
    plans: dict[str, Plan] = {}
    with (folder / "packet_reference.csv").open() as file:
        for row in csv.DictReader(file):
            if row["file"] not in plans:
                plans[row["file"]] = read_plan(host, folder / "taskgraphs" / row["file"])
            yield row, plans[row["file"]]


def replay(folder: Path | None, level: str, repeats: int = 3, programs: Path | None = None) -> list[Row]:
    """Replay all rows of the reference, and run them in the packet simulator where there are ``programs``."""
    host, rows = Host.discover(), []
    component, options = host.make("simulator", "fluid", {"level": level})
    for given, plan in reference(folder, host):
        fabric = fabric_of(given, plan, host)
        cluster = attrs.evolve(plan.cluster, latency=0.0)
        first, again, seconds, cpu = np.inf, np.inf, 0.0, None
        for turn in range(repeats + 1):  # the first one may compile
            if turn == 1 and programs is not None:
                cpu = packet_seconds(programs, given, plan, host)
            simulate = component.build(options)
            begun = time.process_time()
            simulate.makespan(plan.taskgraph, fabric, cluster)
            first = min(first, time.process_time() - begun)
            begun = time.process_time()
            seconds = simulate.makespan(plan.taskgraph, fabric, cluster)
            again = min(again, time.process_time() - begun)
        packet = float(given["iteration_ms"]) / 1e3
        rows.append(Row(given["file"], given["network"], float(given["link_gbps"]), packet, seconds, cpu, first, again))
    return rows


def summary(errors: list[float]) -> tuple[float, float, float]:
    """Return median, ninth of ten and largest of absolute errors."""
    size = np.sort(np.abs(errors))
    return float(np.median(size)), float(size[int(np.ceil(0.9 * len(size))) - 1]), float(size[-1])


def show(rows: list[Row], level: str) -> None:
    """Print the rows of one level, and their summary beside what was aimed at; ratios where the peer ran."""
    beside_packet = all(row.packet_cpu is not None for row in rows)
    print(f"{'file':32} {'network':8} {'gbps':>5} {'packet ms':>10} {'fluid ms':>10} {'error %':>8}", end="")
    print(f" {'first ms':>9} {'again ms':>9}", end="")
    print(f" {'packet s':>9} {'packet/first':>13} {'packet/again':>13}" if beside_packet else "")
    for row in rows:
        print(f"{row.file:32} {row.network:8} {row.gbps:5.0f} {row.packet * 1e3:10.3f} {row.fluid * 1e3:10.3f}", end="")
        print(f" {row.error:8.2f} {row.first_cpu * 1e3:9.2f} {row.again_cpu * 1e3:9.2f}", end="")
        cpu = row.packet_cpu
        print("" if cpu is None else f" {cpu:9.2f} {cpu / row.first_cpu:13.0f} {cpu / row.again_cpu:13.0f}")
    found = summary([row.error for row in rows])
    for what, value, target in zip(("median", "nine of ten", "largest"), found, TARGETS[level], strict=True):
        print(f"{what:12} {value:6.2f} %   (aim: at most {target} %)")
    for what in ("first", "again"):
        ratios = [row.packet_cpu / getattr(row, f"{what}_cpu") for row in rows if row.packet_cpu is not None]
        if beside_packet:
            print(f"packet simulator's CPU seconds over ours, {what}: {beside.spread(ratios)}")


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
    parser.add_argument("folder", type=Path, nargs="?", help="folder with packet_reference.csv and taskgraphs/")
    parser.add_argument("--level", choices=LEVELS, help="one level only")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this Markdown file")
    given = parser.parse_args()
    programs = beside.path_in(*PEER) if given.write is None else None
    wanted = [given.level] if given.level else LEVELS
    levels = {level: replay(given.folder, level, programs=programs) for level in wanted}
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
