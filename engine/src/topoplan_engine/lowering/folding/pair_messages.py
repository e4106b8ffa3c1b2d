"""Which messages of all-to-alls are listed: one for all between the same two hosts, one for each pair inside of one.

All messages of an all-to-all begin at one time.  Those that are equally long and go from devices of one host to devices
of another take the same path, so that they share links and end together, whatever else is sent: they are one message
with as many loads.  Of all-to-alls whose members send different numbers of bytes, those are one whose ends are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import I32, I64
from topoplan_engine.csr import expand, indptr
from topoplan_engine.interrupt import check_size

__all__ = ["PairMessages", "pair_messages"]


class PairMessages(NamedTuple):
    """Messages of the all-to-alls of groups; n of them.  Members are numbered through all groups, row by row.

    Attributes:
        sender, receiver: (n,) a member at each end.
        n_messages: (n,) messages from member to member that each is.
        senders, receivers: (message, member) for each member at that end.
    """

    sender: I64
    receiver: I64
    n_messages: I64
    senders: tuple[I64, I64]
    receivers: tuple[I64, I64]


def pair_messages(endpoint: I64 | I32, kind: I64 | None = None) -> PairMessages:
    """Return the messages of groups.

    Args:
        endpoint: (G, size) of each member.
        kind: (G, size) of each member; members of one kind send and get as much.  None: all do.

    Raises:
        TooLargeError: there is no time for so many.

    Example:
        >>> messages = pair_messages(np.array([[0, 0, 1, 1]]))
        >>> list(zip(messages.sender.tolist(), messages.receiver.tolist(), messages.n_messages.tolist()))
        [(0, 2, 4), (2, 0, 4), (0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1)]
    """
    groups, size = endpoint.shape
    group = np.repeat(np.arange(groups), size)
    of_host = group * (int(endpoint.max(initial=0)) + 1) + endpoint.ravel()
    key = of_host if kind is None else of_host * (int(kind.max(initial=0)) + 1) + kind.ravel()
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))  # of each kind on a host of a group, in this order
    counts = np.diff(first, append=len(order))
    of_group, host = group[order[first]], of_host[order[first]]
    parts = np.bincount(of_group, minlength=groups)
    check_size(int((parts.astype(np.int64) ** 2).sum()))
    # Between two hosts of a group.
    first_part = indptr(parts)[:-1]
    a, b = expand(first_part[of_group], parts[of_group])
    a, b = a[host[a] != host[b]], b[host[a] != host[b]]
    senders, receivers = expand(first[a], counts[a]), expand(first[b], counts[b])
    # Inside a host.
    host_start = np.flatnonzero(np.diff(of_host[order], prepend=-1))
    number = np.diff(host_start, append=len(order))
    place = np.repeat(np.arange(len(host_start)), number)
    source, target = expand(host_start[place], number[place])
    source, target = source[source != target], target[source != target]
    inside = len(a) + np.arange(len(source))
    return PairMessages(
        sender=np.append(order[first[a]], order[source]),
        receiver=np.append(order[first[b]], order[target]),
        n_messages=np.append(counts[a] * counts[b], np.ones(len(source), np.int64)),
        senders=(np.append(senders[0], inside), order[np.append(senders[1], source)]),
        receivers=(np.append(receivers[0], inside), order[np.append(receivers[1], target)]),
    )
