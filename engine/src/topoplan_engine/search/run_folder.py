"""The folder of a run: what a search was asked, what it priced, and what it found; in files that anybody can read.

- ``run.json``: options, versions, hashes of inputs (`topoplan_engine.search.run_record`);
- ``prices-S-C.csv``: the journal of chain C of search S (`topoplan_engine.search.journal`);
- ``free-0-0.csv``: that of the search for a plan that no trainer limits, beside a search for a trainer;
- ``end.csv``: where a clock ended the draws of paths at the end of a search with a time limit, and ``free-end.csv``
  for the plan that no trainer limits, where the trainer runs it;
- ``best.json``: the plan that is the best so far, as the exporter ``json`` writes it;
- ``result.json``: what was printed at the end, once the run is finished;
- ``lock``: which process works on it.

Everything but journals is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import attrs

from topoplan.errors import TopoplanError
from topoplan_engine.experiment import Experiment
from topoplan_engine.files import read_text, shown_path, why_not, write_file
from topoplan_engine.search.journal import Journal, NoJournal
from topoplan_engine.search.locks import lock_folder

__all__ = ["Journals", "RunFolder", "read_run"]

#: What may lie in a folder that becomes a run: a process may have died before it wrote more.
_NOTHING = {"lock"}


@attrs.frozen
class Journals:
    """Where the chains of a run have their journals; nowhere without a folder.

    Attributes:
        folder: of the run.
        name: begins the names of their files.
    """

    folder: Path | None = None
    name: str = "prices"

    def open(self, search: int, chain: int) -> NoJournal:
        """Return the journal of a chain of one of the independent searches of a run."""
        return NoJournal() if self.folder is None else Journal(self.folder / f"{self.name}-{search}-{chain}.csv")

    def open_end(self) -> NoJournal:
        """Return the journal of what follows the search."""
        prefix = "" if self.name == "prices" else f"{self.name}-"
        return NoJournal() if self.folder is None else Journal(self.folder / f"{prefix}end.csv")


class RunFolder:
    """The folder of a run that this process works on; `close` lets others do so.

    Attributes:
        path: of the folder.
        experiment: that it is of.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path, self.experiment = path, experiment
        self._lock = lock_folder(path)

    @classmethod
    def create(cls, path: Path, experiment: Experiment, record: dict[str, Any]) -> RunFolder:
        """Make the folder of a new run.

        Args:
            path: of a folder that does not exist, or is empty.
            experiment: what is to run.
            record: what `run.json` says.

        Raises:
            TopoplanError: something else lies there, or nothing can be written there.
        """
        name = shown_path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in path.iterdir()}
        except FileExistsError:
            raise TopoplanError(f"--run {name}: is no folder (name a new one)") from None
        except (OSError, ValueError) as error:
            raise TopoplanError(f"--run {name}: cannot be made ({why_not(error)})") from None
        if "run.json" in names:
            raise TopoplanError(f"--run {name}: holds a run already (topoplan resume {name} goes on with it)")
        if names - _NOTHING:
            raise TopoplanError(f"--run {name}: holds other files (name a new folder)")
        folder = cls(path, experiment)
        try:
            folder._write("run.json", record)
        except TopoplanError:
            folder.close()
            raise
        return folder

    @property
    def journals(self) -> Journals:
        """Where its chains have their journals."""
        return Journals(self.path.absolute())

    def keep_best(self, data: bytes) -> None:
        """Write the plan that is the best so far."""
        write_file(self.path / "best.json", data)

    def finish(self, result: dict[str, Any]) -> None:
        """Write what was found, which makes the run a finished one."""
        self._write("result.json", result)

    def result(self) -> dict[str, Any] | None:
        """Return what was found, if the run is finished."""
        path = self.path / "result.json"
        return _read(path) if path.exists() else None

    def close(self) -> None:
        """Let other processes work on the run."""
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, name: str, value: dict[str, Any]) -> None:
        write_file(self.path / name, json.dumps(value, indent=1).encode() + b"\n")


def read_run(path: Path) -> dict[str, Any]:
    """Return what `run.json` of a folder says.

    Raises:
        TopoplanError: the folder holds no run.
    """
    if not path.is_dir():
        raise TopoplanError(f"{shown_path(path)}: {'is no folder' if path.exists() else 'no such folder'}")
    file = path / "run.json"
    if not file.exists():
        raise TopoplanError(f"{shown_path(path)}: holds no run (there is no run.json in it)")
    return _read(file)


def _read(path: Path) -> dict[str, Any]:
    text = read_text(path, "JSON")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopoplanError(f"{shown_path(path)}: is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise TopoplanError(f"{shown_path(path)}: expected one JSON object")
    return value
