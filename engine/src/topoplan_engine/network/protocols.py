"""Latencies and bandwidths of NCCL's protocols: LL, LL128 and Simple, as its tuner has them.

    seconds = base + latencies inside hosts + latencies between them + bytes / bandwidth

A `Tuning` has the constants, `Tuning.latency` the latency of a collective with so many latencies in a row, and
`Tuning.fastest` chooses the protocol.  The constants of `NCCL` are those of its tuner (``ncclTunerConstantsDefaults``
in ``src/graph/tuning.cc`` of NCCL 2.28), without its factors on trees of middle size and its limits for each channel;
``python benchmarks/nccl.py`` fits those of A100 and V100 to measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

import attrs

from topoplan.arrays import FrozenMapping
from topoplan_engine.network.rounds import RoundsPrice

__all__ = ["MACHINES", "NCCL", "PCI", "Chosen", "Protocol", "Tuning", "measured", "queued_tuning_of", "tuning_of"]

_US, _GB = 1e-6, 1e9


class Protocol(IntEnum):
    """How members of a collective pass data on; in the order of the constants."""

    LL = 0
    """8 bytes of data with a flag of 8: the least latency, half of the bandwidth."""
    LL128 = 1
    """120 bytes of data with a flag of 8."""
    SIMPLE = 2
    """Large pieces with a barrier each: all of the bandwidth."""


#: Constants of (LL, LL128, Simple).
_Three = tuple[float, float, float]


def _table(value: Mapping[str, _Three]) -> Mapping[str, _Three]:
    return FrozenMapping(value)


class Chosen(NamedTuple):
    """What a protocol makes of a collective: seconds of its latency, and seconds for each byte."""

    protocol: Protocol
    latency: float
    seconds_per_byte: float


@attrs.frozen(kw_only=True)
class Tuning:
    """Constants of the protocols, in microseconds and GB/s; tables are by algorithm: ``ring``, ``tree``, ...

    Attributes:
        base: of a collective.
        inside, between: of a latency inside a host and between hosts.
        share: of the bandwidth of links that a protocol reaches; 0 where the algorithm does not have it.
        local: GB/s at which each member reads and adds the bytes of its own tensor, beside what links carry.
        most: GB/s of a bus with protocol LL in one host, in two, and in more (``llMaxBws``).
        overhead: least latency inside a host of a ring that has several; three times that with protocol Simple.
        plateau: factor on the latency of large ring all-reduces between hosts, with protocol Simple.
        links_used: of rings in one host, the share of a device's links that they use, by the number of devices; all
            unless given.
    """

    base: Mapping[str, _Three] = attrs.field(converter=_table)
    inside: Mapping[str, _Three] = attrs.field(converter=_table)
    between: Mapping[str, _Three] = attrs.field(converter=_table)
    share: Mapping[str, _Three] = attrs.field(converter=_table)
    local: float = float("inf")
    most: _Three = (float("inf"),) * 3
    overhead: float = 1.0
    plateau: float = 1.4
    links_used: tuple[tuple[int, float], ...] = ()

    def latency(self, algorithm: str, protocol: Protocol, inside: int, between: int) -> float:
        """Return the seconds of a collective of no bytes.

        Args:
            algorithm: ``ring``, ``tree``, ``nvls`` or ``collnet``.
            protocol: how it sends.
            inside, between: latencies in a row inside hosts, and between hosts.

        Example:
            A ring of 8 GPUs in one host, and one of 16 x 8:

            >>> round(NCCL.latency("ring", Protocol.SIMPLE, 14, 0) * 1e6, 1)
            56.0
            >>> round(NCCL.latency("ring", Protocol.LL, 224, 30) * 1e6, 1)
            311.6
        """
        hop = self.inside[algorithm][protocol]
        if between and algorithm == "ring":
            hop = max(hop, self.overhead * (3 if protocol is Protocol.SIMPLE else 1))
        return (self.base[algorithm][protocol] + inside * hop + between * self.between[algorithm][protocol]) * _US

    def fastest(
        self,
        algorithm: str,
        price: RoundsPrice,
        nbytes: float,
        *,
        hosts: int,
        members: int,
        only: Protocol | None = None,
    ) -> Chosen:
        """Return the protocol that moves a tensor first.

        Args:
            algorithm: see `latency`.
            price: of the collective on links: latencies, seconds for each byte.
            nbytes: of the tensor.
            hosts, members: of the group.
            only: the only protocol that may be used, if the algorithm has it.
        """
        share = self.share[algorithm]
        have = [protocol for protocol in Protocol if share[protocol] > 0]
        protocols = [only] if only in have else have
        return min(
            (self._with(algorithm, protocol, price, hosts, members, nbytes) for protocol in protocols),
            key=lambda chosen: chosen.latency + chosen.seconds_per_byte * nbytes,
        )

    def least_wait(self, algorithms: Iterable[str], steps: int, nbytes: float, rate: float) -> float:
        """Return the seconds that a collective inside a host takes beside ``nbytes / rate``.

        It is that of the fastest algorithm and protocol; none is taken to send fewer bytes than a ring.

        Args:
            algorithms: that may run it: ``ring``, and ``nvls`` where switches sum and copy.
            steps: of a ring, in a row.
            nbytes: that each member sends in a ring.
            rate: bytes/s of a member's links.

        Example:
            A ring of 8 GPUs with protocol LL, and with protocol Simple:

            >>> round(NCCL.least_wait(["ring"], 14, 0.0, 300e9) * 1e6, 1)
            15.0
            >>> round(NCCL.least_wait(["ring"], 14, 1e12, 300e9) * 1e6, 1)
            56.0
        """
        waits = []
        for algorithm in algorithms:
            for protocol, share in zip(Protocol, self.share[algorithm], strict=True):
                if share > 0:
                    most = self.most[0] * _GB if protocol is Protocol.LL else float("inf")
                    latency = self.latency(algorithm, protocol, steps if algorithm == "ring" else 1, 0)
                    waits.append(latency + nbytes / min(share * rate, most) - nbytes / rate)
        return max(min(waits), 0.0)

    def _with(
        self, algorithm: str, protocol: Protocol, price: RoundsPrice, hosts: int, members: int, nbytes: float
    ) -> Chosen:
        latency = self.latency(algorithm, protocol, price.inside, price.between)
        if algorithm == "ring" and protocol is Protocol.SIMPLE and hosts > 1 and nbytes >= members * _PLATEAU:
            latency *= self.plateau
        used = dict(self.links_used).get(members, 1.0) if hosts == 1 else 1.0
        seconds = price.seconds_per_byte / (self.share[algorithm][protocol] * used)
        if protocol is Protocol.LL:
            bus = 2 * (members - 1) / members / (self.most[min(hosts, 3) - 1] * _GB)
            seconds = max(seconds, bus)
        return Chosen(protocol, latency + price.latency, seconds + 1 / (self.local * _GB))


#: Bytes for each member from which rings between hosts have their plateau: 64 for each of 16 channels.
_PLATEAU = 64 * 16

_NONE: _Three = (0.0, 0.0, 0.0)
NCCL = Tuning(
    base={"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "nvls": _NONE, "collnet": _NONE},
    inside={"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "nvls": (0.0, 0.0, 25.0), "collnet": (0.0, 0.0, 3.7)},
    between={"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "nvls": (0.0, 0.0, 18.0), "collnet": (0.0, 0.0, 31.0)},
    share={
        "tree": (0.92 / 3.8, 0.92 * 120 / 128, 0.92),
        "ring": (0.5, 0.92, 1.0),
        "nvls": (0, 0, 0.85),
        "collnet": (0, 0, 1.0),
    },
    most=(87.7, 39.0, 20.4),
)
#: The same over PCI Express inside hosts.
PCI = attrs.evolve(NCCL, inside={**NCCL.inside, "tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)})


def measured(
    start: float,
    factor: float,
    ll128: float,
    simple: float,
    most: float,
    local: float,
    rings: tuple[tuple[int, float], ...] = (),
) -> Tuning:
    """Return NCCL's constants, with six that were fitted to measurements of rings in one host.

    Args:
        start: microseconds that every collective takes, beside those of its protocol.
        factor: on latencies inside hosts.
        ll128, simple: shares of the links' rate.
        most: GB/s of a bus with protocol LL.
        local: see `Tuning`.
        rings: see `Tuning.links_used`.
    """
    base = {name: _three(start + base for base in NCCL.base[name]) for name in ("ring", "tree")}
    hops = {name: _three(factor * hop for hop in NCCL.inside[name]) for name in ("ring", "tree")}
    return attrs.evolve(
        NCCL,
        base={**NCCL.base, **base},
        inside={**NCCL.inside, **hops},
        share={**NCCL.share, "ring": (0.5, ll128, simple)},
        most=(most, *NCCL.most[1:]),
        local=local,
        links_used=rings,
    )


def _three(values: Iterable[float]) -> _Three:
    first, second, third = values
    return first, second, third


#: Rings of GPUs 0 .. n-1 along NVLinks, of six, in the hybrid cube mesh of DGX-1 (V100); of five GPUs one has links to
#: one other alone, so that a ring of NVLinks is not there, and the two are NCCL's way over another GPU.
_CUBE_MESH = tuple((n, rings / 6) for n, rings in ((2, 1), (3, 2), (4, 4), (5, 2), (6, 2), (7, 4), (8, 6)))
#: Of NCCL's tuner by generation; switches sum and copy (NVLS) since Hopper.
_AMPERE = attrs.evolve(NCCL, share={**NCCL.share, "nvls": _NONE})
_HOPPER = attrs.evolve(NCCL, most=(141.0, 39.0, 20.4))
_BLACKWELL = attrs.evolve(NCCL, share={**NCCL.share, "nvls": (0, 0, 0.74)}, most=(282.0, 39.0, 20.4))
#: Kind of device, in lower case up to its first dash -> constants of NCCL's tuner, for collectives that are queued.
_QUEUED: Mapping[str, Tuning] = {
    "a100": _AMPERE,
    "h100": _HOPPER,
    "h200": _HOPPER,
    "h800": _HOPPER,
    "b200": _BLACKWELL,
    "gb200": _BLACKWELL,
    "b300": _BLACKWELL,
    "gb300": _BLACKWELL,
}
#: The same, by themselves: two were measured from their launch on.
MACHINES: Mapping[str, Tuning] = {
    **_QUEUED,
    "v100": measured(6.548, 1.555, 0.6416, 0.9131, 20.0, 2000.0, _CUBE_MESH),
    "a100": measured(24.8, 1.085, 0.9192, 1.0, 20.0, 507.5),
}


def tuning_of(device: str) -> Tuning:
    """Return the constants of a kind of device; those of NCCL for others.

    Example:
        >>> tuning_of("A100-40") == tuning_of("a100-80"), tuning_of("my-chip") == NCCL
        (True, True)
    """
    return MACHINES.get(device.lower().partition("-")[0], NCCL)


def queued_tuning_of(device: str) -> Tuning | None:
    """Return the constants of a kind of device for collectives that wait for computation; None where none are known.

    Their launch is over when they begin, so that what was measured from a launch on has no place here.

    Example:
        >>> queued_tuning_of("H100") == tuning_of("h100"), queued_tuning_of("my-chip")
        (True, None)
    """
    return _QUEUED.get(device.lower().partition("-")[0])
