"""`compare`: a study in a notebook, as ``topoplan compare`` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topoplan.plugin.host import Host
from topoplan_engine.executors import executor_from
from topoplan_engine.tomlfiles import read_toml
from topoplan_studies.command import run_study
from topoplan_studies.study import study_from
from topoplan_studies.tables import StudyReport

__all__ = ["compare"]


def compare(
    study: Mapping[str, Any] | Path | str,
    *,
    runs: Path | str = ".topoplan-runs",
    jobs: int = 1,
    executor: str = "processes",
    prices: Path | None = None,
    catalogue: bool = False,
    measures: Path | None = None,
    host: Host | None = None,
) -> StudyReport:
    """Search for each model on each network with the same budget, and price the networks.

    Args:
        study: tables as a study in TOML has them, or the path of one.
        runs: folder that keeps finished runs; they are not repeated.
        jobs: worker processes, of the executor of this machine.
        executor: where runs run, as ``--executor`` names it.
        prices: file with prices; None for those that come with this package.
        catalogue: take only parts that the prices list.
        measures: folder with the measurement files that models name.
        host: where components come from; all installed plugins unless given.

    Raises:
        TopoplanError: something in the study is wrong, or cannot be run.
    """
    document: Mapping[str, Any] = study if isinstance(study, Mapping) else read_toml(Path(study))
    name, where = ("study", "study") if isinstance(study, Mapping) else (Path(study).stem, str(study))
    return run_study(
        study_from(document, name, where, allow_code=isinstance(study, Mapping)),
        host or Host.discover(),
        prices=prices,
        catalogue=catalogue,
        measures=measures,
        runs=Path(runs),
        executor=executor_from(executor, jobs),
    )
