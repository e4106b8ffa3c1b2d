"""Layer profiles as a topoplan frontend: its options and its registration.

`profiles` holds those that DAPPLE and HPGO published, `reading` parses the text of one; `model` makes an operator graph
of either.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["Torchgraph", "topoplan_frontends"]


@attrs.frozen(kw_only=True)
class Torchgraph(Frontend):
    """Layer profiles of PipeDream and DAPPLE: measured times, activations and parameters.

    The options select the profile, and the batch size of its measurement.
    """

    name = "torchgraph"
    example = {"file": str(Path(__file__).with_name("example-pbs-4.txt"))}
    estimator = "profile"

    profile: str = option(
        "",
        help="included profile, such as bert-48 (see the README); this or file is required",
    )
    file: str = option("", help="layer profile (text)")
    profile_batch: int | None = option(
        None,
        minimum=1,
        help="samples that were profiled; unset: the profile's, or N where the name of the file has pbs-N",
    )

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_torchgraph.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Torchgraph
