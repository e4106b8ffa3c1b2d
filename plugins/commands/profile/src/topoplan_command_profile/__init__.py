"""``topoplan profile collectives``: what collectives take here, for the estimator ``hidup`` to read.

Data flow: `cli` reads the words; `launch` starts processes, or finds itself started by torchrun; in each of them
`worker` times collectives of several sizes; `fit` makes a latency and a bandwidth of the times; `document` is the file.
"""

from __future__ import annotations

from typing import Any

from topoplan import Command, hookimpl

__all__ = ["PROFILE", "topoplan_commands"]


def app() -> Any:
    """Make the typer application."""
    from topoplan_command_profile.cli import application

    return application()


PROFILE = Command(name="profile", summary="measure the collectives of this machine, for estimators to read", app=app)


@hookimpl
def topoplan_commands() -> list[Command]:
    """Register the command."""
    return [PROFILE]
