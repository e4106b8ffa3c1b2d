"""A study as a figure: panels with a line for each network over what varies, or with a bar for each network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from topoplan_engine.reporting.figures import COLOURS, empty_figure, figure_text
from topoplan_studies.results import NetworkResult
from topoplan_studies.study import Study, number
from topoplan_studies.tables import StudyReport

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["pareto_front", "plot"]

_STYLES = ("-", "--", ":", "-.", (0, (4, 2)), (0, (1, 2)), (0, (10, 4)))
#: Panels side by side; the size of a panel and the height of a line of the legend, in inches.
_COLUMNS, _WIDTH, _HEIGHT, _LINE = 3, 3.4, 2.7, 0.2
#: Letters that stand beside each other below a panel, and the most values whose points do.
_LETTERS, _APART = 28, 24

_Panel = Callable[["Axes"], None]


def plot(report: StudyReport) -> Figure:
    """Return the figure.

    The last thing that takes several values is the x axis, every value at the same distance; each combination of the
    others has panels of its own.  Times are medians on a logarithmic axis; a bar from the least to the most shows the
    seeds, or a band where values are too many for bars.  If nothing varies, networks have bars instead of lines, and
    further panels show times over costs.
    """
    study, results = report.study, report.results
    varying = [key for key in study.vary if len({result.settings[key] for result in results}) > 1]
    groups: dict[str, list[NetworkResult]] = {}
    for result in results:
        settings = [f"{key} {number(result.settings[key])}" for key in varying[:-1]]
        groups.setdefault(", ".join([result.model, *settings]), []).append(result)
    networks = study.labels
    panels: list[_Panel]
    if varying:
        panels = [partial(_lines, title, group, networks, varying[-1]) for title, group in groups.items()]
    else:
        panels = [partial(_bars, title, group, networks) for title, group in groups.items()]
        panels += [
            partial(_costs, f"{title}: over cost", group, networks, report.prices.currency)
            for title, group in groups.items()
            if any(result.cost for result in group)
        ]
    return _figure(study, panels)


def pareto_front(results: Sequence[NetworkResult]) -> list[NetworkResult]:
    """Return the results that no other one beats in time and total cost, by rising cost: what is worth its money."""
    front: list[NetworkResult] = []
    for result in sorted(results, key=lambda result: (result.total_cost, result.time.median)):
        if not front or result.time.median < front[-1].time.median:
            front.append(result)
    return front


def _figure(study: Study, panels: Sequence[_Panel]) -> Figure:
    """Return panels under a common legend."""
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = empty_figure(columns * _WIDTH, rows * _HEIGHT + _LINE * (2 + len(study.labels)))
    places = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes, panel in zip(places, panels, strict=False):
        panel(axes)
    for axes in places[len(panels) :]:
        axes.remove()
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper left",
        title=figure_text(study.title),
        alignment="left",
        frameon=False,
    )
    return figure


def _lines(title: str, results: Sequence[NetworkResult], networks: Sequence[str], key: str, axes: Axes) -> None:
    """Draw times over the setting ``key``."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    values = list(dict.fromkeys(result.settings[key] for result in results))
    places = {value: place for place, value in enumerate(values)}
    are_apart = len(values) <= _APART
    for index, network in enumerate(networks):
        of_network = [result for result in results if result.label == network]
        colour = COLOURS[index % len(COLOURS)]
        x = [places[result.settings[key]] for result in of_network]
        medians = [result.time.median * 1e3 for result in of_network]
        style, marker = _STYLES[index % len(_STYLES)], "o" if are_apart else ""
        axes.plot(x, medians, color=colour, linestyle=style, marker=marker, label=figure_text(network))
        low, high = ([getattr(result.time, end) * 1e3 for result in of_network] for end in ("least", "most"))
        if are_apart:
            axes.vlines(x, low, high, colors=colour, linewidth=4, alpha=0.4)
        else:
            axes.fill_between(x, low, high, color=colour, linewidth=0, alpha=0.25)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    labels = [figure_text(number(value)) for value in values]
    step = math.ceil(len(labels) * (max(map(len, labels)) + 0.5) / _LETTERS)
    axes.set_xticks(range(0, len(values), step), labels[::step])
    axes.set_xlim(-0.5, len(values) - 0.5)
    _label(axes, title, key)


def _bars(title: str, results: Sequence[NetworkResult], networks: Sequence[str], axes: Axes) -> None:
    """Draw a bar for each time, from zero; a line shows the spread of its seeds."""
    for x, result in enumerate(results):
        median = result.time.median * 1e3
        axes.bar(x, median, width=0.7, color=_colour(result, networks), label=figure_text(result.label))
        axes.vlines(x, result.time.least * 1e3, result.time.most * 1e3, colors="#333333")
        axes.text(x, result.time.most * 1e3, f"{median:.3g}", ha="center", va="bottom", fontsize="small")
    axes.set_xticks([])
    axes.margins(y=0.15)
    _label(axes, title, "")


def _costs(title: str, results: Sequence[NetworkResult], networks: Sequence[str], currency: str, axes: Axes) -> None:
    """Draw a point for each time over its cost, and the Pareto front.

    Hosts usually cost many times what networks do, so that the axis of costs begins where the cheapest stands.
    """
    from matplotlib.ticker import EngFormatter

    front = pareto_front(results)
    axes.plot(
        [result.total_cost for result in front],
        [result.time.median * 1e3 for result in front],
        color="#666666",
        linestyle="--",
    )
    for result in results:
        axes.scatter(result.total_cost, result.time.median * 1e3, color=_colour(result, networks), zorder=2)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    costs = [result.total_cost for result in results]
    margin = 0.1 * ((max(costs) - min(costs)) or max(costs))
    axes.set_xlim(min(costs) - margin, max(costs) + margin)
    axes.set_ylim(0, 1.1 * max(result.time.median for result in results) * 1e3)
    has_hosts = all(result.hosts_cost is not None for result in results)
    _label(axes, title, f"network {'and hosts ' if has_hosts else ''}({currency})")


def _label(axes: Axes, title: str, below: str) -> None:
    axes.set(title=figure_text(title), xlabel=figure_text(below), ylabel="iteration time (ms)")
    axes.title.set_fontsize("medium")
    axes.grid(visible=True, axis="y", color="#eeeeee")
    axes.set_axisbelow(True)


def _colour(result: NetworkResult, networks: Sequence[str]) -> str:
    return COLOURS[networks.index(result.label) % len(COLOURS)]
