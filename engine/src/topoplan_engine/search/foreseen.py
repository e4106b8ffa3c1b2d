"""Outputs that will not be written are found before a search: certainty ends it, likelihood is a warning.

    outputs, searchers, problem, start ─► check_outputs_of ─► TopoplanError, warnings, or nothing

Three things decide, and each is asked of the exporter: the machine and the topology (`Exporter.refuses`, which
`topoplan_engine.exporting.check_outputs` asks before anything is built), the problem (`Exporter.refuses_problem`), and
the kinds of strategies that the searchers propose (`Searcher.proposes`, `Exporter.unwritable`).  What the found plan
alone decides, an exporter may doubt (`Exporter.doubts`): the search goes on, and the plan is kept as JSON if it is
refused (`topoplan_engine.exporting.write_outputs`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from topoplan.errors import TopoplanError, TopoplanWarning
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.plugin.components import Exporter, Searcher
from topoplan_engine.search.setup import SearchSetup
from topoplan_engine.search.starting import first_state

__all__ = ["check_outputs_of", "unwritable_kind"]

_WORDS: dict[type[Any], str] = {
    StagedStrategy: "programs and pipelines",
    PlacedStrategy: "placements without a schedule",
}


def check_outputs_of(setup: SearchSetup) -> None:
    """Raise `TopoplanError` for an output that no plan of a search can be written to, and warn of what is likely.

    Where nothing is searched, the plan is the strategy at the start: what an exporter doubts of it is certain.
    """
    if setup.experiment.run.budget != 0:
        for exporter in setup.formats:
            if why := unwritable_kind(exporter, setup.searchers, constructed=setup.keep.constructed):
                raise TopoplanError(f"{exporter.name}: {why}")
    asking = [
        component
        for component in setup.formats
        if component.overrides("refuses_problem") or component.overrides("doubts")
    ]
    if not asking:
        return
    start = first_state(setup.evaluator, setup.strategy, setup.rng())
    stays = all(searcher.axis == "strategy" for searcher in setup.searchers)
    for exporter in asking:
        if why := exporter.refuses_problem(setup.problem, start.fabric if stays else None):
            raise TopoplanError(f"{exporter.name}: {why}")
        if doubt := exporter.doubts(setup.problem, start):
            if setup.experiment.run.budget == 0:
                raise TopoplanError(f"{exporter.name}: {doubt}")
            note = f"{exporter.name}: {doubt}; if the plan that is found is refused, it is kept as JSON"
            warnings.warn(TopoplanWarning(note), stacklevel=2)


def unwritable_kind(exporter: Exporter, searchers: Sequence[Searcher], *, constructed: bool) -> str:
    """Say why a format can say no strategy that searchers propose; empty if it may.

    Args:
        exporter: of the format.
        searchers: of the search.
        constructed: the plan is one that they construct, not the strategy at the start.
    """
    moving = [searcher for searcher in searchers if searcher.axis != "network"]
    kinds = tuple(dict.fromkeys(kind for searcher in moving for kind in searcher.proposes))
    if not constructed or not all(searcher.proposes for searcher in moving):
        return ""
    if not all(issubclass(kind, exporter.unwritable) for kind in kinds):
        return ""
    names = " and ".join(f"{searcher.name!r}" for searcher in moving)
    return (
        f"searcher {names} proposes {spelled(kinds)} alone, which this format cannot say (choose another searcher, "
        "e.g. -s mcmc, or write json, which can say them)"
    )


def spelled(kinds: Sequence[type[Strategy]]) -> str:
    """Return kinds of strategies as words."""
    return " and ".join(_WORDS.get(kind, kind.__name__) for kind in kinds)
