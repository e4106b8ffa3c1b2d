"""Finished runs, one JSON file each, under a hash of everything that they depend on.

The hash covers the run specification with all options, the content of the files that it reads, the versions of the
distributions that take part, and `RESULTS_VERSION`.  So a result is taken again only if running it again would give
the same.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

from topoplan.errors import TopoplanError
from topoplan.plugin.components import Machine
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment
from topoplan_engine.files import read_file, write_file
from topoplan_engine.search.optimize import provenance

__all__ = ["RESULTS_VERSION", "Store", "inputs"]

#: Counts changes of the code that change what a run gives, or what `topoplan_studies.measure` keeps of it, between two
#: versions of the distributions.
RESULTS_VERSION = 7


def inputs(host: Host, experiment: Experiment) -> dict[str, Any]:
    """Return what a run depends on, as plain values; the folders of files do not matter.

    Raises:
        TopoplanError: a component, an option or a file is wrong; so this is also the check before anything runs.
    """
    record = dict(provenance(host, experiment))
    machines = {host.provider(machine) for machine in host.components(Machine)}
    versions = {provider.dist: provider.version for provider in machines}
    for name in ("topoplan-engine", "topoplan-studies"):
        versions[name] = _version(name)
    for component in record["components"]:
        options = component["options"]
        component["options"] = {
            key: Path(value).name if isinstance(value, str) and Path(value).name in record["inputs"] else value
            for key, value in options.items()
        }
    return {**record, "versions": versions, "results_version": RESULTS_VERSION}


_version = functools.cache(importlib.metadata.version)


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
