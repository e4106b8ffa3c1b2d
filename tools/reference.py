"""Writes the reference pages from docstrings and from what reads study files.

``python tools/reference.py`` writes ``docs/reference/api.md`` and ``docs/reference/study.md``; with ``--check`` it
writes nothing and ends with status 1 if a page is not what it would write.  The examples on both pages run in
``tests/test_reference.py``; those of names whose docstring has none stand in ``tools/reference_examples.md``.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

import topoplan
import topoplan.testing
from topoplan.options import describe
from topoplan_engine.options import ClusterOptions, HostGroup, RunOptions
from topoplan_operators.builder import GraphBuilder
from topoplan_studies import study
from topoplan_studies.published import COLUMNS, Published

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("docs/reference")
#: Examples of names that have none in their docstring: a heading for each.
EXAMPLES = ROOT / "tools/reference_examples.md"
#: The one key of clusters whose values are tables.
TABLES_OF_HOSTS = f"tables with {', '.join(f'`{info.key}`' for info in describe(HostGroup))}"
MADE = "<!-- Made by tools/reference.py from the sources. -->"
#: Section of the page -> beginning of the modules whose names it has, and an example.
SECTIONS = {
    "Values": (
        "topoplan.model.",
        """\
>>> from topoplan import Cluster, Fabric, LinkKind, Placement
>>> cluster = Cluster.uniform(n_hosts=2, interfaces=1)
>>> cluster.n_devices
2
>>> len(Placement(degrees=(2, 1), devices=(0, 1)).devices)
2
""",
    ),
    "Contexts and components": (
        "topoplan.plugin.",
        """\
>>> from topoplan import Host, Topology
>>> host = Host.discover()
>>> host.make(Topology, "bigswitch").name
'bigswitch'
""",
    ),
    "Search": (
        "topoplan.search.",
        """\
>>> from topoplan import Candidate, Search, Searcher
>>> class Nothing(Search):
...     def ask(self):
...         return []
>>> class Still(Searcher):
...     "Proposes nothing."
...
...     name = "still"
...     axis = "strategy"
...
...     def build(self, problem, rng):
...         return Nothing()
""",
    ),
    "Functions, options and errors": (
        "",
        """\
>>> from topoplan import TopoplanError, optimize
>>> try:
...     optimize("alexnet", servers=0)
... except TopoplanError as error:
...     print(type(error).__name__)
TopoplanError
""",
    ),
}
BUILDER = """\
>>> from topoplan_operators.builder import GraphBuilder
>>> builder = GraphBuilder("two-layers", 32)
>>> hidden = builder.linear(builder.input((256,)), 512)
>>> logits = builder.linear(hidden, 10)
>>> len(builder.build().operators)
2
"""
KIT = """\
>>> from topoplan import Host, Searcher
>>> from topoplan.testing import checks_for
>>> checks = checks_for(Host.discover().get(Searcher, "random"))
>>> len(checks) > 10
True
"""
KIT_NAMES = ("build_example", "check_component", "checks_for", "parametrize_with_checks")
STUDY = """\
title = "AlexNet on three networks"
source = "an example"
budget = 4
seeds = "1..2"
simulator = "fluid"

[cluster]
servers = 4
interface-bandwidth-gbps = 100

[vary]
degree = [2, 4]

[[model]]
use = "alexnet"
batch-size = 64

[[network]]
use = "topoopt"

[[network]]
name = "tree"
use = "fattree"
costs-as = "topoopt"

[[planner]]
name = "chain"

[[planner.searcher]]
use = "mcmc"

[[claim]]
says = "rewiring pays"
faster = "chain on topoopt"
slower = "chain on tree"

[[published]]
model = "alexnet"
of = "chain on topoopt"
iteration-time = [0.0102, "not measured"]
"""
#: Sections of a study file that are lists of tables -> the class that says what one is, and its keys.
TABLES: Mapping[str, tuple[type, str, str]] = {
    "model": (
        study.Model,
        '`use` (a frontend), its options, `name`, `batch-size`, `measured = { use = "..." }`',
        f'An option that is `"{study.DEVICES}"` is replaced by the number of devices of the setting; '
        "`{batch-size}` in options of `measured` by the batch size.",
    ),
    "network": (
        study.Network,
        "`use` (a topology), its options, `name`, `costs-as`",
        "`costs-as` is the name of a network that has a cost of its own.",
    ),
    "machine": (study.Machine, "`name`, and keys of `[cluster]`", "All models are planned for each machine."),
    "planner": (study.Planner, "`name`, and tables `[[planner.searcher]]` with `use` and options", ""),
    "claim": (
        study.Hypothesis,
        "`says`, `faster`, `slower`",
        "Names are those of networks; of `PLANNER on NETWORK` where there are planners, of planners alone where there "
        "is one network.",
    ),
    "published": (
        Published,
        "`model`, `of`, " + ", ".join(f"`{name}`" + (f" ({unit})" if unit else "") for name, unit in COLUMNS.items()),
        "A list has a value for each setting, or a text that says why there is none; what varies last changes fastest.",
    ),
}


def api() -> str:
    """Return the page of names that plugins and notebooks use."""
    lines = [
        "# API reference",
        "",
        MADE,
        "",
        "Names of `topoplan`, which examples know, of the builder, and of the conformance kit.",
    ]
    left = {
        name: module for name, module in vars(topoplan)["_PUBLIC"].items() if not module.startswith("topoplan_frontend")
    }
    for title, (prefix, example) in SECTIONS.items():
        names = sorted(name for name, module in left.items() if module.startswith(prefix))
        lines += ["", f"## {title}", "", "```pycon", example.rstrip(), "```"]
        for name in names:
            lines += _entry(name, getattr(topoplan, name), left.pop(name))
    lines += ["", "## Builder of operator graphs", "", "```pycon", BUILDER.rstrip(), "```"]
    lines += _entry("GraphBuilder", GraphBuilder, "topoplan_operators.builder")
    lines += ["", "## Conformance kit", "", "```pycon", KIT.rstrip(), "```"]
    for name in KIT_NAMES:
        lines += _entry(name, getattr(topoplan.testing, name), "topoplan.testing")
    return _joined(lines)


def _entry(name: str, thing: Any, module: str) -> Iterator[str]:
    """Give the lines of one name: where it is, what it is for, and what it has."""
    yield from ("", f"### {name}", "", f"`{module}`", "")
    yield from _description(name, thing)
    if example := examples().get(name):
        yield from ("", "```pycon", *example.splitlines(), "```")


@functools.cache
def examples() -> dict[str, str]:
    """Return the examples that stand in the file of examples, by name."""
    _, *sections = re.split(r"^## (?=\w+$)", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: text.strip() for name, text in (section.split("\n", 1) for section in sections)}


def _description(name: str, thing: Any) -> Iterator[str]:
    """Give what a name is for, and what it has."""
    if not inspect.isclass(thing) and not inspect.isroutine(thing):
        kind = type(thing)
        is_object = " object at " in str(thing)
        yield f"Marks hooks: a `{kind.__name__}`." if is_object else f"Stands for `{_without_modules(str(thing))}`."
        return
    if inspect.isroutine(thing):
        yield f"`{_signature(name, thing)}`"
        yield ""
    yield from _text(thing)
    if inspect.isclass(thing):
        yield from _members(thing)


def _without_modules(text: str) -> str:
    return re.sub(r"[a-z_]+[.]", "", text)


def _text(thing: Any) -> Iterator[str]:
    """Give a docstring as Markdown: sections as bold words, their entries as lists, examples as code."""
    in_code = in_list = False
    margin = 0
    for line in inspect.cleandoc(inspect.getdoc(thing) or "").splitlines():
        text = line.strip()
        code = text.startswith((">>>", "...")) or (in_code and bool(text))
        if code != in_code:
            yield from ("```",) if in_code else ("", "```pycon")
            in_code, margin = code, line.find(text)
        if code:
            yield line[margin:]
        elif re.fullmatch(r"(Args|Attributes|Returns|Raises|Yields|Examples?):", line):
            in_list = "Example" not in line
            yield from ("", f"**{line[:-1]}**", "")
        elif in_list and re.match(r"    \S", line):
            yield f"- {_spans(line.strip())}"
        else:
            in_list = in_list and line.startswith(" ")
            yield _spans(line) if in_list else _spans(line.strip()) if line.strip() else ""
    if in_code:
        yield "```"


def _spans(text: str) -> str:
    """Return a line with code in Markdown's marks."""
    return text.replace("``", "`").replace("<", "&lt;") if "`" not in text else text.replace("``", "`")


def _members(cls: type) -> Iterator[str]:
    """Give a table of the public methods and properties that a class has by itself or from a class of Topoplan."""
    rows = []
    for name, value in inspect.getmembers(cls):
        owner = next((base for base in cls.__mro__ if name in base.__dict__), cls)
        if name.startswith("_") or not owner.__module__.startswith("topoplan"):
            continue
        raw = inspect.getattr_static(cls, name)
        function = raw.fget if isinstance(raw, property) else getattr(value, "__func__", value)
        if not inspect.isroutine(function):
            continue
        said = (inspect.getdoc(function) or "").partition("\n")[0]
        shown = name if isinstance(raw, property) else _signature(name, function)
        rows.append(f"| `{shown}` | {_spans(said)} |".replace(" | None", " or None").replace("|", "|"))
    if rows:
        yield from ("", "| member | |", "|---|---|", *rows)


def _signature(name: str, function: Any) -> str:
    """Return a name with its parameters; defaults are dots, since some are long."""
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else stars
        default = "" if parameter.default is parameter.empty else "=..."
        parts.append(f"{stars}{parameter.name}{default}")
    return f"{name}({', '.join(parts)})"


def study_page() -> str:
    """Return the page of the file that ``topoplan compare FILE.toml`` reads."""
    lines = ["# The study file", "", MADE, "", "`topoplan compare FILE.toml` reads it. An example that runs:", ""]
    lines += ["```toml", STUDY.rstrip(), "```", "", "## Keys at the top", "", *_options(study._Settings)]
    run = [option.replace("-", "_") for option in study._RUN]
    lines += ["", "Those of all runs:", "", *_options(RunOptions, run)]
    lines += ["", "`problems` stands in place of models, networks, a cluster and what varies.", ""]
    for section in study._LISTS:
        if section == "searcher":
            lines += [
                "## `[[searcher]]`",
                "",
                "`use` and options: searchers that take turns in one search. Not beside `[[planner]]`.",
                "",
            ]
            continue
        cls, keys, more = TABLES[section]
        lines += [f"## `[[{section}]]`", "", *map(_as_keys, _text(cls)), "", f"Keys: {keys}. {more}".rstrip(), ""]
    lines += ["## `[vary]`", "", "Each key has a list of values, and all combinations are run:", ""]
    lines += [", ".join(f"`{key}`" for key in (*study._VARY, study.BATCH)) + ".", ""]
    lines += ["## `[cluster]`", "", "What all settings share.", "", *_options(ClusterOptions), ""]
    lines += ["## `estimator`, `simulator`", "", 'A name, or a table with `use` and options: `{ use = "fluid" }`.']
    lines += ["Unset, the estimator is that of the model's frontend, and the simulator `fluid`.", ""]
    return _joined(lines)


def _as_keys(line: str) -> str:
    """Return a line of a docstring with the name of an attribute as the file has it."""
    return re.sub(r"^- (\w+):", lambda name: f"- {name[1].replace('_', '-')}:", line)


def _joined(lines: list[str]) -> str:
    """Return lines as a text, with one empty line where several are."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _options(cls: type, names: list[str] | None = None) -> list[str]:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    fields = {field.name for field in attrs.fields(cls)}
    for info in describe(cls):
        name = info.key.replace("-", "_")
        if name not in fields or (names is not None and name not in names):
            continue
        kind = TABLES_OF_HOSTS if name == "hosts" else f"{info.type} [{info.unit}]" if info.unit else info.type
        meaning = f"{info.help} ({info.range})" if info.range else info.help
        cells = (
            f"`{info.key}`",
            kind,
            f"`{info.default}`" if info.default and " at 0x" not in info.default else "",
            meaning,
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return rows


def main(words: list[str]) -> int:
    """Write the pages, or compare them; return the status."""
    stale = []
    for name, text in (("api.md", api()), ("study.md", study_page())):
        path = ROOT / FOLDER / name
        if "--check" not in words:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(FOLDER / name))
    for page in stale:
        print(f"{page}: is not what the sources say (python tools/reference.py writes it)", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
