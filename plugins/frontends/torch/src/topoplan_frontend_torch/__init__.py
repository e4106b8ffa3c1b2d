"""PyTorch modules as a topoplan frontend: `torch.export` on the meta device, and `.pt2` files that it wrote.

`loading` finds the module that users name, `inputs` reads what they write for its inputs, `tracing` exports it and
`archive` reads a file, both to a `program.Program`.  `simplify` and `fusing` make it small, and `model` translates it
call by call with `operators`, into the graph that `calls` builds.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph
    from topoplan_frontend_torch.loading import from_torch as from_torch

__all__ = ["Torch", "from_torch", "topoplan_frontends"]


@attrs.frozen(kw_only=True)
class Torch(Frontend):
    """PyTorch modules, exported by torch.export, and .pt2 files."""

    name = "torch"
    example = {"file": str(Path(__file__).with_name("example.pt2"))}

    module: str = option(
        "", help="what makes the module: package.module:function, or a class; it is imported and run", runs_code=True
    )
    inputs: str = option("", help="shape and type of each input, such as 8x128:int64 or 8x3x224x224-8x13")
    file: str = option("", help="a .pt2 file of torch.export.save, in place of a module")
    strict: bool = option(False, help="refuse what cannot be planned operator by operator, rather than count it")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `loading.build`."""
        from topoplan_frontend_torch.loading import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Torch


def __getattr__(name: str) -> Any:
    if name != "from_torch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.loading").from_torch
