"""Price files: TOML in, prices of parts by bandwidth out.

A file holds a list of tables for each part, ``[[nic]]`` and so on, each with ``gbps`` (left out where the price
does not depend on it), ``price`` and ``source``; ``[clos]`` says how many levels stand for an ideal switch.

Hosts have prices, too: ``[[device]]`` lists what one device of a kind costs with its share of the host around it, so
that a host costs what its devices do, however many it has.  A file in the currency of topoplan's own that lists none
has those.

Bandwidths between the lines of a part are not for sale.  `Prices.price` says what they would cost, and `Prices.basis`
what that price rests on; a `Prices.catalogue` has whole parts only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from topoplan.errors import TopoplanError, nearest, shown
from topoplan.options import option, structure
from topoplan_engine.tomlfiles import read_toml

__all__ = [
    "DEVICE",
    "IDEAL_PORT",
    "INSIDE_LINK",
    "PARTS",
    "Basis",
    "DeviceLine",
    "Line",
    "Prices",
    "default_prices",
    "read_prices",
]

#: What can be bought.
PARTS = ("nic", "transceiver", "switch-port", "patch-panel-port", "ocs-port", "fibre", "inside-link")
#: A link inside a chassis, whose bandwidth is its own: it is what it is, however fast the network.
INSIDE_LINK = "inside-link"
#: A port of a switch that is not for sale, priced as its share of a Clos network.
IDEAL_PORT = "ideal-switch-port"

#: What hosts consist of.
DEVICE = "device"

_DEFAULT = Path(__file__).with_name("default.toml")


#: Bandwidths this close are one: nine digits are kept of them.
_SAME = 1e-6


class Basis(IntEnum):
    """What the price of a part at a bandwidth rests on, from the best to the worst."""

    LISTED = 0
    SLOWER = 1  #: the slowest part that is listed, run slower
    BETWEEN = 2  #: the straight line between two that are listed
    BEYOND = 3  #: several of the fastest one that is listed


@attrs.frozen(kw_only=True)
class Line:
    """One price."""

    gbps: float | None = option(
        None, help="bandwidth; unset: the price holds for any", unit="Gbps", above=0, maximum=1e9
    )
    price: float | None = option(None, help="of one piece", minimum=0, maximum=1e12)
    source: str = option("", help="where the price comes from, or: assumption")


@attrs.frozen(kw_only=True)
class DeviceLine:
    """The price of one device with its share of a host."""

    device: str = option("", help="kind of device, e.g. h100; unset: any that has no line of its own")
    price: float | None = option(None, help="of one device with its share of the host", minimum=0, maximum=1e12)
    source: str = option("", help="where the price comes from, or: assumption")


@attrs.frozen(kw_only=True)
class _Clos:
    levels: int = option(3, help="levels of switches", minimum=1, maximum=100)
    source: str = option("", help="where that comes from, or: assumption")


@attrs.frozen(kw_only=True)
class Prices:
    """Prices of parts.

    Attributes:
        name: of the file, for messages.
        currency: of all prices.
        lines: part -> its prices by rising bandwidth, or the one that holds for any.
        clos_levels: levels of the Clos network that an ideal switch is priced as.
        whole: parts are bought whole: one that is run slower costs what it costs (`catalogue`).
        devices: kind of device, in lower case -> its price; the empty name is any other.
        devices_of: whose prices of devices these are; empty where there are none.
    """

    name: str
    currency: str
    lines: Mapping[str, tuple[Line, ...]]
    clos_levels: int
    whole: bool = False
    devices: Mapping[str, DeviceLine] = attrs.field(factory=dict)
    devices_of: str = ""

    def catalogue(self) -> Prices:
        """Return the same prices for whole parts: the next faster one that is listed, or several of the fastest."""
        return attrs.evolve(self, whole=True)

    def bandwidths(self, part: str) -> tuple[float, ...]:
        """Return the bandwidths at which a part is listed, rising; none where its price holds for any."""
        return tuple(line.gbps for line in self.lines.get(part, ()) if line.gbps is not None)

    def basis(self, part: str, gbps: float) -> Basis:
        """Say what the price of a part at a bandwidth rests on."""
        if part == IDEAL_PORT:
            return max(self.basis(piece, gbps) for piece in ("switch-port", "transceiver"))
        listed = self.bandwidths(part)
        if not listed or any(abs(gbps - bandwidth) <= _SAME * bandwidth for bandwidth in listed):
            return Basis.LISTED
        if gbps < listed[0]:
            return Basis.SLOWER
        return Basis.BETWEEN if gbps < listed[-1] else Basis.BEYOND

    def price(self, part: str, gbps: float) -> float:
        """Return the price of one piece of a part at a bandwidth.

        Between two lines it is interpolated linearly; below the slowest it stays, since nothing smaller is sold;
        above the fastest it grows in proportion, for several of the fastest side by side.  Of whole parts it is that
        of the next faster line, and above the fastest of as many as it takes.

        A port of an ideal switch costs its share of a folded Clos network of L levels, which has 2L - 1 switch ports
        with a transceiver each and L - 1 fibres between its levels for every port to the outside.

        Raises:
            TopoplanError: the file has no price for the part.
        """
        if part == IDEAL_PORT:
            ports = 2 * self.clos_levels - 1
            inside = self.price("fibre", gbps) * (self.clos_levels - 1)
            return ports * (self.price("switch-port", gbps) + self.price("transceiver", gbps)) + inside
        lines = self.lines.get(part, ())
        if not lines:
            raise TopoplanError(f"prices {self.name}: no [[{part}]], which the network needs")
        points = [(line.gbps or 0.0, line.price or 0.0) for line in lines]
        if lines[0].gbps is None or gbps <= points[0][0]:
            return points[0][1]
        if self.whole:
            gbps *= 1 - _SAME
            dear_enough = [price for speed, price in points if gbps <= speed]
            return dear_enough[0] if dear_enough else points[-1][1] * math.ceil(gbps / points[-1][0])
        for (low, cheap), (high, dear) in pairwise(points):
            if gbps <= high:
                return cheap + (dear - cheap) * ((gbps - low) / (high - low))
        fastest, price = points[-1]
        return price * gbps / fastest

    def device(self, kind: str) -> float | None:
        """Return what one device of a kind costs with its share of a host; None where nothing says it.

        >>> default_prices().device("H100")
        35000.0
        """
        line = self.devices.get(kind.lower(), self.devices.get(""))
        return None if line is None else line.price

    def hosts(self, devices: Mapping[str, float]) -> float | None:
        """Return what hosts cost that have so many devices of each kind; None where one has no price.

        >>> default_prices().hosts({"H100": 512})
        17920000.0
        """
        prices = [(self.device(kind), count) for kind, count in devices.items()]
        return (
            None
            if any(price is None for price, _ in prices)
            else sum((price or 0.0) * count for price, count in prices)
        )

    def assumed(self) -> bool:
        """Say whether any price is an assumption."""
        parts = [line.source for lines in self.lines.values() for line in lines]
        return any(source.startswith("assumption") for source in [*parts, *(d.source for d in self.devices.values())])


@cache
def default_prices() -> Prices:
    """Return the prices that come with topoplan."""
    prices = read_prices(_DEFAULT)
    return attrs.evolve(prices, name="of topoplan", devices_of="of topoplan")


def read_prices(path: Path) -> Prices:
    """Read a price file.

    Raises:
        TopoplanError: it cannot be read or something in it is wrong; the message names file, part and key.
    """
    document = read_toml(path)
    for key in document:
        if key not in (*PARTS, "clos", "currency", DEVICE):
            keys = (*PARTS, "clos", "currency", DEVICE)
            raise TopoplanError(f"prices {path}: no part {shown(key)}{nearest(key, keys)}")
    currency = document.get("currency", "USD")
    if not isinstance(currency, str) or not currency:
        raise TopoplanError(f'prices {path}: currency: expected text, got {shown(currency)} (e.g. "USD")')
    lines = {part: _lines(document[part], f"prices {path}: {part}") for part in PARTS if part in document}
    clos = document.get("clos")
    if clos is None:
        raise TopoplanError(f"prices {path}: needs a table [clos] with levels = 3 and source")
    if not isinstance(clos, dict):
        raise TopoplanError(f"prices {path}: clos: must be a table [clos]")
    levels = structure(_Clos, clos, f"prices {path}: clos")
    _check_source(levels.source, f"prices {path}: clos")
    devices = _devices(document[DEVICE], f"prices {path}: {DEVICE}") if DEVICE in document else {}
    prices = Prices(name=str(path), currency=currency, lines=lines, clos_levels=levels.levels)
    if not devices and path != _DEFAULT and currency == default_prices().currency:
        return attrs.evolve(prices, devices=default_prices().devices, devices_of=default_prices().name)
    return attrs.evolve(prices, devices=devices, devices_of=str(path) if devices else "")


def _devices(tables: Any, where: str) -> dict[str, DeviceLine]:
    """Read what devices cost with their share of a host, by kind."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise TopoplanError(f"{where}: must be a list of tables [[{DEVICE}]]")
    devices: dict[str, DeviceLine] = {}
    for i, table in enumerate(tables):
        line = structure(DeviceLine, table, f"{where}[{i}]")
        if line.price is None or not math.isfinite(line.price):
            raise TopoplanError(f"{where}[{i}]: price: is missing or not finite (of one device)")
        _check_source(line.source, f"{where}[{i}]")
        if line.device.lower() in devices:
            raise TopoplanError(f"{where}[{i}]: {line.device or 'any other device'} has two prices (keep one)")
        devices[line.device.lower()] = line
    return devices


def _lines(tables: Any, where: str) -> tuple[Line, ...]:
    """Read the lines of one part, rising in bandwidth."""
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise TopoplanError(f"{where}: must be a list of tables [[{where.rpartition(' ')[2]}]]")
    lines = [structure(Line, table, f"{where}[{i}]") for i, table in enumerate(tables)]
    for i, line in enumerate(lines):
        if line.price is None or not math.isfinite(line.price):
            raise TopoplanError(f"{where}[{i}]: price: is missing or not finite (the price of one piece)")
        if line.gbps is not None and not math.isfinite(line.gbps):
            raise TopoplanError(f"{where}[{i}]: gbps: {line.gbps} is not finite")
        if line.gbps is None and len(lines) > 1:
            raise TopoplanError(f"{where}[{i}]: gbps: is missing (only a price for any bandwidth goes without, alone)")
        _check_source(line.source, f"{where}[{i}]")
    lines.sort(key=lambda line: line.gbps or 0.0)
    for slow, fast in pairwise(lines):
        if slow.gbps == fast.gbps:
            raise TopoplanError(f"{where}: {slow.gbps:g} Gbps has two prices (keep one)")
        if (fast.price or 0.0) < (slow.price or 0.0):
            raise TopoplanError(
                f"{where}: {fast.gbps:g} Gbps costs {fast.price:g}, less than {slow.gbps:g} Gbps at {slow.price:g} "
                "(nobody buys the slower one: leave it out)"
            )
    return tuple(lines)


def _check_source(source: str, where: str) -> None:
    if not source.strip():
        raise TopoplanError(f'{where}: source: is missing (a price list, a paper, or "assumption: why")')
