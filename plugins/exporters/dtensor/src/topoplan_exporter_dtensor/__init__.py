"""Exporter ``dtensor``: the placements of every operator's tensors on a mesh, in the terms of PyTorch's DTensor.

`layouts` finds meshes for the devices of all operators.  `document` has the placements of every tensor on its mesh:
`Shard(d)`, `Replicate()`, `Partial()`.

The way back, for programs that train: `reader` reads the document, `matching` finds the module of each operator.
`modules` places a PyTorch module as the document says, and `pipelines` runs one as a pipeline; only these two need
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Exporter, Plan, hookimpl

if TYPE_CHECKING:
    from topoplan import Restriction

__all__ = ["DTensor", "topoplan_exporters"]


class DTensor(Exporter):
    """Placements of every operator on a mesh, in the terms of PyTorch's DTensor."""

    name = "dtensor"
    suffix = ".dtensor"
    trainer = "torch"

    def write(self, plan: Plan) -> bytes:
        """Write the placements of a plan.

        Raises:
            TopoplanError: the plan holds no strategy, or an operator has two parts on one device.
        """
        from topoplan_exporter_dtensor.document import write

        return write(plan)

    def restriction(self) -> Restriction:
        """Return what PyTorch runs of a file."""
        from topoplan_exporter_dtensor.restriction import TORCH

        return TORCH


@hookimpl
def topoplan_exporters() -> type[Exporter]:
    """Register the exporter."""
    return DTensor
