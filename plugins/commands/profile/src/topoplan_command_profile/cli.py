"""The words after ``topoplan profile``."""

from __future__ import annotations

import typer

from topoplan_command_profile.collectives_command import collectives
from topoplan_command_profile.device_command import device
from topoplan_command_profile.fit_command import fit_table
from topoplan_command_profile.layers_command import layers
from topoplan_command_profile.operators_command import operators
from topoplan_engine.flags import with_flags
from topoplan_engine.text_command import TextCommand

__all__ = ["application"]


def application() -> typer.Typer:
    """Make the typer application."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(_profile)
    for name, command in (
        ("operators", operators),
        ("layers", layers),
        ("device", device),
        ("collectives", collectives),
        ("fit", fit_table),
    ):
        app.command(name, cls=TextCommand)(with_flags(command))
    return app


def _profile() -> None:
    """Measure this machine, for estimators to read."""
