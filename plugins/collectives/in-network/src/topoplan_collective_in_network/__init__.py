"""Collectives whose sums are made in switches, inside a host or between hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import CollectiveAlgorithm, CollectiveGroup, CollectiveRounds, TopoplanError, hookimpl

if TYPE_CHECKING:
    from topoplan.model.taskgraph import Collective

__all__ = ["Nvls", "Sharp", "topoplan_collectives"]


class Nvls(CollectiveAlgorithm):
    """NVLink SHARP: each device reads the sum of its share from the NVSwitches, and writes it to all.

    Of n devices and S bytes, ``(1 + 1/n) S`` leave and enter each device in an all-reduce; in a ring ``2 (n-1)/n S``.
    """

    name = "nvls"
    collectives = ("all-reduce", "all-gather", "reduce-scatter")
    tuned_as = "nvls"

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Have sums read and written, in small pieces."""
        import numpy as np

        from topoplan_collective_rounds import Steps

        n = group.n_members
        if len(group.in_hosts) > 1:
            hosts = len(group.in_hosts)
            raise TopoplanError(
                f"collective nvls: {n} members in {hosts} hosts (must be in one; sharp sums between hosts, nvls+ring "
                "runs rings there)"
            )
        member, steps = np.arange(n), Steps(n)
        if collective.label != "all-gather":
            steps.send(member, n, 0, count=n, add=1)
            steps.send(n, member, member, latencies=0, between=0)
        if collective.label != "reduce-scatter":
            steps.send(member, n, member, latencies=int(collective.label == "all-gather"), between=0)
            steps.send(n, member, 0, count=n, latencies=0, between=0)
        return steps.rounds(overlaps=True)


class Sharp(CollectiveAlgorithm):
    """Switches of the network sum (SHARP): each device sends its share of its host's sum, and gets that of all.

    Of k devices in each host, ``S/k`` leave and enter the network interface of each (Graham et al., COMHPC 2016).
    """

    name = "sharp"
    collectives = ("all-reduce",)
    tuned_as = "collnet"

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Scatter inside hosts, sum in switches, gather inside hosts."""
        import numpy as np

        from topoplan_collective_rounds import Ring, Steps

        hosts, each, n = len(group.in_hosts), group.in_each, group.n_members
        if hosts == 1:
            raise TopoplanError(
                f"collective sharp: {n} members in one host (must be in several; nvls sums inside one, sharp+ring "
                "runs rings there)"
            )
        inside, steps = Ring(np.arange(n).reshape(hosts, each)), Steps(each)
        member = np.arange(n)
        steps.scatter(inside)
        steps.send(member, n, member % each, add=1)
        steps.send(n, member, member % each, latencies=0, between=0)
        steps.gather(inside)
        return steps.rounds(overlaps=True)


@hookimpl
def topoplan_collectives() -> list[type[CollectiveAlgorithm]]:
    """Register the algorithms."""
    return [Nvls, Sharp]
