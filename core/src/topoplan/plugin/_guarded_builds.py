"""Checks of what methods of components return, for `topoplan.plugin._guard`: modules that import numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from topoplan.errors import PluginError, calling, expect
from topoplan.model.costs import CostFunction, PartCosts
from topoplan.model.graph import OperatorGraph
from topoplan.model.machine import HostModel
from topoplan.model.reconfigurable import AnyFabric
from topoplan.plugin.components import Kind
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Search


def _check_price(costs: CostFunction, who: str, graph: OperatorGraph, *arguments: Any) -> None:
    """Price the first operator whole, on one device."""
    whole = (1,) * len(graph.operators[0].dims)
    with calling(f"{who}: supports"):
        if not costs.supports(0, whole):
            return
    with calling(f"{who}: price"):
        price = costs.price(0, whole, np.zeros(1, dtype=np.int32))
    expect(price, PartCosts, f"{who}: price")
    for field in ("forward", "backward", "memory"):
        shape = np.shape(getattr(price, field))
        if shape != (1,):
            raise PluginError(f"{who}: price of 1 part: {field} has shape {shape} (must be (1,))")


#: Kind and method -> what the method must return.
_RETURNS: Mapping[tuple[Kind, str], Any] = {
    (Kind.FRONTEND, "build"): OperatorGraph,
    (Kind.MACHINE, "build"): HostModel,
    (Kind.TOPOLOGY, "build"): AnyFabric,
    (Kind.ESTIMATOR, "build"): CostFunction,
    (Kind.SIMULATOR, "build"): Simulate,
    (Kind.SEARCHER, "build"): Search,
    (Kind.EXPORTER, "write"): bytes,
    (Kind.EXPORTER, "refuses"): str,
}


def check_returned(value: Any, kind: Kind, method: str, who: str, arguments: Sequence[Any]) -> None:
    """Raise `PluginError`, in a message that begins with ``who``, where a method returned a value of a wrong type."""
    contract = _RETURNS[kind, method]
    expect(value, contract, f"{who}: {method}", "Fabric or ReconfigurableFabric" if contract is AnyFabric else "")
    if kind is Kind.ESTIMATOR:
        _check_price(value, who, *arguments)
