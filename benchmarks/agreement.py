"""Iteration times of the fluid simulator beside those of the packet simulator FlexNetPacket, row by row.

    .venv/bin/python benchmarks/agreement.py
    .venv/bin/python benchmarks/agreement.py --level stepped
    .venv/bin/python benchmarks/agreement.py --write docs/agreement.md
    .venv/bin/python benchmarks/agreement.py FOLDER

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

Where every pair of hosts has one path, nothing is drawn, and one replay is compared with one packet time.  Where a
pair has several, FlexNetPacket draws one for each flow, by a stream of random numbers that no file holds: its time is
one draw of many, and so is each of ours.  The mean of DRAWS of ours is compared, and their range is shown.  For our
own exports from a FOLDER, and with TOPOPLAN_FLEXNETPACKET, it is compared with the mean of as many of FlexNetPacket's,
which has the paths of each pair in other orders; but not where a corrected time counts, which needs another
FlexNetPacket, and not on fat-trees, which are not the file's.  Rows without and with draws are summed up apart, too.

``--write FILE`` does both levels and puts their table between the lines ``<!-- table -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import attrs
import numpy as np
from exports import Net, other_draws, packet_run

import beside

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from reference import own_exports as exported
from reference import tables, task_graphs

from topoplan import Cluster, Fabric, Host, Plan, TopologyContext
from topoplan_engine.exporting import read_plan
from topoplan_engine.reporting.tables import markdown_table

#: Set of rows, level -> median, the ninth of ten rows and the worst, in percent.
TARGETS = {
    ("reference", "coupled"): (0.25, 2.8, 7.0),
    ("reference", "stepped"): (0.2, 2.5, 5.0),
    ("own exports", "coupled"): (0.5, 4.0, 9.0),
}
LEVELS = ("coupled", "stepped")
#: Draws of paths that are simulated of each row, and rows that are named as the worst ones.
DRAWS, WORST = 8, 6
PEER = ("TOPOPLAN_FLEXNETPACKET", "the folder with htsim_tcp_flat and the like")
START, END = "<!-- table -->", "<!-- end -->"


class Row(NamedTuple):
    """One row, replayed: seconds of each draw, and CPU seconds, ``packet_cpu`` of this run, if any.

    ``packets`` are the packet simulator's seconds, of several draws where it ran again.
    """

    file: str
    network: str
    gbps: float
    packets: tuple[float, ...]
    draws: tuple[float, ...]
    packet_cpu: float | None
    first_cpu: float
    again_cpu: float

    @property
    def packet(self) -> float:
        """Seconds of the packet simulator, in the mean of all draws."""
        return sum(self.packets) / len(self.packets)

    @property
    def drawn(self) -> bool:
        """Whether paths were drawn."""
        return min(self.draws) < max(self.draws)

    @property
    def fluid(self) -> float:
        """Seconds, in the mean of all draws."""
        return sum(self.draws) / len(self.draws)

    @property
    def error(self) -> float:
        """Percent."""
        return 100 * (self.fluid / self.packet - 1)

    @property
    def spread(self) -> str:
        """Errors of the fastest and the slowest draw, in percent; nothing where they are one."""
        low, high = (100 * (seconds / self.packet - 1) for seconds in (min(self.draws), max(self.draws)))
        return "" if low == high else f"{low:+.1f} … {high:+.1f}"


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
    component = host.make("topology", name, options)
    return component.build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))


def packet_seconds(programs: Path, row: dict[str, str], plan: Plan, host: Host) -> float:
    """Run a row in the packet simulator; return its CPU seconds."""
    program = programs / f"htsim_tcp_{row['network']}"
    if not program.is_file():
        beside.refuse(f"{PEER[0]}={programs}: no program {program.name}, which row {row['file']} ran in")
    exporter = host.make("exporter", "flatbuffer")
    with tempfile.TemporaryDirectory() as empty:
        file = Path(empty, "taskgraph.fbuf")
        file.write_bytes(exporter.write(plan))
        words = [str(program), "-flowfile", str(file), "-ofile", f"{empty}/flows.txt", *row["args"].split()]
        return beside.command_seconds(words, Path(empty))


def packet_draws(programs: Path, row: dict[str, str], file: Path, nodes: int) -> tuple[float, ...]:
    """Return the packet simulator's seconds for a file, and for DRAWS - 1 other orders of the paths of its pairs."""
    net = Net("", None, float(row["link_gbps"]), "flat")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file.name)
        copy.write_bytes(file.read_bytes())
        return tuple(packet_run(programs, net, each, nodes)[0] for each in [copy, *other_draws(copy, DRAWS - 1)])


def reference(folder: Path | None, host: Host) -> Iterator[tuple[dict[str, str], Plan]]:
    """Yield every row and its plan: those of the tables, or of a folder."""
    if folder is None:
        for row in tables.rows("packet_times"):
            yield {**row, "file": row["task_graph"], "args": row["arguments"]}, task_graphs.plan(row["task_graph"])
        return
    yield from _rows(folder / "packet_reference.csv", folder / "taskgraphs", host)


def own_exports(folder: Path | None, host: Host) -> Iterator[tuple[dict[str, str], Plan]]:
    """Yield our own exports, of the tables or of a folder: with the time of their rings, where that was corrected.

    Files of an older form name other members of rings than they mean, and are read as they mean.  The order of their
    sends is followed as it stands, and so the time that counts is that of the file.
    """
    if folder is None:
        given = (
            {**row, "file": row["export"], "iteration_ms": row["members_honoured_ms"] or row["packet_ms"]}
            for row, _ in exported.rows()
        )
        found = zip(given, (plan for _, plan in exported.rows()), strict=True)
    else:
        found = (
            (
                {
                    **row,
                    "iteration_ms": row["packet_members_honoured_ms"] or row["packet_ms"],
                },
                plan,
            )
            for row, plan in _rows(folder / "own_exports.csv", folder / "own_exports", host)
        )
    for row, plan in found:
        arguments = f"-nodes {row['hosts']} " + ("-rttnet 1000" if row["network"] == "fattree" else "-rtt 1000")
        yield {**row, "args": arguments}, plan


def _rows(listed: Path, files: Path, host: Host) -> Iterator[tuple[dict[str, str], Plan]]:
    """Yield the rows of a table whose files are there, with their plans; name the others."""
    plans: dict[str, Plan] = {}
    with listed.open() as file:
        for row in csv.DictReader(file):
            name = row["file"]
            if not (files / name).exists():
                print(f"{listed.name}: {name} is not in {files}", file=sys.stderr)
                continue
            if name not in plans:
                plans[name] = read_plan(host, files / name)
            yield row, plans[name]


def replay(
    rows: Iterable[tuple[dict[str, str], Plan]],
    host: Host,
    level: str,
    repeats: int = 3,
    programs: Path | None = None,
    files: tuple[Path, Path] | None = None,
) -> list[Row]:
    """Replay rows and their plans, and run them in the packet simulator where there are ``programs``.

    ``files`` are programs, and the folder of the files of rows that they draw other paths for.
    """
    component = host.make("simulator", "fluid", {"level": level, "transport": "flexnetpacket"})
    made = []
    for given, plan in rows:
        fabric = fabric_of(given, plan, host)
        cluster = attrs.evolve(plan.cluster, latency=0.0)
        first, again, cpu = np.inf, np.inf, None
        for turn in range(repeats + 1):  # the first one may compile
            if turn == 1 and programs is not None:
                cpu = packet_seconds(programs, given, plan, host)
            simulate = component.build()
            begun = time.process_time()
            simulate.makespan(plan.taskgraph, fabric, cluster)
            first = min(first, time.process_time() - begun)
            begun = time.process_time()
            simulate.makespan(plan.taskgraph, fabric, cluster)
            again = min(again, time.process_time() - begun)
        draws = tuple(simulate.makespans(plan.taskgraph, fabric, cluster, range(DRAWS)).tolist())
        packets = (float(given["iteration_ms"]) / 1e3,)
        raw = given["network"] == "flat" and given["iteration_ms"] == given.get("packet_ms")
        if files and raw and min(draws) < max(draws):
            packets = packet_draws(files[0], given, files[1] / given["file"], plan.fabric.n_nodes)
        made.append(Row(given["file"], given["network"], float(given["link_gbps"]), packets, draws, cpu, first, again))
    return made


def summary(errors: list[float]) -> tuple[float, float, float]:
    """Return median, ninth of ten and largest of absolute errors."""
    size = np.sort(np.abs(errors))
    return float(np.median(size)), float(size[int(np.ceil(0.9 * len(size))) - 1]), float(size[-1])


def show(rows: list[Row], what: str, level: str) -> None:
    """Print the rows of one level, and their summary beside what was aimed at; ratios where the peer ran."""
    print(f"\n{what}: fluid, {level}")
    beside_packet = all(row.packet_cpu is not None for row in rows)
    print(f"{'file':32} {'network':8} {'gbps':>5} {'packet ms':>10} {'fluid ms':>10} {'error %':>8}", end="")
    print(f" {'first ms':>9} {'again ms':>9}", end="")
    print(f" {'packet s':>9} {'packet/first':>13} {'packet/again':>13}" if beside_packet else "")
    for row in rows:
        print(f"{row.file:32} {row.network:8} {row.gbps:5.0f} {row.packet * 1e3:10.3f} {row.fluid * 1e3:10.3f}", end="")
        print(f" {row.error:8.2f} {row.first_cpu * 1e3:9.2f} {row.again_cpu * 1e3:9.2f}", end="")
        cpu = row.packet_cpu
        print("" if cpu is None else f" {cpu:9.2f} {cpu / row.first_cpu:13.0f} {cpu / row.again_cpu:13.0f}", end="")
        low, high = min(row.packets) * 1e3, max(row.packets) * 1e3
        print(f"  {row.spread}" + (f"  packet {low:.3f} … {high:.3f}" if low < high else ""))
    found, aims = summary([row.error for row in rows]), TARGETS.get((what, level))
    for i, name in enumerate(("median", "nine of ten", "largest")):
        print(f"{name:12} {found[i]:6.2f} %" + (f"   (aim: at most {aims[i]} %)" if aims else ""))
    for words, several in (
        ("one path each", [row for row in rows if not row.drawn]),
        ("paths drawn", [row for row in rows if row.drawn]),
    ):
        if several:
            values = " ".join(f"{value:.2f}" for value in summary([row.error for row in several]))
            print(f"{len(several)} rows, {words}: {values} %")
    worst = sorted(rows, key=lambda row: -abs(row.error))[:WORST]
    print("worst:", ", ".join(f"{row.file} {row.network} {row.error:+.2f}" for row in worst))
    for name in ("first", "again"):
        ratios = [row.packet_cpu / getattr(row, f"{name}_cpu") for row in rows if row.packet_cpu is not None]
        if beside_packet:
            print(f"packet simulator's CPU seconds over ours, {name}: {beside.spread(ratios)}")


def table(levels: dict[str, list[Row]], *, summed: bool) -> str:
    """Return the Markdown table of all rows at all levels, without times of this machine, and that of the errors."""
    headers = ["task graph", "network", "Gbit/s", "packet ms"]
    headers += [header for level in levels for header in (f"{level} ms", "error %")]
    table_rows = []
    for several in zip(*levels.values(), strict=True):
        row = several[0]
        cells = [row.file.removesuffix(".fbuf"), row.network, f"{row.gbps:g}", f"{row.packet * 1e3:.3f}"]
        for one in several:
            cells += [f"{one.fluid * 1e3:.3f}", f"{one.error:+.2f}{one.spread and f' ({one.spread})'}"]
        table_rows.append(cells)
    if not summed:
        return markdown_table(headers, table_rows, headers[2:])
    sums = [
        [level, *(f"{value:.2f}" for value in summary([row.error for row in rows]))] for level, rows in levels.items()
    ]
    errors = beside.table(["absolute error, %", "median", "nine of ten", "largest"], sums)
    return "\n".join([markdown_table(headers, table_rows, headers[2:]), "", errors])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder with packet_reference.csv and taskgraphs/")
    parser.add_argument("--level", choices=LEVELS, help="one level only")
    parser.add_argument("--only", metavar="WORD", default="", help="rows whose task graph's name has this")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this Markdown file")
    given = parser.parse_args()
    programs = beside.path_in(*PEER) if given.write is None else None
    wanted = [given.level] if given.level else LEVELS
    host = Host.discover()
    rows = [row for row in reference(given.folder, host) if given.only in row[0]["file"]]
    if not rows:
        parser.error(f"--only {given.only}: no task graph has this in its name")
    repeats = 3 if given.write is None else 0  # the page has no times of this machine
    levels = {level: replay(rows, host, level, repeats, programs) for level in wanted}
    if given.write is None:
        for level, found in levels.items():
            show(found, "reference", level)
        if given.folder is None or (given.folder / "own_exports.csv").exists():
            rows = list(own_exports(given.folder, host))
            files = (programs, given.folder / "own_exports") if programs and given.folder else None
            for level in wanted:
                show(replay(rows, host, level, repeats=0, files=files), "own exports", level)
        return
    text = given.write.read_text()
    before, _, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not end:
        parser.error(f"{given.write} has no lines {START} and {END}")
    given.write.write_text(f"{before}{START}\n{table(levels, summed=not given.only)}\n{END}{after}")


if __name__ == "__main__":
    main()
