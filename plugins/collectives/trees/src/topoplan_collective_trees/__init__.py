"""Collectives in few rounds: double binary trees, recursive halving and doubling, and parameter servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from topoplan import CollectiveAlgorithm, CollectiveGroup, CollectiveRounds, TopoplanError, hookimpl, option

if TYPE_CHECKING:
    from topoplan.arrays import I64
    from topoplan.model.taskgraph import Collective

__all__ = ["HalvingDoubling", "ParameterServer", "Tree", "parents", "topoplan_collectives"]


def parents(hosts: int) -> I64:
    """(hosts,) parent of each in NCCL's binary tree (``ncclGetBtree``); -1 for the root, host 0.

    Example:
        >>> parents(8).tolist()
        [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    import numpy as np

    rank = np.arange(hosts)
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    up = np.where(up >= hosts, rank ^ bit, up)
    up[0] = -1
    return up


class Tree(CollectiveAlgorithm):
    """Two binary trees of hosts, each with half of the data, which goes up and down in small pieces (NCCL).

    A host that is in the middle of one tree is a leaf of the other (Sanders, Speck, Traeff, Parallel Computing 35,
    2009).  Inside a host the members are a chain.  There are two trees for each member of a host, each of which enters
    hosts at another one.
    """

    name = "tree"
    collectives = ("all-reduce", "broadcast")
    tuned_as = "tree"

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Send sums up chains and trees, and what the root has down again."""
        import numpy as np

        from topoplan_collective_rounds import Steps

        hosts, each = len(group.in_hosts), group.in_each
        up = parents(hosts)
        depth, above = np.zeros(hosts, dtype=np.int64), up
        while (above >= 0).any():
            depth += above >= 0
            above = np.where(above >= 0, up[above], -1)
        broadcast = collective.label == "broadcast"
        channels = np.arange(1 if broadcast else each)
        trees = 1 if broadcast or hosts < 3 else 2
        names = _mirrored(hosts)[:trees]  # (trees, hosts) host at each place of a tree
        chunk = (channels[:, None] * trees + np.arange(trees)).reshape(-1)  # channel by channel
        steps = Steps(len(chunk))
        channel = np.repeat(channels, trees)[:, None]
        tree = np.tile(np.arange(trees), len(channels))[:, None]
        levels = [np.flatnonzero(depth == level) for level in range(1, depth.max() + 1)]
        links = [(names[tree, up[places]], names[tree, places]) for places in levels]  # (parents, children)
        entry = channel % each
        all_hosts = np.arange(hosts)
        chain = [
            (all_hosts * each + (entry + t) % each, all_hosts * each + (entry + t + 1) % each) for t in range(each - 1)
        ]  # (towards the entry, away from it)
        down = [(a * each + entry, b * each + entry) for a, b in links] + chain
        if not broadcast:
            for upper, lower in reversed(down):
                steps.send(lower, upper, chunk[:, None], add=1)
        for upper, lower in down:
            steps.send(upper, lower, chunk[:, None])
        return steps.rounds(overlaps=True)


def _mirrored(hosts: int) -> I64:
    """(2, hosts) the hosts at the places of both trees: mirrored if their number is even, else moved on by one."""
    import numpy as np

    places = np.arange(hosts)
    return np.stack([places, (hosts - 1 - places) if hosts % 2 == 0 else (places + 1) % hosts])


class HalvingDoubling(CollectiveAlgorithm):
    """Messages of half, a quarter, ... of the tensor, and back (Thakur, Rabenseifner, Gropp, IJHPCA 19, 2005).

    ``2 log2 n`` rounds pass ``2 (n-1)/n`` of the tensor through each member; the largest messages go to neighbours.

    Example:
        >>> from topoplan.model.taskgraph import Collective
        >>> rounds = HalvingDoubling().rounds(Collective.REDUCE_SCATTER, CollectiveGroup((1,) * 4))
        >>> rounds.count.reshape(2, 4)[:, 0].tolist()
        [2, 1]
    """

    name = "halving-doubling"
    collectives = ("all-reduce", "all-gather", "reduce-scatter")

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Scatter sums with members 1, 2, 4, ... away, and gather them the other way round."""
        import numpy as np

        from topoplan_collective_rounds import Steps

        n = group.n_members
        if n & (n - 1):
            low = 1 << (n.bit_length() - 1)
            raise TopoplanError(
                f"collective halving-doubling: {n} members (must be a power of two: {low} or {2 * low})"
            )
        member, steps = np.arange(n), Steps(n)
        distances = [1 << i for i in range(n.bit_length() - 1)]
        if collective.label != "all-gather":
            for distance in distances:
                peer = member ^ distance
                steps.send(member, peer, peer % (2 * distance), count=n // (2 * distance), stride=2 * distance, add=1)
        if collective.label != "reduce-scatter":
            for distance in reversed(distances):
                steps.send(
                    member,
                    member ^ distance,
                    member % (2 * distance),
                    count=n // (2 * distance),
                    stride=2 * distance,
                )
        return steps.rounds()


@attrs.frozen(kw_only=True)
class ParameterServer(CollectiveAlgorithm):
    """Some members sum for all: each has a share of the tensor (Li et al., OSDI 2014)."""

    name = "parameter-server"
    collectives = ("all-reduce", "broadcast")

    servers: int = option(1, help="members that sum, the first ones", minimum=1)

    def rounds(self, collective: Collective, group: CollectiveGroup) -> CollectiveRounds:
        """Send all to the servers, and sums back."""
        import numpy as np

        from topoplan_collective_rounds import Steps

        n = group.n_members
        servers = 1 if collective.label == "broadcast" else min(self.servers, n)
        server, member = (part.ravel() for part in np.meshgrid(np.arange(servers), np.arange(n), indexing="ij"))
        server, member = server[server != member], member[server != member]
        steps = Steps(servers)
        if collective.label == "all-reduce":
            steps.send(member, server, server, add=1)
        steps.send(server, member, server)
        return steps.rounds()


@hookimpl
def topoplan_collectives() -> list[type[CollectiveAlgorithm]]:
    """Register the algorithms."""
    return [Tree, HalvingDoubling, ParameterServer]
