"""``topoplan sensitivity``: what becomes of a plan when costs are not as estimated."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

    from topoplan_command_sensitivity.analysis import SensitivityAnalysis as SensitivityAnalysis
    from topoplan_command_sensitivity.analysis import sensitivity as sensitivity
    from topoplan_command_sensitivity.provenance import experiment_of as experiment_of

__all__ = ["Sensitivity", "SensitivityAnalysis", "experiment_of", "sensitivity", "topoplan_commands"]

#: Public name -> the module that it is in.
_MODULES = {"SensitivityAnalysis": "analysis", "experiment_of": "provenance", "sensitivity": "analysis"}


class Sensitivity(Command):
    """What becomes of a plan when costs are not as estimated."""

    name = "sensitivity"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_sensitivity.command import sensitivity
        from topoplan_engine.flags import one_command

        return one_command("sensitivity", sensitivity)


@hookimpl
def topoplan_commands() -> type[Command]:
    """Register the command."""
    return Sensitivity


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
