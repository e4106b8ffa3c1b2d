"""``topoplan profile collectives``: what collectives take here, for the estimator ``hidup`` to read.

Data flow: `cli` reads the words; `launch` starts processes, or finds itself started by torchrun; in each of them
`worker` times collectives of several sizes; `fit` makes a latency and a bandwidth of the times; `document` is the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["Profile", "topoplan_commands"]


class Profile(Command):
    """Measure the collectives of this machine, for estimators to read."""

    name = "profile"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_profile.cli import application

        return application()


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Profile
