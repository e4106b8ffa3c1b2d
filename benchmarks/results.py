"""Repeat every figure under experiments/ and write tables, plots and verdicts into docs/results.md.

    .venv/bin/python benchmarks/results.py
    .venv/bin/python benchmarks/results.py --jobs 8 degree all-to-all

Every file there begins with the command line that runs it; that line is what runs here.  Finished runs of `topoplan
compare` are kept, so that what was interrupted goes on when it is started again.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from topoplan.files import read_file, write_file
from topoplan_studies.page import replace_section

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs/results.md")
#: Sections of a new page, in the order of the publication.
FIGURES = ("dedicated-d4", "dedicated-d8", "all-to-all", "degree", "shared-cluster")

HEAD = """# Networks compared, study by study

TopoOpt (Wang et al., NSDI 2023) compares networks for training by simulation.  This page repeats the comparisons that
Topoplan covers.  For each hypothesis on the order of two networks it shows where the hypothesis holds, where it does
not, and why.  One command writes the whole page, and each section shows its own command:

    .venv/bin/python benchmarks/results.py

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
    """Return what stands above the figures."""
    other = page.with_name("pipelines.md")
    return f"{HEAD}\nPipelines have [a page of their own]({other.name}).\n" if other.exists() else HEAD


def command(study: str, jobs: int, page: Path) -> list[str]:
    """Return the words of a figure's own command line, after ``topoplan``."""
    first = (ROOT / "experiments" / f"{study}.toml").read_text(encoding="utf-8").splitlines()[0]
    words = shlex.split(first.removeprefix("#"))[1:]
    words[words.index("--write") + 1] = str(page)
    return [*words, "--jobs", str(jobs)] if words[0] == "compare" else words


def finished(process: subprocess.Popen[bytes]) -> int:
    """Wait for a figure; Ctrl-C reaches its process, too, which keeps what it has and then ends."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)}; all unless given")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--write", type=Path, default=PAGE, metavar="PAGE.md", help=f"the page; {PAGE} unless given")
    given = parser.parse_args()
    for study in given.studies:
        if study not in FIGURES:
            parser.error(f"no figure {study!r} (have: {', '.join(FIGURES)})")
    page = given.write if given.write == PAGE else given.write.absolute()
    text = read_file(ROOT / page).decode() if (ROOT / page).exists() else ""
    write_file(ROOT / page, replace_section(text, "head", head(ROOT / page), str(page)).encode())
    for study in given.studies or FIGURES:
        words = command(study, given.jobs, page)
        print("topoplan", shlex.join(words), flush=True)
        start = [sys.executable, "-c", "from topoplan.cli import main; main()"]
        status = finished(subprocess.Popen([*start, *words], cwd=ROOT))
        if status:
            sys.exit(status)


if __name__ == "__main__":
    main()
