"""``topoplan sweep``: plans for many batch sizes.

Data flow: `cli` reads the words and makes one experiment for each batch size; `work` runs them in processes; `table`
and `plot` show the rows.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

    from topoplan_command_sweep.results import BatchSizeResult as BatchSizeResult
    from topoplan_command_sweep.results import SweepResult as SweepResult
    from topoplan_command_sweep.results import sweep as sweep

__all__ = ["BatchSizeResult", "Sweep", "SweepResult", "sweep", "topoplan_commands"]

#: Public name -> the module that it is in.
_MODULES = {"BatchSizeResult": "results", "SweepResult": "results", "sweep": "results"}


class Sweep(Command):
    """Plan a model for many batch sizes, and compare with data parallelism."""

    name = "sweep"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_sweep.command import sweep
        from topoplan_engine.flags import one_command

        return one_command("sweep", sweep)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Sweep


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
