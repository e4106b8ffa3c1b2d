"""Layers: core imports no plugin, plugins import public modules of core only, values import nothing above them."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
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
        "bests",
        "chains",
        "cli",
        "comparing",
        "draws",
        "evaluate",
        "experiment",
        "exporting",
        "floors",
        "guard",
        "host",
        "installed",
        "observers",
        "optimizing",
        "packing",
        "prices",
        "records",
        "registering",
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
    ("memory", "problem", "plan", "search", "components", "hookspecs"),
    (
        "operators",
        "experts",
        "layout",
        "partition",
        "routing",
        "interfaces",
        "network_bounds",
        "space",
        "scaling",
        "precision",
        "fitting",
        "throughput",
        "distortion",
        "lowering",
        "simulate",
        "merging",
        "published",
    ),
    (
        "host",
        "guard",
        "registering",
        "observers",
        "records",
        "packing",
        "installed",
        "floors",
        "evaluate",
        "bests",
        "experiment",
        "files",
        "tomlfiles",
        "chart",
        "columns",
        "prices",
    ),
    ("run", "draws", "exporting"),
    ("assembly", "chains"),
    ("optimizing", "replay", "repeating", "sensitivity", "comparing", "sharing", "testing"),
    ("cli", "__main__"),
)
IMPORT_NAME = {"topoplan-core": "topoplan"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


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

    visit(tree(path))
    return found


def layer(module: str) -> int | None:
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else "__init__"
    return next((i for i, names in enumerate(LAYERS) if name in names), None)


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def refuse(paths: Iterable[Path], faults: Callable[[Path], Iterable[str]]) -> None:
    """Fail with every fault of every file, named with the file."""
    found = [f"{label(path)}: {fault}" for path in paths for fault in faults(path)]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def names_from_topoplan(path: Path, *modules: str) -> Iterator[str]:
    """Names that a file imports from ``modules`` of topoplan; from all of them if none is named."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module in modules or (not modules and module.partition(".")[0] == "topoplan"):
                yield from (alias.name for alias in node.names)


def test_there_is_something_to_look_at():
    assert len(CORE_FILES) > 20
    assert PLUGIN_FILES


def test_core_imports_no_plugin_and_nothing_above():
    def faults(path):
        relative = path.relative_to(CORE).with_suffix("").parts
        mine = layer(".".join(("topoplan", *relative)))
        if mine is None:
            yield "has no layer: add it to LAYERS"
        yield from (f"imports the plugin {name}" for name in imports(path) if name.startswith("topoplan_"))
        if mine is None or relative == ("__init__",):
            return
        for name in imports(path, top_only=True):
            if name.startswith("topoplan.") and (layer(name) or 0) > mine:
                yield f"imports {name}, which is above it"

    refuse(CORE_FILES, faults)


def test_plugins_import_public_names_and_declared_dependencies():
    def faults(path):
        allowed = allowed_imports(next(parent for parent in path.parents if (parent / "pyproject.toml").is_file()))
        for name in imports(path):
            root = name.partition(".")[0]
            if root not in allowed and root not in sys.stdlib_module_names:
                yield f"imports {name}, which is not declared"
            if name.startswith(ABOVE_PLUGINS):
                yield f"imports {name}, which is above plugins"
            if root == "topoplan" and any(part.startswith("_") for part in name.split(".")):
                yield f"imports private {name}"

    refuse(PLUGIN_FILES, faults)


@cache
def allowed_imports(folder: Path) -> set[str]:
    """Packages that a plugin may import: its own, those that it declares, and those that come with core."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    declared = {Requirement(text).name for text in project["dependencies"]}
    declared |= {"attrs", "numpy", "numba", "cattrs"} if "topoplan-core" in declared else set()
    own = project["name"].replace("-", "_")
    return {own, "attr", *(IMPORT_NAME.get(name, name.replace("-", "_")) for name in declared)}


def test_plugins_import_no_private_name():
    def faults(path):
        return (
            f"imports private {name}"
            for name in names_from_topoplan(path)
            if name.startswith("_") and name != "__version__"
        )

    refuse(PLUGIN_FILES, faults)


def test_only_commands_use_what_is_above_plugins():
    def faults(path):
        for name in names_from_topoplan(path, "topoplan"):
            home = f"topoplan.{topoplan._PUBLIC.get(name, '__init__')}"
            if home.startswith(ABOVE_PLUGINS):
                yield f"imports {name} of {home}, which is above plugins"

    refuse([p for p in PLUGIN_FILES if "plugins/commands/" not in p.as_posix()], faults)


def test_no_file_is_too_long():
    def faults(path):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > 600:
            yield f"has {lines} lines, more than 600"

    refuse(ALL_FILES, faults)


def test_the_rules_catch_what_they_forbid(tmp_path, monkeypatch):
    """Each rule names a file that breaks it."""
    folder = tmp_path / "plugins/topologies/bad/src/bad"
    folder.mkdir(parents=True)
    (folder.parents[1] / "pyproject.toml").write_text('[project]\nname = "bad"\ndependencies = ["topoplan-core"]\n')
    bad = folder / "bad.py"
    bad.write_text("import scipy\nfrom topoplan import _hidden, optimize\nimport topoplan.cli\n" + "\n" * 600)
    core = tmp_path / "core/src/topoplan"
    core.mkdir(parents=True)
    (core / "graph.py").write_text("import topoplan_x\nfrom topoplan.cli import main\n")
    (core / "homeless.py").write_text("")
    for name, value in {
        "ROOT": tmp_path,
        "CORE": core,
        "CORE_FILES": sorted(core.glob("*.py")),
        "PLUGIN_FILES": [bad],
        "ALL_FILES": [bad],
    }.items():
        monkeypatch.setitem(globals(), name, value)
    for test, faults in {
        test_core_imports_no_plugin_and_nothing_above: ["the plugin topoplan_x", "topoplan.cli, which", "no layer"],
        test_plugins_import_public_names_and_declared_dependencies: ["scipy, which is not", "topoplan.cli, which is"],
        test_plugins_import_no_private_name: ["private _hidden"],
        test_only_commands_use_what_is_above_plugins: ["optimize of topoplan.optimizing"],
        test_no_file_is_too_long: ["603 lines"],
    }.items():
        with pytest.raises(pytest.fail.Exception) as caught:
            test()
        assert all(fault in str(caught.value) for fault in faults), caught.value


def test_nobody_imports_click():
    assert not [label(path) for path in (*CORE_FILES, *PLUGIN_FILES) if "click" in imports(path)]


def test_every_hook_is_documented():
    hooks = [name for name in vars(hookspecs) if name.startswith("topoplan_")]
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(hooks) >= 10
    for name in hooks:
        assert getattr(hookspecs, name).__doc__, name
        assert f"`{name}`" in page, f"ARCHITECTURE.md does not mention {name}"
