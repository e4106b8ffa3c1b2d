"""Every hook, on one page.

A plugin is a module (or object) behind an entry point of the group ``topoplan``.  It implements any of
these functions with the `hookimpl` marker::

    from topoplan import Topology, hookimpl

    @attrs.frozen(kw_only=True)
    class Ring(Topology): ...

    @hookimpl
    def topoplan_topologies():
        return Ring

Registration hooks take nothing and return a class or a list of classes; they are called once, while the host starts, so
they must be cheap: import heavy modules inside ``build``.  Observer hooks are called at batch boundaries, never in a
hot loop; they return nothing and change nothing.  An implementation may accept fewer arguments than its specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from topoplan.model.plan import Plan
    from topoplan.plugin.components import (
        CollectiveAlgorithm,
        Command,
        Estimator,
        Exporter,
        Frontend,
        Machine,
        PipelineSchedule,
        Searcher,
        Simulator,
        Topology,
    )
    from topoplan.search.protocol import Progress, Run

__all__ = ["hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("topoplan")
hookimpl = pluggy.HookimplMarker("topoplan")

# ── Registration: called once per plugin, while the host starts ─────────────────────────────────────────


@hookspec
def topoplan_frontends() -> type[Frontend] | list[type[Frontend]]:  # type: ignore[empty-body]
    """Return frontends: each builds the operator graph of a model."""


@hookspec
def topoplan_machines() -> type[Machine] | list[type[Machine]]:  # type: ignore[empty-body]
    """Return machines: each describes a kind of device and what is inside a host."""


@hookspec
def topoplan_topologies() -> type[Topology] | list[type[Topology]]:  # type: ignore[empty-body]
    """Return topologies: each builds a fabric for a cluster and, if it follows demand, for a strategy."""


@hookspec
def topoplan_estimators() -> type[Estimator] | list[type[Estimator]]:  # type: ignore[empty-body]
    """Return estimators: each compiles a function that prices the parts of operators."""


@hookspec
def topoplan_schedules() -> type[PipelineSchedule] | list[type[PipelineSchedule]]:  # type: ignore[empty-body]
    """Return schedules: each orders the passes of micro-batches on the ranks of a pipeline."""


@hookspec
def topoplan_collectives() -> type[CollectiveAlgorithm] | list[type[CollectiveAlgorithm]]:  # type: ignore[empty-body]
    """Return algorithms of collectives: each sends rounds of messages between the members of a group."""


@hookspec
def topoplan_simulators() -> type[Simulator] | list[type[Simulator]]:  # type: ignore[empty-body]
    """Return simulators: each turns a task graph and a fabric into a timeline."""


@hookspec
def topoplan_searchers() -> type[Searcher] | list[type[Searcher]]:  # type: ignore[empty-body]
    """Return searchers: each proposes candidates that move the strategy, the network, or both."""


@hookspec
def topoplan_exporters() -> type[Exporter] | list[type[Exporter]]:  # type: ignore[empty-body]
    """Return exporters: each writes a plan in a format that another tool reads."""


@hookspec
def topoplan_commands() -> type[Command] | list[type[Command]]:  # type: ignore[empty-body]
    """Return commands: each is a word after ``topoplan``, with a command line of its own."""


# ── Observers: at batch boundaries; they return nothing and change nothing ──────────────────────────────


@hookspec
def topoplan_run_started(run: Run) -> None:
    """Tell that a search begins; ``run`` holds problem, budget and seed."""


@hookspec
def topoplan_evaluated(run: Run, progress: Progress) -> None:
    """Tell how far a search is, some ten times a second at most."""


@hookspec
def topoplan_new_best(run: Run, progress: Progress) -> None:
    """Tell that a better candidate was found; at most once per batch."""


@hookspec
def topoplan_run_finished(run: Run, plans: Sequence[Plan]) -> None:
    """Tell that a search ended (or was interrupted); ``plans`` holds the best one."""
