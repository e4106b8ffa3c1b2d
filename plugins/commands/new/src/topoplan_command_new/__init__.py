"""``topoplan new``: a package for a plugin of your own, whose tests pass."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

    from topoplan_command_new.packages import new_package as new_package

__all__ = ["New", "new_package", "topoplan_commands"]

#: Public name -> the module that it is in.
_MODULES = {"new_package": "packages"}


class New(Command):
    """A package for a plugin of your own, whose tests pass at once."""

    name = "new"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_new.command import application

        return application()


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return New


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
