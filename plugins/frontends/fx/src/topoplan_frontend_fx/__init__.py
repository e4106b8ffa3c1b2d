"""Text files of FlexFlow's PyTorch front end as a topoplan frontend.

`reading` splits lines into nodes, `operators` has what each operator is here, and `model` joins them to a graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["Fx", "topoplan_frontends"]


@attrs.frozen(kw_only=True)
class Fx(Frontend):
    """PyTorch models that FlexFlow's front end wrote as text."""

    name = "fx"
    example = {"file": str(Path(__file__).with_name("example.ff")), "inputs": "8"}

    file: str = option("", help="what torch_to_flexflow or PyTorchModel.torch_to_file wrote; required")
    inputs: str = option("", help="shape of each input without samples, such as 3x224x224 or 3x32x32-16; required")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_fx.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Fx
