"""``topoplan sweep``: plans for many batch sizes.

Data flow: `cli` reads the words and makes one experiment for each batch size; `work` runs them in processes; `table`
and `plot` show the rows.
"""

from __future__ import annotations

from typing import Any

from topoplan import Command, hookimpl

__all__ = ["SWEEP", "topoplan_commands"]


def app() -> Any:
    """Make the typer application."""
    from topoplan_command_sweep.cli import application

    return application()


SWEEP = Command(name="sweep", summary="plan a model for many batch sizes, and compare with data parallelism", app=app)


@hookimpl
def topoplan_commands() -> list[Command]:
    """Register the command."""
    return [SWEEP]
