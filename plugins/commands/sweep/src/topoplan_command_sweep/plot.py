"""Speedup over batch size: a line for the plans, and a dashed one for each baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topoplan_command_sweep.results import BatchSizeResult
from topoplan_command_sweep.table import baselines_of
from topoplan_engine.reporting.figures import COLOURS, empty_figure, figure_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot"]


def plot(results: Sequence[BatchSizeResult]) -> Figure:
    """Return the figure; batch sizes are on a logarithmic axis, speedups start at zero."""
    from matplotlib.ticker import NullLocator

    figure = empty_figure(6.0, 4.0)
    axes = figure.subplots()
    sizes = [result.batch_size for result in results]
    lines = {"best hybrid": [result.speedup for result in results]}
    for name in baselines_of(results):
        lines[name.replace("_", " ")] = [result.baselines.get(name) for result in results]
    for number, (name, speedups) in enumerate(lines.items()):
        points = [(size, speedup) for size, speedup in zip(sizes, speedups, strict=True) if speedup is not None]
        axes.plot(
            [size for size, _ in points],
            [speedup for _, speedup in points],
            color=COLOURS[number % len(COLOURS)],
            linestyle="--" if number else "-",
            marker="o",
            markersize=4,
            label=figure_text(name),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.set(xlabel="global batch size", ylabel="speedup over one device")
    axes.grid(visible=True, axis="y", color="#eeeeee")
    figure.legend(loc="outside upper left", frameon=False)
    return figure
