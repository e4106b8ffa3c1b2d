"""Runs: searches that can be resumed, each in a folder of its own.

    with begun("runs/a", host, experiment) as folder:
        outcome = optimize(folder.experiment, host=host, folder=folder)

Data flow: `begun` makes the folder of a new run, `resumed` opens one that exists and checks that its search would be
the same here; both lock it.  `optimize` answers from its journals, and goes on.
"""

from __future__ import annotations

from pathlib import Path

from topoplan.errors import TopoplanError
from topoplan.plugin.components import Exporter
from topoplan.plugin.host import Host
from topoplan_engine.blame import naming_plugins
from topoplan_engine.experiment import Experiment
from topoplan_engine.search.run_folder import RunFolder, read_run
from topoplan_engine.search.run_record import check_record, experiment_from_record, run_record

__all__ = ["begun", "resumed"]


def begun(path: Path | str, host: Host, experiment: Experiment) -> RunFolder:
    """Make the folder of a new run.

    Raises:
        TopoplanError: something in the experiment is wrong, or the folder cannot be one; nothing is written then.
    """
    _ = host.make(Exporter, "json", {})  # writes the best plan
    with naming_plugins(host):
        record = run_record(host, experiment)
    return RunFolder.create(Path(path), experiment, record)


def resumed(path: Path | str, host: Host) -> RunFolder:
    """Open the folder of a run to go on with it.

    Raises:
        TopoplanError: it holds no run, another process works on it, or versions or inputs have changed.
    """
    folder, where = Path(path), str(Path(path) / "run.json")
    record = read_run(folder)
    experiment = experiment_from_record(record, where)
    try:
        with naming_plugins(host):
            check_record(host, record, experiment, where)
    except TopoplanError as error:
        raise TopoplanError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    return RunFolder(folder, experiment)
