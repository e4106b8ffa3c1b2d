"""``topoplan flexnet`` and ``topoplan flexflow``: command lines of FlexNet (TopoOpt, NSDI'23) and of FlexFlow.

Data flow: `scan` finds FlexNet's flags (`flags`, `programs`) among the words and reads their values; `translate`
makes an experiment of them, `story` tells what became of each, and `spell` writes the experiment down as a command
line of ``topoplan optimize``.  `cli` prints all that and runs the experiment as that command does.  The room
`flexflow` has the same for FlexFlow's own programs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

    from topoplan_command_flexnet.flexflow.translate import flexflow_experiment as flexflow_experiment
    from topoplan_command_flexnet.translate import flexnet_experiment as flexnet_experiment

__all__ = ["Flexflow", "Flexnet", "flexflow_experiment", "flexnet_experiment", "topoplan_commands"]

#: Public name -> the module that it is in.
_MODULES = {"flexnet_experiment": "translate", "flexflow_experiment": "flexflow.translate"}


class Flexnet(Command):
    """Run a FlexNet command line as it is, and say what each flag became."""

    name = "flexnet"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_flexnet.cli import application

        return application()


class Flexflow(Command):
    """Plan and simulate what a FlexFlow command line trains, and say what each flag became."""

    name = "flexflow"

    def app(self) -> Typer:
        """Make the typer application."""
        from topoplan_command_flexnet.flexflow.cli import application

        return application()


@hookimpl
def topoplan_commands() -> list[type[Command]]:
    """Register the commands."""
    return [Flexnet, Flexflow]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
