"""Run every row of experiments/original_systems/*.toml and write docs/original_systems.md.

    .venv/bin/python experiments/original_systems.py
    .venv/bin/python experiments/original_systems.py --jobs 4 --check
    .venv/bin/python experiments/original_systems.py --only N1,N2

A row is one thing that an original system does, the commands that do it here, and what their output must show.
Commands run in a folder of their own, with the scripts of this Python first on the PATH.  The page has what they really
printed; nothing is written into it by hand.  ``--only`` runs some rows and leaves the others of the page as they
stand; ``--check`` runs all and writes nothing.  A row that needs a package which is not installed is not run, and
stands in the page as it was.  The exit status is 1 if a row does not hold, or if the page that is to be checked is not
what the rows give.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import cattrs

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "original_systems.md"
#: Files of rows, in the order of the page.
SYSTEMS = ("flexnet", "flexflow", "hidup", "flexflow-simulator", "hpgo", "framework")
#: What can become of a row, best first.
OUTCOMES = ("works", "out of scope", "partly", "missing")
#: Folders of the checkout that a row's folder has links to, as a user in the checkout has them.
LINKED = (
    *("benchmarks", "core", "docs", "engine", "examples", "experiments", "libs", "plugins", "tools"),
    *("LICENSE", "README.md", "packages.toml", "pyproject.toml"),  # with which `pip install .` works, too
)
#: Seconds after which a row has failed.
LONGEST = 1800
#: Letters of the output that a cell of the page holds.
WIDEST = 240

HEAD = """# The original systems, row by row

Topoplan re-creates five systems: FlexNet (the simulator of TopoOpt), FlexFlow, HiDup, FlexFlow's simulator, and HPGO
(the planner of DAPPLE).  This page goes through their documents and lists each flag, format, table and experiment,
with the commands that do the same here and what these commands printed.  The last table is the shape that the
framework promises to have.  One command runs all rows and writes the page; `.ci/nightly` runs it with `--check`:

    .venv/bin/python experiments/original_systems.py

- *works*: the output shows what the row says.
- *out of scope*: Topoplan plans and does not do this; the output says so and names what to use.
- *partly*: the output shows what is quoted; the last sentence of the cell says what is not there.
- *missing*: the cell says what is not there.

Each command runs in a folder that has links to the folders of the checkout and nothing else.  Files that it needs are
listed below the table, or written by the command.  Rows that measure need PyTorch, and are run where it is installed.
The rows with their checks are `experiments/original_systems/*.toml`.
"""


@attrs.frozen(kw_only=True)
class Check:
    """Something that must hold after the commands of a row.

    Attributes:
        text: regular expression that the output contains; its first group, if any, is the value.
        json: path in a JSON document, with dots; what stands there is the value.
        file: look here and not in the output.
        equals: what the value must be.
        within: relative difference that is allowed between numbers.
        between: the least and the greatest value; such a value is not printed, since it may differ between runs.
        label: stands before the value in the page.
    """

    text: str = ""
    json: str = ""
    file: str = ""
    equals: Any = None
    within: float = 0.0
    between: tuple[float, float] | None = None
    label: str = ""


@attrs.frozen(kw_only=True)
class Row:
    """One thing that an original system does.

    Attributes:
        id: letter of the system and number.
        point: what the original does.
        source: where it says so.
        command: shell commands, one for each line; empty if there is none.
        files: name -> text, written before.
        status: exit status of the last command.
        shows: must all hold.
        out_of_scope: regular expression of the line in which Topoplan says that it does not do this.
        lacks: what is not there, in a sentence; the row then works partly, or not at all if it has no command.
        needs: a module that must be installed for it; no other row's commands need more than a checkout has.
    """

    id: str
    point: str
    source: str
    command: str = ""
    files: dict[str, str] = attrs.Factory(dict)
    status: int = 0
    shows: tuple[Check, ...] = ()
    out_of_scope: str = ""
    lacks: str = ""
    needs: str = ""

    @property
    def declared(self) -> str:
        """The outcome if everything holds that must."""
        if not self.command:
            return "missing"
        if self.out_of_scope:
            return "out of scope"
        return "partly" if self.lacks else "works"


@attrs.frozen(kw_only=True)
class System:
    """An original system: heading, documents and rows."""

    title: str
    documents: str
    row: tuple[Row, ...]


@attrs.frozen
class Finding:
    """What became of a row: one of OUTCOMES, what the output showed, and whether this is what was declared."""

    outcome: str
    shown: str
    holds: bool = True


def read_system(path: Path) -> System:
    """Read a file of rows; keys that it must not have are errors."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(Any, lambda value, _: value)
    with path.open("rb") as file:
        return converter.structure(tomllib.load(file), System)


def read_systems() -> tuple[System, ...]:
    """Read all files of rows, in the order of the page."""
    return tuple(read_system(ROOT / "experiments" / "original_systems" / f"{name}.toml") for name in SYSTEMS)


def run_row(row: Row) -> Finding:
    """Run the commands of a row and look at what they printed."""
    if not row.command:
        return Finding("missing", row.lacks)
    if not runnable(row):
        return Finding("missing", f"{row.needs} is not installed", holds=False)
    with tempfile.TemporaryDirectory(prefix="row-") as folder:
        for name in LINKED:
            Path(folder, name).symlink_to(ROOT / name)
        for name, text in row.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        try:
            process = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", row.command],
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Finding("missing", f"does not end within {LONGEST} s", holds=False)
        return judge(row, process.returncode, process.stdout, process.stderr, Path(folder))


def environment() -> dict[str, str]:
    """What a user's shell has, with this Python's scripts first, and a wide terminal without colors."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TOPOPLAN_", "PYTHON"))}
    path = os.pathsep.join([sysconfig.get_path("scripts"), str(Path(sys.executable).parent), plain["PATH"]])
    return {**plain, "PATH": path, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def judge(row: Row, status: int, out: str, err: str, folder: Path) -> Finding:
    """Compare what a row printed and wrote with what it must show."""
    shown = []
    if status != row.status:
        last = " ".join((err or out).strip().splitlines()[-1:])
        return Finding("missing", f"exit status {status}, not {row.status}: {last}", holds=False)
    for check in (*row.shows, *([Check(text=row.out_of_scope)] if row.out_of_scope else [])):
        holds, value = evaluate(check, out, err, folder)
        if not holds:
            return Finding("missing", f"does not hold: {value}", holds=False)
        shown.append(value)
    return Finding(row.declared, "; ".join([*shown, *([f"**Not there:** {row.lacks}"] if row.lacks else [])]))


def evaluate(check: Check, out: str, err: str, folder: Path) -> tuple[bool, str]:
    """Return whether a check holds, and what to print of it."""
    if check.file and not (folder / check.file).is_file():
        return False, f"there is no file {check.file}"
    text = (folder / check.file).read_text(encoding="utf-8", errors="replace") if check.file else ""
    if check.json:
        return compare(check, *lookup(text if check.file else out, check.json))
    if not check.text:
        return True, f"{check.file} is written"
    match = re.search(check.text, text if check.file else out + err, re.M)
    if match is None:
        return False, f"no line has {check.text!r}"
    if check.equals is None and check.between is None:
        return True, check.label or brief(match[0])
    return compare(check, number(match[1]), "")


def lookup(text: str, path: str) -> tuple[Any, str]:
    """Return what stands at a path of a JSON document; the second item says why there is nothing."""
    try:
        value = json.loads(text)
        for key in path.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return None, f"{path}: {error!r}"
    return value, ""


def number(word: str) -> Any:
    """Return a number where a word is one."""
    try:
        return float(word.replace(",", ""))
    except ValueError:
        return word


def compare(check: Check, value: Any, missing: str) -> tuple[bool, str]:
    """Compare a value with what a check wants."""
    label = check.label or check.json
    name = f"{label}: " if label else ""
    if missing:
        return False, missing
    if check.between is not None:
        low, high = check.between
        holds = isinstance(value, int | float) and low <= value <= high
        return holds, f"{label} within {low:g} to {high:g}" if holds else f"{name}{value} is not {low:g} to {high:g}"
    if check.equals is None:
        return value is not None, f"{name}{spell(value)}"
    if isinstance(check.equals, float) and isinstance(value, int | float):
        holds = math.isclose(value, check.equals, rel_tol=check.within)
    else:
        holds = value == check.equals
    if not holds:
        return False, f"{name}{spell(value)}, not {spell(check.equals)}"
    return True, f"{name}{spell(check.equals)} (within {check.within:g})" if check.within else f"{name}{spell(value)}"


def spell(value: Any) -> str:
    """Write a value in few letters."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return brief(value if isinstance(value, str) else json.dumps(value))


def brief(text: str) -> str:
    """Write a text in one line without borders of tables, cut where it is too long."""
    line = " ".join(re.sub(r"[│┃┏┓┗┛━─┌┐└┘┡┩╇┬┴┼]", " ", text).split())
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…"


def cell(text: str) -> str:
    """Write a text as it stands in a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def command_cell(command: str) -> str:
    """Write commands as they stand in a cell: each line as code."""
    return "<br>".join(f"`{line}`".replace("|", "\\|") for line in command.strip().splitlines()) or "–"


def line_of(row: Row, finding: Finding) -> str:
    """Write a row of a table."""
    columns = (row.id, cell(row.point), command_cell(row.command), finding.outcome, cell(finding.shown))
    return f"| {' | '.join(columns)} |"


def section(system: System, findings: dict[str, Finding]) -> list[str]:
    """Write the table of a system, and the files that its commands need."""
    lines = [f"## {system.title}", "", system.documents.strip(), ""]
    lines += ["| row | the original | commands | outcome | the output |", "|---|---|---|---|---|"]
    lines += [line_of(row, findings[row.id]) for row in system.row]
    for row in system.row:
        for name, text in row.files.items():
            lines += ["", f"{row.id}: `{name}`", "", "```text", text.rstrip("\n"), "```"]
    return [*lines, ""]


def page_of(systems: tuple[System, ...], findings: dict[str, Finding]) -> str:
    """Write the page."""
    lines = [HEAD, f"| | {' | '.join(OUTCOMES)} | rows |", f"|---|{'--:|' * (len(OUTCOMES) + 1)}"]
    total: Counter[str] = Counter()
    for system in systems:
        counts = Counter(findings[row.id].outcome for row in system.row)
        total += counts
        lines.append(counted(system.title, counts))
    lines += [counted("all", total), ""]
    for system in systems:
        lines += section(system, findings)
    return "\n".join(lines)


def counted(title: str, counts: Counter[str]) -> str:
    """Write a row of the table of counts."""
    return f"| {title} | {' | '.join(str(counts[outcome]) for outcome in OUTCOMES)} | {counts.total()} |"


def rows_of(page: str) -> dict[str, list[str]]:
    """Read the cells of every row of a page: its point, commands, outcome and output, as they stand."""
    lines = (re.split(r"(?<!\\) \| ", line[2:-2]) for line in page.splitlines() if re.match(r"\| [A-Z]\d+ \|", line))
    return {cells[0]: cells[1:] for cells in lines}


def earlier(rows: tuple[Row, ...]) -> dict[str, Finding]:
    """Read from the page what became of rows whose commands and outcomes have not changed."""
    cells = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    findings = {}
    for row in rows:
        _, command, outcome, shown = cells.get(row.id, ["", "", "", ""])
        if row.command and (command, outcome) == (command_cell(row.command), row.declared):
            findings[row.id] = Finding(outcome, shown.replace("\\|", "|").replace("&lt;", "<"))
    return findings


def runnable(row: Row) -> bool:
    """Say whether everything that a row needs is installed."""
    return not row.needs or importlib.util.find_spec(row.needs) is not None


def run_rows(rows: list[Row], jobs: int) -> dict[str, Finding]:
    """Run rows, some at a time, and say how they ended."""

    def run(row: Row) -> tuple[Row, Finding, float]:
        start = time.monotonic()
        return row, run_row(row), time.monotonic() - start

    findings = {}
    with ThreadPoolExecutor(jobs) as pool:
        for row, finding, seconds in pool.map(run, rows):
            findings[row.id] = finding
            print(f"{row.id:4} {finding.outcome:13} {seconds:6.1f} s  {finding.shown}", flush=True)
    return findings


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page would change")
    parser.add_argument("--only", default="", metavar="ID,…", help="rows to run; all unless given")
    parser.add_argument("--jobs", type=int, default=1, help="rows that run at the same time")
    arguments = parser.parse_args()
    systems = read_systems()
    rows = tuple(row for system in systems for row in system.row)
    unknown = set(filter(None, arguments.only.split(","))) - {row.id for row in rows}
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}")
    names = set(arguments.only.split(",")) if arguments.only else {row.id for row in rows}
    before = earlier(rows)
    names |= {row.id for row in rows if arguments.only and not arguments.check and row.id not in before}
    for row in rows:
        if row.id in names and not runnable(row) and row.id in before:
            print(f"{row.id:4} {'not run':13} {row.needs} is not installed")
            names.remove(row.id)
    chosen = [row for row in rows if row.id in names]
    findings = run_rows(chosen, arguments.jobs)
    worse = [row.id for row in chosen if not findings[row.id].holds]
    if worse:
        print(f"do not hold: {', '.join(worse)}")
    if arguments.check and arguments.only:
        return bool(worse)
    page = page_of(systems, before | findings)
    if not arguments.check:
        PAGE.write_text(page, encoding="utf-8")
    elif page != PAGE.read_text(encoding="utf-8"):
        old = PAGE.read_text(encoding="utf-8").splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(old, page.splitlines(keepends=True), str(PAGE), "what rows give"))
        return 1
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())
