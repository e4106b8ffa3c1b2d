"""A plan's own ``.fbuf`` takes the time of the plan within 1 %, or the difference is said: a table of 40 plans.

    nice -n 19 python benchmarks/own_files.py                          # all, some 2 CPU minutes
    python benchmarks/own_files.py --write docs/agreement.md
    python benchmarks/own_files.py --only hpgo --only random

Every kind of plan is searched on every network below by the command line, which writes the file and prints its time
"as flatbuffer is run".  The file is then simulated from scratch, as somebody would who has it alone, and with the
simulator of the plan.  A plan fails where the file's time is not the one that was printed, or differs from the plan's
by 1 % or more and the line does not say so.

    optimize -x flatbuffer ─► printed line, file ─► simulate_file ─► row
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import attrs

from topoplan import Host
from topoplan.cli import main as topoplan
from topoplan.errors import TopoplanWarning
from topoplan_engine import simulate_file
from topoplan_engine.exporting import read_plan
from topoplan_engine.replay import draws_of
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table

#: Kind of plan -> model, batch and searcher.
KINDS = {
    "mcmc": ("alexnet", 256, "mcmc"),
    "data parallel": ("resnet50", 96, "baseline"),
    "mcmc, tables": ("dlrm:arch-embedding-size=100000-100000-100000-100000,arch-mlp-bot=64-64-64", 512, "mcmc"),
    "spmd": ("alexnet", 64, "spmd"),
    "spmd, attention": ("transformer:num-layers=2", 32, "spmd"),
    "pipeline": ("vgg16", 64, "pipeline"),
    "hpgo": ("alexnet", 512, "hpgo"),
    "auto": ("moe", 128, "auto"),
}
#: Topology, servers and interfaces of a server.
NETWORKS = (
    ("bigswitch", 8, 1),
    ("topoopt", 8, 4),
    ("fattree:k=4", 16, 1),
    ("random", 12, 3),
    ("fully-connected", 6, 5),
)
#: Relative difference that has to be said.
WORTH_SAYING = 0.01


@attrs.frozen
class Row:
    """Times of one plan and of its file, in seconds.

    Attributes:
        planned: what the plan takes.
        replayed: the file, by the simulator of the plan.
        printed: the file as its program runs it, as the command said.
        simulated: the same, simulated from the file alone.
        lowest, highest: of draws of equal paths of the file.
        said: the difference that the command said; empty if none.
    """

    kind: str
    network: str
    planned: float
    replayed: float
    printed: float
    simulated: float
    lowest: float
    highest: float
    said: str

    @property
    def fails(self) -> str:
        """Say what is wrong; empty if nothing is."""
        differs = abs(self.printed / self.planned - 1)
        if not (1 - WORTH_SAYING) * self.lowest <= self.printed <= (1 + WORTH_SAYING) * self.highest:
            return "another time than the file has"
        if differs >= WORTH_SAYING * 1.1 and not self.said:
            return "the difference is not said"
        return ""

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        times = [self.planned, self.replayed, self.printed, self.simulated]
        difference = f"{100 * (self.printed / self.planned - 1):+.1f} %"
        return [self.kind, self.network, *(f"{1e3 * each:.4g}" for each in times), difference, self.said, self.fails]


def row_of(kind: str, network: tuple[str, int, int], folder: Path, host: Host) -> Row | str:
    """Plan, write, and simulate the file; the message where the plan cannot be written."""
    (model, batch, searcher), (topology, servers, degree) = KINDS[kind], network
    name, _, options = model.partition(":")
    file, plan = folder / "plan.fbuf", folder / "plan.json"
    words = ["optimize", name, *(word for each in options.split(",") if each for word in ("-o", each))]
    words += ["--batch-size", str(batch), "-t", topology, "--servers", str(servers), "--degree", str(degree)]
    words += ["-s", searcher, "--budget", "40", "-x", f"flatbuffer={file}", "-x", f"json={plan}"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)
        try:
            topoplan(words)
        except SystemExit as ended:
            if ended.code:
                return err.getvalue().strip().splitlines()[-1]
        return _row(kind, f"{topology}, {servers}", file, plan, out.getvalue(), host)


def _row(kind: str, network: str, file: Path, plan: Path, text: str, host: Host) -> Row:
    line = next(line for line in text.splitlines() if "as flatbuffer is run" in line)
    found = re.search(r"run +│ +([\d.,]+) (\w+)", line)
    assert found is not None, line
    printed = float(found[1].replace(",", "")) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[found[2]]
    said = re.search(r"[\d.]+% (?:longer|shorter)", line)
    whole = read_plan(host, plan)
    assert whole.timeline is not None
    mean = whole.provenance.get("iteration_time", {}).get("mean_s", whole.timeline.makespan)
    alone = simulate_file(file, host=host)
    same = simulate_file(file, simulator="fluid:transport=wire", host=host)
    assert alone.timeline is not None
    assert same.timeline is not None
    draws = draws_of(alone, host=host)
    times = [alone.timeline.makespan] if draws is None else [alone.timeline.makespan, *draws.seconds.tolist()]
    return Row(
        kind=kind,
        network=network,
        planned=float(mean),
        replayed=same.timeline.makespan,
        printed=printed,
        simulated=alone.timeline.makespan,
        lowest=min(times),
        highest=max(times),
        said="" if said is None else said[0],
    )


def main(args: Sequence[str] | None = None) -> int:
    """Make the table; the exit status says whether a plan fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], help="kinds or networks whose names have this")
    parser.add_argument("--write", metavar="PAGE.md", help="put the table into a page")
    given = parser.parse_args(args)
    host, rows, refused = Host.discover(), list[Row](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for network in NETWORKS:
                if not all(word in f"{kind} {network[0]}" for word in given.only):
                    continue
                row = row_of(kind, network, Path(folder), host)
                if isinstance(row, Row):
                    rows.append(row)
                    print(*row.cells(), sep=" | ", flush=True)
                else:
                    refused.append(f"{kind} on {network[0]}: {row}")
                    print(refused[-1], flush=True)
    text = table(rows, refused)
    if given.write:
        page = Path(given.write)
        page.write_text(replace_section(page.read_text(encoding="utf-8"), "own-files", f"\n{text}\n\n", given.write))
    failing = [row for row in rows if row.fails]
    print(f"{len(rows)} plans, {len(refused)} refused, {len(failing)} fail")
    return int(bool(failing))


def table(rows: Sequence[Row], refused: Sequence[str]) -> str:
    """Return the table, and what it comes to, as a section of a page."""
    times = ["plan", "file, by its simulator", "file as run", "simulate FILE", "difference"]
    headers = ["kind", "network", *times, "said", "fails"]
    within = sum(abs(row.printed / row.planned - 1) < WORTH_SAYING for row in rows)
    summary = (
        f"{len(rows)} plans: the file takes the plan's time within 1 % in {within}; of the others, "
        f"{sum(bool(row.said) for row in rows)} are stated with how much longer or shorter it takes. Times are in ms."
    )
    cells = markdown_table(headers, [row.cells() for row in rows], times)
    lines = ["`python benchmarks/own_files.py`", "", cells]
    return "\n".join([*lines, "", summary, *(f"\n- refused: {one}" for one in refused)])


if __name__ == "__main__":
    sys.exit(main())
