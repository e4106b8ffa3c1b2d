"""``topoplan show``: a plan in eighty columns."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

    from topoplan_command_show.command import plan_rows as plan_rows

__all__ = ["Show", "plan_rows", "topoplan_commands"]

#: Public name -> the module that it is in.
_MODULES = {"plan_rows": "command"}


class Show(Command):
    """A plan in eighty columns."""

    name = "show"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_show.command import show
        from topoplan_engine.flags import one_command

        return one_command("show", show)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Show


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
