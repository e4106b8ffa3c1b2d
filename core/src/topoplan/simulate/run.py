"""What a simulator component builds: from task graph, fabric and cluster to a timeline.

Data flow: gradients are rewritten as the options say, the network of the fabric is found in a small cache (or
made), the kernel's columns are prepared and run, and its outcome is checked and turned into a `Timeline` with
its bounds.  `Simulation.makespan` stops after the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from topoplan.arrays import F64
from topoplan.cluster import Cluster
from topoplan.compiling import compile_beside
from topoplan.fabric import Fabric
from topoplan.lowering.fold import Folded
from topoplan.simulate import flexnet, fluid, fluid_kernel
from topoplan.simulate.bounds import bounds, collective_bound
from topoplan.simulate.columns import Outcome, check_finished, device_busy
from topoplan.simulate.folded import fold_loads, star
from topoplan.simulate.gradients import server_origin, with_barriers, with_parameter_server
from topoplan.simulate.network import Network, NetworkCache
from topoplan.simulate.phases import phased_makespan, phased_timeline
from topoplan.taskgraph import TaskGraph
from topoplan.timeline import Timeline

if TYPE_CHECKING:
    from topoplan.simulate.components import FlexnetOptions, FluidOptions

__all__ = ["Simulation", "flexnet_simulation", "fluid_simulation"]


class _Model(Protocol):
    """A simulator: its options, and functions over the columns that it prepares."""

    def prepare(self, taskgraph: TaskGraph, network: Network) -> Any:
        """Make the columns of one iteration."""

    def simulate(self, prepared: Any) -> Outcome:
        """Run one iteration."""

    def beats(self, prepared: Any, time: float) -> Outcome | None:
        """Run one iteration; None once it is proven to take ``time`` or longer."""

    def alone(self, prepared: Any) -> F64:
        """(T,) seconds that each task takes at least, from its last dependency on."""

    def run_times(self, prepared: Any) -> F64:
        """(T,) seconds of each compute task, as simulated."""

    def sure_bytes(self, taskgraph: TaskGraph, network: Network) -> F64:
        """(n, E) bytes that each operator surely sends over each link, whichever paths it draws."""


class Simulation:
    """A built simulator; call it for a timeline, or ask for the makespan alone."""

    def __init__(self, model: _Model, *, barriers: bool, server: bool) -> None:
        self._model, self._barriers, self._server = model, barriers, server
        self._networks = NetworkCache()

    def __call__(self, taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> Timeline:
        """Run one iteration.

        Raises:
            TopoplanError: a column out of range, a cycle, a starved task or an unreachable pair.
        """
        taskgraph.check()
        if fabric.phases is not None:
            return phased_timeline(self, taskgraph, fabric, cluster)
        network = self._networks.get(fabric, cluster)
        given, taskgraph = taskgraph, self._rewritten(taskgraph)
        prepared = self._model.prepare(taskgraph, network)
        outcome = self._model.simulate(prepared)
        check_finished(taskgraph, outcome.finish)
        busy = device_busy(taskgraph, self._model.run_times(prepared), cluster.n_devices)
        link_busy = outcome.link_bytes / network.paths.bandwidth
        start, finish = outcome.start[: given.n_tasks], outcome.finish[: given.n_tasks]
        if self._server:
            extra = server_origin(given)[given.n_tasks :]
            rows = slice(given.n_tasks, given.n_tasks + len(extra))
            start, finish = start.copy(), finish.copy()
            np.minimum.at(start, extra, outcome.start[rows])
            np.maximum.at(finish, extra, outcome.finish[rows])
        return Timeline(
            start=start,
            finish=finish,
            makespan=float(outcome.makespan),
            device_busy=busy,
            link_bytes=outcome.link_bytes[: fabric.n_links],
            link_busy=link_busy[: fabric.n_links],
            bounds=bounds(
                prepared.tasks,
                self._model.alone(prepared),
                busy,
                link_busy,
                collective_bound(given, fabric, cluster),
            ),
            events=int(outcome.events),
        )

    def makespan(self, taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster, beat: float = float("inf")) -> float:
        """Return the iteration time only; infinite once it is proven to be no less than ``beat``.

        ``taskgraph`` must be in range (`TaskGraph.check`).

        Raises:
            TopoplanError: a cycle, a starved task or an unreachable pair.
        """
        if fabric.phases is not None:
            return phased_makespan(self.makespan, taskgraph, fabric, cluster, beat)
        network = self._networks.get(fabric, cluster)
        taskgraph = self._rewritten(taskgraph)
        prepared = self._model.prepare(taskgraph, network)
        outcome = self._model.simulate(prepared) if beat == np.inf else self._model.beats(prepared, beat)
        if outcome is None:
            return float("inf")
        check_finished(taskgraph, outcome.finish)
        return float(outcome.makespan)

    def folds(self, fabric: Fabric, cluster: Cluster) -> bool:
        """Say whether `folded_makespan` can simulate one task for all that nothing tells apart."""
        plain = isinstance(self._model, fluid.Model) and not (self._model.stepped or self._barriers or self._server)
        return plain and fabric.phases is None and star(self._networks.get(fabric, cluster)) is not None

    def folded_makespan(self, folded: Folded, fabric: Fabric, cluster: Cluster, beat: float = float("inf")) -> float:
        """Return the time of a folded iteration, as `makespan` does."""
        outcome = self.folded_outcome(folded, fabric, cluster, beat)
        return float(outcome.makespan)

    def folded_outcome(self, folded: Folded, fabric: Fabric, cluster: Cluster, beat: float = float("inf")) -> Outcome:
        """Simulate a folded iteration."""
        network = self._networks.get(fabric, cluster)
        links = star(network)
        assert links is not None
        prepared = fold_loads(self._model.prepare(folded.taskgraph, network), folded, links)
        outcome = Outcome(*fluid_kernel.run(*prepared, np.zeros(folded.taskgraph.n_tasks), beat))
        if outcome.makespan < np.inf:
            check_finished(folded.taskgraph, outcome.finish)
        return outcome

    def link_seconds(self, taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> F64:
        """(n, E) seconds that the messages of operators 0 .. n-1 surely keep each link busy, in any order."""
        if fabric.phases is not None:  # which phase a message is in, and so its path, is not told by it alone
            return np.zeros((1, fabric.n_links + 2 * cluster.n_devices))
        network = self._networks.get(fabric, cluster)
        if self._server:
            return np.zeros((1, network.n_links))
        seconds: F64 = self._model.sure_bytes(taskgraph, network) / network.paths.bandwidth
        return seconds

    def task_count(self, taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> int:
        """Return how many tasks FlexNet counts: `topoplan.simulate.flexnet.flexnet_task_count`."""
        return flexnet.flexnet_task_count(self._rewritten(taskgraph), self._networks.get(fabric, cluster))

    def _rewritten(self, taskgraph: TaskGraph) -> TaskGraph:
        if self._barriers:
            taskgraph = with_barriers(taskgraph)
        return with_parameter_server(taskgraph) if self._server else taskgraph


def flexnet_simulation(options: FlexnetOptions) -> Simulation:
    """Build FlexNet's simulator."""
    seed = options.seed if options.ring_direction == "random" else None
    return _simulation(options, flexnet.Model(options.segment_bytes, seed))


def fluid_simulation(options: FluidOptions) -> Simulation:
    """Build the fluid simulator."""
    compile_beside(fluid_kernel.__name__)
    return _simulation(options, fluid.Model(options.level == "stepped", options.seed))


def _simulation(options: FlexnetOptions | FluidOptions, model: _Model) -> Simulation:
    return Simulation(
        model, barriers=options.gradient_sync == "barrier", server=options.collective == "parameter-server"
    )
