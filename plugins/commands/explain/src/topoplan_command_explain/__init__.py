"""``topoplan explain``: what a number in a table means."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

    from topoplan_command_explain.meaning_of import meaning as meaning

__all__ = ["Explain", "meaning", "topoplan_commands"]

#: Public name -> the module that it is in.
_MODULES = {"meaning": "meaning_of"}


class Explain(Command):
    """What a number in a table means."""

    name = "explain"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_explain.command import explain
        from topoplan_engine.flags import one_command

        return one_command("explain", explain)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Explain


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
