"""What is shared: jobs, networks, and how full the cluster is.

A file is that of a comparison (`topoplan_studies.study`: ``[cluster]``, ``[[network]]``, ``[[searcher]]`` and
others), with ``servers`` and ``weight`` in every ``[[model]]``, and a section ``[share]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from topoplan.errors import TopoplanError
from topoplan.options import SEEDS, option, structure
from topoplan_engine.tomlfiles import read_toml
from topoplan_studies.study import Study, study_from

__all__ = ["JobOptions", "ShareOptions", "SharedCluster", "read_shared_cluster", "shared_cluster_from"]

#: Sections of a comparison that mean nothing here.
_FOREIGN = {
    "vary": "only the load varies",
    "seeds": "seed stands in [share]",
}


@attrs.frozen(kw_only=True)
class ShareOptions:
    """The section ``[share]``."""

    loads: tuple[int, ...] = option(
        (25, 50, 75, 100), help="servers that jobs may occupy", unit="%", minimum=1, maximum=100
    )
    trials: int = option(
        10, help="draws of jobs and their servers, each for all loads and networks", minimum=1, maximum=1_000_000
    )
    placement: Literal["random", "contiguous"] = option(
        "random", help="servers of a job: drawn, or the next ones in order"
    )
    seed: int = option(0, help="of all randomness", minimum=0, maximum=SEEDS)


@attrs.frozen(kw_only=True)
class JobOptions:
    """What a ``[[model]]`` says of its jobs."""

    servers: int = option(16, help="servers of a job", minimum=1, maximum=65_536)
    weight: float = option(1.0, help="how often it is drawn, beside the others", above=0)


@attrs.frozen(kw_only=True)
class SharedCluster:
    """A shared cluster.

    Attributes:
        study: models, networks and everything for searching strategies; its cluster is the whole one.
        jobs: of each model, in the order of the study.
        options: loads, trials, placement and seed.
    """

    study: Study
    jobs: tuple[JobOptions, ...]
    options: ShareOptions


def read_shared_cluster(path: Path | str, *, allow_code: bool = False) -> SharedCluster:
    """Read a shared cluster from a TOML file, whose options name code that is run if ``allow_code`` says so.

    Raises:
        TopoplanError: a section, key or value that does not fit; the message says which.
    """
    return shared_cluster_from(read_toml(Path(path)), Path(path).stem, str(path), allow_code=allow_code)


def shared_cluster_from(
    document: Mapping[str, Any], name: str, where: str, *, allow_code: bool = False
) -> SharedCluster:
    """Read a shared cluster from the content of a TOML file; ``where`` is for messages.

    Options of components may name code that is imported and run if ``allow_code`` says so.

    Raises:
        TopoplanError: a section, key or value that does not fit; the message says which.
    """
    for key, why in _FOREIGN.items():
        if key in document:
            raise TopoplanError(f"{where}: {key}: has no place in a shared cluster ({why})")
    section = document.get("share", {})
    if not isinstance(section, dict):
        raise TopoplanError(f"{where}: share: must be a table [share]")
    options = structure(ShareOptions, section, f"{where}: share")
    if not options.loads or len(set(options.loads)) < len(options.loads):
        raise TopoplanError(f"{where}: share: loads: {list(options.loads)} must be one or more different numbers")
    models, jobs = [], []
    tables = document.get("model", [])
    for number, table in enumerate(tables if isinstance(tables, list) else [tables]):
        job_keys = {key: table[key] for key in ("servers", "weight") if key in table} if isinstance(table, dict) else {}
        models.append({key: value for key, value in table.items() if key not in job_keys} if job_keys else table)
        jobs.append(structure(JobOptions, job_keys, f"{where}: model[{number}]"))
    study_keys = {key: value for key, value in document.items() if key not in ("share", "model")}
    study = study_from({**study_keys, "model": models, "seeds": [options.seed]}, name, where, allow_code=allow_code)
    _check_room(study, jobs, options, where)
    return SharedCluster(
        study=study, jobs=tuple(jobs), options=attrs.evolve(options, loads=tuple(sorted(options.loads)))
    )


def _check_room(study: Study, jobs: list[JobOptions], options: ShareOptions, where: str) -> None:
    """Raise `TopoplanError` if servers differ, or if a job finds no room at some load."""
    if study.cluster.hosts or study.cluster.devices:
        raise TopoplanError(f"{where}: cluster: servers must be equal (leave out hosts and devices)")
    room = study.cluster.servers * min(options.loads) // 100
    for model, job in zip(study.models, jobs, strict=True):
        if job.servers > room:
            raise TopoplanError(
                f"{where}: model {model.name!r}: a job of {job.servers} servers has no room at a load of "
                f"{min(options.loads)} %, which is {room} of {study.cluster.servers} servers"
            )
