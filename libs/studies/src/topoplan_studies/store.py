"""Finished runs, one file each, under a hash of everything that they depend on.

The hash covers the experiment with all options, the content of the files that it reads, and the code that can change
its outcome: the sources of core that a run passes through, of the plugins that take part, and of the plugins that these
require.  So a result is taken again only where running it again would give the same.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from topoplan.errors import TopoplanError
from topoplan.files import read_file, write_file
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment
from topoplan_engine.search.optimize import provenance

__all__ = ["Store", "inputs"]

#: Parts of core that show or drive runs and change no outcome; but what a finished run keeps is `measure`'s to say.
_NO_MATTER = ("cli/", "comparing/", "prices/book.py", "sharing/", "testing/")
_MATTERS = "comparing/measure.py"
_CORE = "topoplan-core"
#: Code, and tables that packages bring along.
_SOURCES = (".py", ".csv", ".toml", ".json", ".txt")


def inputs(host: Host, experiment: Experiment) -> dict[str, Any]:
    """Return what a run depends on, as plain values; the folders of files do not matter.

    Raises:
        TopoplanError: a component, an option or a file is wrong; so this is also the check before anything runs.
    """
    record = dict(provenance(host, experiment))
    code = {_CORE: _fingerprint("topoplan", _NO_MATTER)}
    for component in record["components"]:
        options = component["options"]
        if options.get("file"):
            component["options"] = {**options, "file": Path(options["file"]).name}
        if component["distribution"] != _CORE:
            for name in _with_requirements(component["distribution"]):
                code[name] = _fingerprint(name.replace("-", "_"))
    return {**record, "code": code}


class Store:
    """A folder of finished runs.

    Args:
        folder: made when the first run is kept, with a ``.gitignore`` that hides it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise TopoplanError(f"--runs {folder}: is not a folder")

    def key(self, given: dict[str, Any]) -> str:
        """Return the name of a run with these inputs."""
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:32]

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the result of a finished run; None where there is none, or none that is as it was kept."""
        path = self.folder / f"{key}.json"
        if not path.is_file():
            return None
        try:
            document = json.loads(read_file(path))
            result, digest = document["result"], document["digest"]
            whole = isinstance(result, dict) and digest == _digest(result)
        except (TopoplanError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return result if whole else None

    def put(self, key: str, given: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Keep a finished run, and return its result as `get` will.

        Raises:
            TopoplanError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TopoplanError(f"--runs {self.folder}: cannot be made ({error.strerror})") from None
        hidden = self.folder / ".gitignore"
        if not hidden.exists():
            write_file(hidden, b"*\n")
        kept: dict[str, Any] = json.loads(json.dumps(result, sort_keys=True))
        text = json.dumps({"inputs": given, "result": kept, "digest": _digest(kept)}, sort_keys=True, indent=1)
        write_file(self.folder / f"{key}.json", text.encode() + b"\n")
        return kept


def _digest(result: dict[str, Any]) -> str:
    """Return what tells a result that somebody changed, or that was cut off, from the one that was kept."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


@cache
def _fingerprint(package: str, without: tuple[str, ...] = ()) -> str:
    """Return a hash of the sources of an importable package or module, and of the data files among them."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    origin = Path(spec.origin)
    root = origin.parent if spec.submodule_search_locations else origin
    files = sorted(path for path in root.rglob("*.*") if path.suffix in _SOURCES) if root.is_dir() else [root]
    digest = hashlib.sha256()
    for path in files:
        name = path.relative_to(root).as_posix() if root.is_dir() else path.name
        if name == _MATTERS or not name.startswith(without):
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _with_requirements(distribution: str) -> tuple[str, ...]:
    """Return a plugin's distribution and the other plugins that it requires, directly or not."""
    found: list[str] = []
    todo = [distribution]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.append(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name.startswith("topoplan-") and requirement.name != _CORE:
                todo.append(requirement.name)
    return tuple(sorted(found))
