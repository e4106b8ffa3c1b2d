"""What must be known to read costs and bandwidths: bills that are not equal, parts that are not for sale.

Marks stand in the tables (`mark`); `notes` says in words what they mean, a line for each network or mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topoplan_studies.clusters import EQUAL, Target
from topoplan_studies.prices import Basis, Prices
from topoplan_studies.rows import Row

__all__ = ["differs", "mark", "notes", "unequal"]

#: Behind a bandwidth: its price lies between two that are listed, or beyond the fastest one.
_MARKS = {Basis.BETWEEN: "*", Basis.BEYOND: "**"}


def mark(row: Row) -> str:
    """Return what stands behind a bandwidth in tables."""
    return _MARKS.get(row.basis, "")


def differs(row: Row) -> bool:
    """Say whether the network costs something else than the one that it stands beside, by more than `EQUAL`."""
    return row.target is not None and _differ(row.cost, row.target)


def _differ(cost: float, target: Target) -> bool:
    return abs(cost - target.cost) > EQUAL * target.cost


def unequal(costs: Iterable[tuple[str, Target | None, float]]) -> list[str]:
    """Return a line for each network that does not cost what it should.

    Args:
        costs: name of a network, what its cost stands beside, and its cost; a network may be there several times.
    """
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for network, target, cost in costs:
        if target is not None and _differ(cost, target):
            ratios.setdefault((network, target.network, target.reason), []).append(cost / target.cost)
    told = []
    for (network, other, reason), found in ratios.items():
        low, high = f"{min(found):.2f}", f"{max(found):.2f}"
        times = low if low == high else f"{low} to {high}"
        told.append(f"not of equal cost: {network} costs {times} times as much as {other}: {reason}")
    return told


def _drawn(rows: Sequence[Row]) -> list[str]:
    """Say that times are means of several draws of paths, where some are, and how far single draws lie from them."""
    runs = [run for row in rows for run in row.runs if run.get("draws", 1) > 1]
    if not runs:
        return []
    widest = max(run["standard_deviation_s"] / run["iteration_time_s"] for run in runs)
    most = max(run["draws"] for run in runs)
    return [f"times are means over up to {most} draws of equal paths, whose standard deviation is {widest:.1%} at most"]


def _beside(rows: Sequence[Row]) -> list[str]:
    """Name the plans beside which another one is to be known of."""
    told = []
    for row in rows:
        for run in row.runs:
            if run.get("aside"):
                other = f"{run['aside']['plan']}: {run['aside']['iteration_time_s'] * 1e3:.4g} ms"
                told.append(f"{row.place} on {row.network}, seed {run['seed']}: {run['plan']}; {other}")
    return told


def notes(rows: Sequence[Row], prices: Prices) -> list[str]:
    """Return a line for each network that does not cost what it should, for each mark, and for what times are of."""
    told = unequal([(row.network, row.target, row.cost) for row in rows])
    told += [*_drawn(rows), *_beside(rows)]
    fastest = max(prices.bandwidths("nic"), default=0.0)
    means = {
        Basis.BETWEEN: "* not for sale at this bandwidth: priced on a line between parts that are "
        "(--catalogue takes these)",
        Basis.BEYOND: f"** faster than any part in the prices (a nic of {fastest:g} Gbps at most): priced as several "
        "of them side by side",
    }
    return told + [text for basis, text in means.items() if any(row.basis is basis for row in rows)]
