"""Makes some of the figures of each page anew, and says which of them the page does not have.

``python tools/pages.py`` runs a sample of every page: a few rows, by the command that makes the page, into a file of
its own.  It finds each row of these tables in the page, by the columns that name rows, and compares all other cells.
Figures are equal that differ by one in their last digit, or by one percent.  Each that is not is printed, with the
figure of the page and the one of the present code; the status is 1 if there are any.  ``.ci/nightly`` runs it last.
Pages are named to check these alone; ``--commands`` prints what makes each page anew.

Figures that seconds decide agree within a factor (``bands``).  What no sample has stands in ``ELSEWHERE`` and ``LEFT``,
with what checks it, or why nothing does; a test finds a page of figures that is in none of these lists.

    page -> its sample, a Markdown file or what is printed -> rows that both have -> cells that differ
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Figures are equal that differ by no more than this share.
TOLERANCE = 0.01


class Page(NamedTuple):
    """How a page of figures is made.

    Attributes:
        command: makes all of it anew; words after ``python``.
        sample: makes some of it anew: in ``{file}``, which is a copy of the page.  Without a ``{file}`` the command
            compares for itself, and ends with another status than 0 where the page differs.
        names: headers of columns that name rows; where a table has none of these, its first column does.
        ignored: headers of columns that are not compared: another machine has others, or the sample has none.
        printed: commands that print some of the tables, by the headings of the page below which these are.
        bands: of figures that seconds decide: a header of their table, their own, and the factor within which they
            agree.
    """

    command: str
    sample: str = ""
    names: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    printed: tuple[tuple[str, str], ...] = ()
    bands: tuple[tuple[str, str, float], ...] = ()


_STUDIES = (
    "model",
    "network",
    "planner",
    "interface-bandwidth-gbps",
    "degree",
    "batch-size",
    "gpus-per-server",
    "load",
)
PAGES: dict[str, Page] = {
    "docs/physics.md": Page(
        "benchmarks/physics.py --write docs/physics.md",
        "benchmarks/physics.py --write {file}",
        ("rule", "devices", "a host", "calculation", "GPU", "members"),
    ),
    "docs/collectives.md": Page(
        "benchmarks/collectives.py --write docs/collectives.md",
        "benchmarks/collectives.py --write {file}",
        ("collective", "algorithm", "n", "k", "plan", "group"),
    ),
    "docs/machines.md": Page(
        "benchmarks/machines.py --write docs/machines.md", "benchmarks/machines.py --write {file}"
    ),
    "docs/strategies.md": Page(
        "benchmarks/strategies.py --write docs/strategies.md", "benchmarks/strategies.py --write {file}"
    ),
    "docs/agreement.md": Page(
        "benchmarks/agreement.py --write docs/agreement.md",
        "benchmarks/agreement.py --only 100transformer_16 --write {file}",
        ("task graph", "model", "network", "Gbit/s"),
    ),
    "docs/results.md": Page(
        "experiments/results.py", "experiments/results.py --page results --sample {file}", _STUDIES
    ),
    "docs/hidup.md": Page(
        "experiments/results.py --page hidup", "experiments/results.py --page hidup --sample {file}", _STUDIES
    ),
    "docs/pipelines.md": Page(
        "benchmarks/pipelines.py docs/pipelines.md",
        "benchmarks/pipelines.py {file} vgg16 amoeba-6-simplified",
        ("profile", "batch", "machine"),
        ("planned in",),
    ),
    "docs/spmd.md": Page(
        "benchmarks/spmd_plans.py",
        "benchmarks/spmd_plans.py --models vit-switch --devices 8 --write {file}",
        ("model", "devices"),
    ),
    "docs/cooptimization.md": Page(
        "benchmarks/cooptimization.py --write docs/cooptimization.md",
        "benchmarks/cooptimization.py --models VGG16 --gbps 10 --degrees 8 --runs {file}.runs --write {file}",
        ("model", "interfaces", "Gb/s"),
    ),
    "docs/one_gpu.md": Page("experiments/one_gpu.py", "experiments/one_gpu.py --check"),
    "docs/kernels.md": Page("experiments/kernels.py", "experiments/kernels.py --check"),
    "docs/validation.md": Page(
        "core/src/topoplan/__main__.py validate llm --write docs/validation.md --leave-out "
        "--by-device plugins/estimators/kernels/src/topoplan_estimator_kernels/measured.csv",
        "core/src/topoplan/__main__.py validate llm sc21 --write {file}",
        ("group", "device", "of", "stack", "row"),
        ("left out, %",),
    ),
    "docs/speed.md": Page(
        "benchmarks/speed.py all --write docs/speed.md",
        "benchmarks/speed.py start default large-study --write {file}",
        ("problem", "models", "devices", "layers", "model", "servers", "workers", "command", "step"),
        (
            *("proposals", "overhead", "CPU s", "a CPU second", "warm, s", "first, s", "growth"),
            *("fluid, /s", "flexnet, /s", "first, wall s", "at most 8"),
        ),
        (
            ("Start", 'benchmarks/first_use.py --each "optimize --budget 0" "simulate, of a task graph"'),
            ("SPMD programs: HiDup", "benchmarks/spmd_search.py --rows 1"),
            ("Search: FlexNet", "benchmarks/search_speed.py --blocks beside --rows 1"),
            (
                "Search: FlexNet, Longer searches, strategy and network together, and what a change costs",
                "benchmarks/search_speed.py --blocks longer --rows 2",
            ),
            ("Studies of many runs", "benchmarks/executors.py --runs 16"),
        ),
        (
            ("workers", "CPU s of 16 runs", 3.0),
            ("workers", "work", 1.3),
            *(("workers", header, 1.3) for header in ("busy", "efficiency")),
            ("problem", "CPU s", 3.0),
            ("simulator", "CPU s", 3.0),
            ("over `import numba`", "CPU s", 3.0),
            ("over `import numba`", "over `import numba`", 1.5),
            *(("at most 8", header, 1.5) for header in ("first, CPU s", "compiler, CPU s")),
            ("at most 8", "again, CPU s", 3.0),
            *(("step", header, 3.0) for header in ("CPU s", "CPU ms a point")),
            ("step", "peak MB", 1.5),
        ),
    ),
    "docs/reliability.md": Page(
        "benchmarks/fuzz.py --inputs 1000000 --seed 5 --write docs/reliability.md",
        "benchmarks/fuzz.py --inputs 1000000 --seed 5 --reader options,flexnet,share-structure,fbuf-bytes,best "
        "--write {file}",
        (),
        ("CPU s",),
    ),
    "docs/guides/research.md": Page(
        "benchmarks/searchers.py --problems alexnet-switch,alexnet-topoopt,vgg-19-pipeline,transformer-torch,"
        "dlrm16-topoopt,gnmt-32-pipeline --seeds 3 --budget 200 --searchers mcmc,anneal,cem,spmd,pipeline,auto",
        names=("problem", "model", "GPUs"),
        ignored=("best", "plan of auto"),
        printed=(
            (
                "Searchers to compare with",
                "benchmarks/default_searcher.py --models llama --devices 8 --searchers spmd,pipeline",
            ),
            (
                "Searchers to compare with",
                "benchmarks/searchers.py --problems transformer-torch --seeds 3 --budget 200 "
                "--searchers mcmc,pipeline,auto",
            ),
        ),
        bands=tuple(("GPUs", header, 1.03) for header in ("auto", "spmd", "pipeline", "auto / best single")),
    ),
    "plugins/commands/sensitivity/README.md": Page(
        "benchmarks/readme_figures.py wrong-profiles",
        printed=(("HiDup's study", "benchmarks/readme_figures.py wrong-profiles"),),
    ),
    "plugins/searchers/spmd/README.md": Page(
        "benchmarks/readme_figures.py large-programs",
        names=("model", "devices"),
        printed=(("Large models", "benchmarks/readme_figures.py large-programs --rows 1"),),
    ),
    "docs/guides/language_models.md": Page(
        "benchmarks/joint_moves.py --write docs/guides/language_models.md",
        "benchmarks/joint_moves.py --rows gpt2 --write {file}",
        ("model", "hosts", "network"),
        ("CPU s: search", "CPU s: moves"),
    ),
    "docs/growth.md": Page(
        "benchmarks/growth.py",
        "benchmarks/growth.py --points 2 --write {file}",
        ("servers", "layers"),
        ("evaluation", "memory"),
    ),
}
#: Pages of figures that this tool does not sample -> what checks them, or why nothing does.
ELSEWHERE = {
    "docs/original_systems.md": "experiments/original_systems.py --check",
    "docs/launching.md": "needs checkouts of trainers: benchmarks/trainer_plans.py --page",
    "docs/flexflow.md": "flags and their defaults, no figures: tests/test_flexflow_command.py",
    "docs/flexnet.md": "flags and their defaults, no figures: tests/test_flexnet_command.py",
    "plugins/exporters/chakra/README.md": "needs binaries of ASTRA-sim: benchmarks/astra_plans.py --write",
    "plugins/searchers/stated/README.md": "keys and their defaults, no figures",
    "plugins/topologies/torus/README.md": "plugins/topologies/torus/tests/test_torus.py has each figure",
}
#: Tables that no sample has, by page and heading -> why.
LEFT = {
    ("docs/speed.md", "Start"): "kernels that packages bring along: needs tools/kernels.py; other tables are sampled",
    ("docs/speed.md", "Pipelines: HPGO"): "needs HPGO",
    ("docs/guides/language_models.md", "Which network"): "searches of minutes; the commands stand above the table",
    ("docs/guides/language_models.md", "Beside DeepSeek's report"): "the commands stand above the table",
    ("docs/guides/research.md", "Where the problems are"): "tests/test_best_known_plans_page.py",
}
#: Documents whose tables are records of their day, made from sources, or no figures of commands.
_DOCUMENTS = ("*.md", "docs/**/*.md", "*/README.md", "libs/*/README.md", "plugins/*/*/README.md")
_RECORDS = ("docs/decisions/", "docs/reference/", "CHANGELOG.md")
_FIGURE = re.compile(r"[~<>≤±+−-]*\d[\d,]*(?:\.\d+)?(?: ?(?:[a-zA-Zµ%]+/?[a-zA-Z]*))?")
_NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
_BAR = re.compile(r"(?<!\\)\|")


class Table(NamedTuple):
    """A table of a page: the headings above it, its headers, and the cells of its rows."""

    heading: str
    headers: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(text: str) -> list[Table]:
    """Find the tables of a Markdown page."""
    found: list[Table] = []
    heading, title, table = "", "", None
    for line in text.splitlines():
        if line.startswith("#"):
            words = line.lstrip("# ")
            title = title if line.startswith("### ") else words
            heading = f"{title}, {words}" if line.startswith("### ") else words
        if not line.startswith("|"):
            table = None
            continue
        cells = tuple(cell.strip().replace("**", "") for cell in _BAR.split(line.strip().removesuffix("|"))[1:])
        if table is None:
            table = Table(heading, cells, [])
            found.append(table)
        elif not set("".join(cells)) <= set("-: "):
            table.rows.append(cells)
    return found


def has_figures(text: str) -> bool:
    """Say whether a page has a table with three cells at least that are a number and at most its unit."""
    return any(sum(bool(_FIGURE.fullmatch(cell)) for row in table.rows for cell in row) >= 3 for table in tables(text))


def uncovered(root: Path) -> list[str]:
    """Return the documents with tables of figures that neither a sample nor the list of other checks has."""
    paths = sorted(path.relative_to(root).as_posix() for pattern in _DOCUMENTS for path in root.glob(pattern))
    return [
        name
        for name in paths
        if not name.startswith(_RECORDS)
        and name not in PAGES
        and name not in ELSEWHERE
        and has_figures((root / name).read_text(encoding="utf-8"))
    ]


def number(text: str) -> tuple[float, float]:
    """Return a number, and one in its last digit."""
    text = text.replace(",", "").replace("−", "-")
    mantissa, _, power = text.partition("e")
    digits = len(mantissa.partition(".")[2])
    return float(text), 10.0 ** (int(power or 0) - digits)


def agree(old: str, new: str, factor: float = 1.0) -> bool:
    """Say whether two cells have the same words, and figures that are equal, or within a factor of each other."""
    if _NUMBER.sub("0", old) != _NUMBER.sub("0", new):
        return False
    for a, b in zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True):
        (before, digit), (now, _) = number(a), number(b)
        is_near = factor > 1 and before * now > 0 and 1 / factor <= now / before <= factor
        if not is_near and abs(now - before) > max(digit * (1 + 1e-9), TOLERANCE * abs(before)):
            return False
    return True


def differences(
    page: str,
    made: str,
    names: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
    bands: tuple[tuple[str, str, float], ...] = (),
) -> list[str]:
    """Compare tables that were made anew with those of a page; return a line for each cell that differs."""
    old_tables = tables(page)
    lines = []
    for table in tables(made):
        below = (each for each in old_tables if each.heading == table.heading)
        old = next((each for each in below if not Counter(table.headers) - Counter(each.headers)), None)
        if old is None:
            lines.append(f"{table.heading}: the page has no table of {', '.join(table.headers)}")
            continue
        place = _places(table.headers, old.headers)
        old_rows = [tuple(row[i] for i in place) for row in old.rows]
        naming = [i for i, header in enumerate(table.headers) if header in names] or [0]
        factors = {header: factor for owner, header, factor in bands if owner in table.headers}
        compared = {
            i: factors.get(header, 1.0)
            for i, header in enumerate(table.headers)
            if header in factors or header not in ignored
        }
        for row in table.rows:
            lines += _row_differences(table, row, old_rows, naming, compared)
    return lines


def _places(headers: tuple[str, ...], among: tuple[str, ...]) -> list[int]:
    """Return the place of each header among others: of headers that repeat, the first is the first, and so on."""
    left: dict[str, list[int]] = {}
    for place, header in enumerate(among):
        left.setdefault(header, []).append(place)
    return [left[header].pop(0) for header in headers]


def _row_differences(
    table: Table, row: tuple[str, ...], old_rows: list[tuple[str, ...]], naming: list[int], compared: dict[int, float]
) -> list[str]:
    name = ", ".join(row[i] for i in naming)
    same = [old for old in old_rows if all(old[i] == row[i] for i in naming)]
    if not same:
        return [f"{table.heading}: the page has no row {name}"]
    lines = [
        [
            f"{table.heading}: {name}: {table.headers[i] or 'figure'}: {old[i]} in the page, now {row[i]}"
            for i, factor in compared.items()
            if not agree(old[i], row[i], factor)
        ]
        for old in same
    ]
    return min(lines, key=len)


def sampled(name: str) -> list[str]:
    """Run the sample of a page; return a line for each figure that differs, or what the command says if it fails."""
    page, path = PAGES[name], ROOT / name
    text, lines = path.read_text(encoding="utf-8"), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        copy.write_text(text, encoding="utf-8")
        for heading, command in (*((("", page.sample),) if page.sample else ()), *page.printed):
            words = [word.replace("{file}", str(copy)) for word in shlex.split(command)]
            ended = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
            if ended.returncode:
                said = ended.stderr.strip() or ended.stdout.strip() or f"status {ended.returncode}"
                return [*lines, said.splitlines()[-1]]
            made = f"# {heading}\n\n{ended.stdout}" if heading else copy.read_text(encoding="utf-8")
            lines += differences(text, made, page.names, page.ignored, page.bands)
    return lines


def main() -> int:
    """Check pages, or list the commands that make them; return the status."""
    parser = argparse.ArgumentParser(description="Make samples of the pages of figures anew, and compare.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)}; all unless given")
    parser.add_argument("--commands", action="store_true", help="print the commands that make the pages anew")
    given = parser.parse_args()
    for name in given.pages:
        if name not in PAGES:
            parser.error(f"no page {name!r} (have: {', '.join(PAGES)})")
    names = given.pages or list(PAGES)
    if given.commands:
        for name in names:
            print(f"{name}: python {PAGES[name].command}")
        return 0
    wrong = 0
    for name in names:
        lines = sampled(name)
        wrong += bool(lines)
        for line in lines:
            print(f"{name}: {line}")
        if lines:
            print(f"{name}: is made anew by: python {PAGES[name].command}")
        sys.stdout.flush()
    print(f"{len(names) - wrong} of {len(names)} pages have the figures of the present code, as far as samples tell")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
