"""Best time against evaluations and against seconds: two panels for each problem, a line for each searcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from topoplan_engine.reporting.figures import COLOURS, empty_figure, figure_text
from topoplan_studies.searchers.places import Place
from topoplan_studies.searchers.report import SearcherReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot"]

_STYLES = ("-", "--", ":", "-.")
#: Size of a panel and height of a line of the legend, in inches; points of a curve.
_WIDTH, _HEIGHT, _LINE, _POINTS = 3.6, 2.4, 0.2, 400


def plot(report: SearcherReport) -> Figure:
    """Return the figure: medians over seeds as lines, quartiles as bands, the best known time as a grey line."""
    places = report.comparison.places
    figure = empty_figure(2 * _WIDTH, len(places) * _HEIGHT + _LINE * (2 + len(report.comparison.labels)))
    axes = figure.subplots(len(places), 2, squeeze=False)
    for row, place in enumerate(places):
        for column, name in enumerate(("evaluations", "seconds")):
            _panel(axes[row, column], place, column, name)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    title = figure_text(report.study.title)
    figure.legend(handles, labels, loc="outside upper left", title=title, alignment="left", frameon=False)
    return figure


def _panel(axes: Axes, place: Place, column: int, name: str) -> None:
    for index, runs in enumerate(place.searchers):
        histories = runs.histories(column)
        end = max(float(run["evaluations"] if column == 0 else run["search_s"]) for run in runs.runs)
        start = max(min(float(history[0, 0]) for history in histories), end * 1e-4)
        grid = np.geomspace(start, max(end, start * 1.001), _POINTS)
        lower, median, upper = runs.curve(column, grid) * 1e3
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(grid, median, color=colour, linestyle=_STYLES[index % len(_STYLES)], label=figure_text(runs.label))
        axes.fill_between(grid, lower, upper, color=colour, alpha=0.15, linewidth=0)
    if place.best_known is not None:
        axes.axhline(place.best_known * 1e3, color="#999999", linewidth=0.8)
    axes.set_xscale("log")
    axes.set(title=figure_text(place.name), xlabel=name, ylabel="best time (ms)" if column == 0 else "")
    axes.title.set_fontsize("medium")
    axes.grid(visible=True, color="#eeeeee")
    axes.set_axisbelow(True)
