"""The tables of docs/speed.md, each by the benchmark that measures it.

    .venv/bin/python benchmarks/speed.py                                    # which section each benchmark makes
    .venv/bin/python benchmarks/speed.py start default --write docs/speed.md
    TOPOPLAN_HPGO_PYTHON=PYTHON3.7 TOPOPLAN_HIDUP=FOLDER TOPOPLAN_HIDUP_PYTHON=PYTHON3.7 TOPOPLAN_FLEXNET=PROGRAM \
        .venv/bin/python benchmarks/speed.py all --write docs/speed.md

A section of the page is what a benchmark prints, its tables alone, and a line that says at which commit and under which
load of the machine it was measured.  Sections beside a peer need the peer; its variable is that of the benchmark.

    benchmark ─► its Markdown tables ─► section of the page, between its markers
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import attrs

import beside
from topoplan import Host, optimize
from topoplan_engine.files import write_file
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table
from topoplan_studies.problems import standard_problems
from topoplan_studies.problems.best import best_known, seconds_in_table

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).parent


class Section(NamedTuple):
    """A section of the page.

    Attributes:
        words: of the benchmark, its file first.
        tables: which of its tables.
        peer: variable that names the program that it is measured beside; empty where there is none.
    """

    words: tuple[str, ...]
    tables: slice = slice(None)
    peer: str = ""


SECTIONS = {
    "start": Section(("test_startup.py",)),
    "default": Section(("speed.py", "--default")),
    "first-use": Section(("first_use.py", "dlrm16")),
    "first-commands": Section(("first_use.py", "--each")),
    "first-commands-installed": Section(("first_use.py", "--installed")),
    "first-commands-uv": Section(("first_use.py", "--uv")),
    "hpgo": Section(("planning.py",), slice(-1, None), "TOPOPLAN_HPGO_PYTHON"),
    "hidup": Section(("spmd_search.py",), slice(3), "TOPOPLAN_HIDUP"),
    "flexnet": Section(("search_speed.py", "--blocks", "beside"), slice(1), "TOPOPLAN_FLEXNET"),
    "searches": Section(("search_speed.py", "--blocks", "longer,changes")),
    "executors": Section(("executors.py", "--runs", "16")),
    "large-study": Section(("large_study.py", "--run", "400")),
}
#: Proposals of the search before each default search, which loads its kernels.
FIRST = 5


def tables_of(text: str) -> Iterator[str]:
    """Return the Markdown tables in a text."""
    rows: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line)
        elif rows:
            yield "\n".join(rows) + "\n"
            rows = []


def body_of(section: Section, printed: str, commit: str, load: float) -> str:
    """Return the section that a benchmark's output makes."""
    tables = list(tables_of(printed))[section.tables]
    command = " ".join(("benchmarks/" + section.words[0], *section.words[1:]))
    load_text = f"load {load:.0f} on {os.cpu_count()} cores"
    return "\n" + "\n".join(tables) + f"\n`{command}` at commit {commit}, {load_text}.\n\n"


def measured(name: str) -> str:
    """Run the benchmark of a section; return the section.

    Raises:
        SystemExit: the benchmark fails, or its peer is not named.
    """
    section = SECTIONS[name]
    if section.peer and not os.environ.get(section.peer):
        beside.refuse(f"{name}: is measured beside a peer ({section.peer} is not set)")
    command = [sys.executable, str(FOLDER / section.words[0]), *section.words[1:]]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        beside.refuse(f"{name}: {' '.join(section.words)} ended with status {ended.returncode}")
    return body_of(section, ended.stdout, commit(), os.getloadavg()[1])


def commit() -> str:
    """Return the commit of the checkout, shortened."""
    words = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def default_searches() -> str:
    """Search all benchmark problems by default, each after a short search in this process; return the table."""
    host, rows = Host.discover(), []
    for problem in standard_problems():
        setting = problem.setting
        optimize(attrs.evolve(setting, run=attrs.evolve(setting.run, budget=FIRST)), host=host)
        begun = time.process_time()
        outcome = optimize(setting, host=host)
        seconds = time.process_time() - begun
        iteration = seconds_in_table(problem, outcome.plan, host)
        ratio = f"{iteration / best_known()[problem.name].seconds:.3f}"
        times = [beside.shown(seconds), f"{iteration * 1e3:.4f}", ratio]
        rows.append([problem.name, str(outcome.result.evaluations), *times])
        print(*rows[-1], file=sys.stderr, flush=True)
    titles = ["problem", "proposals", "CPU s", "best, ms", "over the best known plan"]
    return markdown_table(titles, rows, numbers=titles[1:])


def main() -> None:
    """Measure sections, and print them or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"all, or of {', '.join(SECTIONS)}")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--default", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.default:
        print(default_searches())
        return
    names = list(SECTIONS) if given.sections == ["all"] else given.sections
    for name in names:
        if name not in SECTIONS:
            parser.error(f"no section {name!r} (have: {', '.join(SECTIONS)})")
    for name in names:
        body = measured(name)
        if given.write is None:
            print(body, flush=True)
            continue
        page = given.write.read_text(encoding="utf-8")
        write_file(given.write, replace_section(page, name, body, str(given.write)).encode())
    for name in SECTIONS if not names else ():
        print(f"{name}: {' '.join(SECTIONS[name].words)}")


if __name__ == "__main__":
    main()
