"""When a search ends: its budget is spent, its time is up, nothing was better for long enough, or nobody proposes.

The budget counts proposals, so it ends a search at the same place on every machine.  A time limit does not: what a
search reaches in a minute depends on the machine.  Compilation of kernels takes none of that time.

Data flow: `limits_of` makes the `Limits` of one search, which the driver's loop asks (`Limits.ending`); searches that
share a budget or a time limit get theirs by `share` and `time_share`.
"""

from __future__ import annotations

import math
from typing import Literal

import attrs

from topoplan.model.problem import Problem
from topoplan_engine.experiment import Experiment
from topoplan_engine.options import ComponentOptions, RunOptions, UnnamedBudget, UnnamedPatience

__all__ = [
    "LEAST_TIME",
    "Ending",
    "Limits",
    "limits_of",
    "share",
    "time_limited",
    "time_share",
    "with_patience",
    "with_patience_for",
]

#: Share of a time limit that a search has at least, however long its start took.
LEAST_TIME = 0.05
#: Share of a default budget after which the default searcher stops if nothing was better.
_PATIENCE = UnnamedPatience(0.2)
#: The same in work, which large problems have less proposals for: parts of operators in all of these together, and the
#: fewest proposals.
_PARTS, _FEWEST = 2**20, 8

#: What ended a search.
Ending = Literal["budget", "time limit", "patience", "nothing left to propose", "interrupt"]


@attrs.frozen(kw_only=True)
class Limits:
    """How far a search may go.

    Attributes:
        budget: proposals.
        seconds: of search, compilation left out; infinite without a time limit.
        patience: proposals without a better state after which it ends; infinite without such an end.
        patience_seconds: the same in time.
    """

    budget: int
    seconds: float = math.inf
    patience: float = math.inf
    patience_seconds: float = math.inf

    @property
    def timed(self) -> bool:
        """Whether what ends the search depends on a clock."""
        return min(self.seconds, self.patience_seconds) < math.inf


def limits_of(patience: float | None, budget: int, seconds: float = math.inf, *, by_time: bool = False) -> Limits:
    """Return the limits of a search.

    Args:
        patience: share of the budget after which it ends if nothing was better; None for no such end.
        budget: proposals.
        seconds: of search; infinite without a time limit.
        by_time: patience is a share of the seconds: the budget has no limit that anybody set.
    """
    if patience is None:
        return Limits(budget=budget, seconds=seconds)
    if by_time:
        return Limits(budget=budget, seconds=seconds, patience_seconds=patience * seconds)
    return Limits(budget=budget, seconds=seconds, patience=max(1, math.ceil(patience * budget)))


def with_patience(experiment: Experiment) -> Experiment:
    """Return an experiment that says how patient its search is: where the budget is a default, and `auto` searches.

    `auto` begins with plans of planners, so that long without a better one there is hardly any; others may improve
    late, or try strategies one after the other.
    """
    run = experiment.run
    if run.patience is not None or not _is_default(experiment):
        return experiment
    return attrs.evolve(experiment, run=attrs.evolve(run, patience=_PATIENCE))


def with_patience_for(experiment: Experiment, problem: Problem) -> Experiment:
    """Return an experiment whose default patience is one in work, counted: the same on every machine.

    A patience that a user names is kept, whatever it is.

    A proposal for a language model on many devices has as many tasks as hundreds for a small problem, and takes a
    second or more.
    """
    run, parts = experiment.run, len(problem.graph.operators) * problem.cluster.n_devices
    proposals = max(_FEWEST, _PARTS // parts)
    if not isinstance(run.patience, UnnamedPatience) or proposals >= _PATIENCE * run.budget:
        return experiment
    return attrs.evolve(experiment, run=attrs.evolve(run, patience=UnnamedPatience(proposals / run.budget)))


def _is_default(experiment: Experiment) -> bool:
    """Say whether the default searcher searches, with a budget that nobody named."""
    names = [choice.name for choice in experiment.searchers]
    return isinstance(experiment.run.budget, UnnamedBudget) and names == list(ComponentOptions().searcher)


def share(budget: int, count: int, number: int) -> int:
    """Return part ``number`` of ``count`` of a budget, the first ones one larger where it cannot be divided."""
    return budget // count + (number < budget % count)


def time_share(seconds: float, spent: float, count: int) -> float:
    """Return what the next of ``count`` searches may take of the rest of a time limit."""
    return max(seconds - spent, 0.0) / count


def time_limited(options: RunOptions, spent: float, share: float) -> RunOptions:
    """Return the options of a search whose limit is its share of the time that is left after the seconds spent.

    A share of all of it, less what was spent, would leave the first of several searches with nothing where their start
    takes long.
    """
    if options.time_limit is None:
        return options
    return attrs.evolve(options, time_limit=max(share * (options.seconds - spent), LEAST_TIME * options.seconds))
