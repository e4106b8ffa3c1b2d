"""Borders: import-linter's contracts (pyproject.toml), and what it cannot say: private names, sizes, documents.

That a package declares what it imports is checked by tools/packages.py.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from topoplan.plugin import hookspecs

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [ROOT / "core", ROOT / "engine", *sorted(ROOT.glob("libs/*")), *sorted(ROOT.glob("plugins/*/*"))]
PACKAGE_FILES = sorted(path for folder in FOLDERS for path in folder.glob("src/**/*.py"))
ALL_FILES = sorted(
    p
    for folder in ("core", "engine", "libs", "plugins", "tests", "benchmarks", "experiments")
    for p in (ROOT / folder).rglob("*.py")
)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Statements inside one, at every depth; expressions, most of what a file has, are not looked into."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


@cache
def nodes(path: Path) -> list[ast.AST]:
    """The imports and the functions of a file: all that rules look at."""
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in statements(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]


def imports(path: Path) -> set[str]:
    """Names of the modules that a file imports."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def modules(path: Path) -> set[str]:
    """Names of the modules that a file imports, and of what it imports from them: some of these are modules, too."""
    pairs = {
        f"{node.module}.{alias.name}"
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return imports(path) | pairs


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def refuse(paths: Iterable[Path], faults: Callable[[Path], Iterable[str]]) -> None:
    """Fail with every fault of every file, named with the file."""
    found = [f"{label(path)}: {fault}" for path in paths for fault in faults(path)]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def names_from_siblings(path: Path) -> Iterator[tuple[str, str]]:
    """Packages of ours, and the names that a file imports from them or from their modules."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            root = (node.module or "").partition(".")[0]
            if root.startswith("topoplan"):
                yield from ((root, alias.name) for alias in node.names)


def test_there_is_something_to_look_at():
    assert len(PACKAGE_FILES) > 200


@pytest.mark.slow  # .ci/run asks the linter itself
def test_contracts_are_kept():
    linter = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout[-3000:] + linted.stderr


def test_nobody_imports_what_is_private_to_another_package():
    def faults(path):
        own = path.relative_to(ROOT).as_posix().partition("/src/")[2].partition("/")[0]
        for name in imports(path):
            root = name.partition(".")[0]
            if root.startswith("topoplan") and root != own and any(part.startswith("_") for part in name.split(".")):
                yield f"imports private {name}"
        for root, name in names_from_siblings(path):
            if root != own and name.startswith("_") and name != "__version__":
                yield f"imports private {name} of {root}"

    refuse(PACKAGE_FILES, faults)


def test_nobody_imports_what_is_private_to_another_room():
    """A room is a folder of a package: ``topoplan/plugin``; private to it are its modules with an underscore."""

    def faults(path):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts).partition(".src.")[2].rpartition(".")[0]
        for name in modules(path):
            room, _, module = name.rpartition(".")
            if room.startswith("topoplan") and re.fullmatch(r"_[a-z]\w*", module) and own != room:
                yield f"imports private {name}"

    refuse(PACKAGE_FILES, faults)


def test_no_file_is_too_long():
    def faults(path):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > 600:
            yield f"has {lines} lines, more than 600"

    refuse(ALL_FILES, faults)


def test_the_formatter_formats_everything():
    def faults(path):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"#\s*fmt:\s*(skip|off)\b", line):
                yield f"line {number} is kept from the formatter"

    refuse(ALL_FILES, faults)


def test_no_function_of_a_package_is_too_long():
    def faults(path):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    yield f"{node.name} has {lines} lines, more than 60"

    refuse(PACKAGE_FILES, faults)


def test_the_rules_catch_what_they_forbid(tmp_path, monkeypatch):
    """Each rule names a file that breaks it."""
    folder = tmp_path / "plugins/topologies/bad/src/bad"
    folder.mkdir(parents=True)
    bad = folder / "bad.py"
    bad.write_text(
        "from topoplan import _hidden\nfrom topoplan.plugin import _x\nimport topoplan_engine._x\n" + "\n" * 600
    )
    for name, value in {"ROOT": tmp_path, "PACKAGE_FILES": [bad], "ALL_FILES": [bad]}.items():
        monkeypatch.setitem(globals(), name, value)
    for test, faults in {
        test_nobody_imports_what_is_private_to_another_package: [
            "private _hidden of topoplan",
            "private topoplan_engine._x",
        ],
        test_nobody_imports_what_is_private_to_another_room: [
            "private topoplan.plugin._x",
            "private topoplan_engine._x",
        ],
        test_no_file_is_too_long: ["603 lines"],
    }.items():
        with pytest.raises(pytest.fail.Exception) as caught:
            test()
        assert all(fault in str(caught.value) for fault in faults), caught.value


def test_nobody_imports_click():
    assert not [label(path) for path in PACKAGE_FILES if "click" in imports(path)]


def test_every_hook_is_documented():
    hooks = [name for name in vars(hookspecs) if name.startswith("topoplan_")]
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(hooks) >= 10
    for name in hooks:
        assert getattr(hookspecs, name).__doc__, name
        assert f"`{name}`" in page, f"ARCHITECTURE.md does not mention {name}"


def test_core_is_small():
    files = (ROOT / "core" / "src").rglob("*.py")  # the stub beside them lists names of these
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 6_000
