"""Packages for plugins: templates filled in for a kind and a name, and written as a folder.

`new_package` does all of it.  `package_files` is pure: from a kind and a name to the text of every file; in a template,
``@name@``, ``@kind@``, ``@hook@`` and others stand for what `_values` has.  `write_package` writes all files, or none.
"""

from __future__ import annotations

import builtins
import contextlib
import keyword
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from topoplan import Host, TopoplanError, __version__
from topoplan.errors import nearest, shown
from topoplan.plugin.components import CONTRACTS, CORE_COMMANDS, Kind

__all__ = [
    "KINDS",
    "check_name_is_free",
    "check_names",
    "new_package",
    "package_files",
    "usage",
    "write_package",
]

#: Kinds of plugins, in the words of users.
KINDS = tuple(kind.value for kind in CONTRACTS)
#: Kind -> a command that uses the component, from where the package is.
_USAGE = {
    "frontend": "topoplan optimize @name@",
    "machine": "topoplan optimize alexnet -m @name@ --servers 4",
    "topology": "topoplan optimize alexnet -t @name@",
    "estimator": "topoplan optimize alexnet -e @name@",
    "schedule": "topoplan plugins --kind schedule",
    "simulator": "topoplan optimize alexnet --servers 4 --simulator @name@",
    "collective": "topoplan optimize alexnet --servers 4 --collective all-reduce=@name@",
    "searcher": "topoplan optimize alexnet -s @name@",
    "exporter": "topoplan optimize alexnet --servers 4 -x @name@=tasks.csv",
    "command": "topoplan @name@",
}
#: Kind -> what the component needs beside core and attrs.
_NEEDS = {
    "frontend": ("topoplan-operators",),
    "estimator": ("numpy>=2.0",),
    "schedule": ("topoplan-engine",),
    "simulator": ("numpy>=2.0",),
    "collective": ("numpy>=2.0",),
    "searcher": ("numpy>=2.0",),
    "command": ("typer>=0.15.4",),
}
#: Kinds whose example has options, which attrs makes.
_WITH_OPTIONS = ("frontend", "topology", "estimator", "schedule", "simulator", "searcher", "exporter")
_PLACEHOLDER = re.compile(r"@([a-z]+)@")


def check_names(kind: str, name: str) -> None:
    """Raise `TopoplanError` where there is no such kind of plugin, or a component cannot have this name."""
    if kind not in KINDS:
        raise TopoplanError(f"new: no kind of plugin named {shown(kind)}{nearest(kind, KINDS)}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise TopoplanError(
            f"new: {shown(name)} is no name of a component "
            "(lower case letters, digits and single dashes, a letter first, as in de-bruijn)"
        )
    if len(name) > 60:
        raise TopoplanError(f"new: the name has {len(name)} characters (at most 60)")


def check_name_is_free(kind: str, name: str, host: Host) -> None:
    """Raise `TopoplanError` where an installed component has the name: neither could be used beside the other."""
    owners = [f"{row.distribution} {row.version}" for row in host.listing() if (row.kind, row.name) == (kind, name)]
    if kind == "command" and name in CORE_COMMANDS:
        owners = [f"topoplan-core {__version__}"]
    if owners:
        raise TopoplanError(f"new: {owners[0]} has a {kind} {name!r} (choose another name)")


def package_files(kind: str, name: str) -> dict[str, str]:
    """Return the files of a package: path in its folder -> text; the module comes first.

    Args:
        kind: one of `KINDS`.
        name: of the component.
    """
    values = _values(kind, name)
    module = values["module"]
    templates = {
        f"src/{module}/__init__.py": f"{kind}.py",
        f"src/{module}/py.typed": "",
        f"tests/test_{values['short']}.py": f"test_{kind}.py",
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        ".gitignore": "gitignore",
    }
    return {path: _filled(template, values) for path, template in templates.items()}


def usage(kind: str, name: str) -> str:
    """Return a command that uses a new component, once its package is installed."""
    return _USAGE[kind].replace("@name@", name)


def new_package(kind: str, name: str, folder: Path | None = None, host: Host | None = None) -> list[Path]:
    """Write a package for a plugin: a small component that works, its tests, and all that pip needs.

    Args:
        kind: one of `KINDS`.
        name: of the component, as users choose it.
        folder: to write; ``topoplan-KIND-NAME`` unless given, with the kind of the component.
        host: whose components have their names already; all installed plugins unless given.

    Returns:
        The files, the module first.

    Raises:
        TopoplanError: there is no such kind, the name cannot be one or is taken, or the folder exists.
    """
    check_names(kind, name)
    check_name_is_free(kind, name, host or Host.discover())
    target = folder or Path(f"topoplan-{kind}-{name}")
    package = package_files(kind, name)
    write_package(target, package)
    return [target / path for path in package]


def write_package(folder: Path, package: Mapping[str, str]) -> None:
    """Write files into a new folder, which appears whole or not at all.

    Raises:
        TopoplanError: the folder is there already, or cannot be written.
    """
    shown_folder = shlex.quote(str(folder))
    if folder.exists() or folder.is_symlink():
        raise TopoplanError(f"new: {shown_folder} is there already (name a new folder with --folder)")
    staging: Path | None = None
    try:
        staging = Path(tempfile.mkdtemp(prefix=".topoplan-", dir=folder.absolute().parent))
        for path, text in package.items():
            (staging / "new" / path).parent.mkdir(parents=True, exist_ok=True)
            (staging / "new" / path).write_text(text, encoding="utf-8")
        (staging / "new").rename(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TopoplanError(f"new: {shown_folder} cannot be written ({reason})") from None
    finally:
        if staging is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(staging)


def _values(kind: str, name: str) -> dict[str, str]:
    """Return what the placeholders of templates stand for."""
    short = name.replace("-", "_")
    cls = "".join(word.capitalize() for word in name.split("-"))
    is_taken = keyword.iskeyword(cls) or hasattr(builtins, cls)  # None, False, Exception
    if is_taken or any(re.search(rf"\b{cls}\b", _template(file)) for file in (f"{kind}.py", f"test_{kind}.py")):
        cls += kind.capitalize()
    major, minor = __version__.split(".")[:2]
    core = f">={major}.{minor},<{major}.{int(minor) + 1}"
    needs = ["topoplan-core", *(("attrs>=24.2",) if kind in _WITH_OPTIONS else ()), *_NEEDS.get(kind, ())]
    return {
        "name": name,
        "kind": kind,
        "hook": "topologies" if kind == "topology" else f"{kind}s",
        "class": cls,
        "contract": CONTRACTS[Kind(kind)].__name__,
        "short": short,
        "module": f"topoplan_{kind}_{short}",
        "distribution": f"topoplan-{kind}-{name}",
        "needs": "\n".join(f'    "{each}{core if each.startswith("topoplan-") else ""}",' for each in needs),
        "core": core,
        "usage": usage(kind, name),
    }


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced; the empty one is an empty file."""
    if not template:
        return ""
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], _template(template))


def _template(name: str) -> str:
    return files("topoplan_command_new").joinpath("templates", f"{name}.txt").read_text("utf-8")
