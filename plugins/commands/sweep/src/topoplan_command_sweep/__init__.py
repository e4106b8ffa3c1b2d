"""``topoplan sweep``: plans for many batch sizes.

Data flow: `cli` reads the words and makes one experiment for each batch size; `work` runs them in processes; `table`
and `plot` show the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Sweep", "topoplan_commands"]


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
