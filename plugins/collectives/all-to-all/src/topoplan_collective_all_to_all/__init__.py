"""All-to-alls in which every member sends to every other one itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import CollectiveAlgorithm, CollectiveGroup, CollectiveRounds, hookimpl

if TYPE_CHECKING:
    from topoplan.model.taskgraph import Collective

__all__ = ["Direct", "Pairwise", "Staggered", "topoplan_collectives"]


class Direct(CollectiveAlgorithm):
    """All messages at once, which share links."""

    name = "direct"
    collectives = ("all-to-all",)

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Send to all others."""
        return _in_turn(group, 1, overlaps=True)


class Staggered(CollectiveAlgorithm):
    """To the next member, then to the one after it, and so on, so that no two send to the same one at a time.

    Members do not wait for messages to arrive: one latency is paid.
    """

    name = "staggered"
    collectives = ("all-to-all",)

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Send to the members 1, 2, 3, ... away."""
        return _in_turn(group, 1, overlaps=False)


class Pairwise(CollectiveAlgorithm):
    """Exchange with one member after the other; each waits for the one before (MPICH's long messages)."""

    name = "pairwise"
    collectives = ("all-to-all",)

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Send to the members 1, 2, 3, ... away, with a latency each."""
        return _in_turn(group, group.n_members - 1, overlaps=False)


def _in_turn(group: CollectiveGroup, latencies: int, *, overlaps: bool) -> CollectiveRounds:
    import numpy as np

    n = group.n_members
    member = np.arange(n)
    after = (member + 1) % n
    return CollectiveRounds(
        chunks=n,
        source=member,
        target=after,
        chunk=member * n + after,
        repeats=n - 1,
        shift=1,
        turn=1,
        latencies=latencies,
        between=latencies if len(group.in_hosts) > 1 else 0,
        overlaps=overlaps,
    )


@hookimpl
def topoplan_collectives() -> list[type[CollectiveAlgorithm]]:
    """Register the algorithms."""
    return [Direct, Staggered, Pairwise]
