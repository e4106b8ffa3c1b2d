"""Checks of what methods of components return, for `topoplan.plugin._guard`: modules that import numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan.errors import expect
from topoplan.model.collective import CollectiveRounds
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.machine import HostModel
from topoplan.model.pass_order import PassOrder
from topoplan.model.plan import Plan
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.strategy import Strategy
from topoplan.plugin.components import Kind
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Search

#: Kind and method -> what the method must return.
_RETURNS: Mapping[tuple[Kind, str], Any] = {
    (Kind.FRONTEND, "build"): OperatorGraph,
    (Kind.MACHINE, "build"): HostModel,
    (Kind.TOPOLOGY, "build"): AnyFabric,
    (Kind.ESTIMATOR, "build"): CostFunction,
    (Kind.SCHEDULE, "order"): PassOrder,
    (Kind.COLLECTIVE, "rounds"): CollectiveRounds,
    (Kind.SIMULATOR, "build"): Simulate,
    (Kind.SEARCHER, "build"): Search,
    (Kind.EXPORTER, "write"): bytes,
    (Kind.EXPORTER, "read"): Plan,
    (Kind.EXPORTER, "read_strategy"): Strategy,
    **{(Kind.EXPORTER, says): str for says in ("refuses", "refuses_problem", "doubts")},
}


def check_returned(value: Any, kind: Kind, method: str, who: str) -> None:
    """Raise `PluginError`, in a message that begins with ``who``, where a method returned a value of a wrong type."""
    contract = _RETURNS[kind, method]
    expect(value, contract, f"{who}: {method}", "Fabric or ReconfigurableFabric" if contract is AnyFabric else "")
