"""The one path that each message of a coupled flow takes, drawn by the weights of its row, always the same.

Rows of paths are kept by the network (`topoplan_engine.network.tables`), as a search asks for the same ones again.  Of
very many messages they would be gigabytes: on a torus of 4,096 hosts a row has 8 paths of 32 links.  So where messages
are no stripes and links inside of hosts are not modelled, the path that is drawn is found alone, each time, and nothing
is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64, U64, i32, i64
from topoplan_engine.csr import select
from topoplan_engine.host_models import shares_links
from topoplan_engine.network.routing import Router
from topoplan_engine.network.tables import Network
from topoplan_engine.network.walks import sum_paths
from topoplan_engine.simulation.striped import stripes_of

__all__ = ["GOLDEN", "MessagePaths", "drawn_paths", "paths_of_messages"]

#: The step of SplitMix64, and its two rounds (`topoplan_engine.kernels.hashing`): a draw needs no state.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
    (np.uint64(31), np.uint64(1)),
)


class MessagePaths(NamedTuple):
    """The paths of messages, or of their stripes.

    Attributes:
        message: (n,) of each path, ascending.
        share: (n,) how much of its message takes it.
        lengths, links: (n,) numbers of links, and these, path by path.
        delay: (n,) latency, seconds.
    """

    message: I64
    share: F64
    lengths: I64
    links: I32
    delay: F64


def paths_of_messages(network: Network, src: I32, dst: I32, stream: U64) -> MessagePaths:
    """Return the paths that messages between devices draw.

    Args:
        network: on which they are; it gets rows of paths where stripes or links inside of hosts are on the way.
        src, dst: (k,) devices.
        stream: (k,) a number of each message, from which it draws.

    Raises:
        TopoplanError: there is no path between two of them.
        Stopped: the search must end.
    """
    fabric, host = network.fabric, network.cluster.device_host
    if fabric.routes is None and not shares_links(network.cluster.host) and network.interfaces.most == 1:
        return _found_alone(network, src, dst, host[src] != host[dst], stream)
    rows = network.rows_between(src, dst).astype(np.int64)
    message, rows, share = stripes_of(rows, network)
    path = drawn_paths(network, rows, stream[message])
    _, entry = select(network.paths.path_ptr, path)
    lengths = np.diff(network.paths.path_ptr)[path]
    return MessagePaths(message, share, lengths, i32(network.paths.links[entry]), network.paths.delay[path])


def _found_alone(network: Network, src: I32, dst: I32, away: NDArray[np.bool_], stream: U64) -> MessagePaths:
    """Find the path that each message takes, of those that its row would have."""
    host, paths = network.cluster.device_host, network.paths
    sources, targets = i64(host[src[away]]), i64(host[dst[away]])
    lengths, links = Router(network.fabric).drawn(sources, targets, _places(stream[away]))
    if (lost := np.flatnonzero(lengths == 0)).size:
        ends = np.flatnonzero(away)[lost[:1]]
        network.rows_between(src[ends], dst[ends])  # says what is wrong
    if not away.all():
        inside = network.rows_between(src[~away], dst[~away])  # two links, of the devices; none from one to itself
        _, entry = select(paths.path_ptr, paths.row_ptr[inside])
        each = np.empty(len(src), np.int64)
        each[away], each[~away] = lengths, np.diff(paths.path_ptr)[paths.row_ptr[inside]]
        is_away = np.repeat(away, each)
        joined = np.empty(len(is_away), np.int32)
        joined[is_away], joined[~is_away] = links, paths.links[entry]
        lengths, links = each, joined
    sums = np.empty((3, len(src)))
    sum_paths(i64(lengths), i32(links), paths.latency, paths.bandwidth, *sums)
    return MessagePaths(np.arange(len(src)), np.ones(len(src)), lengths, links, sums[0])


def drawn_paths(network: Network, rows: I64, stream: U64) -> I64:
    """(n,) the path that each message takes of its row, drawn by the weights from a number of each."""
    paths = network.paths
    first, last = paths.row_ptr[rows], paths.row_ptr[rows + 1]
    if not (last - first > 1).any():
        return first
    # Weights ascend within a row and end at 1, so that rows one after the other are one ascending column.
    owner, path = select(paths.row_ptr, rows)
    ends = owner + paths.cumulative_weight[path]
    chosen = np.searchsorted(ends, np.arange(len(rows)) + _places(stream), side="right")
    return i64(np.minimum(path[np.minimum(chosen, len(path) - 1)], last - 1))


def _places(stream: U64) -> F64:
    """(n,) numbers in [0, 1), drawn from those of messages."""
    bits = (stream + np.uint64(1)) * GOLDEN
    for shift, factor in _ROUNDS:
        bits = (bits ^ (bits >> shift)) * factor
    return (bits >> np.uint64(11)).astype(np.float64) / 2.0**53
