"""Runs: searches that can be resumed, each in a folder of its own.

    with begun("runs/a", host, experiment) as folder:
        outcome = optimize(folder.experiment, host=host, folder=folder)

Data flow: `begun` makes the folder of a new run, `resumed` opens one that exists and checks that its search would be
the same here; both lock it.  `optimize` answers from its journals, and goes on.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from topoplan.errors import TopoplanError
from topoplan.plugin.components import Exporter
from topoplan.plugin.host import Host
from topoplan_engine.blame import naming_plugins
from topoplan_engine.experiment import Experiment
from topoplan_engine.exporting import Outputs
from topoplan_engine.files import check_inside
from topoplan_engine.search.limits import with_patience
from topoplan_engine.search.run_folder import RunFolder, read_run
from topoplan_engine.search.run_record import check_record, experiment_from_record, run_record

__all__ = ["begun", "resumed"]


def begun(path: Path | str, host: Host, experiment: Experiment) -> RunFolder:
    """Make the folder of a new run.

    Raises:
        TopoplanError: something in the experiment is wrong, or the folder cannot be one; nothing is written then.
    """
    _ = host.make(Exporter, "json", {})  # writes the best plan
    experiment = with_patience(experiment)
    with naming_plugins(host):
        record = run_record(host, experiment)
    return RunFolder.create(Path(path), experiment, record)


def resumed(path: Path | str, host: Host, *, outputs: Outputs = (), allow_code: bool = False) -> RunFolder:
    """Open the folder of a run to go on with it.

    Args:
        path: of the folder.
        host: where components come from.
        outputs: replace those of the run's outputs that the same exporters write.  The others must lie in the current
            folder or the run's: whoever hands over a run does not say what it overwrites elsewhere.
        allow_code: whether options of the run may name code that is imported and run.

    Raises:
        TopoplanError: it holds no run, another process works on it, or versions or inputs have changed.
    """
    folder, where = Path(path), str(Path(path) / "run.json")
    record = read_run(folder)
    experiment = experiment_from_record(record, where, allow_code=allow_code)
    named = {choice.name for choice, _ in outputs}
    recorded = tuple(output for output in experiment.outputs if output[0].name not in named)
    for choice, output in recorded:
        check_inside(
            Path(output), (Path.cwd(), folder), f"{where}: outputs: {choice.name}", f"-x {choice.name}=FILE says where"
        )
    experiment = attrs.evolve(experiment, outputs=(*recorded, *outputs))
    try:
        with naming_plugins(host):
            check_record(host, record, experiment, where)
    except TopoplanError as error:
        raise TopoplanError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    return RunFolder(folder, experiment)
