"""Plans of one stage whose operators are placed one by one: those that are best by estimates, then a descent.

    estimates of cuts ─► plans under several weights of communication ─► simulated ─► the best one, if it is near
                                                  operator by operator, its next best cuts are simulated ◄┘

What no program says such a body can: a table whole on one device, as in recommenders, or terms of a sum that are added
where they arrive.  A stage of such placements, and one micro-batch, is what these placements are without stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs
import numpy as np

from topoplan import Problem, StagedStrategy
from topoplan.arrays import F64
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_placement_moves.cut_estimates import CutEstimates
from topoplan_placement_moves.planning import best_cuts

__all__ = ["PlacedBodies", "PlacedBody", "placed_steps"]

#: Cuts of an operator that are tried in each round, those with the best estimates beside what is around them.
_CUTS = 3
#: Rounds of the descent, and parts of operators that all of its proposals have together.
_ROUNDS, _PARTS = 4, 2**18
#: A descent begins if the best body takes no more than this times as long as the best plan of all.
_NEAR = 1.1
#: Smallest improvement that is taken, and that of a round after which there is another one.
_BETTER, _WORTH = 0.9995, 0.999


@attrs.frozen
class PlacedBody:
    """One stage of placed operators: (n_ops,) the number of the cut of each, in the order of its estimates."""

    cuts: tuple[int, ...]


class PlacedBodies:
    """The bodies of one problem, and their estimates; `planned` makes these."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._estimates: CutEstimates | None = None
        self._edges: Mapping[tuple[int, int], F64] = {}

    @property
    def most(self) -> int:
        """Proposals of a descent."""
        return _PARTS // (len(self._problem.graph.operators) * self._problem.cluster.n_devices)

    @property
    def initial(self) -> PlacedBody:
        """The body that is the initial strategy."""
        return PlacedBody((0,) * len(self._problem.graph.operators))

    def planned(self) -> Iterator[PlacedBody | None]:
        """Yield the bodies that are best by estimates, the initial strategy left out; None after some estimates."""
        self._estimates = CutEstimates(self._problem)
        for edges in self._estimates.growing_edges():
            self._edges = edges
            yield None
        yield from map(PlacedBody, best_cuts(self._estimates, self._edges))

    def strategy(self, body: PlacedBody) -> StagedStrategy:
        """Return the strategy of a body."""
        cuts = self._known.cuts
        placements = [several[number] for several, number in zip(cuts, body.cuts, strict=True)]
        return pipeline_strategy(placements, [0] * len(placements), "1f1b", 1)

    def seconds(self, body: PlacedBody) -> float:
        """Return estimated seconds, as if nothing ran at the same time as anything else."""
        columns = self._known.compute, self._known.gradients
        own_seconds = sum(
            float(table[number]) for each in columns for table, number in zip(each, body.cuts, strict=True)
        )
        pairs = sum(float(table[body.cuts[u], body.cuts[v]]) for (u, v), table in self._edges.items())
        return own_seconds + pairs

    def neighbours(self, body: PlacedBody, op: int) -> list[PlacedBody]:
        """Return bodies in which one operator has another cut, those with the best estimates, the best first."""
        seconds = self._known.compute[op] + self._known.gradients[op]
        for (u, v), table in self._edges.items():
            if u == op:
                seconds = seconds + table[:, body.cuts[v]]
            elif v == op:
                seconds = seconds + table[body.cuts[u]]
        other_cuts = [number for number in np.argsort(seconds, kind="stable").tolist() if number != body.cuts[op]]
        return [PlacedBody((*body.cuts[:op], number, *body.cuts[op + 1 :])) for number in other_cuts[:_CUTS]]

    @property
    def _known(self) -> CutEstimates:
        assert self._estimates is not None, "planned before"
        return self._estimates


def placed_steps(
    bodies: PlacedBodies, best_cost: Callable[[], float], simulated: Mapping[PlacedBody, float]
) -> Iterator[PlacedBody]:
    """Yield bodies to simulate: the descent from the best one so far.

    Args:
        bodies: planned.
        best_cost: returns the seconds of the best plan so far, of whichever searcher.
        simulated: seconds of the bodies that were yielded, written by the caller; infinite for one that is no better
            than the best of them.
    """
    proposals = bodies.most
    if bodies.initial not in simulated:
        yield bodies.initial
    best = min(simulated, key=simulated.__getitem__)
    if not simulated[best] <= _NEAR * best_cost():
        return
    for _ in range(_ROUNDS):
        before = simulated[best]
        for op in range(len(best.cuts)):
            for body in bodies.neighbours(best, op):
                if body in simulated:
                    continue
                if not proposals:
                    return
                proposals -= 1
                yield body
                if simulated[body] < _BETTER * simulated[best]:
                    best = body
                    break
        if simulated[best] > _WORTH * before:
            return
