"""Collectives in two levels: inside hosts, and between devices of the same number in all hosts (rails)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import CollectiveAlgorithm, CollectiveGroup, CollectiveRounds, hookimpl

if TYPE_CHECKING:
    from topoplan.model.taskgraph import Collective

__all__ = ["Hierarchical", "Pxn", "topoplan_collectives"]


class Hierarchical(CollectiveAlgorithm):
    """Reduce-scatter inside hosts, then rings of hosts, one for each device of a host, then all-gather inside.

    Of n = k q members, k in each of q hosts, ``2 (k-1) + 2 (q-1)`` rounds pass ``2 (q-1)/q S / k`` through each
    device's network interface, and ``2 (k-1)/k S`` over its link inside the host.
    """

    name = "hierarchical"
    collectives = ("all-reduce", "all-gather", "reduce-scatter")

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Scatter inside, go round hosts, gather inside."""
        import numpy as np

        from topoplan_collective_rounds import Ring, Steps

        hosts, each, n = len(group.in_hosts), group.in_each, group.n_members
        grid, steps = np.arange(n).reshape(hosts, each), Steps(n)
        inside = Ring(grid, 0, 1, hosts, each)
        across = Ring(grid.T, np.arange(each)[:, None], each)
        if collective.label != "all-gather":
            steps.scatter(inside)
            steps.scatter(across)
        if collective.label != "reduce-scatter":
            steps.gather(across)
            steps.gather(inside)
        return steps.rounds()


class Pxn(CollectiveAlgorithm):
    """All-to-all that sends over NVLink to the device of the receiver's rail first, then between hosts (NCCL's PXN).

    A device sends ``(k-1)/k S`` inside its host, and ``(q-1)/q S`` over its network interface, in messages for whole
    hosts: of S bytes in k q parts, one message of k parts for each other host.
    """

    name = "pxn"
    collectives = ("all-to-all",)

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Send inside hosts, then along rails."""
        import numpy as np

        from topoplan_collective_rounds import Steps

        hosts, each, n = len(group.in_hosts), group.in_each, group.n_members
        steps = Steps(n)
        host, first, second = (part.ravel() for part in np.indices((hosts, each, each)))
        host, first, second = (part[first != second] for part in (host, first, second))
        if each > 1:
            member = host * each + first
            steps.send(member, host * each + second, member * n + second, count=hosts, stride=each)
        if hosts > 1:
            host, rail = (part.ravel() for part in np.indices((hosts, each)))
            to = (host + 1) % hosts * each + rail
            steps.send(
                host * each + rail,
                to,
                host * each * n + to,
                count=each,
                stride=n,
                repeats=hosts - 1,
                turn=each,
                shift=each,
                period=n,
                latencies=1,
            )
        return steps.rounds(overlaps=True)


@hookimpl
def topoplan_collectives() -> list[type[CollectiveAlgorithm]]:
    """Register the algorithms."""
    return [Hierarchical, Pxn]
