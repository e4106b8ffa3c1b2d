"""Plans of our own as FlexNet's files: what the plan says, what the file says, and what packet simulation says.

    .venv/bin/python benchmarks/exports.py                              # plans, and replays of their files
    TOPOPLAN_FLEXNETPACKET=FOLDER .venv/bin/python benchmarks/exports.py --write docs/agreement.md
    .venv/bin/python benchmarks/exports.py --only bert-sgmoe --only topoopt --keep FOLDER

Every model is planned for every network below, with a short search, and its plan written by the exporter
``flatbuffer``.  The file is replayed by ``fluid`` at both levels, and where TOPOPLAN_FLEXNETPACKET names the folder of
FlexNetPacket's programs (``htsim_tcp_flat`` and so on), it runs there, as it is.  Where messages have several paths,
a time is one draw of them, and errors compare means.  These are over four draws or more, ours and FlexNetPacket's: as
many as bring the standard error of the mean below 1 %, but no more than 32.  FlexNetPacket draws
always from the same stream, so that further runs have the paths of each pair in other orders; on its own fat-tree it
has one run only.  ``--keep`` leaves the files in a folder.

``--observed`` writes the errors of every kind of network, from which ``fluid`` says how far such times were off.

    experiment -> optimize -> file -> simulate_file (coupled, stepped), FlexNetPacket -> table
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import beside
from topoplan import Host, Plan
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions, optimize, simulate_file
from topoplan_engine.exporting import write_outputs
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table
from topoplan_exporter_flatbuffer.encode import encode
from topoplan_exporter_flatbuffer.links import take
from topoplan_exporter_flatbuffer.schema import Rows
from topoplan_exporter_flatbuffer.wire import decode
from topoplan_simulator_fluid.observed import network_kind

PEER = ("TOPOPLAN_FLEXNETPACKET", "the folder with htsim_tcp_flat and the like")
LEVELS = ("coupled", "stepped")
#: Draws of paths that a replay, and FlexNetPacket's time, are the mean of at least, and at most; and the standard error
#: of the mean, as a part of it, from which on there are no more.
DRAWS, MOST, STANDARD_ERROR = 4, 32, 0.01
#: Median, the ninth of ten and the largest error that the coupled replay may have, in percent.
TARGET = (0.4, 4.0, 9.0)


class Model(NamedTuple):
    """A model, how it is planned, and on how many servers."""

    model: str
    batch: int | None
    servers: int
    searcher: str = "mcmc"
    budget: int = 100


class Net(NamedTuple):
    """A topology, the interfaces of a server (None: one for each other server), and FlexNetPacket's program for it."""

    topology: str
    degree: int | None
    gbps: float
    program: str


_NCF = "ncf:ntables=16,unum-per-table=50000,inum-per-table=50000,arch-mlp-top=64-512-256"
MODELS = {
    "alexnet": Model("alexnet", 640, 16),
    "vgg16": Model("vgg16", 384, 8),
    "resnet50": Model("resnet50", 480, 12),
    "dlrm": Model("dlrm:preset=dlrm16", None, 16),
    "candle-uno": Model("candle-uno", 2304, 12),
    "ncf": Model(_NCF, 8192, 16),
    "moe": Model("moe:hidden-size=2048", 6144, 12),
    "transformer": Model("transformer:hidden-size=768,num-heads=12", 96, 12),
    "transformer, pipeline": Model("transformer:hidden-size=1536,num-heads=16", 64, 8, "pipeline"),
    "bert-sgmoe, SPMD": Model("bert-sgmoe:world-size=8,layers=4", None, 8, "spmd"),
}
NETWORKS = {
    "bigswitch": Net("bigswitch", 1, 40.0, "flat"),
    "fattree": Net("fattree", 1, 40.0, "fattree"),
    "fattree 2:1": Net("fattree:oversubscription=2", 1, 40.0, "flat"),
    "topoopt": Net("topoopt", 3, 10.0, "flat"),
    "random": Net("random", 5, 10.0, "flat"),
    "fully-connected": Net("fully-connected", None, 10.0, "flat"),
}


class Export(NamedTuple):
    """One plan and its file; times in seconds.

    Attributes:
        tasks: of the file.
        kind: of its network (`topoplan_simulator_fluid.observed.network_kind`).
        plan, replays, wire: of the plan, and of its file at each level, as FlexNetPacket sends and on the wire; means
            over draws of paths.
        packet: FlexNetPacket's time, and its timeouts; None where it was not run.
        draws: FlexNetPacket's times with the paths in other orders.
    """

    model: str
    network: str
    servers: int
    tasks: int
    kind: str
    plan: float
    replays: dict[str, float]
    wire: dict[str, float]
    packet: tuple[float, int] | None
    draws: list[float]

    def error(self, seconds: float) -> float:
        """Percent of FlexNetPacket's time, the mean of its runs."""
        return 100 * (seconds / float(np.mean(self.runs)) - 1)

    @property
    def runs(self) -> list[float]:
        """FlexNetPacket's times, with the paths in the file's order and in others; none where it was not run."""
        return [] if self.packet is None else [self.packet[0], *self.draws]


def export(host: Host, model: str, network: str, file: Path, programs: Path | None, draws: int) -> Export:
    """Plan a model for a network, write the plan's file, and time it."""
    chosen, net = MODELS[model], NETWORKS[network]
    searchers = [chosen.searcher]
    if network == "topoopt" and chosen.searcher == "mcmc":
        searchers.append("totientperm")
    experiment = Experiment(
        model=chosen.model,
        topology=net.topology,
        searchers=searchers,
        cluster=ClusterOptions(
            servers=chosen.servers,
            degree=net.degree or chosen.servers - 1,
            interface_bandwidth_gbps=net.gbps,
            latency_us=1.0,
        ),
        run=RunOptions(batch_size=chosen.batch, budget=chosen.budget),
    )
    outcome = optimize(experiment, host=host)
    plan = outcome.plan
    write_outputs(host, plan, ((Choice("flatbuffer"), str(file)),))
    read = simulate_file(file, latency_us=1.0)
    times = {level: replay(host, read, level, "flexnetpacket") for level in LEVELS}
    packet = None if programs is None else packet_run(programs, net, file, plan.fabric.n_nodes)
    nodes = plan.fabric.n_nodes
    other = [] if programs is None or packet is None else further_runs(programs, net, file, packet[0], nodes, draws)
    return Export(
        model,
        network,
        chosen.servers,
        read.taskgraph.n_tasks,
        network_kind(plan.fabric),
        outcome.seconds,
        times,
        {level: replay(host, read, level, "wire") for level in LEVELS},
        packet,
        other,
    )


def replay(host: Host, plan: Plan, level: str, transport: str) -> float:
    """Return the seconds that a plan that was read from a file takes, the mean over draws of paths."""
    simulate = host.make("simulator", "fluid", {"level": level, "transport": transport}).build()
    seconds: list[float] = []
    while not is_enough(seconds, DRAWS):
        seeds = range(len(seconds), len(seconds) + DRAWS)
        seconds += simulate.makespans(plan.taskgraph, plan.fabric, plan.cluster, seeds).tolist()
    return float(np.mean(seconds))


def is_enough(seconds: Sequence[float], least: int) -> bool:
    """Whether the mean of these draws is to be had more exactly for more than it is worth."""
    count = len(seconds)
    if count < least or count >= MOST:
        return count >= least
    return float(np.std(seconds, ddof=1) / np.sqrt(count)) <= STANDARD_ERROR * float(np.mean(seconds))


def further_runs(programs: Path, net: Net, file: Path, first: float, nodes: int, least: int) -> list[float]:
    """Run a file in FlexNetPacket with its paths in other orders, where it has some; return the seconds.

    Args:
        programs, net, file, nodes: see `packet_run`.
        first: seconds with the paths in the file's order.
        least: orders to run at least.
    """
    runs: list[float] = []
    for other in other_draws(file, MOST - 1) if net.program == "flat" else []:
        if is_enough([first, *runs], least + 1):
            break
        runs.append(packet_run(programs, net, other, nodes)[0])
    return runs


def other_draws(file: Path, count: int) -> list[Path]:
    """Write a file with the paths of each pair in other orders, beside it; nothing where no pair has several."""
    columns = decode(file.read_bytes(), str(file))
    routes = columns["routes"].values
    paths = routes["paths"]
    owner = np.repeat(np.arange(len(paths.ptr) - 1), np.diff(paths.ptr))
    if len(np.unique(owner)) == len(owner):
        return []
    hops = paths.values["hopnode"]
    written = []
    for draw in range(count):
        order = np.lexsort((np.random.default_rng(draw).random(len(owner)), owner))
        hop_ptr, hop = take(hops.ptr, order)
        listed = {"hopnode": Rows(hop_ptr, hops.values[hop]), "chance": paths.values["chance"][order]}
        changed = Rows(columns["routes"].ptr, {**routes, "paths": Rows(paths.ptr, listed)})
        written.append(file.with_suffix(f".{draw}.fbuf"))
        written[-1].write_bytes(encode({**columns, "routes": changed}))
    return written


def packet_run(programs: Path, net: Net, file: Path, nodes: int) -> tuple[float, int]:
    """Run a file in FlexNetPacket; return its iteration time in seconds and how many timeouts it had."""
    program = programs / f"htsim_tcp_{net.program}"
    if not program.is_file():
        beside.refuse(f"{PEER[0]}={programs}: no program {program.name}")
    if net.program == "fattree":  # it builds its own network, of k^3 / 4 hosts
        hosts = next(k**3 // 4 for k in range(2, 1000, 2) if k**3 // 4 + 5 * k**2 // 4 >= nodes)
        words = ["-nodes", str(hosts), "-rttnet", "1000", "-rttrack", "1000", "-q", "10000"]
    else:
        words = ["-nodes", str(nodes), "-rtt", "1000", "-q", "50000"]
    words = [*words, "-simtime", "3600.1", "-ssthresh", "10000", "-speed", str(round(net.gbps * 1000))]
    with tempfile.TemporaryDirectory() as folder:
        flows, said, log = (Path(folder) / name for name in ("flows", "said", "log"))
        with said.open("wb") as out, log.open("wb") as error:
            command = [str(program), "-flowfile", str(file.absolute()), "-ofile", str(flows), *words]
            status = subprocess.run(command, cwd=folder, stdout=out, stderr=error, check=False).returncode
        if status or "finished one iter" not in log.read_text()[-1000:]:
            beside.refuse(f"{program.name} did not finish {file} (status {status})")
        finish = re.findall(r"^FinalFinish (\d+)$", flows.read_text(), re.MULTILINE)
        return int(finish[-1]) / 1e12, len(re.findall(r"^At .* RTO ", said.read_text(), re.MULTILINE))


def table(exports: Sequence[Export]) -> str:
    """Return the Markdown table of all exports, and below it what their errors come to."""
    headers = ["model", "network", "hosts", "tasks", "plan ms", "error %"]
    headers += [header for level in LEVELS for header in (f"{level} ms", "error %")]
    headers += ["packet ms", "its runs", "timeouts"]
    numbers = [header for header in headers if header not in ("model", "network", "its runs")]
    rows = []
    for one in exports:
        cells = [one.model, one.network, str(one.servers), str(one.tasks)]
        for seconds in (one.plan, *one.replays.values()):
            cells += [f"{seconds * 1e3:.3f}", "" if one.packet is None else f"{one.error(seconds):+.2f}"]
        spread = f"{min(one.runs) * 1e3:.3f}–{max(one.runs) * 1e3:.3f}" if one.draws else ""
        mean = f"{float(np.mean(one.runs)) * 1e3:.3f}" if one.runs else ""
        cells += [""] * 3 if one.packet is None else [mean, spread, str(one.packet[1])]
        rows.append(cells)
    lines = [markdown_table(headers, rows, numbers)]
    told = {"plan": [one.plan for one in exports]}
    told |= {f"file, {level}": [one.replays[level] for one in exports] for level in LEVELS}
    if all(one.packet is not None for one in exports):
        errors = {
            name: [one.error(seconds) for one, seconds in zip(exports, several, strict=True)]
            for name, several in told.items()
        }
        sums = [[name, *(f"{value:.2f}" for value in summary(values))] for name, values in errors.items()]
        lines += ["", beside.table(["absolute error, %", "median", "nine of ten", "largest"], sums)]
    return "\n".join(lines) + "\n"


def observations(exports: Sequence[Export]) -> str:
    """Return the table that the simulator reads, as CSV."""
    lines = ["network,hosts,wire_coupled,wire_stepped,flexnetpacket_coupled,flexnetpacket_stepped"]
    for one in exports:
        errors = [one.error(times[level]) for times in (one.wire, one.replays) for level in LEVELS]
        lines.append(",".join([one.kind, str(one.servers), *(f"{error:.2f}" for error in errors)]))
    return "\n".join(lines) + "\n"


def summary(errors: Sequence[float]) -> tuple[float, float, float]:
    """Return median, ninth of ten and largest of absolute errors."""
    size = np.sort(np.abs(errors))
    return float(np.median(size)), float(size[int(np.ceil(0.9 * len(size))) - 1]), float(size[-1])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a model or network; several add up"
    )
    parser.add_argument(
        "--draws",
        type=int,
        default=DRAWS - 1,
        metavar="N",
        help=f"other orders of paths, at least; {DRAWS - 1} unless given",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the files there")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this Markdown file")
    parser.add_argument("--observed", type=Path, metavar="FILE", help="write errors by kind of network into this CSV")
    given = parser.parse_args()
    models = [name for name in MODELS if name in given.only] or list(MODELS)
    networks = [name for name in NETWORKS if name in given.only] or list(NETWORKS)
    for name in given.only:
        if name not in MODELS and name not in NETWORKS:
            parser.error(f"--only {name}: no model and no network (have: {', '.join([*MODELS, *NETWORKS])})")
    programs = beside.path_in(*PEER)
    if (given.write or given.observed) and programs is None:
        parser.error(f"--write and --observed need {PEER[0]} ({PEER[1]})")
    host, exports = Host.discover(), []
    with tempfile.TemporaryDirectory() as folder:
        place = given.keep or Path(folder)
        for model in models:
            for network in networks:
                file = place / f"{model.replace(', ', '-')}_{network.replace(' ', '-').replace(':', 'to')}.fbuf"
                exports.append(export(host, model, network, file, programs, given.draws))
                print(table(exports[-1:]).splitlines()[2], flush=True)
    text = table(exports)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(text)
    print("CPU seconds: ours {:.0f}, FlexNetPacket {:.0f}".format(*(one.ru_utime + one.ru_stime for one in used)))
    print("aim, coupled: median {} %, nine of ten {} %, largest {} %".format(*TARGET))
    if given.observed:
        given.observed.write_text(observations(exports))
    if given.write:
        page = given.write.read_text()
        given.write.write_text(replace_section(page, "exports", text, str(given.write)))


if __name__ == "__main__":
    main()
