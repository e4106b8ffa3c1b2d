"""Run every study under experiments/ and write tables, plots and tests of hypotheses into docs/results.md.

    .venv/bin/python experiments/results.py
    .venv/bin/python experiments/results.py --jobs 8 degree all-to-all

Every file there begins with the command that prints its tables.  Finished runs of `topoplan compare` are stored, so
that what was interrupted goes on when it is started again.
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from topoplan.cli import main as topoplan
from topoplan_engine.files import read_file, write_file
from topoplan_engine.reporting.pages import replace_section

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs/results.md")
#: Sections of a new page, in the order of the publication.
STUDIES = ("dedicated-d4", "dedicated-d8", "all-to-all", "degree", "shared-cluster")

HEAD = """# Networks compared, study by study

TopoOpt (Wang et al., NSDI 2023) compares networks for training by simulation.  This page repeats the comparisons that
Topoplan covers.  For each hypothesis on the order of two networks it shows where the hypothesis holds, where it does
not, and why.  One command writes the whole page, and each section shows its own command:

    .venv/bin/python experiments/results.py

- Each network has its own search, with the same number of candidates and the same seeds.  The numbers are small here.
  More candidates shorten all times, but not equally on all networks.  `topoplan compare FILE --budget N --seeds 1,2,3`
  runs more; if the times of the seeds of a row differ much, the search has not converged.
- *Of equal cost*: the bandwidth at which the network costs as much as TopoOpt's.  The prices are
  `libs/studies/src/topoplan_studies/prices/default.toml` unless `--prices` names others; hypotheses at
  equal cost depend on them.
- *lower bound*: of the plan on its network.  *any wiring*: of the plan's strategy on every direct-connect fabric of
  these interfaces.  *tax*: bytes that hosts send for each byte asked.
- All networks use all interfaces of a host; a fat-tree of equal cost has one for each host, as fast as the money buys.
"""


def head(page: Path) -> str:
    """Return what stands above the studies."""
    pipelines = page.with_name("pipelines.md")
    return f"{HEAD}\nPipelines have [a page of their own]({pipelines.name}).\n" if pipelines.exists() else HEAD


def command(path: Path) -> list[str]:
    """Return the words after ``topoplan`` in the first line of an experiment."""
    return shlex.split(path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "))[1:]


def write(path: Path, page: Path, jobs: int) -> None:
    """Run an experiment, which writes its section into a page and its picture beside; leave if it fails."""
    words = [*command(path), "--write", str(page)]
    try:
        topoplan([*words, "--jobs", str(jobs)] if words[0] == "compare" else words)
    except SystemExit as ended:
        if ended.code:
            raise


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}; all unless given")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--write", type=Path, default=ROOT / PAGE, metavar="PAGE.md", help=f"{PAGE} unless given")
    arguments = parser.parse_args()
    for study in arguments.studies:
        if study not in STUDIES:
            parser.error(f"no study {study!r} (have: {', '.join(STUDIES)})")
    page = arguments.write.absolute()
    os.chdir(ROOT)  # paths in the commands begin there
    text = read_file(page).decode() if page.exists() else ""
    write_file(page, replace_section(text, "head", head(page), str(page)).encode())
    for study in arguments.studies or STUDIES:
        print(study, flush=True)
        write(ROOT / "experiments" / f"{study}.toml", page, arguments.jobs)


if __name__ == "__main__":
    main()
