"""Remarks on a table of results: costs that are not equal, parts that are not for sale, means over draws, other plans.

Tables show marks (`mark`); `notes` explains them, one line for each network or mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topoplan_studies.clusters import EQUAL, Target
from topoplan_studies.prices import Basis, Prices
from topoplan_studies.results import NetworkResult

__all__ = ["differs", "mark", "notes", "unequal"]

#: Behind a bandwidth: its price lies between two that are listed, or beyond the fastest one.
_MARKS = {Basis.BETWEEN: "*", Basis.BEYOND: "**"}


def mark(result: NetworkResult) -> str:
    """Return what stands behind a bandwidth in tables."""
    return _MARKS.get(result.basis, "")


def differs(result: NetworkResult) -> bool:
    """Say whether the network's cost differs from the cost that it should have, by more than `EQUAL`."""
    return result.target is not None and _differ(result.cost, result.target)


def _differ(cost: float, target: Target) -> bool:
    return abs(cost - target.cost) > EQUAL * target.cost


def unequal(costs: Iterable[tuple[str, Target | None, float]]) -> list[str]:
    """Return a line for each network that does not cost what it should.

    Args:
        costs: name of a network, the cost that it should have, and its cost; a network may be there several times.
    """
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for network, target, cost in costs:
        if target is not None and _differ(cost, target):
            ratios.setdefault((network, target.network, target.reason), []).append(cost / target.cost)
    lines = []
    for (network, standard, reason), times in ratios.items():
        low, high = f"{min(times):.2f}", f"{max(times):.2f}"
        span = low if low == high else f"{low} to {high}"
        lines.append(f"not of equal cost: {network} costs {span} times as much as {standard}: {reason}")
    return lines


def _unstated(results: Sequence[NetworkResult]) -> list[str]:
    """Name the networks whose fabrics do not say what their links pass."""
    networks = dict.fromkeys(result.network for result in results if any("priced_as" in run for run in result.runs))
    return [
        f"{network} does not say what its links pass (Fabric.switching): priced as cables and packet switches"
        for network in networks
    ]


def _behind(results: Sequence[NetworkResult]) -> list[str]:
    """Name the networks whose interfaces are faster than the links inside hosts behind them."""
    slower = {
        (result.network, result.gbps, run["gbps_behind_interface"])
        for result in results
        for run in result.runs
        if "gbps_behind_interface" in run
    }
    return [
        f"{network}: an interface of {rate:,.4g} Gbps sends {link:,.4g} at most, as the link inside the host behind it"
        for network, rate, link in sorted(slower)
    ]


def _hosts(results: Sequence[NetworkResult], prices: Prices) -> list[str]:
    """Say what hosts are priced at, or that they have no price."""
    kinds = sorted({kind for result in results for run in result.runs for kind in run.get("devices", ())})
    unpriced = [kind for kind in kinds if prices.device(kind) is None]
    if unpriced:
        return [f"prices {prices.name} have no [[device]] for {', '.join(unpriced)}: time x cost has the network alone"]
    each = ", ".join(f"{prices.device(kind):,.0f} {prices.currency} a {kind}" for kind in kinds)
    whose = "" if prices.devices_of == prices.name else f", prices {prices.devices_of}"
    return [f"time x cost has network and hosts: {each} with its share of the host{whose}"] if kinds else []


def _drawn(results: Sequence[NetworkResult]) -> list[str]:
    """Say that times are means over draws of equal paths, and their largest standard deviation, if any are."""
    runs = [run for result in results for run in result.runs if run.get("draws", 1) > 1]
    if not runs:
        return []
    widest = max(run["standard_deviation_s"] / run["iteration_time_s"] for run in runs)
    most = max(run["draws"] for run in runs)
    return [f"times are means over up to {most} draws of equal paths, whose standard deviation is {widest:.1%} at most"]


def _asides(results: Sequence[NetworkResult]) -> list[str]:
    """Name the runs that have another plan worth knowing, and that plan."""
    lines = []
    for result in results:
        for run in result.runs:
            if run.get("aside") and not result.planner:  # a study of planners has the others beside
                aside = f"{run['aside']['plan']}: {run['aside']['iteration_time_s'] * 1e3:.4g} ms"
                lines.append(f"{result.setting} on {result.network}, seed {run['seed']}: {run['plan']}; {aside}")
    return lines


def _too_large(results: Sequence[NetworkResult]) -> list[str]:
    """Say how many candidates of a network were too large to be priced, where some were."""
    counts: dict[str, int] = {}
    for result in results:
        counts[result.network] = counts.get(result.network, 0) + sum(run.get("too_large", 0) for run in result.runs)
    return [f"{network}: {count:,} candidates were too large to price" for network, count in counts.items() if count]


def notes(results: Sequence[NetworkResult], prices: Prices) -> list[str]:
    """Return a line for each network that does not cost what it should, for what is assumed, and for each mark."""
    fastest = max(prices.bandwidths("nic"), default=0.0)
    means = {
        Basis.BETWEEN: "* not for sale at this bandwidth: priced on a line between parts that are "
        "(--catalogue takes these)",
        Basis.BEYOND: f"** faster than any part in the prices (a nic of {fastest:g} Gbps at most): priced as several "
        "of them side by side",
    }
    return [
        *unequal((result.network, result.target, result.cost) for result in results),
        *_unstated(results),
        *_behind(results),
        *_hosts(results, prices),
        *_drawn(results),
        *_too_large(results),
        *_asides(results),
        *(text for basis, text in means.items() if any(result.basis is basis for result in results)),
    ]
