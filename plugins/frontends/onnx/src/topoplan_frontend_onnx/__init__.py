"""ONNX files as a topoplan frontend; neither onnx nor protobuf is needed, and no weight is loaded.

`wire` parses protocol buffers, `reading` makes nodes, tensors and inputs of them, `folding` computes what depends on no
input (shapes, mostly), and `model` joins the other nodes, as `operators` translates them, to an operator graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["Onnx", "topoplan_frontends"]


@attrs.frozen(kw_only=True)
class Onnx(Frontend):
    """Models in ONNX files, from PyTorch, TensorFlow or any other exporter."""

    name = "onnx"
    example = {"file": str(Path(__file__).with_name("example.onnx"))}

    file: str = option("", help="an ONNX file; required")
    sizes: str = option("", help="sizes of symbolic dimensions other than the batch, such as sequence=128,past=0")
    strict: bool = option(False, help="refuse an operator that is not known, rather than plan it as a whole")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_onnx.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Onnx
