"""Exporter ``dtensor``: the placements of every operator's tensors on a mesh, as PyTorch's DTensor says them.

`layouts` finds meshes for the devices of all operators; `document` says of every tensor how it lies on its mesh:
`Shard(d)`, `Replicate()`, `Partial()`.  What a reader does with them is `distribute_tensor` for parameters and
`DTensor.redistribute` for inputs; DTensor itself then finds the collectives between operators.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from topoplan import Exporter, Plan, hookimpl

__all__ = ["DTensorOptions", "build", "topoplan_exporters"]


@attrs.frozen
class DTensorOptions:
    """The format leaves nothing to choose."""


def build(options: DTensorOptions) -> Callable[[Plan], bytes]:
    """Return the function that writes the placements of a plan.

    Raises:
        TopoplanError: the plan holds no strategy, or an operator has two parts on one device.
    """
    from topoplan_exporter_dtensor.document import write

    return write


@hookimpl
def topoplan_exporters() -> list[Exporter]:
    """Register the exporter."""
    return [
        Exporter(
            name="dtensor",
            summary="placements of every operator on a mesh, in the words of PyTorch's DTensor",
            options=DTensorOptions,
            build=build,
            suffix=".dtensor",
        )
    ]
