"""Algorithms of collectives from MSCCL programs (XML): see `topoplan_collective_msccl.program`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from topoplan import CollectiveAlgorithm, CollectiveGroup, CollectiveRounds, TopoplanError, hookimpl, option

if TYPE_CHECKING:
    from topoplan.model.taskgraph import Collective

__all__ = ["Msccl", "topoplan_collectives"]


@attrs.frozen(kw_only=True)
class Msccl(CollectiveAlgorithm):
    """The messages of an MSCCL program, for groups of as many members as it has GPUs."""

    name = "msccl"
    collectives = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    example = {"file": str(Path(__file__).with_name("example.xml"))}

    file: str = option("", help="XML file of the program")

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Read the program."""
        from topoplan_collective_msccl.program import read_program

        if not self.file:
            raise TopoplanError("collective msccl: needs a program (msccl:file=NAME.xml)")
        return read_program(Path(self.file), collective, group.n_members)


@hookimpl
def topoplan_collectives() -> type[CollectiveAlgorithm]:
    """Register the algorithm."""
    return Msccl
