"""Cost functions whose prices are checked; an error is one line that names the estimator.

The host checks that an estimator builds a cost function.  What that answers is looked at here, where searches and
commands build it: prices are asked for millions of times, and one that was looked at is not looked at again.
"""

from __future__ import annotations

import json
from abc import ABCMeta
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from topoplan.arrays import I32
from topoplan.errors import PluginError, TopoplanError, calling, exception_line, expect, printing_aside, shown
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction, PartCosts
from topoplan.model.graph import OperatorGraph
from topoplan.plugin.components import Estimator
from topoplan_engine.cache import LruCache
from topoplan_engine.interrupt import raise_if_interrupted

__all__ = ["build_costs"]

#: Prices that are known to be right whatever operator they are asked for.
_RECENT = 64
#: By so much sums that are added in another order may differ.
_ROUNDING = 1e-6
#: Rows of the columns of a price that have several: bytes of weights, gradients and optimizer state; of gradients of
#: outputs and of what the backward pass makes.
_ROWS = {"states": (3,), "gradients": (2,)}


def build_costs(estimator: Estimator, graph: OperatorGraph, cluster: Cluster) -> CostFunction:
    """Build the costs of a model on a cluster; every price of them is checked.

    Raises:
        PluginError: the first operator, whole and on one device, has a price that none can be.
    """
    costs = estimator.build(graph, cluster)
    who = str(getattr(estimator, "who", f"{estimator.kind.value} {estimator.name!r}"))
    _check_assumptions(costs.assumptions, f"{who}: assumptions of what build")
    _check_first(costs, who, graph)
    _checking_prices(costs, who, graph)
    return costs


def _check_assumptions(assumptions: object, what: str) -> None:
    """Raise where assumptions are no mapping of names to what JSON has, as the provenance of plans keeps them."""
    expect(assumptions, Mapping, what, "a mapping of names to values")
    assert isinstance(assumptions, Mapping)
    for name, value in assumptions.items():
        try:
            is_json = isinstance(name, str) and bool(json.dumps(value, allow_nan=False, default=_plain))
        except (TypeError, ValueError, RecursionError):
            is_json = False
        if not is_json:
            raise PluginError(f"{what} returned {shown(name, 40)} with {shown(value, 40)} (must be JSON values)")


def _plain(value: Any) -> Any:
    """Return a mapping of another type than `dict` as one."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _check_first(costs: CostFunction, who: str, graph: OperatorGraph) -> None:
    """Price the first operator whole, on one device."""
    whole = (1,) * len(graph.operators[0].dims)
    with calling(f"{who}: supports"):
        supports = costs.supports(0, whole)
    if not isinstance(supports, bool | np.bool_):
        raise PluginError(f"{who}: supports returned {shown(supports, 40)} (must be True or False)")
    if not supports:
        return
    with calling(f"{who}: price"):
        price = costs.price(0, whole, np.zeros(1, dtype=np.int32))
    expect(price, PartCosts, f"{who}: price")
    _check_values(price, f"{who}: price", 1)


def _check_values(price: PartCosts, what: str, parts: int) -> None:
    """Raise where a price has no seconds or bytes for each part, or some that no part can take."""
    for field in ("forward", "backward", "memory", "weight_gradient", "kept", "states", "gradients"):
        column = getattr(price, field)
        if column is None:
            continue
        values = column
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
            kind = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else f"a {type(values).__name__}"
            raise PluginError(f"{what}: {field} is {kind} (must be an array of numbers, one for each part)")
        right = (*_ROWS.get(field, ()), parts)
        if values.shape != right:
            raise PluginError(
                f"{what} of {parts} part{'s' * (parts > 1)}: {field} has shape {values.shape} (must be {right})"
            )
        if not (values.min() >= 0 and values.max() < np.inf):
            unit = "bytes" if field in ("memory", "kept", "states", "gradients") else "s"
            bad = values[~((values >= 0) & (values < np.inf))][0]
            raise PluginError(f"{what}: {field} is {bad} {unit} (must be finite and at least 0)")
    _check_shares(price, what)


def _check_shares(price: PartCosts, what: str) -> None:
    """Raise where what is a part of the memory, or of the backward pass, is more than that."""
    states = None if price.states is None else price.states.sum(axis=0)
    for part, field, whole, unit in (
        (states, "the sum of states", "memory", "bytes"),
        (price.kept, "kept", "memory", "bytes"),
        (price.weight_gradient, "weight_gradient", "backward", "s"),
    ):
        if part is None:
            continue
        most = getattr(price, whole)
        if (part > most * (1 + _ROUNDING)).any():
            bad = int(np.argmax(part - most))
            raise PluginError(f"{what}: {field} is {part[bad]} {unit}, more than {whole}, {most[bad]} {unit}")


def _checking_prices(costs: CostFunction, who: str, graph: OperatorGraph) -> None:
    """Have every price of a cost function checked: its class becomes a subclass, so that it stays all that it is."""
    cls = type(costs)

    def checked(name: str) -> Any:
        method = getattr(cls, name)
        right: dict[tuple[int, tuple[int, ...], int], PartCosts] = {}  # what was looked at last; many give it again
        recent: LruCache[int, PartCosts] = LruCache(_RECENT)  # of any operator: equal ones have equal prices

        def price(self: CostFunction, op: int, degrees: tuple[int, ...], devices: I32, *batch: Any) -> PartCosts:
            try:
                with printing_aside():
                    value: PartCosts = method(self, op, degrees, devices, *batch)
            except (TopoplanError, MemoryError):
                raise
            except (Exception, SystemExit) as error:
                raise_if_interrupted(error)
                raise PluginError(f"{who}: {name} raised {exception_line(error)}") from error
            key = op, tuple(degrees), len(devices)
            if right.get(key) is value:
                return value
            if recent.find(id(value)) is value and len(value.forward) == len(devices):
                right[key] = value
                return value
            what = f"{who}: {name} of operator {op} ({graph.operators[op].name!r}) cut by {tuple(degrees)}"
            expect(value, PartCosts, what)
            _check_values(value, what, len(devices))
            right[key] = recent.put(id(value), value)
            return value

        return price

    methods = [name for name in ("price", "price_micro_batch") if getattr(cls, name) is not getattr(CostFunction, name)]
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    checking = ABCMeta(cls.__name__, (cls,), {"__slots__": (), **names, **{name: checked(name) for name in methods}})
    with suppress(TypeError):  # of some layouts no other class can be taken
        object.__setattr__(costs, "__class__", checking)
