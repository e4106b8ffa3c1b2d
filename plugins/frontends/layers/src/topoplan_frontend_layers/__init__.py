"""Models written down in a TOML or JSON file: a list of layers, as a topoplan frontend.

`reading` checks the tables of a file, `kinds` has what a layer can be, `algebra` what is described by its iteration
space, and `model` joins layers to a graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["Layers", "topoplan_frontends"]


@attrs.frozen(kw_only=True)
class Layers(Frontend):
    """Models that a TOML or JSON file describes, layer by layer."""

    name = "layers"
    example = {"file": str(Path(__file__).with_name("example.toml"))}

    file: str = option("", help="TOML or JSON file with tables of inputs and layers; required")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_layers.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Layers
