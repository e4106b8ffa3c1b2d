"""The planner's model of the cluster, and the ways to assign its devices to stages.

Communication is priced as in the simulator on one switch.  The time of a transfer is that of the
busiest host (data of other hosts) or device (data of its own host).  An all-reduce is a ring in the order of the
devices, which enters and leaves every host once.

Stages are placed from the last one to the first, by the three policies of DAPPLE (Fan et al., PPoPP 2021, section 4):
*fresh* hosts that no stage uses, *append* to partly used hosts, *scatter* over all hosts with room.  An *occupancy* is
the number of used devices of each host.  Equal hosts are sorted by this number, so that occupancies that differ only in
the names of hosts are equal.

On machines of more than `MOST_SINGLE` devices all stages have a multiple of some number of devices (`coarse_sizes`),
and append alone places them: what the dynamic program looks at would grow with the square of the devices, and its
numbers of devices on every host with the cube.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import Cluster
from topoplan.arrays import F64, I32, I64, f64, i32
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.kernels.jit import kernel

__all__ = [
    "MOST_SINGLE",
    "Counts",
    "Devices",
    "Machine",
    "MovePairs",
    "Moves",
    "allreduce_seconds",
    "coarse_sizes",
    "moves_of",
    "paired_moves",
    "transfer_loads",
]

#: Numbers of devices on each host.
Counts = tuple[int, ...]
#: Device numbers, ascending.
Devices = tuple[int, ...]

_Policy = Callable[[Counts, Counts, int], Counts | None]

#: Links between two hosts on a switch.
_LINKS = 2
#: Devices of a machine of which every single one may be a stage's; and parts that larger machines are divided into.
MOST_SINGLE, _PARTS = 512, 256
#: If there are more occupancies, policies are dropped, the last one first.
_MOST_OCCUPANCIES = 600


@attrs.frozen(kw_only=True, eq=False)
class Machine:
    """Hosts and devices.

    Attributes:
        host: (D,) host of each device, ascending.
        outside: (H,) bytes/s of all interfaces of a host.
        inside: (H,) bytes/s of a device to others of its host.
        memory: bytes of the smallest device.
        latency: seconds that a message between hosts takes beside its bytes.
    """

    host: I32 = attrs.field(converter=i32)
    outside: F64 = attrs.field(converter=f64)
    inside: F64 = attrs.field(converter=f64)
    memory: float
    latency: float = 0.0

    @classmethod
    def of(cls, cluster: Cluster) -> Machine:
        """Return a cluster's machine."""
        outside = cluster.interfaces * cluster.interface_bandwidth
        return cls(
            host=cluster.device_host,
            outside=outside,
            inside=cluster.inside_bandwidth,
            memory=float(cluster.usable_memory.min()),
            latency=_LINKS * cluster.latency,
        )

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.host)

    @property
    def kinds(self) -> list[tuple[float, float, int]]:
        """The kind of each host: bandwidths outside and inside, and the number of devices."""
        room = np.bincount(self.host)
        return list(zip(self.outside.tolist(), self.inside.tolist(), room.tolist(), strict=True))

    def counts(self, devices: Devices) -> I32:
        """Return the number of the given devices on every host."""
        return np.bincount(self.host[list(devices)], minlength=len(self.outside)).astype(np.int32)

    def allreduce(self, counts: I32) -> F64:
        """Return the (n,) seconds to all-reduce one byte, for (n, H) numbers of devices on each host."""
        seconds = np.empty(len(counts))
        allreduce_seconds(np.ascontiguousarray(counts, dtype=np.int32), self.outside, self.inside, seconds)
        return seconds


@kernel  # type: ignore[untyped-decorator]
def allreduce_seconds(counts: I32, outside: F64, inside: F64, seconds: F64) -> None:
    """Write what `Machine.allreduce` returns: a ring is as slow as the slowest link that it needs."""
    for stage in range(len(counts)):
        size, hosts, slowest_outside, slowest_inside = 0, 0, np.inf, np.inf
        for h in range(counts.shape[1]):
            if counts[stage, h] > 0:
                size += counts[stage, h]
                hosts += 1
                slowest_outside = min(slowest_outside, outside[h])
                slowest_inside = min(slowest_inside, inside[h])
        seconds[stage] = 2 * (size - 1) / size / (slowest_outside if hosts > 1 else slowest_inside)


@kernel  # type: ignore[untyped-decorator]
def transfer_loads(source: I32, target: I32, outside: F64, inside: F64, loads: F64) -> float:
    """Price the transfer of one byte between two stages, evenly over their devices; return the seconds inside hosts.

    Samples are assigned to the hosts of both stages in the same order, so part of the data need not leave its host.

    Args:
        source, target: (H,) devices of each stage on each host.
        outside, inside: (H,) see `Machine`.
        loads: (2, H) output: the seconds that every host sends and receives.
    """
    senders, receivers = 0, 0
    for h in range(len(source)):
        senders += source[h]
        receivers += target[h]
    seconds, sent_share, received_share = 0.0, 0.0, 0.0
    for h in range(len(source)):
        outgoing, incoming = source[h] / senders, target[h] / receivers
        local = max(0.0, min(sent_share + outgoing, received_share + incoming) - max(sent_share, received_share))
        if local > 0.0:
            seconds = max(seconds, max(1.0 / senders, 1.0 / receivers) / inside[h])
        loads[0, h] = (outgoing - local) / outside[h]
        loads[1, h] = (incoming - local) / outside[h]
        sent_share += outgoing
        received_share += incoming
    return seconds


class Moves(NamedTuple):
    """The ways to place one more stage before the placed ones: E moves between O occupancies of H hosts.

    Each occupancy has its own numbering of hosts: kind by kind, the most used hosts of each kind first.

    Attributes:
        ptr: (O+1,) the moves from each occupancy; occupancy 0 is empty.
        size: (E,) devices of the stage.
        target: (E,) the next occupancy.
        before, after: (E, H) devices of the stage on each host, in the numbering before and after the move.
        renumbered: (E, H) for each host after the move, its number before the move.
        allreduce: (E,) seconds that the stage needs to sum one byte.
        used: (O,) number of used devices.
        outside, inside: (H,) of each host, the same in every numbering; see `Machine`.
        first: (H,) hosts of the machine, in the numbering of occupancy 0.
    """

    ptr: I32
    size: I32
    target: I32
    before: I32
    after: I32
    renumbered: I32
    allreduce: F64
    used: I32
    outside: F64
    inside: F64
    first: I32


class MovePairs(NamedTuple):
    """Prices of a transfer of one byte from the stage of a move to that of the move before it.

    Only moves that can follow each other are pairs.  They are priced when they are first needed.

    Attributes:
        ptr: (E,) for each move, where its pairs begin: with each move from its target, in their order.
        seconds: (P,) of the transfer; nan until it is priced.
        network: (P,) seconds that the interfaces of a host are busy, the mean over hosts.
    """

    ptr: I64
    seconds: F64
    network: F64

    @classmethod
    def of(cls, moves: Moves) -> MovePairs:
        """Return the pairs of moves, without prices."""
        lengths = np.diff(moves.ptr)[moves.target].astype(np.int64)
        pairs = int(lengths.sum())
        return cls(np.cumsum(lengths) - lengths, np.full(pairs, np.nan), np.zeros(pairs))


def coarse_sizes(n_devices: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of ``sizes`` that are worth a look on a machine of so many devices.

    >>> coarse_sizes(64, (1, 2, 4, 8)), coarse_sizes(2048, (1, 2, 4, 8, 16))
    ((1, 2, 4, 8), (8, 16))
    """
    if n_devices <= MOST_SINGLE:
        return sizes
    unit = 1 << (n_devices // _PARTS - 1).bit_length()
    return tuple(size for size in sizes if size % unit == 0) or sizes[-1:]


def paired_moves(machine: Machine, sizes: tuple[int, ...]) -> tuple[Moves, MovePairs]:
    """Return all moves with stages of ``sizes`` devices, and their pairs; those of the last machines are kept."""
    sizes = coarse_sizes(machine.n_devices, sizes)
    columns = (machine.host, machine.outside, machine.inside)
    return _paired_moves(*(tuple(column.tolist()) for column in columns), sizes)


@functools.lru_cache(maxsize=8)
def _paired_moves(
    host: tuple[int, ...], outside: tuple[float, ...], inside: tuple[float, ...], sizes: tuple[int, ...]
) -> tuple[Moves, MovePairs]:
    moves = moves_of(Machine(host=host, outside=outside, inside=inside, memory=0.0), sizes)
    return moves, MovePairs.of(moves)


def moves_of(machine: Machine, sizes: tuple[int, ...]) -> Moves:
    """Return all moves with stages of ``sizes`` devices; with fewer policies if there are too many moves."""
    few = machine.n_devices <= MOST_SINGLE
    for policies in ((_append, _fresh, _scatter), (_append, _fresh), (_append,))[0 if few else 2 :]:
        moves = _explore(machine, sizes, policies, len(policies) > 1)
        if moves is not None:
            return moves
    raise AssertionError("appending alone has an occupancy for each number of devices")


def _explore(machine: Machine, sizes: tuple[int, ...], policies: tuple[_Policy, ...], bounded: bool) -> Moves | None:
    """Enumerate all occupancies; None if there are too many."""
    room = np.bincount(machine.host)
    # The last host first, so that the first stages get the first hosts.
    kind = {h: (-machine.outside[h], -machine.inside[h], -int(room[h])) for h in range(len(room))}
    first = sorted(range(len(room)), key=lambda h: (kind[h], -h))
    kinds = [kind[h] for h in first]
    sized = tuple(int(room[h]) for h in first)
    number: dict[Counts, int] = {(0,) * len(first): 0}
    rows: list[tuple[int, int, Counts, Counts, tuple[int, ...]]] = []
    ptr = [0]
    occupancies = list(number)
    for occupied in occupancies:
        stop_if_wanted()
        for size in sizes:
            for counts in dict.fromkeys(_placements(sized, occupied, size, policies)):
                sums = [a + b for a, b in zip(occupied, counts, strict=True)]
                order = sorted(range(len(sums)), key=lambda h: (kinds[h], -sums[h]))
                successor = tuple([sums[h] for h in order])
                if successor not in number:
                    if bounded and len(number) >= _MOST_OCCUPANCIES:
                        return None
                    number[successor] = len(number)
                    occupancies.append(successor)
                rows.append((size, number[successor], counts, tuple(counts[h] for h in order), tuple(order)))
        ptr.append(len(rows))
    size_column, target, before, after, renumbered = zip(*rows, strict=True)
    return Moves(
        ptr=i32(ptr),
        size=i32(size_column),
        target=i32(target),
        before=i32(before),
        after=i32(after),
        renumbered=i32(renumbered),
        allreduce=f64(machine.allreduce(np.array(before)[:, np.argsort(first)])),
        used=i32([sum(occupied) for occupied in occupancies]),
        outside=f64(machine.outside[first]),
        inside=f64(machine.inside[first]),
        first=i32(first),
    )


def _placements(sized: Counts, occupied: Counts, size: int, policies: tuple[_Policy, ...]) -> Iterator[Counts]:
    if sum(sized) - sum(occupied) >= size:
        for policy in policies:
            counts = policy(sized, occupied, size)
            if counts is not None:
                yield counts


def _append(sized: Counts, occupied: Counts, size: int) -> Counts | None:
    """Take devices of partly used hosts first, then of fresh hosts."""
    used_hosts = [h for h in range(len(sized)) if occupied[h]]
    return _take_in_order(sized, occupied, size, [*used_hosts, *(h for h in range(len(sized)) if not occupied[h])])


def _fresh(sized: Counts, occupied: Counts, size: int) -> Counts | None:
    return _take_in_order(sized, occupied, size, [h for h in range(len(sized)) if not occupied[h]])


def _take_in_order(sized: Counts, occupied: Counts, size: int, hosts: list[int]) -> Counts | None:
    counts = [0] * len(sized)
    for h in hosts:
        counts[h] = min(size, sized[h] - occupied[h])
        size -= counts[h]
    return None if size else tuple(counts)


def _scatter(sized: Counts, occupied: Counts, size: int) -> Counts | None:
    """Take one device of each host with room, round-robin."""
    counts = [0] * len(sized)
    while size:
        for h in range(len(sized)):
            if size and occupied[h] + counts[h] < sized[h]:
                counts[h] += 1
                size -= 1
    return tuple(counts)
