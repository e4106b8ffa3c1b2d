"""What a searcher may propose: changes to states of its problem along its axis, on networks that the hardware can be.

`topoplan_engine.guarded` asks it of every candidate.  What a candidate changes is looked at, since searches propose
thousands in a second; a fabric is checked once, as what a topology builds is
(`topoplan_engine.interfaces`), and those that the search was given are known already.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from topoplan.errors import TopoplanError, shown
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.problem import Problem
from topoplan.model.reconfigurable import AnyFabric
from topoplan.plugin.components import SearchAxis
from topoplan.search.protocol import Candidate, State
from topoplan_engine.cache import LruCache
from topoplan_engine.interfaces import check_rewired

__all__ = ["Allowed", "why_misplaced"]

#: What an operator's index may be.
_INTEGERS = (int, np.integer)
#: Proposed fabrics of which is known that they can be built.
_FABRICS = 1024


class Allowed:
    """What one searcher may propose, given the states that it got so far.

    Args:
        problem: what it searches in.
        axis: what it may change.
    """

    def __init__(self, problem: Problem, axis: SearchAxis) -> None:
        self._problem, self._axis = problem, axis
        self._own: AnyFabric | None = None
        # Keys of what it was given; the last fabric and strategy that were allowed, to look at no key of them.
        self._given_fabrics: set[bytes] = set()
        self._given_strategies: set[bytes] = set()
        self._last: tuple[object, object] = (None, None)
        self._buildable: LruCache[bytes, bool] = LruCache(_FABRICS)

    def give(self, state: State) -> None:
        """Take note of a state that the searcher gets: the first one, or one that another searcher reached."""
        self._own = self._own or state.fabric
        self._given_fabrics.add(state.fabric.key)
        if self._axis == "network":
            self._given_strategies.add(state.strategy.key)

    def why_wrong(self, candidate: Candidate) -> str:
        """Say what of a candidate is no change to a state of the problem, and what would be right; empty if all is."""
        base, problem = candidate.base, self._problem
        if not isinstance(base, State):
            return f"a change to {shown(base)} (base must be a State: what adopt or tell brought)"
        if not isinstance(candidate.placements, Mapping):
            return f"placements {shown(candidate.placements)} (must be a mapping of operators' indices to Placement)"
        for op, placement in candidate.placements.items():
            if reason := why_misplaced(op, placement, problem.graph, problem.cluster.n_devices):
                return reason
        if reason := _why_no_cutoff(candidate.cutoff_seconds):
            return reason
        if candidate.placements and self._axis == "network":
            return 'placements, though its axis is the network (declare axis = "joint" to move both)'
        is_known = base.fabric is self._last[0] and base.strategy is self._last[1]
        if not is_known and (reason := self._why_wrong_base(base)):
            return reason
        return "" if candidate.fabric is None else self._why_wrong_fabric(candidate.fabric, "a fabric")

    def _why_wrong_base(self, base: State) -> str:
        """Say why a state is none to begin with, as far as its fabric or its strategy is what the axis leaves alone."""
        if reason := self._why_wrong_fabric(base.fabric, "a state on a fabric"):
            return reason
        if self._axis == "network" and getattr(base.strategy, "key", None) not in self._given_strategies:
            return "a state of another strategy than adopt or tell brought, though its axis is the network"
        self._last = base.fabric, base.strategy
        return ""

    def _why_wrong_fabric(self, fabric: object, what: str) -> str:
        """Say why the problem's hosts cannot be joined so; empty if they can."""
        if not isinstance(fabric, AnyFabric):
            return f"fabric {shown(fabric)} (must be a Fabric, a ReconfigurableFabric, or None for that of the base)"
        if fabric.key in self._given_fabrics or self._buildable.find(fabric.key):
            return ""
        if self._axis == "strategy":
            return f'{what} of its own, though its axis is the strategy (declare axis = "joint" to move both)'
        if not self._problem.reconfigurable:
            return f"{what} of its own, but topology {self._problem.topology!r} cannot be rewired"
        if self._own is None:
            return f"{what} before it was given a state"
        try:
            check_rewired(fabric, self._own, self._problem.cluster)
        except TopoplanError as error:
            return f"{what} that cannot be built: {error}"
        self._buildable.put(fabric.key, True)
        return ""


def _why_no_cutoff(seconds: object) -> str:
    """Say why a value is no cost to stop at; empty if it is one, or infinite."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.integer | np.floating):
        return f"cutoff_seconds {shown(seconds)} (must be a number)"
    return "" if seconds >= 0 else f"cutoff_seconds {seconds} (must be at least 0)"


def why_misplaced(op: object, placement: object, graph: OperatorGraph, n_devices: int) -> str:
    """Say why an operator cannot be placed so; empty if it can."""
    operators = graph.operators
    if not isinstance(op, _INTEGERS) or not 0 <= op < len(operators):
        return f"a placement of operator {shown(op)} (must be an index from 0 to {len(operators) - 1})"
    where = f"for operator {op} ({operators[op].name!r})"
    if not isinstance(placement, Placement):
        return f"{shown(placement)} {where} (must be a Placement)"
    if reason := operators[op].why_invalid(placement.degrees):
        return f"{shown(placement)} {where}: {reason}"
    # Negative numbers are large ones without a sign.
    if placement.devices.view(np.uint32).max() >= n_devices:
        return f"{shown(placement)} {where}: the cluster has devices 0 to {n_devices - 1}"
    return ""
