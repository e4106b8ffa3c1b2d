"""What an iteration takes over draws of equal paths: how many are taken, and which, wherever a plan is reported.

A search reports the mean over draws that it has not used (`topoplan_engine.search.draws`), a command that reads a plan
the mean over the same ones.  So many are taken that it is known to a quarter of a percent, as far as task graphs are
small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, F64, f64
from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.plugin.simulate import Simulate
from topoplan.search.stopping import Stopped
from topoplan_engine.interrupt import Stop

__all__ = [
    "AT_LEAST",
    "FEW",
    "MOST_TASKS",
    "REPORTING",
    "SOME_TASKS",
    "Draws",
    "Reported",
    "draws_of_tasks",
    "record_of",
    "reported_draws",
    "reported_of",
]

#: Draws that are reported, counted from those of the search.
REPORTING = range(2000, 2256)

#: Draws that are reported at least, and are taken at a time; those where task graphs are large.
AT_LEAST, FEW = 8, 2

#: Tasks after which no more draws are begun, all draws of a state together: some twenty seconds; and those that draws
#: may have even if the search itself has simulated fewer: some five seconds.
MOST_TASKS, SOME_TASKS = 1 << 19, 1 << 17

#: Standard error of a mean, as a share of it, that asks for no more draws.
_PRECISE = 0.0025


@attrs.frozen(kw_only=True)
class Draws:
    """Seconds of one state's iteration over draws of its paths.

    Attributes:
        seconds: (n,) of each draw; a single time if nothing is drawn.
        seeds: (n) of the draws, as the simulator's option ``seed`` takes them; empty if nothing is drawn.
    """

    seconds: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    seeds: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        """Mean of the seconds."""
        return float(self.seconds.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation of a single draw, in seconds; 0 if there is only one."""
        return float(self.seconds.std(ddof=1)) if len(self.seconds) > 1 else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean, in seconds."""
        return self.deviation / float(np.sqrt(len(self.seconds)))

    @property
    def nearest(self) -> int | None:
        """Seed of the draw that is nearest to the mean; None if nothing is drawn."""
        if not self.seeds:
            return None
        return self.seeds[int(np.argmin(np.abs(self.seconds - self.seconds.mean())))]


class Reported(NamedTuple):
    """What the provenance of a plan says of its draws.

    Attributes:
        mean, deviation: seconds.
        taken, first_seed: how many draws, and the seed of the first; no seed in files of before it was recorded.
    """

    mean: float
    deviation: float
    taken: int
    first_seed: int | None


def reported_of(provenance: Mapping[str, Any]) -> Reported | None:
    """Return what the provenance of a plan says of its draws; None where that is nothing, or of another program."""
    record = provenance.get("iteration_time")
    if not isinstance(record, Mapping):
        return None
    mean, deviation, count = (record.get(name) for name in ("mean_s", "standard_deviation_s", "draws"))
    first_seed = record.get("first_seed")
    if not isinstance(mean, float) or not isinstance(deviation, float) or not isinstance(count, int):
        return None
    if not isinstance(first_seed, int | None):
        return None
    return Reported(mean, deviation, count, first_seed) if mean > 0 and 0 < count <= len(REPORTING) else None


def record_of(draws: Draws) -> dict[str, Any]:
    """Return what the provenance of a plan says of its draws."""
    iteration_time = {
        "mean_s": draws.mean,
        "standard_deviation_s": draws.deviation,
        "draws": len(draws.seeds),
        "first_seed": draws.seeds[0],
        "timeline_seed": draws.nearest,
    }
    return {"iteration_time": iteration_time}


def reported_draws(
    makespans: Callable[[Sequence[int]], F64], first_draw: int, at_least: int, most: int, stop: Stop
) -> Draws:
    """Return times under the draws that are reported, until their mean is precise; none if there was no time for any.

    Draws are taken in batches: the last one may exceed ``most``.
    """
    seeds = tuple(first_draw + number for number in REPORTING)
    times = Draws(seconds=[])
    while len(times.seeds) < at_least or (
        len(times.seeds) < most and times.error > _PRECISE * times.mean and not stop.wanted
    ):
        batch = seeds[len(times.seeds) :][: min(AT_LEAST, at_least)]
        if not batch:
            break
        try:
            seconds = makespans(batch)
        except Stopped:
            break
        times = Draws(seconds=np.concatenate([times.seconds, seconds]), seeds=(*times.seeds, *batch))
    return times


def draws_of_tasks(
    simulate: Simulate,
    taskgraph: TaskGraph,
    fabric: AnyFabric,
    cluster: Cluster,
    *,
    first_draw: int = 0,
    count: int | None = None,
) -> Draws | None:
    """Return what a task graph takes under the draws that are reported of a plan.

    Args:
        simulate: runs the task graph.
        taskgraph, fabric, cluster: what it runs.
        first_draw: seed that the simulator was built with, or from which those of the search are counted.
        count: how many draws a search has reported; as many as it would take at least where None is known.

    Returns:
        None where nothing is drawn, and where the draws would take long and no search has taken them.
    """
    few = min(AT_LEAST, max(FEW, SOME_TASKS // max(1, taskgraph.n_tasks)))
    most = count or max(FEW, SOME_TASKS // max(1, taskgraph.n_tasks))
    takes_long = count is None and taskgraph.n_tasks * few > MOST_TASKS
    if takes_long or not simulate.draws(taskgraph, fabric, cluster):
        return None
    return reported_draws(
        lambda seeds: simulate.makespans(taskgraph, fabric, cluster, seeds), first_draw, count or few, most, Stop()
    )
