"""Writes what all packages have alike, from the table packages.toml: one row a distribution.

``python tools/packages.py`` writes every package's pyproject.toml, licence and py.typed, and the lists in the root's
pyproject.toml.  ``--check`` writes nothing; it shows what differs, and dependencies that are
not exactly what a package imports, and ends with status 1 if there are any.  A row ``topoplan-<kind>-<name>`` is a
plugin: it lies in ``plugins/<kinds>/<name>``, needs topoplan-core, and has one entry point, ``<kind>-<name>``.  Rows of
other packages name their ``folder``.  A plugin whose components have other names than itself lists them as
``components``; core's messages say by that list which package to install.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = "packages.toml"
#: What builds a package by itself; the root builds all in one wheel (workspace_backend.py).
BUILD: Mapping[str, str | list[str]] = {"requires": ["flit_core>=3.11,<5"], "build-backend": "flit_core.buildapi"}
#: What uv installs beside the packages: a distribution whose build compiles their kernels, by name and folder.
COMPILED = ("topoplan-compiled-kernels", "tools/compiled_kernels")
COMPONENTS = "core/src/topoplan/plugin/components.txt"
#: Import names that are not those of their distributions.
IMPORT_NAMES = {"attr": "attrs", "yaml": "pyyaml"}
FIELDS = {"components", "folder", "module", "description", "dependencies", "extras", "scripts", "entry-points"}


class TableError(Exception):
    """What in packages.toml is wrong, in one line."""


@dataclass(frozen=True)
class Package:
    """One row, with what the rules derive from its name."""

    name: str
    folder: str
    module: str
    description: str
    dependencies: tuple[str, ...]  # names without versions
    extras: Mapping[str, list[str]]
    scripts: Mapping[str, str]
    entry_points: Mapping[str, str]
    components: tuple[str, ...]  # kind and name of each, as "frontend alexnet"

    @classmethod
    def of(cls, name: str, row: Mapping[str, Any]) -> Package:
        """Return the package of a row."""
        unknown = set(row) - FIELDS
        if unknown:
            raise TableError(f"{name}: unknown field {sorted(unknown)[0]!r}; there are {', '.join(sorted(FIELDS))}")
        if "description" not in row:
            raise TableError(f"{name}: no description")
        module = row.get("module", name.replace("-", "_"))
        dependencies = list(row.get("dependencies", ()))
        folder, entry_points = row.get("folder"), row.get("entry-points", {})
        components: list[str] = []
        if folder is None:
            parts = re.fullmatch(r"topoplan-([a-z]+)-([a-z0-9-]+)", name)
            if not parts:
                raise TableError(f"{name}: neither a plugin (topoplan-<kind>-<name>) nor with a folder")
            kind, short = parts.groups()
            folder = f"plugins/{re.sub('y$', 'ie', kind)}s/{short}"
            dependencies.insert(0, "topoplan-core")
            entry_points = entry_points or {f"{kind}-{short}": module}
            components = [f"{kind} {one}" for one in row.get("components", [short])]
        scripts, extras = row.get("scripts", {}), row.get("extras", {})
        description = row["description"]
        return cls(
            name, folder, module, description, tuple(dependencies), extras, scripts, entry_points, tuple(components)
        )


@dataclass(frozen=True)
class Table:
    """The whole of packages.toml."""

    common: Mapping[str, Any]
    bounds: Mapping[str, str]  # specifiers of packages that others publish
    packages: Mapping[str, Package]

    @classmethod
    def read(cls, root: Path) -> Table:
        """Read packages.toml of a checkout."""
        data = tomllib.loads((root / TABLE).read_text(encoding="utf-8"))
        packages = {name: Package.of(name, row) for name, row in data["packages"].items()}
        return cls(data["common"], data["bounds"], packages)

    def requirement(self, package: Package, name: str) -> str:
        """Return the requirement that a package writes for a name."""
        if name in self.packages:
            major, minor = (int(part) for part in self.common["version"].split(".")[:2])
            return f"{name}>={major}.{minor},<{major}.{minor + 1}"
        if name not in self.bounds:
            raise TableError(f"{package.name}: {name!r} is neither a package nor in [bounds]")
        return name + self.bounds[name]

    def pyproject(self, package: Package) -> str:
        """Return the text of a package's pyproject.toml."""
        pythons = [f"Programming Language :: Python :: {version}" for version in self.common["pythons"]]
        sections: dict[str, Mapping[str, str | list[str]]] = {
            "build-system": BUILD,
            "project": {
                "name": package.name,
                "version": self.common["version"],
                "description": package.description,
                "readme": "README.md",
                "license": self.common["license"],
                "license-files": ["LICENSE"],
                "requires-python": f">={self.common['pythons'][0]}",
                "classifiers": [*pythons, "Typing :: Typed"],
                "dependencies": [self.requirement(package, name) for name in package.dependencies],
            },
            "project.optional-dependencies": {
                extra: [self.requirement(package, name) for name in names] for extra, names in package.extras.items()
            },
            "project.scripts": package.scripts,
            "project.entry-points.topoplan": package.entry_points,
            "tool.flit.module": {"name": package.module},
        }
        lines = [f"# Written by tools/packages.py from {TABLE}: change it there."]
        for heading, pairs in sections.items():
            if pairs:
                lines += ["", f"[{heading}]", *(line for key, value in pairs.items() for line in _pair(key, value))]
        names = dict.fromkeys([*package.dependencies, *(name for extra in package.extras.values() for name in extra)])
        siblings = [_source(name) for name in names if name in self.packages]
        if siblings:
            lines += ["", "[tool.uv.sources]", *siblings]
        return "\n".join(lines) + "\n"

    def root_pyproject(self, text: str) -> str:
        """Return the root's pyproject.toml with its lists of packages as they ought to be."""
        packages = self.packages.values()
        members = dict.fromkeys("plugins/*/*" if p.folder.startswith("plugins/") else p.folder for p in packages)
        others = {self.requirement(p, name) for p in packages for name in p.dependencies if name not in self.packages}
        folders = ("plugins", "libs", "engine", "core")
        alike = ([p.module for p in packages if p.folder.split("/")[0] == folder] for folder in folders)
        layers = [" | ".join(modules) for modules in alike if modules]
        comment = "# from plugins down to core"
        compiled = f"{COMPILED[0]} = {{ path = {json.dumps(COMPILED[1])}, editable = true }}"
        for pattern, lines in (
            (r"^dependencies = \[\n?(?:    .*\n)*\]\n", _pair("dependencies", sorted(others))),
            (r"^dev = \[\n?(?:    .*\n)*\]\n", _pair("dev", [*self.packages, COMPILED[0]])),
            (r"^members = \[.*\]\n", [f"members = {json.dumps(list(members))}"]),
            (r"^files = \[.*\]\n", [f"files = {json.dumps([*(f'{member}/src' for member in members), 'tools'])}"]),
            (r"^testpaths = \[.*\]\n", [f"testpaths = {json.dumps(['tests', *(f'{m}/tests' for m in members)])}"]),
            (r"^root_packages = \[\n?(?:    .*\n)*\]\n", _pair("root_packages", [p.module for p in packages])),
            (
                rf"^{comment}\nlayers = \[\n?(?:    .*\n)*\]\n",
                [comment, *_pair("layers", layers)],
            ),
            (
                r"^\[tool\.uv\.sources\]\n(?:\S.*\n)*",
                ["[tool.uv.sources]", *(_source(p.name) for p in packages), compiled],
            ),
        ):
            places = re.findall(pattern, text, flags=re.M)
            if len(places) != 1:
                raise TableError(f"pyproject.toml: {len(places)} places match {pattern!r}, not one")
            text = text.replace(places[0], "\n".join(lines) + "\n")
        return text


def _pair(key: str, value: str | list[str]) -> list[str]:
    """Lines of a key; a list of several stands one to a line. TOML writes such strings as JSON does."""
    if isinstance(value, str) or len(value) < 2:
        return [f"{key} = {json.dumps(value, ensure_ascii=False)}"]
    return [f"{key} = [", *(f"    {json.dumps(item, ensure_ascii=False)}," for item in value), "]"]


def _source(name: str) -> str:
    return f"{name} = {{ workspace = true }}"


def texts(root: Path) -> dict[str, str]:
    """Return the text of every file that follows from the table, by its path from the root of a checkout."""
    table = Table.read(root)
    licence = (root / "LICENSE").read_text(encoding="utf-8")
    wanted = {"pyproject.toml": table.root_pyproject((root / "pyproject.toml").read_text(encoding="utf-8"))}
    rows = [f"{one} {package.name}\n" for package in table.packages.values() for one in package.components]
    wanted[COMPONENTS] = "".join(rows)
    for package in table.packages.values():
        wanted[f"{package.folder}/pyproject.toml"] = table.pyproject(package)
        wanted[f"{package.folder}/LICENSE"] = licence
        wanted[f"{package.folder}/src/{package.module}/py.typed"] = ""
    homeless = {str(p.relative_to(root)) for p in root.glob("plugins/*/*/pyproject.toml")} - set(wanted)
    if homeless:
        raise TableError(f"{sorted(homeless)[0]} is of no package in the table")
    return wanted


def differences(root: Path) -> Iterator[tuple[str, str, str]]:
    """Give path, text as it is (empty where there is no file) and as it ought to be, of all files that differ."""
    for path, wanted in texts(root).items():
        text = (root / path).read_text(encoding="utf-8") if (root / path).is_file() else None
        if text != wanted:
            yield path, text or "", wanted


def misdeclared(root: Path) -> Iterator[str]:
    """Give a line for every dependency that a package lacks or has too much; a package without code has none."""
    table = Table.read(root)
    owner = {package.module: name for name, package in table.packages.items()}
    for package in table.packages.values():
        imported = {IMPORT_NAMES.get(name, owner.get(name, name)) for name in imports(root / package.folder / "src")}
        if not imported:
            continue
        imported -= {package.name, *sys.stdlib_module_names}
        declared = {name.replace("-", "_"): name for name in package.dependencies}
        late = {name.replace("-", "_") for names in package.extras.values() for name in names}
        wanted = {name.replace("-", "_") for name in imported}
        for name in sorted(wanted - {*declared, *late}):
            yield f"{package.name}: imports {name}, which is not among its dependencies"
        for name in sorted(set(declared) - wanted):
            yield f"{package.name}: depends on {declared[name]}, which it does not import"


def imports(folder: Path) -> set[str]:
    """Return the first parts of the names of all modules that the files of a folder import, wherever they do."""
    roots: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        statements: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"), str(path))]
        while statements:
            node = statements.pop()
            if isinstance(node, ast.Import):
                roots.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                roots.add((node.module or "").partition(".")[0])
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):  # imports are in no expression
                inner = getattr(node, field, ())
                statements += inner if isinstance(inner, list) else ()
    return roots


def main(words: list[str], root: Path = ROOT) -> int:
    """Write the files that differ, or with ``--check`` show how; return the exit status."""
    if words not in ([], ["--check"]):
        sys.exit(__doc__)
    try:
        found = list(differences(root))
        faults = list(misdeclared(root)) if words else []
    except (TableError, tomllib.TOMLDecodeError) as error:
        print(f"{TABLE}: {error}", file=sys.stderr)
        return 2
    for path, text, wanted in found:
        if words:
            lines = difflib.unified_diff(text.splitlines(), wanted.splitlines(), path, path, lineterm="", n=1)
            print("\n".join(lines) or f"{path}: missing")
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(wanted, encoding="utf-8")
    if words and found:
        print(f"{len(found)} files differ from {TABLE}; `python tools/packages.py` writes them")
    for fault in faults:
        print(fault)
    return 1 if faults or (words and found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
