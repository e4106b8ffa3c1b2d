"""Layers: core imports no plugin, plugins import public modules of core only, values import nothing above them."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import topoplan
from topoplan import hookspecs

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core/src/topoplan"
CORE_FILES = sorted(CORE.rglob("*.py"))
PLUGIN_FILES = sorted(ROOT.glob("plugins/*/*/src/**/*.py"))
ALL_FILES = sorted(p for folder in ("core", "plugins", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py"))
#: What a plugin must not reach for: these use components, and are not used by them.
ABOVE_PLUGINS = tuple(
    f"topoplan.{name}"
    for name in (
        "assembly",
        "chains",
        "cli",
        "comparing",
        "evaluate",
        "experiment",
        "exporting",
        "floors",
        "host",
        "installed",
        "optimizing",
        "prices",
        "repeating",
        "replay",
        "run",
        "sensitivity",
        "sharing",
        "testing",
    )
)
#: From the bottom up; a module imports modules of its own layer or of lower ones, at the top of its file.
LAYERS = (
    ("errors", "arrays", "options", "interrupt", "compiling", "kernels", "__init__"),
    (
        "graph",
        "cluster",
        "fabric",
        "graphs",
        "forms",
        "conversions",
        "schedule",
        "spmd",
        "strategy",
        "taskgraph",
        "timeline",
        "devices",
    ),
    ("problem", "plan", "search", "components", "hookspecs"),
    (
        "operators",
        "partition",
        "routing",
        "network_bounds",
        "space",
        "scaling",
        "precision",
        "distortion",
        "lowering",
        "simulate",
        "merging",
    ),
    ("host", "installed", "floors", "evaluate", "experiment", "files", "chart", "prices"),
    ("run", "exporting"),
    ("assembly", "chains"),
    ("optimizing", "replay", "repeating", "sensitivity", "comparing", "sharing", "testing"),
    ("cli",),
)
IMPORT_NAME = {"topoplan-core": "topoplan"}


def imports(path: Path, top_only: bool = False) -> set[str]:
    """Names of the modules that a file imports; with ``top_only`` not those inside functions or TYPE_CHECKING."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if top_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def layer(module: str) -> int | None:
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else "__init__"
    return next((i for i, names in enumerate(LAYERS) if name in names), None)


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_look_at():
    assert len(CORE_FILES) > 20
    assert PLUGIN_FILES


@pytest.mark.parametrize("path", CORE_FILES, ids=label)
def test_core_imports_no_plugin_and_nothing_above(path):
    relative = path.relative_to(CORE).with_suffix("").parts
    mine = layer(".".join(("topoplan", *relative)))
    assert mine is not None, f"{path.name} has no layer: add it to LAYERS"
    assert not {name for name in imports(path) if name.startswith("topoplan_")}
    if relative[-1] == "__init__" and len(relative) == 1:
        return
    above = {
        name for name in imports(path, top_only=True) if name.startswith("topoplan.") and (layer(name) or 0) > mine
    }
    assert not above


@pytest.mark.parametrize("path", PLUGIN_FILES, ids=label)
def test_plugin_imports_public_names_and_declared_dependencies(path):
    folder = next(parent for parent in path.parents if (parent / "pyproject.toml").is_file())
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    own = project["name"].replace("-", "_")
    declared = {Requirement(text).name for text in project["dependencies"]}
    # What core itself depends on comes with it.
    declared |= {"attrs", "numpy", "numba", "cattrs"} if "topoplan-core" in declared else set()
    allowed = {own, "attr", *(IMPORT_NAME.get(name, name.replace("-", "_")) for name in declared)}
    for name in imports(path):
        root = name.partition(".")[0]
        assert root in allowed or root in sys.stdlib_module_names, f"imports {name}, which is not declared"
        assert not name.startswith(ABOVE_PLUGINS), f"imports {name}, which is above plugins"
        if root == "topoplan":
            assert not any(part.startswith("_") for part in name.split(".")), f"imports private {name}"


@pytest.mark.parametrize("path", PLUGIN_FILES, ids=label)
def test_plugin_imports_no_private_name(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "topoplan":
            assert not [
                alias.name for alias in node.names if alias.name.startswith("_") and alias.name != "__version__"
            ]


@pytest.mark.parametrize("path", [p for p in PLUGIN_FILES if "plugins/commands/" not in p.as_posix()], ids=label)
def test_only_commands_use_what_is_above_plugins(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "topoplan":
            homes = {alias.name: f"topoplan.{topoplan._PUBLIC.get(alias.name, '__init__')}" for alias in node.names}
            assert not [name for name, home in homes.items() if home.startswith(ABOVE_PLUGINS)]


@pytest.mark.parametrize("path", ALL_FILES, ids=label)
def test_no_file_is_too_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_nobody_imports_click():
    assert not [label(path) for path in (*CORE_FILES, *PLUGIN_FILES) if "click" in imports(path)]


def test_every_hook_is_documented():
    hooks = [name for name in vars(hookspecs) if name.startswith("topoplan_")]
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(hooks) >= 10
    for name in hooks:
        assert getattr(hookspecs, name).__doc__, name
        assert f"`{name}`" in page, f"ARCHITECTURE.md does not mention {name}"
