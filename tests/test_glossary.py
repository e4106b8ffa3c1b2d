"""The glossary names symbols that exist, and the words that it replaced do not come back."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GLOSSARY.splitlines()
    if re.match(r"\| (?!term )", line)
]
SYMBOLS = sorted({symbol for row in ROWS for symbol in re.findall(r"`([\w.]+)`", row[2])})


@attrs.frozen
class Coined:
    """A word of no field, and the word to write instead.

    Attributes:
        pattern: a regular expression; letter case does not count.
        allowed: file (relative to the repository) -> why the word stays there.
        within: the beginnings of the files in which the word is looked for.
    """

    pattern: str
    replacement: str
    allowed: dict[str, str] = attrs.field(factory=dict)
    within: tuple[str, ...] = ("",)


#: Files whose texts are short sentences in the words of the glossary throughout.
PLAIN = (
    "README.md",
    "CHANGELOG.md",
    "docs/agreement.md",
    "docs/cooptimization.md",
    "docs/flexnet.md",
    "docs/growth.md",
    "docs/pipelines.md",
    "docs/reliability.md",
    "docs/speed.md",
    "docs/spmd.md",
    "libs/directconnect/",
    "libs/operators/",
    "libs/pipeline-planning/",
    "libs/spmd-planning/",
    "plugins/estimators/",
    "plugins/exporters/",
    "plugins/frontends/",
    "plugins/searchers/",
    "plugins/topologies/",
)
#: Code of all packages.
CODE = ("core/", "engine/", "libs/", "plugins/")
COINED = [
    Coined(r"\btold\b", "the verb of what happens: stated, reported, returned", within=(*PLAIN, *CODE)),
    Coined(r"\balike\b", "equal, equivalent", within=PLAIN),
    Coined(r"\b(no|every|any)body\b", "the thing that is meant: a user, a message, a tensor", within=PLAIN),
    Coined(r"\bgo(es)? on\b", "continue", within=PLAIN),
    Coined(r"\bspel(t|led) out\b|\bput right\b|\bput together\b", "written as, corrected, gathered", within=PLAIN),
    Coined(r"programs? for all devices", "SPMD program"),
    Coined(r"reckon", "estimate"),
    Coined(
        r"finalist",
        "shortlist",
        {
            f"plugins/searchers/{name}/src/topoplan_searcher_{name}/__init__.py": "what the option was called"
            for name in ("pipeline", "spmd")
        },
    ),
    Coined(r"\bguests?\b", "member of a portfolio, companion"),
    Coined(r"overfull", "over memory"),
    Coined(r"crowd", "states, entries"),
    Coined(
        r"duplex",
        "two-microbatch",
        {
            "CHANGELOG.md": "says what the name was",
            "docs/decisions/0020-spmd-programs.md": "names a page",
            "docs/decisions/0032-duplex-schedules.md": "says what the name was",
            "docs/decisions/README.md": "names a page",
            "libs/network-files/src/topoplan_network_files/cabling.py": "a cable with both directions",
            "plugins/exporters/json/src/topoplan_exporter_json/convert.py": "a word of old plans",
        },
    ),
    Coined(
        r"distort",
        "perturbation",
        {
            "docs/decisions/0022-a-wrong-profile-is-part-of-the-experiment.md": "names the key in JSON",
            "engine/src/topoplan_engine/search/optimize.py": "a key in JSON",
            "plugins/commands/sensitivity/src/topoplan_command_sensitivity/provenance.py": "a key in JSON",
        },
    ),
    Coined(r"misfit", "why_invalid", {"CHANGELOG.md": "says what the name was"}),
    Coined(r"\bcrews?\b", "workers"),
    Coined(r"\.beat\b|\bbeat=|time to beat", "cutoff"),
    Coined(r"class Figure\b|figure_from", "Study"),
    Coined(r"\bfloors\b", "lower bounds"),
    Coined(r"\btwins\b", "link class"),
    Coined(r"\bmates\b", "members"),
    Coined(r"\bplay(ed|ing)\b|\bplays (the|a|them|it)\b", "stage simulation"),
    Coined(r"\bgone (on|through)\b", "expanded, visited"),
    Coined(r"merging\.(merged|repeated)", "union, unroll"),
    Coined(r"Pass\.AGAIN", "RECOMPUTE"),
    Coined(
        r"big_gpu",
        "gpus_per_device",
        {
            "docs/decisions/0045-what-flexnet-knows-is-told-in-tags.md": "says what the name was",
            "engine/src/topoplan_engine/provenance.py": "a key in JSON",
            "plugins/exporters/json/src/topoplan_exporter_json/convert.py": "a key in JSON",
        },
    ),
    Coined(r"outdone", "dominated", {"plugins/searchers/spmd/src/topoplan_searcher_spmd/search.py": "a key in JSON"}),
]
TEXTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "core/src/**/*.py",
        "engine/src/**/*.py",
        "libs/*/src/**/*.py",
        "plugins/*/*/src/**/*.py",
        "plugins/*/*/README.md",
        "libs/*/README.md",
        "*/README.md",
    )
    for path in ROOT.glob(pattern)
)


@functools.cache
def text_of(name: str) -> str:
    """Return the text of a file, relative to the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


@functools.cache
def small_text_of(name: str) -> str:
    """Return the text of a file in small letters."""
    return text_of(name).lower()


def literals(pattern: str) -> list[str]:
    """Return texts of which a match of a regular expression has at least one: the longest of each alternative."""
    plain = re.sub(r"\([^()]*\)\??|\w\?|\\[bw]", "()", pattern).replace("\\.", ".").lower()
    return [max(re.findall(r"[a-z_.= ]+", branch), key=len) for branch in plain.split("|")]


def lines_with(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers and the texts of the lines in which something matches; most texts have none."""
    if pattern.search(text):
        yield from ((number, line) for number, line in enumerate(text.splitlines(), 1) if pattern.search(line))


#: Names of variables that are no nouns: they say what happened to a thing, or how it lies to others, not what it is.
BARE_NAMES = frozenset(
    re.findall(
        r"\w+",
        "found at given wanted one kept known made own left other told taken said come got met held seen done begun "
        "drawn reached begin rest alone behind near least upto again here there both others",
    )
)
SOURCES = sorted(
    path for pattern in ("core", "engine", "libs/*", "plugins/*/*") for path in ROOT.glob(f"{pattern}/src/**/*.py")
)


def package_of(path: Path) -> str:
    """Return the folder of the package of a source file, relative to the repository."""
    return path.relative_to(ROOT).as_posix().partition("/src/")[0]


PACKAGES = {package: list(paths) for package, paths in itertools.groupby(SOURCES, package_of)}


def bindings(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a function binds, arguments among them, without those of the functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id, child.lineno
        elif isinstance(child, ast.arg):
            yield child.arg, child.lineno
        yield from bindings(child)


def bare_names(source: str) -> list[str]:
    """Return the bindings of names of `BARE_NAMES` in the functions of a module."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    names = [(function.name, *binding) for function in functions for binding in bindings(function)]
    return [f"{line}: {name} in {function}" for function, name, line in names if name in BARE_NAMES]


def may_bind_bare_names(path: Path) -> bool:
    """Whether some code of a module, as Python has compiled and kept it, binds such a name."""
    codes = [SourceFileLoader(path.stem, str(path)).get_code(path.stem)]
    while codes:
        code = codes.pop()
        if not BARE_NAMES.isdisjoint((*code.co_varnames, *code.co_cellvars)):
            return True
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return False


def bare_names_of(package: str) -> list[str]:
    """Return these bindings in the sources of a package, each with its file."""
    paths = filter(may_bind_bare_names, PACKAGES[package])
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return [f"{name}:{place}" for name in names for place in bare_names(text_of(name))]


def exists(symbol: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    names = symbol.split(".")
    for count in range(len(names), 0, -1):
        try:
            value = importlib.import_module(".".join(names[:count]))
        except ModuleNotFoundError:
            continue
        for name in names[count:]:
            if not hasattr(value, name) and name not in getattr(value, "__annotations__", {}):
                return False
            value = getattr(value, name, None)
        return True
    return False


def test_every_row_has_three_cells():
    assert len(ROWS) > 50
    assert [row for row in ROWS if len(row) != 3] == []


def test_no_term_has_two_rows():
    terms = [row[0] for row in ROWS]
    assert sorted(set(terms)) == sorted(terms)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbols_exist(symbol):
    assert exists(symbol), f"docs/glossary.md names {symbol}, which is gone: write its name of today"


@pytest.mark.parametrize("coined", COINED, ids=lambda coined: coined.pattern)
def test_coined_words_do_not_come_back(coined):
    pattern = re.compile(coined.pattern, re.IGNORECASE)
    places = [
        f"{name}:{number}: {line.strip()}"
        for name in TEXTS
        if name not in coined.allowed and name.startswith(coined.within)
        if any(literal in small_text_of(name) for literal in literals(coined.pattern))
        for number, line in lines_with(pattern, text_of(name))
    ]
    assert not places, f"write {coined.replacement!r} instead:\n" + "\n".join(places)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"\bguests?\b", ["a guest", "Guests"]),
        (r"\b(no|any)body\b|\bgo(es)? on\b", ["Nobody", "anybody", "they go on", "it goes on"]),
        (r"\.beat\b|Pass\.AGAIN|programs? for all", ["x.beat", "Pass.AGAIN", "program for all", "Programs for all"]),
    ],
)
def test_what_matches_has_one_of_the_literals(pattern, texts):
    for text in texts:
        assert re.search(pattern, text, re.IGNORECASE)
        assert any(literal in text.lower() for literal in literals(pattern))


@pytest.mark.slow
def test_no_coined_word_is_passed_over_for_its_literals():
    for coined in COINED:
        pattern, needed = re.compile(coined.pattern, re.IGNORECASE), literals(coined.pattern)
        matching = [name for name in TEXTS if pattern.search(text_of(name))]
        assert all(any(literal in small_text_of(name) for literal in needed) for name in matching)


@pytest.mark.parametrize("coined", COINED, ids=lambda coined: coined.pattern)
def test_files_with_an_allowance_need_it(coined):
    for name, reason in coined.allowed.items():
        assert reason
        assert re.search(coined.pattern, text_of(name), re.IGNORECASE), f"{name} needs no allowance any more"


@pytest.mark.parametrize("package", PACKAGES)
def test_variables_are_nouns(package):
    places = bare_names_of(package)
    assert not places, "name the thing, with a noun:\n" + "\n".join(places)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(at):\n    pass\n", True),
        ("def f():\n    def g(x):\n        return [one for one in x]\n", True),
        ("def f():\n    one = 1\n    return lambda: one\n", True),
        ("one = 1\ndef f(part):\n    return one\n", False),
    ],
)
def test_bare_names_are_found_in_what_python_has_compiled(source, found, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert may_bind_bare_names(path) is found


def test_bare_names_are_found_in_arguments_loops_and_assignments():
    source = "def f(at):\n    for one in at:\n        (left, x), name = one\n    return [made for made in x]\n"
    assert sorted(bare_names(source)) == ["1: at in f", "2: one in f", "3: left in f", "4: made in f"]
