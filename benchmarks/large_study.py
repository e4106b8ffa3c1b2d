"""A study of ten thousand points: planned, run, resumed and reported, with what each step costs.

    .venv/bin/python benchmarks/large_study.py                    # runs all of them: a quarter of an hour of one core
    .venv/bin/python benchmarks/large_study.py --run 400          # runs 400; the others are stored copies of a run

A point is AlexNet on two servers, data parallel (no proposals), at one of 250 bandwidths, on one of two networks, with
one of twenty seeds: as little as a run can be, so that what a study adds to it shows.  Half of the points that are run
have one worker process, the others two.  CPU seconds are those of a process and its workers, and contain nothing of
other programs.  Memory is the peak of the first process.  Steps are parts of one process each, in this order.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from topoplan import Host
from topoplan_engine.executors import executor_from
from topoplan_engine.reporting.figures import write_figure
from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.tomlfiles import read_toml
from topoplan_studies.hypotheses import hypothesis_tests
from topoplan_studies.measure import measure
from topoplan_studies.plot import plot
from topoplan_studies.prices import default_prices
from topoplan_studies.results import network_results
from topoplan_studies.rows import write_rows
from topoplan_studies.runner import run_all
from topoplan_studies.runspecs import RunSpec, run_specs
from topoplan_studies.store import Store, inputs
from topoplan_studies.study import Study, study_from
from topoplan_studies.tables import StudyReport, study_table

SEEDS = 20
#: Networks of the study, and their topologies.
NETWORKS = {"switch": "bigswitch", "cables": "fully-connected"}


def study_of(points: int) -> str:
    """Return the text of a study of about so many points."""
    bandwidths = [10 + 2 * number for number in range(max(1, points // (len(NETWORKS) * SEEDS)))]
    networks = "\n".join(f'[[network]]\nname = "{name}"\nuse = "{use}"' for name, use in NETWORKS.items())
    return f"""
title = "Many points"
budget = 0
seeds = {list(range(SEEDS))}
searcher = [{{ use = "mcmc" }}]
[cluster]
servers = 2
[vary]
interface-bandwidth-gbps = {bandwidths}
[[model]]
use = "alexnet"
batch-size = 64
{networks}
"""


class Steps:
    """CPU seconds of one step after the other."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._before = self._seconds()

    def _seconds(self) -> float:
        return sum(os.times()[:4])

    def note(self, step: str, points: int) -> None:
        """Note what a step took that has just ended."""
        seconds = self._seconds()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.rows.append({"step": step, "points": points, "seconds": seconds - self._before, "megabytes": peak})
        self._before = self._seconds()


def run(folder: Path, count: int, jobs: int) -> list[dict[str, Any]]:
    """Run at most ``count`` further points, and return the steps."""
    host, steps = Host.discover(), Steps()
    _, specs = planned(folder, host, steps)
    missing = [spec for spec in specs if Store(folder / "runs").get(key(folder, host, spec)) is None][:count]
    steps.note("lookup of what is stored", len(specs))
    finished = run_all(missing, host, Store(folder / "runs"), executor_from("processes", jobs))
    steps.note(f"runs, {jobs} worker{'s' * (jobs > 1)}", len(finished.results))
    return steps.rows


def report(folder: Path) -> list[dict[str, Any]]:
    """Copy what was not run, make the report, and return the steps."""
    host, prices, steps = Host.discover(), default_prices(), Steps()
    study, specs = planned(folder, host, steps)
    copies = copied(folder, host, specs)
    steps.note("(copies of runs)", copies)
    finished = run_all(specs, host, Store(folder / "runs"), executor_from("processes", 1))
    assert finished.stored == len(specs)
    steps.note("resumed with all stored", len(specs))
    results = network_results(specs, [result for result in finished.results if result], prices)
    tests = hypothesis_tests(study, results)
    made = StudyReport(study=study, results=results, tests=tests, prices=prices, measured=False)
    (folder / "table.md").write_text(study_table(made).markdown(), encoding="utf-8")
    write_rows(made, folder / "rows.csv")
    write_rows(made, folder / "rows.parquet")
    steps.note("table, CSV, Parquet", len(specs))
    write_figure(plot(made), folder / "plot.svg")
    steps.note("plot", len(specs))
    return steps.rows


def planned(folder: Path, host: Host, steps: Steps) -> tuple[Study, list[RunSpec]]:
    """Read the study and unroll it."""
    path = folder / "many.toml"
    study = study_from(read_toml(path), "many", str(path))
    specs = run_specs(study, host, default_prices(), None)
    steps.note("planned", len(specs))
    return study, specs


def key(folder: Path, host: Host, spec: RunSpec) -> str:
    """Return the name of the file of a run."""
    return Store(folder / "runs").key(inputs(host, spec.experiment))


def copied(folder: Path, host: Host, specs: list[RunSpec]) -> int:
    """Store copies of one run of each network for all that were not run; return how many."""
    store, models, count = Store(folder / "runs"), dict[str, dict[str, Any]](), 0
    for spec in specs:
        name = key(folder, host, spec)
        if store.get(name) is None:
            if spec.network not in models:
                models[spec.network] = measure(host, spec.experiment)
            store.put(name, inputs(host, spec.experiment), models[spec.network])
            count += 1
    return count


def in_process(*words: object) -> list[dict[str, Any]]:
    """Run a part in a process of its own, so that its memory is its own."""
    ended = subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(ended.stderr)
    steps: list[dict[str, Any]] = json.loads(ended.stdout)
    return steps


def main() -> None:
    """Print a row for each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--run", type=int, default=None, help="unset: all")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        folder, count, jobs = Path(options.part[0]), int(options.part[1]), int(options.part[2])
        print(json.dumps(run(folder, count, jobs) if count else report(folder)))
        return
    count = options.points if options.run is None else options.run
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "many.toml").write_text(study_of(options.points), encoding="utf-8")
        steps = [
            *in_process("--part", folder, count // 2, 1),
            *in_process("--part", folder, count - count // 2, 2),
            *in_process("--part", folder, 0, 1),
        ]
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    rows = [
        [
            step["step"],
            f"{step['points']:,}",
            f"{step['seconds']:.2f}",
            f"{1e3 * step['seconds'] / max(1, step['points']):.2f}",
            f"{step['megabytes']:.0f}",
        ]
        for step in steps
    ]
    print(markdown_table(["step", "points", "CPU s", "CPU ms a point", "peak MB"], rows))
    print("\n" + ", ".join(f"{name} {size:,} bytes" for name, size in sizes.items()))


if __name__ == "__main__":
    main()
