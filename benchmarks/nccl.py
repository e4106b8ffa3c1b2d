"""Constants of NCCL's protocols for a machine, fitted to measured all-reduces, and errors on rows held out.

    .venv/bin/python benchmarks/nccl.py                            # fits, and prints constants and errors
    .venv/bin/python benchmarks/nccl.py --write docs/collectives.md

The measurements are those of `benchmarks/nccl_all_reduce.csv`: rings in one host.  A machine has one set of constants:
how long NCCL takes to begin, a factor on the latencies of its tuner, the share of its links' rate that protocols reach,
the limit of protocol LL, and the rate at which a GPU reads and adds its own tensor.  Rows are held out by their size:
every fourth one.  The errors are those of the simulator with ``--protocol auto`` and the constants of
`topoplan_engine.network.protocols`, which are the ones in the table; this command says so where what it fits predicts
something else.  Digits of a fit are not the same on every machine: where protocols are equally fast, its errors bend.

    measured rows -> Tuning (least squares of logarithms) -> constants; simulator -> errors
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from topoplan import Cluster, Fabric, Host
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.network.protocols import MACHINES, NCCL, Tuning, measured, tuning_of
from topoplan_engine.network.rounds import RoundsPrice
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table

MEASURED = Path(__file__).with_name("nccl_all_reduce.csv")
#: Bytes/s of a GPU's NVLinks together, each way.
PEAK = {"A100": 300e9, "V100": 150e9}
#: First guess, least and largest: microseconds to begin, factor on latencies, shares of LL128 and Simple, GB/s of LL
#: (no row is faster with it), GB/s of a GPU's own tensor (at most the rate of its memory).
GUESS = (20.0, 1.0, 0.8, 0.9, 20.0, 600.0)
LEAST, MOST = (1.0, 0.2, 0.1, 0.1, 1.0, 50.0), (100.0, 5.0, 1.0, 1.0, 200.0, 2000.0)


class Measurement(NamedTuple):
    """An all-reduce in one host."""

    gpu: str
    members: int
    size: int
    seconds: float


def measurements() -> list[Measurement]:
    """Read the table."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        return [
            Measurement(row["gpu"], int(row["members"]), int(row["bytes"]), float(row["microseconds"]) * 1e-6)
            for row in csv.DictReader(file)
        ]


def held_out(row: Measurement, rows: Sequence[Measurement]) -> bool:
    """Say whether a row is of every fourth size."""
    return sorted({each.size for each in rows}).index(row.size) % 4 == 2


def tuning(gpu: str, constants: Sequence[float]) -> Tuning:
    """Return the constants of a machine."""
    return measured(*constants, rings=MACHINES[gpu.lower()].links_used)


def constants_of(given: Tuning) -> list[float]:
    """Return the constants that `tuning` was given, in its order."""
    _, ll128, simple = given.share["ring"]
    start, factor = given.base["ring"][2] - NCCL.base["ring"][2], given.inside["ring"][2] / NCCL.inside["ring"][2]
    return [start, factor, ll128, simple, given.most[0], given.local]


def by_formula(constants: Tuning, row: Measurement) -> float:
    """Return the seconds of a ring of devices in one host."""
    n = row.members
    price = RoundsPrice(0.0, 2 * (n - 1), 0, 2 * (n - 1) / n / PEAK[row.gpu], np.zeros(0), np.zeros(0), 1.0)
    chosen = constants.fastest("ring", price, row.size, hosts=1, members=n)
    return chosen.latency + chosen.seconds_per_byte * row.size


def fitted(gpu: str, rows: Sequence[Measurement]) -> list[float]:
    """Fit the constants of a machine to rows: least squares of the logarithms, with less weight for outliers."""

    def errors(logarithms: np.ndarray) -> list[float]:
        constants = tuning(gpu, np.exp(logarithms).tolist())
        return [float(np.log(by_formula(constants, row) / row.seconds)) for row in rows]

    limits = np.log(LEAST), np.log(MOST)
    found = least_squares(
        errors, np.log(GUESS), bounds=limits, loss="soft_l1", f_scale=0.1, x_scale=0.1, diff_step=1e-3
    )
    return np.exp(found.x).tolist()


def simulated(row: Measurement) -> float:
    """Return the seconds of the simulator for a row."""
    task = {"kind": [int(TaskKind.COLLECTIVE)], "device": [-1], "src": [-1], "dst": [-1], "op": [-1], "group": [0]}
    tasks = TaskGraph(
        **task,
        seconds=[0.0],
        size=[row.size],
        collective=[int(Collective.ALL_REDUCE)],
        group_ptr=[0, row.members],
        group_members=range(row.members),
        succ_ptr=[0, 0],
        succ=[],
        n_devices=row.members,
    )
    cluster = Cluster.uniform(
        n_hosts=1,
        devices_per_host=row.members,
        interfaces=1,
        interface_bandwidth=1e9,
        inside_bandwidth=PEAK[row.gpu],
        device_preset=row.gpu,
    )
    fabric = Fabric.from_links(name="one", n_hosts=1, links=[], bandwidth=1e9, latency=0.0)
    run = HOST.make("simulator", "fluid", {"algorithms": "all-reduce=ring", "protocol": "auto"}).build()
    return float(run(tasks, fabric, cluster).makespan)


HOST = Host.discover()


def quantiles(errors: Sequence[float]) -> list[str]:
    """Return median, ninth of ten and largest of absolute errors, as text."""
    values = np.sort(np.abs(errors))
    return [f"{np.median(values):.1%}", f"{values[int(0.9 * len(values))]:.1%}", f"{values[-1]:.1%}"]


def report() -> tuple[str, str]:
    """Return the table of errors, and that of constants."""
    rows = measurements()
    errors, constants = [], []
    for gpu in PEAK:
        of_gpu = [row for row in rows if row.gpu == gpu]
        shown = [row for row in of_gpu if not held_out(row, of_gpu)]
        fit, shipped = tuning(gpu, fitted(gpu, shown)), tuning_of(gpu)
        constants.append([gpu, *(f"{value:.4g}" for value in constants_of(shipped))])
        if not np.allclose(*([by_formula(each, row) for row in of_gpu] for each in (shipped, fit)), rtol=5e-3):
            print(f"the constants of {gpu} in topoplan_engine.network.protocols predict otherwise than a fit")
        for name, some in (
            ("fitted", shown),
            ("held out", [row for row in of_gpu if held_out(row, of_gpu)]),
            ("all", of_gpu),
        ):
            of_rows = [simulated(row) / row.seconds - 1 for row in some]
            errors.append([gpu, name, str(len(some)), *quantiles(of_rows)])
    total = [simulated(row) / row.seconds - 1 for row in rows]
    errors.append(["both", "all", str(len(rows)), *quantiles(total)])
    header = ["GPU", "rows", "", "median", "ninth decile", "largest"]
    names = ["GPU", "us to begin", "factor on latencies", "LL128", "Simple", "LL, GB/s", "own tensor, GB/s"]
    return markdown_table(header, errors, header[2:]), markdown_table(names, constants, names[1:])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this Markdown file")
    given = parser.parse_args()
    errors, constants = report()
    print(f"{errors}\n\n{constants}")
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8")
        page = replace_section(page, "nccl", f"{errors}\n\n{constants}\n", str(given.write))
        given.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
