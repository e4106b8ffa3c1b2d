"""From ``--executor NAME:KEY=VALUE`` to an executor."""

from __future__ import annotations

from collections.abc import Mapping

from topoplan.errors import TopoplanError, nearest, shown
from topoplan.options import parse_component, structure
from topoplan_engine.executors.base import Executor
from topoplan_engine.executors.dask import Dask
from topoplan_engine.executors.processes import Processes

__all__ = ["EXECUTORS", "executor_from"]

EXECUTORS: Mapping[str, type[Executor]] = {cls.name: cls for cls in (Processes, Dask)}


def executor_from(text: str, workers: int) -> Executor:
    """Make an executor from ``NAME:KEY=VALUE,...``.

    Args:
        text: as it was typed.
        workers: number of processes, where ``text`` does not say another one.

    Raises:
        TopoplanError: there is no such executor, or an option of it is wrong.
    """
    name, options = parse_component(text, "executor")
    if name not in EXECUTORS:
        raise TopoplanError(f"--executor: no executor {shown(name)}{nearest(name, EXECUTORS)}")
    defaults = {"workers": workers} if name == Processes.name else {}
    return structure(EXECUTORS[name], {**defaults, **options}, f"executor {name}")
