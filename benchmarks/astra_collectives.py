"""Collectives beside ASTRA-sim: the same collective, algorithm, group and fabric.

    .venv/bin/python benchmarks/astra_collectives.py BINARIES                       # the folder of ASTRA-sim's binaries
    .venv/bin/python benchmarks/astra_collectives.py BINARIES --write docs/collectives.md

ASTRA-sim is built from its repository with its analytical network (``./build/astra_analytical/build.sh``).  Each case
is one collective: a Chakra trace for each rank, a system file that names the algorithm of each dimension, and a network
file.  Messages that share a link need the network that knows congestion.

    case -> Chakra traces -> ASTRA-sim's cycles;  case -> task graph, fabric -> fluid with --collective -> row
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from topoplan import Cluster, Host, TopologyContext
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table
from topoplan_exporter_chakra.astra import system_file
from topoplan_exporter_chakra.schema import CollectiveType, Node, NodeType, Trace, encode

#: Bytes/s of a link between hosts and inside one, and seconds of each.
RATE, INSIDE, LATENCY = 50e9, 400e9, 1e-6
#: ASTRA-sim counts nanoseconds; a thousandth of them here, so that microseconds are not rounded away.
CYCLE = 1e-12
MB, GB = 10**6, 10**9
TYPES = {
    Collective.ALL_REDUCE: CollectiveType.ALL_REDUCE,
    Collective.ALL_GATHER: CollectiveType.ALL_GATHER,
    Collective.REDUCE_SCATTER: CollectiveType.REDUCE_SCATTER,
    Collective.ALL_TO_ALL: CollectiveType.ALL_TO_ALL,
}
HOST = Host.discover()


class Case(NamedTuple):
    """A collective.

    Attributes:
        collective, size: what, and bytes of the tensor (of one member's in an all-to-all).
        ours: algorithm of ``--collective``.
        theirs: implementation of each dimension.
        shape: networks of the dimensions, as ASTRA-sim names them.
        counts: members along each; the first of two is inside hosts.
        aware: ASTRA-sim's network knows congestion.
        reason: why times differ, if they may.
    """

    collective: Collective
    size: int
    ours: str
    theirs: tuple[str, ...]
    shape: tuple[str, ...]
    counts: tuple[int, ...]
    aware: bool = False
    reason: str = ""


REDUCE, GATHER, SCATTER, EXCHANGE = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)
SWITCH, RING, FULL = ("Switch",), ("Ring",), ("FullyConnected",)
STORED = "ASTRA-sim's switch stores a message before it passes it on: one message more"
#: Twenty-two cases.
CASES = (
    *(Case(REDUCE, s, "ring", ("ring",), SWITCH, (n,)) for n in (8, 64) for s in (MB, GB)),
    *(Case(REDUCE, s, "halving-doubling", ("halvingDoubling",), SWITCH, (n,)) for n in (8, 64) for s in (MB, GB)),
    Case(GATHER, GB, "ring", ("ring",), SWITCH, (64,)),
    Case(SCATTER, GB, "ring", ("ring",), SWITCH, (64,)),
    Case(GATHER, MB, "halving-doubling", ("halvingDoubling",), SWITCH, (64,)),
    Case(SCATTER, MB, "halving-doubling", ("halvingDoubling",), SWITCH, (64,)),
    Case(EXCHANGE, GB, "direct", ("direct",), SWITCH, (8,), True, STORED),
    Case(EXCHANGE, GB, "direct", ("direct",), SWITCH, (64,), True, STORED),
    Case(EXCHANGE, GB, "direct", ("direct",), FULL, (8,), True),
    Case(EXCHANGE, MB, "direct", ("direct",), FULL, (16,), True),
    Case(REDUCE, GB, "parameter-server:servers=8", ("direct",), FULL, (8,), True),
    Case(REDUCE, GB, "ring", ("ring",), RING, (8,), True),
    Case(REDUCE, GB, "hierarchical", ("ring", "ring"), SWITCH * 2, (8, 8)),
    Case(REDUCE, MB, "hierarchical", ("ring", "ring"), SWITCH * 2, (8, 8)),
    Case(REDUCE, GB, "hierarchical", ("ring", "ring"), SWITCH * 2, (4, 16)),
    Case(
        REDUCE,
        GB,
        "tree",
        ("doubleBinaryTree",),
        SWITCH,
        (16,),
        reason="ASTRA-sim sends the tensor up and down one of the trees in one piece, 8 S/B; here small pieces follow "
        "each other, as in NCCL, 2 S/B",
    ),
)


def theirs(case: Case, binaries: Path) -> float:
    """Return the seconds of ASTRA-sim."""
    count = int(np.prod(case.counts))
    kind = TYPES[case.collective]
    size = case.size // count if case.collective is GATHER else case.size
    node = Node(
        0,
        "collective",
        NodeType.COLL,
        attributes={"is_cpu_op": False, "comm_type": int(kind), "comm_size": size},
    )
    rates = [INSIDE, RATE] if len(case.counts) > 1 else [RATE]
    latencies = [0.0, LATENCY] if len(case.counts) > 1 else [LATENCY]
    network = {
        "topology": f"[ {', '.join(case.shape)} ]",
        "npus_count": f"[ {', '.join(map(str, case.counts))} ]",
        "bandwidth": f"[ {', '.join(repr(rate * CYCLE * 1e9 / 2**30) for rate in rates)} ]",
        "latency": f"[ {', '.join(repr(latency / CYCLE) for latency in latencies)} ]",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(count):
            (folder / f"rank.{rank}.et").write_bytes(encode(Trace({"schema": "0.0.4"}, (node,))))
        (folder / "system.json").write_bytes(system_file(case.theirs))
        (folder / "memory.json").write_text(json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}))
        (folder / "network.yml").write_text("".join(f"{key}: {value}\n" for key, value in network.items()))
        kind_of_network = "Congestion_Aware" if case.aware else "Congestion_Unaware"
        run = subprocess.run(
            [
                str(binaries / f"AstraSim_Analytical_{kind_of_network}"),
                f"--workload-configuration={folder}/rank",
                f"--system-configuration={folder}/system.json",
                f"--remote-memory-configuration={folder}/memory.json",
                f"--network-configuration={folder}/network.yml",
                f"--logging-folder={folder}/log",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    cycles = [int(text) for text in re.findall(r"finished, (\d+) cycles", run.stdout)]
    if len(cycles) != count:
        raise SystemExit(f"{case}: {len(cycles)} of {count} ranks finished\n{(run.stdout + run.stderr)[-600:]}")
    return max(cycles) * CYCLE


def ours(case: Case) -> float:
    """Return the seconds of the simulator."""
    inside, hosts = case.counts if len(case.counts) > 1 else (1, case.counts[0])
    topology, degree = {"Switch": ("bigswitch", inside), "Ring": (f"torus:sides={hosts}", 2)}.get(
        case.shape[-1], ("fully-connected", hosts - 1)
    )
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=inside,
        interfaces=degree,
        interface_bandwidth=RATE,
        inside_bandwidth=INSIDE,
        latency=LATENCY,
    )
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = HOST.make("topology", topology).build(context)
    members = inside * hosts
    halves = case.collective in (GATHER, SCATTER)
    tasks = TaskGraph(
        kind=[int(TaskKind.COLLECTIVE)],
        device=[-1],
        seconds=[0.0],
        size=[case.size // 2 if halves else case.size],
        src=[-1],
        dst=[-1],
        group=[0],
        op=[-1],
        collective=[int(case.collective)],
        group_ptr=[0, members],
        group_members=range(members),
        succ_ptr=[0, 0],
        succ=[],
        n_devices=members,
    )
    chosen = f"{case.collective.label}={case.ours}"
    return float(HOST.make("simulator", "fluid", {"algorithms": chosen}).build()(tasks, fabric, cluster).makespan)


def table(binaries: Path) -> str:
    """Return the table of all cases."""
    rows: list[Sequence[str]] = []
    for case in CASES:
        here, there = ours(case), theirs(case, binaries)
        error = here / there - 1
        shape = " x ".join(f"{name} {count}" for name, count in zip(case.shape, case.counts, strict=True))
        size = f"{case.size // GB} GB" if case.size >= GB else f"{case.size // MB} MB"
        reason = case.reason if abs(error) > 0.03 else ""
        rows.append([case.collective.label, case.ours, shape, size, _ms(there), _ms(here), f"{error:+.2%}", reason])
        print(" | ".join(rows[-1]), flush=True)
    headers = ["collective", "algorithm", "network", "tensor", "ASTRA-sim", "simulated", "", "reason, above 3 %"]
    return markdown_table(headers, rows, ["tensor", "ASTRA-sim", "simulated", ""])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.5g} ms"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=Path, help="folder with AstraSim_Analytical_Congestion_Aware and _Unaware")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this Markdown file")
    given = parser.parse_args()
    text = table(given.binaries)
    if given.write is not None:
        page = replace_section(given.write.read_text(encoding="utf-8"), "astra", f"{text}\n", str(given.write))
        given.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
