"""Finished runs, one JSON file each, under a hash of everything that they depend on.

The hash covers the run specification with all options, the content of the files that it reads, and the code that takes
part: versions, and the sources of what is being developed (`topoplan_engine.sources`).  So a result is taken again only
if running it again would give the same, and what takes no part repeats nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment
from topoplan_engine.files import read_file, write_file
from topoplan_engine.search.optimize import provenance
from topoplan_engine.search.run_record import distributions_of
from topoplan_engine.sources import code_versions

__all__ = ["Store", "inputs"]

#: Modules that make and keep a result; the others of this package read it.
_RESULTS = ("measure.py", "store.py")


def inputs(host: Host, experiment: Experiment) -> dict[str, Any]:
    """Return what a run depends on, as plain values; the folders of files do not matter.

    Raises:
        TopoplanError: a component, an option or a file is wrong; so this is also the check before anything runs.
    """
    record = dict(provenance(host, experiment))
    for component in record["components"]:
        options = component["options"]
        component["options"] = {
            key: Path(value).name if isinstance(value, str) and Path(value).name in record["inputs"] else value
            for key, value in options.items()
        }
    return {**record, "code": {**code_versions(distributions_of(host, experiment)), "results": _results_digest()}}


@functools.cache
def _results_digest() -> str:
    """Return a hash of the modules that make and keep a result."""
    sources = b"".join(Path(__file__).with_name(name).read_bytes() for name in _RESULTS)
    return hashlib.sha256(sources).hexdigest()[:16]


class Store:
    """A folder of finished runs.

    Args:
        folder: made when the first run is kept, with a ``.gitignore`` that hides it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise TopoplanError(f"--runs {folder}: is not a folder")

    def make(self) -> Path:
        """Make the folder, unless it is there, and return it.

        Raises:
            TopoplanError: it cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TopoplanError(f"--runs {self.folder}: cannot be made ({error.strerror})") from None
        ignore_file = self.folder / ".gitignore"
        if not ignore_file.exists():
            write_file(ignore_file, b"*\n")
        return self.folder

    def names(self) -> set[str]:
        """Return the names of the runs that have a file, whole or not."""
        try:
            return {
                entry.name.removesuffix(".json") for entry in os.scandir(self.folder) if entry.name.endswith(".json")
            }
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise TopoplanError(f"--runs {self.folder}: cannot be read ({error.strerror})") from None

    def key(self, dependencies: dict[str, Any]) -> str:
        """Return the name of a run with these inputs."""
        return hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()[:32]

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the result of a finished run; None if there is none, or if its file was changed or cut off."""
        path = self.folder / f"{key}.json"
        if not path.is_file():
            return None
        try:
            document = json.loads(read_file(path))
            result, digest = document["result"], document["digest"]
            intact = isinstance(result, dict) and digest == _digest(result)
        except (TopoplanError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return result if intact else None

    def put(self, key: str, dependencies: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Keep a finished run, and return its result as `get` will.

        Raises:
            TopoplanError: the folder cannot be written.
        """
        self.make()
        stored: dict[str, Any] = json.loads(json.dumps(result, sort_keys=True))
        text = json.dumps(
            {"inputs": dependencies, "result": stored, "digest": _digest(stored)}, sort_keys=True, indent=1
        )
        write_file(self.folder / f"{key}.json", text.encode() + b"\n")
        return stored


def _digest(result: dict[str, Any]) -> str:
    """Return what tells a result that somebody changed, or that was cut off, from the one that was kept."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()
