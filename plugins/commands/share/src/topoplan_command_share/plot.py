"""Iteration time over load: for each network a solid line for the mean and a dashed one for the tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topoplan_command_share.results import LoadResult
from topoplan_engine.reporting.figures import COLOURS, empty_figure, figure_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot"]


def plot(results: Sequence[LoadResult]) -> Figure:
    """Return the figure; both axes are linear and time starts at zero."""
    figure = empty_figure(6.0, 4.0)
    axes = figure.subplots()
    for number, network in enumerate(dict.fromkeys(result.network for result in results)):
        of_network = [result for result in results if result.network == network]
        loads, colour = [result.load for result in of_network], COLOURS[number % len(COLOURS)]
        means, tails = ([getattr(result, name) * 1e3 for result in of_network] for name in ("mean", "p99"))
        axes.plot(loads, means, color=colour, marker="o", markersize=4, label=figure_text(network))
        axes.plot(loads, tails, color=colour, marker="o", markersize=4, linestyle="--")
    axes.set_xticks(sorted({result.load for result in results}))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="load (%)", ylabel="iteration time (ms)")
    axes.grid(visible=True, axis="y", color="#eeeeee")
    figure.legend(loc="outside upper left", title="dashed: 99th percentile", alignment="left", frameon=False)
    return figure
