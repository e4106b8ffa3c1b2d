"""The fluid model: messages flow at rates that they share, in whole packets, with the latency of every hop.

The model follows what iteration times of FlexNetPacket (TopoOpt, NSDI'23) were found to depend on:

* A message of S bytes is ``ceil(S / 8936)`` packets of 8936 bytes, at least one.  On a path of links with
  latency d and bandwidth C it starts to flow after sum(d + 1/C), and is there sum(d) + sum(8936/C) - max(8936/C)
  after its last byte has left: alone it takes exactly what store-and-forward of packets takes.
* What flows shares links: its rate is the smallest share that it has on its links.  Bandwidth that a flow cannot use
  because of another link is not given to others.
* Links are queues that flows fill with their windows, and shares are as these
  (`topoplan_engine.simulation.flows.window`):
  rings start every round with a large window, beside which long transfers starve.
* An all-reduce of S bytes over m members sends floor(S/m) per member and round, for 2 (m-1) rounds, after the
  time that it needs inside its hosts.  If S < 9000 m it sends all in one round, floor(2 S (m-1)/m)/m; if
  S m <= 18000 m (m-1), it stops after the first round.  With k rings each carries 1/k of this; rings run
  independently and the last one ends the all-reduce.  With one member it ends at once.
* ``coupled``: a ring is one entity that loads each of its links once per crossing and moves the bytes of all
  rounds at one rate; its latencies, those of its longest path, count once per round.  ``stepped``: every round
  is m flows and a barrier.
* A flow that has several paths draws one by their weights when it starts.  Every pair of hosts has a stream of draws
  of its own, so that a change of some transfers leaves the paths of all other pairs as they were.  A coupled ring
  stands for flows that draw anew in every round, and loads each path by its weight; to draw paths once for a whole
  ring exaggerates collisions (against the packet simulator, on fat-trees).  Loaded evenly, rings side by side never
  meet; so rings of up to 8 hosts, and not of all, are stepped at both levels where some of their flows have several
  paths.
* A device runs its tasks one at a time, in the order in which they become ready.

Data flow: `Model.prepare` lowers a task graph through a `Network` and lists the entities, `Model.simulate` runs
the kernel over them, and `Model.alone` says how long each task takes at least, for the bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.lowering.fold import Folded
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation import flows
from topoplan_engine.simulation.columns import Outcome, columns
from topoplan_engine.simulation.critical_path import Uses, look_ahead
from topoplan_engine.simulation.flows import Entities
from topoplan_simulator_fluid.folded import fold_loads, star
from topoplan_simulator_fluid.kernel import TOGETHER, run
from topoplan_simulator_fluid.prepared import Prepared

__all__ = ["Model", "Prepared"]


class Model(NamedTuple):
    """The fluid simulator.

    Attributes:
        stepped: run the rounds of an all-reduce one by one.
        seed: draws paths.
    """

    stepped: bool = False
    seed: int = 0

    def prepare(self, taskgraph: TaskGraph, network: Network) -> Prepared:
        """Make the columns of one iteration.

        Raises:
            TopoplanError: a pair that must communicate cannot.
        """
        traffic = network.lower(taskgraph)
        tasks = columns(taskgraph)
        built = flows.build(tasks, traffic, network.paths, network.rings, self.stepped)
        return Prepared(tasks, Entities(*built), network.paths, network.rings, network.cluster.n_devices)

    def with_seed(self, seed: int) -> Model:
        """Return the same model with other draws; columns that one has prepared hold for the other."""
        return self._replace(seed=seed)

    def draws(self, prepared: Prepared) -> bool:
        """Whether some flow has several paths, so that the time depends on the seed."""
        row = prepared.entities.row[prepared.entities.row >= 0]
        return bool((np.diff(prepared.paths.row_ptr)[row] > 1).any())

    def simulate(self, prepared: Prepared) -> Outcome:
        """Run one iteration."""
        outcome = Outcome(*run(*prepared, self.seed, np.zeros(0), np.inf))
        return outcome if self.stepped else outcome._replace(link_bytes=outcome.link_bytes[prepared.rings.twin])

    def beats(self, prepared: Prepared, time: float) -> Outcome | None:
        """Run one iteration; None once it is proven to take ``time`` or longer."""
        tasks, built, paths = prepared.tasks, prepared.entities, prepared.paths
        uses = Uses(*flows.sure_uses(built, paths, prepared.rings))
        bound, behind = look_ahead(tasks, self.alone(prepared), uses, len(paths.bandwidth), prepared.n_devices)
        # Rounding, and events that happen up to a picosecond early: four for a task or round.
        stop = time * (1 + 1e-9) + 4 * TOGETHER * (len(tasks.kind) + int(built.rounds.sum()))
        if bound >= stop:
            return None
        outcome = Outcome(*run(*prepared, self.seed, behind, stop))
        return outcome if outcome.makespan < np.inf else None

    def alone(self, prepared: Prepared) -> F64:
        """(T,) seconds that each task takes at least, from its last dependency on."""
        seconds: F64 = flows.alone(prepared.tasks, prepared.entities, prepared.paths)
        return seconds

    def run_times(self, prepared: Prepared) -> F64:
        """(T,) seconds of each compute task."""
        return prepared.tasks.seconds

    def sure_bytes(self, taskgraph: TaskGraph, network: Network) -> F64:
        """(n, E) bytes that each operator surely sends over each link; rows with several paths do not count."""
        traffic = network.lower(taskgraph)
        built = flows.build(columns(taskgraph), traffic, network.paths, network.rings_in_full, self.stepped)
        sent: F64 = flows.sure_bytes(taskgraph.op, Entities(*built), network.paths, network.rings_in_full)
        return sent

    def folds(self, network: Network) -> bool:
        """Whether `simulate_folded` holds: coupled, on one switch that all hosts reach in the same way."""
        return not self.stepped and star(network) is not None

    def simulate_folded(self, folded: Folded, network: Network, beat: float) -> Outcome:
        """Run a folded iteration; its makespan is infinite once it is proven to take ``beat`` or longer."""
        links = star(network)
        assert links is not None
        prepared = fold_loads(self.prepare(folded.taskgraph, network), folded, links)
        return Outcome(*run(*prepared, 0, np.zeros(folded.taskgraph.n_tasks), beat))
