"""Several jobs on one cluster: iteration times against load, on several networks.

Data flow: `shared_cluster` reads the jobs, the networks and the loads of the cluster; `draw` draws jobs and their
servers, the same ones for every network; `plans` finds one strategy for each model on each network, alone on as many
servers as a job has; `union` makes one task graph of all jobs, which `simulate` runs; `results` makes means and tails
of their times, and `table`, `plot` and `page` show them.

A network that is wired for a job (its topology follows demand) gives every job a partition of its own, with a fabric
made for it: jobs do not meet, and take as long as alone.  On any other network they share links.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

    from topoplan_command_share.sharing import ShareReport as ShareReport
    from topoplan_command_share.sharing import share as share

__all__ = ["Share", "ShareReport", "share", "topoplan_commands"]

#: Public name -> the module that it is in.
_MODULES = {"ShareReport": "sharing", "share": "sharing"}


class Share(Command):
    """Several jobs on one cluster."""

    name = "share"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_share.command import share
        from topoplan_engine.flags import one_command

        return one_command("share", share)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Share


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
