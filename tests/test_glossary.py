"""The glossary names symbols that exist, and the words that it replaced do not come back."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

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
    """

    pattern: str
    replacement: str
    allowed: dict[str, str] = attrs.field(factory=dict)


COINED = [
    Coined(r"programs? for all devices", "SPMD program"),
    Coined(r"reckon", "estimate"),
    Coined(
        r"finalist",
        "shortlist",
        {
            f"plugins/searchers/{name}": "an option of the searcher"
            for name in (
                "pipeline/src/topoplan_searcher_pipeline/__init__.py",
                "pipeline/src/topoplan_searcher_pipeline/search.py",
                "spmd/README.md",
                "spmd/src/topoplan_searcher_spmd/__init__.py",
                "spmd/src/topoplan_searcher_spmd/search.py",
            )
        },
    ),
    Coined(
        r"distort",
        "perturbation",
        {
            "docs/decisions/0022-a-wrong-profile-is-part-of-the-experiment.md": "names the key in JSON",
            "engine/src/topoplan_engine/search/optimize.py": "a key in JSON",
            "plugins/commands/sensitivity/src/topoplan_command_sensitivity/repeating.py": "a key in JSON",
        },
    ),
    Coined(r"misfit", "why_invalid", {"CHANGELOG.md": "says what the name was"}),
    Coined(r"\bcrews?\b", "workers"),
    Coined(r"\.beat\b|\bbeat=|time to beat", "cutoff"),
    Coined(r"class Figure\b|figure_from", "Study"),
    Coined(r"outdone", "dominated", {"plugins/searchers/spmd/src/topoplan_searcher_spmd/search.py": "a key in JSON"}),
]
#: Pages and folders whose texts are not in the words of the glossary yet.
NOT_YET = (
    "ARCHITECTURE.md",
    "core/src/topoplan/model/",
    "engine/src/topoplan_engine/lowering/",
    "engine/src/topoplan_engine/sharding/",
)
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
    if not path.relative_to(ROOT).as_posix().startswith(NOT_YET)
)


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
    places = [
        f"{name}:{number}: {line.strip()}"
        for name in TEXTS
        if name not in coined.allowed
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if re.search(coined.pattern, line, re.IGNORECASE)
    ]
    assert not places, f"write {coined.replacement!r} instead:\n" + "\n".join(places)


@pytest.mark.parametrize("coined", COINED, ids=lambda coined: coined.pattern)
def test_files_with_an_allowance_need_it(coined):
    for name, reason in coined.allowed.items():
        assert reason
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.search(coined.pattern, text, re.IGNORECASE), f"{name} needs no allowance any more"
