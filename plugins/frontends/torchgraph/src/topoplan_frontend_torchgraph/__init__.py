"""Layer profiles as a topoplan frontend: its options and its registration.

`topoplan_layer_profiles` reads profiles, has those that DAPPLE and HPGO published, and makes operator graphs of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from topoplan import Frontend, TopoplanError, hookimpl, option

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
        """Read the profile that the options name and scale it to ``batch_size``, unless that is None.

        Raises:
            TopoplanError: the file is wrong, or nothing says which batch was profiled.
        """
        from topoplan_layer_profiles.graphs import graph_of_file, graph_of_profile

        if self.file and self.profile:
            raise TopoplanError(
                f"frontend torchgraph: profile={self.profile} and file={self.file} are both given (give one of them)"
            )
        if self.file:
            return graph_of_file(Path(self.file), self.profile_batch, batch_size)
        if self.profile:
            return graph_of_profile(self.profile, self.profile_batch, batch_size)
        from topoplan_layer_profiles import profiles

        raise TopoplanError(
            "frontend torchgraph: profile or file is missing (-o profile=NAME names a profile that comes with it: "
            f"{', '.join(profiles.names())}; -o file=PATH a layer profile of your own)"
        )


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Torchgraph
