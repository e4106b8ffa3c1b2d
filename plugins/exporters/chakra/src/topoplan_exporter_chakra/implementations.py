"""Algorithms of a plan's collectives by the names that ASTRA-sim gives them.

ASTRA-sim has one implementation for a kind of collective and dimension of its network, whatever the size: here that
which runs the most bytes at a time.  Names are those of ``Sys::generate_collective_impl_from_input``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from topoplan import Plan
from topoplan.errors import TopoplanWarning
from topoplan_engine.rebuilding import recorded_simulator

__all__ = ["implementations"]

#: What runs along each dimension.  Rings along the dimensions, one after the other, are what these three are.
_NAMES = {
    **dict.fromkeys(("rings", "ring", "multi-ring", "hierarchical", "torus"), "ring"),
    **dict.fromkeys(("direct", "staggered"), "direct"),
    "tree": "doubleBinaryTree",
    "halving-doubling": "halvingDoubling",
}


def implementations(plan: Plan) -> Mapping[str, str]:
    """Return ASTRA-sim's name for each kind of collective that has an algorithm; a warning names what it lacks."""
    names = {}
    for kind, name in _algorithms(plan).items():
        if name in _NAMES:
            names[kind] = _NAMES[name]
        else:
            note = f"astra-sim: {kind} by {name}, which it does not have, is written as {_NAMES['ring']}"
            warnings.warn(TopoplanWarning(note), stacklevel=2)
    return names


def _algorithms(plan: Plan) -> Mapping[str, str]:
    """Return the algorithm of each kind: what ran the most bytes, else the only one that options name."""
    algorithms, largest = {}, dict[str, int]()
    record = plan.provenance.get("joint")
    moved = record.get("algorithms") if isinstance(record, Mapping) else None
    rows = moved or plan.provenance.get("algorithms")
    for row in rows if isinstance(rows, list | tuple) else ():
        if isinstance(row, Mapping) and isinstance(row.get("most_bytes"), int):
            kind, most = str(row.get("collective")), row["most_bytes"]
            if most > largest.get(kind, -1):
                algorithms[kind], largest[kind] = str(row.get("algorithm")), most
    simulator = recorded_simulator(plan)
    text = simulator.options.get("algorithms", "") if simulator is not None else ""
    for rule in str(text).split(";") if text else ():
        kind, _, names = rule.partition("=")
        name = names.partition(":")[0]
        if "@" not in kind and "+" not in names and name != "auto":
            algorithms.setdefault(kind, name)
    return algorithms
