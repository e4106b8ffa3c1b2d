"""Channels, from one device to another: places in a table for those by which small messages go, in turn.

There are as many channels as pairs of devices, and few of them are used where there are many devices: tables of all
pairs would take 2 GB for 16,384 devices.  So a channel has a place in a hash table (`channel_place`), unless about as
many messages wait as there are pairs: then its place is the number of the pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import I32, U64
from topoplan_engine.kernels.hashing import slot_of
from topoplan_engine.kernels.jit import kernel, part

__all__ = ["ChannelTable", "channel_place", "channel_table"]

#: Pairs of devices that have a place each, whatever is sent.
_FEW = 1 << 12
#: Likewise where messages are at least one for so many pairs.
_DENSE = 4


class ChannelTable(NamedTuple):
    """Places of channels.

    Attributes:
        keys, used: (places,) the pair of devices at each place, and whether there is one: -1 for none; both are empty
            where every pair has a place.
        places: how many there are.
        n_devices: of the cluster.
    """

    keys: U64
    used: I32
    places: int
    n_devices: int


@part()
def channel_table(n_devices: int, messages: int) -> ChannelTable:
    """Return an empty table for the channels of so many messages, which go there and back."""
    pairs = n_devices * n_devices
    if pairs <= max(_FEW, _DENSE * messages):
        return ChannelTable(np.empty(0, np.uint64), np.empty(0, np.int32), pairs, n_devices)
    places = 1
    while places < 4 * messages:
        places *= 2
    return ChannelTable(np.empty(places, np.uint64), np.full(places, -1, np.int32), places, n_devices)


@kernel
def channel_place(table: ChannelTable, a: int, b: int) -> int:
    """Return the place of the channel from device ``a`` to device ``b``; it gets one if it has none."""
    pair = np.int64(a) * table.n_devices + b
    if len(table.used) == 0:
        return int(pair)
    key = np.uint64(pair)
    slot = slot_of(table.keys, table.used, key)
    table.keys[slot], table.used[slot] = key, 0
    return int(slot)
