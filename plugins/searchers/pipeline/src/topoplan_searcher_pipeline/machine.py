"""The machine as the planner sees it, and the ways to give its devices to stages.

Communication is priced as the simulator does it on one switch, without latencies: a transfer takes as long as the
busiest host needs to send or receive what other hosts have, or a device what its own host has; an all-reduce is a
ring in the order of the devices, which enters and leaves every host once.

Stages are placed from the last one to the first, by the three policies of DAPPLE (Fan et al., PPoPP 2021, section
4): *fresh* hosts that no stage uses, *append* to hosts that are used in part, *scatter* over all that have room.
What is taken is told host by host (an *occupancy*), with equal hosts sorted by how much of them is taken, so that
occupancies which differ in the names of hosts alone are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import numpy as np

from topoplan import Cluster
from topoplan.arrays import F64, I32, f64, i32
from topoplan_engine.kernels.jit import kernel

__all__ = ["Counts", "Devices", "Machine", "Moves", "moves_of", "transfer_loads"]

#: Numbers of devices on each host.
Counts = tuple[int, ...]
#: Device numbers, ascending.
Devices = tuple[int, ...]

_Policy = Callable[[Counts, Counts, int], Counts | None]

#: More occupancies than this, and policies are left out, the last one first.
_MOST_OCCUPANCIES = 600


@attrs.frozen(kw_only=True, eq=False)
class Machine:
    """Hosts and devices.

    Attributes:
        host: (D,) host of each device, ascending.
        outside: (H,) bytes/s of all interfaces of a host.
        inside: (H,) bytes/s of a device to others of its host.
        memory: bytes of the smallest device.
    """

    host: I32 = attrs.field(converter=i32)
    outside: F64 = attrs.field(converter=f64)
    inside: F64 = attrs.field(converter=f64)
    memory: float

    @classmethod
    def of(cls, cluster: Cluster) -> Machine:
        """Return a cluster's machine."""
        return cls(
            host=cluster.device_host,
            outside=cluster.interfaces * cluster.interface_bandwidth,
            inside=cluster.inside_bandwidth,
            memory=float(cluster.device_memory.min()),
        )

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.host)

    @property
    def kinds(self) -> list[tuple[float, float, int]]:
        """What tells hosts apart: bandwidths outside and inside, and the number of devices."""
        room = np.bincount(self.host)
        return list(zip(self.outside.tolist(), self.inside.tolist(), room.tolist(), strict=True))

    def counts(self, devices: Devices) -> I32:
        """Return how many of some devices every host has."""
        return np.bincount(self.host[list(devices)], minlength=len(self.outside)).astype(np.int32)

    def allreduce(self, counts: I32) -> F64:
        """Return the (n,) seconds that summing one byte takes, given the (n, H) devices on each host."""
        used, size = counts > 0, counts.sum(axis=1)
        outside = np.where(used, self.outside, np.inf).min(axis=1)
        inside = np.where(used, self.inside, np.inf).min(axis=1)
        return np.asarray(2 * (size - 1) / size / np.where(used.sum(axis=1) > 1, outside, inside))


@kernel  # type: ignore[untyped-decorator]
def transfer_loads(source: I32, target: I32, outside: F64, inside: F64, loads: F64) -> float:
    """Price moving one byte, spread evenly over the devices of two stages; return the seconds inside hosts.

    The samples of both stages go to hosts in the same order, so that part of them is already where it should be.

    Args:
        source, target: (H,) devices of each stage on each host.
        outside, inside: (H,) see `Machine`.
        loads: (2, H) set to the seconds that every host sends and receives.
    """
    senders, receivers = 0, 0
    for h in range(len(source)):
        senders += source[h]
        receivers += target[h]
    seconds, sent, received = 0.0, 0.0, 0.0
    for h in range(len(source)):
        outgoing, incoming = source[h] / senders, target[h] / receivers
        local = max(0.0, min(sent + outgoing, received + incoming) - max(sent, received))
        if local > 0.0:
            seconds = max(seconds, max(1.0 / senders, 1.0 / receivers) / inside[h])
        loads[0, h] = (outgoing - local) / outside[h]
        loads[1, h] = (incoming - local) / outside[h]
        sent += outgoing
        received += incoming
    return seconds


@attrs.frozen(kw_only=True, eq=False)
class Moves:
    """The ways to place one more stage before those that are placed; E moves between O occupancies of H hosts.

    Hosts are numbered by an occupancy of their own: kind by kind, the most used ones of each kind first.

    Attributes:
        ptr: (O+1,) the moves from each occupancy; occupancy 0 is empty.
        size: (E,) devices of the stage.
        target: (E,) occupancy that follows.
        before, after: (E, H) devices of the stage on each host, as hosts are numbered before and after the move.
        renumbered: (E, H) the number before the move of each host after it.
        allreduce: (E,) seconds that the stage needs to sum one byte.
        used: (O,) devices that are taken.
        outside, inside: (H,) of each host, as numbered in every occupancy; see `Machine`.
        first: (H,) hosts of the machine, as numbered in occupancy 0.
    """

    ptr: I32 = attrs.field(converter=i32)
    size: I32 = attrs.field(converter=i32)
    target: I32 = attrs.field(converter=i32)
    before: I32 = attrs.field(converter=i32)
    after: I32 = attrs.field(converter=i32)
    renumbered: I32 = attrs.field(converter=i32)
    allreduce: F64 = attrs.field(converter=f64)
    used: I32 = attrs.field(converter=i32)
    outside: F64 = attrs.field(converter=f64)
    inside: F64 = attrs.field(converter=f64)
    first: I32 = attrs.field(converter=i32)


def moves_of(machine: Machine, sizes: tuple[int, ...]) -> Moves:
    """Return all moves with stages of ``sizes`` devices, by all policies or, if that is too many, by fewer."""
    for policies in ((_append, _fresh, _scatter), (_append, _fresh), (_append,)):
        moves = _explore(machine, sizes, policies, len(policies) > 1)
        if moves is not None:
            return moves
    raise AssertionError("appending alone has an occupancy for each number of devices")


def _explore(machine: Machine, sizes: tuple[int, ...], policies: tuple[_Policy, ...], limited: bool) -> Moves | None:
    """Go through all occupancies; None where they are too many."""
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
        for size in sizes:
            for counts in dict.fromkeys(_placed(sized, occupied, size, policies)):
                sums = [a + b for a, b in zip(occupied, counts, strict=True)]
                order = sorted(range(len(sums)), key=lambda h: (kinds[h], -sums[h]))
                following = tuple([sums[h] for h in order])
                if following not in number:
                    if limited and len(number) >= _MOST_OCCUPANCIES:
                        return None
                    number[following] = len(number)
                    occupancies.append(following)
                rows.append((size, number[following], counts, tuple(counts[h] for h in order), tuple(order)))
        ptr.append(len(rows))
    size_column, target, before, after, renumbered = zip(*rows, strict=True)
    return Moves(
        ptr=ptr,
        size=size_column,
        target=target,
        before=before,
        after=after,
        renumbered=renumbered,
        allreduce=machine.allreduce(np.array(before)[:, np.argsort(first)]),
        used=[sum(occupied) for occupied in occupancies],
        outside=machine.outside[first],
        inside=machine.inside[first],
        first=first,
    )


def _placed(sized: Counts, occupied: Counts, size: int, policies: tuple[_Policy, ...]) -> Iterator[Counts]:
    if sum(sized) - sum(occupied) >= size:
        for policy in policies:
            counts = policy(sized, occupied, size)
            if counts is not None:
                yield counts


def _append(sized: Counts, occupied: Counts, size: int) -> Counts | None:
    """Use up hosts that are used in part, then go on to fresh ones."""
    used = [h for h in range(len(sized)) if occupied[h]]
    return _taken_in_order(sized, occupied, size, [*used, *(h for h in range(len(sized)) if not occupied[h])])


def _fresh(sized: Counts, occupied: Counts, size: int) -> Counts | None:
    return _taken_in_order(sized, occupied, size, [h for h in range(len(sized)) if not occupied[h]])


def _taken_in_order(sized: Counts, occupied: Counts, size: int, hosts: list[int]) -> Counts | None:
    counts = [0] * len(sized)
    for h in hosts:
        counts[h] = min(size, sized[h] - occupied[h])
        size -= counts[h]
    return None if size else tuple(counts)


def _scatter(sized: Counts, occupied: Counts, size: int) -> Counts | None:
    """Take one device of each host with room, in turn."""
    counts = [0] * len(sized)
    while size:
        for h in range(len(sized)):
            if size and occupied[h] + counts[h] < sized[h]:
                counts[h] += 1
                size -= 1
    return tuple(counts)
