"""The network half of an alternating optimization, for any topology that follows demand.

Takes turns with a searcher of strategies: once in a while it takes the demand of the best strategy, lets the topology
build its own fabric for it, and proposes that with the strategy, priced together.  What to build is the topology's
to decide, so that this works for fabrics of every kind; a searcher that knows one kind may do better on it.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan import Candidate, Problem, Search, Searcher, TopoplanError, Trial, hookimpl, option

__all__ = ["Rewire", "RewireOptions", "build"]


@attrs.frozen(kw_only=True)
class RewireOptions:
    """Options of the searcher."""

    every: int = option(50, help="turns between two times that the fabric is built anew", minimum=1)


class Rewire:
    """Search along the network axis; see `topoplan.search.Search`.

    It proposes when the state that it was last given has changed and it was asked at least ``every`` times since it
    last proposed; the first time it proposes at once.
    """

    def __init__(self, options: RewireOptions, problem: Problem, rng: np.random.Generator) -> None:
        self._every, self._build, self._rng = options.every, problem.build_fabric, rng
        self._given: Trial | None = None
        self._turns = options.every

    def ask(self) -> Sequence[Candidate]:
        """Propose the state last given on a fabric made for it; nothing while it is not yet time."""
        self._turns += 1
        if self._given is None or self._turns < self._every:
            return []
        self._turns = 0
        given, self._given = self._given, None
        fabric = self._build(given.demand(), self._rng)
        if fabric == given.state.fabric:
            return []
        return [Candidate(base=given.state, fabric=fabric, beat=given.cost)]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Leave it to the driver to keep what is better."""

    def adopt(self, trial: Trial) -> None:
        """Go on from another strategy."""
        self._given = trial


def build(options: RewireOptions, problem: Problem, rng: np.random.Generator) -> Search:
    """Start the search.

    Raises:
        TopoplanError: the topology does not follow demand.
    """
    if not problem.reconfigurable:
        raise TopoplanError(f"searcher rewire: topology {problem.topology!r} cannot be rewired (use ocs or topoopt)")
    return Rewire(options, problem, rng)


@hookimpl
def topoplan_searchers() -> list[Searcher]:
    """Register the searcher."""
    return [
        Searcher(
            name="rewire",
            summary="the topology's own fabric for the best strategy, in turns with a strategy searcher",
            options=RewireOptions,
            build=build,
            axis="network",
            partner="mcmc",
        )
    ]
