"""``topoplan profile``: what operators, layers and collectives take here, and the rates of a device.

Data flow: `cli` has the words, and a module ends in ``_command`` for each; in it stands the function that a program
calls for the same.  Of collectives, `launch` starts processes, or finds itself started by torchrun; in each of them
`worker` times collectives of several sizes; `fit` makes a latency and a bandwidth of the times; `document` is the file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topoplan import Command, hookimpl

if TYPE_CHECKING:
    from typer import Typer

    from topoplan_command_profile.collectives_command import profile_collectives as profile_collectives
    from topoplan_command_profile.device_command import profile_device as profile_device
    from topoplan_command_profile.fit_command import fit_roofline as fit_roofline
    from topoplan_command_profile.layers_command import profile_layers as profile_layers
    from topoplan_command_profile.model_options import RunsOptions as RunsOptions
    from topoplan_command_profile.model_options import TableOptions as TableOptions
    from topoplan_command_profile.operators_command import profile_operators as profile_operators

__all__ = [
    "Profile",
    "RunsOptions",
    "TableOptions",
    "fit_roofline",
    "profile_collectives",
    "profile_device",
    "profile_layers",
    "profile_operators",
    "topoplan_commands",
]

#: Public name -> the module that it is in.
_MODULES = {
    "RunsOptions": "model_options",
    "TableOptions": "model_options",
    "fit_roofline": "fit_command",
    "profile_collectives": "collectives_command",
    "profile_device": "device_command",
    "profile_layers": "layers_command",
    "profile_operators": "operators_command",
}


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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
