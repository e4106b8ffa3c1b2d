"""What a simulator component builds: from task graph, fabric and cluster to a timeline.

Data flow: gradients are rewritten as the options say, the network of the fabric is found in a small cache (or
made), the kernel's columns are prepared and run, and its outcome is checked and turned into a `Timeline` with
its bounds.  `Simulation.makespan` stops after the kernel.

What is drawn: where a pair of hosts has several equal paths, each message takes one at random, so that an iteration
time is one draw of many.  `Simulation.makespans` prices one task graph under several seeds at once, and
`Simulation.with_seed` gives the same simulator with other draws; both keep networks, routes and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError, shown
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.reconfigurable import AnyFabric, ReconfigurableFabric
from topoplan.model.recording import LinkUse, Recording
from topoplan.model.taskgraph import Collective, TaskGraph
from topoplan.model.timeline import Timeline
from topoplan.plugin.host import Host
from topoplan.plugin.simulate import Simulate
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.network.kept import NetworkCache
from topoplan_engine.network.star import Interfaces, star, switch_links
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.bounds import bounds, collective_bound
from topoplan_engine.simulation.columns import Outcome, check_finished, device_busy
from topoplan_engine.simulation.component import GradientSum
from topoplan_engine.simulation.coupled_messages import starts_of_coupled
from topoplan_engine.simulation.deferred import DeferredTimeline, with_words
from topoplan_engine.simulation.gradients import (
    origin_of_rows,
    server_origin,
    with_barriers,
    with_parameter_server,
    with_serial_sums,
)
from topoplan_engine.simulation.messages import Transport
from topoplan_engine.simulation.phases import excerpt, phased_makespan, phased_recording, phased_timeline, segments
from topoplan_engine.simulation.quotients import FoldedRun
from topoplan_engine.simulation.recording import recorded
from topoplan_engine.simulation.waiting import Run
from topoplan_engine.simulation.written_out import written_out

if TYPE_CHECKING:
    from topoplan_engine.lowering.folding.layout import FoldedIteration
    from topoplan_engine.lowering.folding.patterns import MessageLoads
    from topoplan_engine.lowering.symmetry.quotient import Quotient
    from topoplan_engine.simulation.collective_choice import CollectiveChoice

__all__ = ["Model", "Simulation"]

#: How much longer drawn paths took than spread ones (decisions 0351, 0352), said beside each time of spread messages.
_DRAWN_PATHS = (
    "where links were the limit on 8 to 64 hosts, drawn ones took up to 34 % longer, rings that draw, held to the mean "
    "of draws here, 10 % less to 15 % longer; 6 to 16 % less for experts over one interface of 8 devices, which send "
    "in lockstep here and are set apart there"
)

#: How much evening of classes changed plans whose exact folds fit.
_EVENED = "which changed plans on up to 64 hosts by 5 % less to 10 % more"


class Model(Protocol):
    """The part of a simulator that differs: functions over the columns that it prepares."""

    @property
    def transport(self) -> Transport:
        """How messages are sent."""

    def prepare(self, taskgraph: TaskGraph, network: Network) -> Any:
        """Make the columns of one iteration."""

    def with_seed(self, seed: int) -> Self:
        """Return the same model with other draws of paths; columns that one has prepared hold for the other."""

    def draws(self, prepared: Any) -> bool:
        """Whether some message draws one of several paths."""

    def simulate(self, prepared: Any) -> Outcome:
        """Run one iteration."""

    def record(self, prepared: Any) -> tuple[Outcome, LinkUse]:
        """Run one iteration, and return the use of all links of the network, by link and time, as well."""

    def simulate_below(self, prepared: Any, cutoff_seconds: float) -> Outcome | None:
        """Run one iteration; None once a lower bound on its time reaches the cutoff."""

    def processing_times(self, prepared: Any) -> F64:
        """(T,) lower bound on the seconds that each task takes, from its last dependency on."""

    def run_times(self, prepared: Any) -> F64:
        """(T,) seconds of each compute task, as simulated."""

    def guaranteed_bytes(self, taskgraph: TaskGraph, network: Network) -> F64:
        """(n, E) bytes that each operator sends over each link, whichever paths it draws."""

    def message_bytes(self, size: I64, members: I32) -> F64:
        """See `topoplan_engine.network.star.Interfaces`: what `guaranteed_bytes` says of any interface."""


@runtime_checkable
class QuotientModel(Protocol):
    """A model that can run one task for all that nothing tells apart (`topoplan_engine.lowering.symmetry`)."""

    @property
    def in_turn_bytes(self) -> int:
        """Messages of no more bytes from one device to the same other one are served in turn; 0 for none."""

    def has_quotient(self, network: Network) -> bool:
        """Whether `simulate_quotient` holds on this network."""

    def simulate_quotient(self, quotient: Quotient, network: Network, cutoff_seconds: float) -> Outcome:
        """Run a quotient; the makespan is infinite once a lower bound on it reaches the cutoff."""


@runtime_checkable
class HasAlgorithms(Model, Protocol):
    """A model that runs collectives by algorithms that its options name."""

    @property
    def algorithms(self) -> CollectiveChoice:
        """Which collectives have some; it is false where none has."""

    def with_host(self, host: Host) -> Self:
        """Return the same model, whose algorithms are those of a host."""

    def with_algorithms(self, text: str) -> Self:
        """Return the same model, which runs what its options name no algorithm for by those of a text, too."""

    def selections(self, taskgraph: TaskGraph, network: Network) -> list[tuple[int, str]]:
        """Return a collective of each group, kind and size that has algorithms, and which runs; empty for rings."""


@runtime_checkable
class SendsDirectly(Protocol):
    """A model that may run all-to-alls as single tasks though no algorithm is chosen."""

    @property
    def sends_directly(self) -> bool:
        """Whether it does."""


@runtime_checkable
class CouplesMessages(Protocol):
    """A model in which one flow may stand for many messages (`topoplan_engine.simulation.coupled_messages`)."""

    def coupled_words(self, prepared: Any) -> str:
        """Return which ones do in an iteration, in words; empty where none does."""


@runtime_checkable
class FoldingModel(Protocol):
    """A model that can run folded iterations (`topoplan_engine.lowering.folding`)."""

    def has_folds(self, network: Network) -> bool:
        """Whether `simulate_folded` holds on this network, but for paths that are drawn."""

    def message_loads(self, taskgraph: TaskGraph, network: Network) -> MessageLoads:
        """Return what messages put on links."""

    def simulate_folded(self, folded: FoldedIteration, network: Network) -> tuple[Outcome, Any]:
        """Run a folded iteration; return bytes of all links, and the columns that were run."""


class _Iteration(NamedTuple):
    """One iteration: the task graph as given, as the options on gradients rewrite it, and its columns on a network."""

    original: TaskGraph
    taskgraph: TaskGraph
    network: Network
    prepared: Any


class Simulation(Simulate):
    """A built simulator; call it for a timeline, or ask for the makespan alone.

    How to judge a plan by more than one draw of paths::

        seconds = simulate.makespans(taskgraph, fabric, cluster, range(1, 9))  # (8,), the same where nothing is drawn
        other = simulate.with_seed(3)  # a simulator like this one: other.makespan(...), other(...)
    """

    lower_bounds = True

    def __init__(
        self, model: Model, *, barriers: bool, collective: GradientSum, networks: NetworkCache | None = None
    ) -> None:
        self._model, self._barriers, self._collective = model, barriers, collective
        self._server, self._serial = collective == "parameter-server", collective == "nccl-serial"
        # Algorithms for some collectives, which are no rings then.
        self._chosen = model if isinstance(model, HasAlgorithms) and model.algorithms else None
        self._networks = NetworkCache() if networks is None else networks

    def with_seed(self, seed: int) -> Simulation:
        """Return the same simulator with other draws; both share networks, so that nothing is routed twice."""
        return Simulation(
            self._model.with_seed(seed), barriers=self._barriers, collective=self._collective, networks=self._networks
        )

    def with_host(self, host: Host) -> Simulation:
        """Return the same simulator, which finds algorithms of collectives in a host.

        Raises:
            TopoplanError: the host does not have one that is chosen.
        """
        if not isinstance(self._model, HasAlgorithms):
            return self
        model = self._model.with_host(host)
        return Simulation(model, barriers=self._barriers, collective=self._collective, networks=self._networks)

    def with_algorithms(self, text: str) -> Simulation:
        """Return the same simulator with algorithms for collectives that its options name none for.

        Args:
            text: as ``--collective`` says them (`topoplan_engine.simulation.collective_choice`).

        Raises:
            TopoplanError: its options leave rings alone, or there is no such algorithm.
        """
        if not isinstance(self._model, HasAlgorithms) or self._collective != "ring":
            raise TopoplanError(
                f"algorithms {shown(text)}: fluid with transport=wire and collective=ring alone runs others than rings"
            )
        model = self._model.with_algorithms(text)
        return Simulation(model, barriers=self._barriers, collective=self._collective, networks=self._networks)

    def selections(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> list[tuple[int, str]]:
        """Return a collective of each group, kind and size that has algorithms, and which one runs it; empty for rings.

        None of a fabric that is rebuilt.
        """
        if not isinstance(self._model, HasAlgorithms) or not isinstance(fabric, Fabric):
            return []
        return self._model.selections(self._rewritten(taskgraph, cluster), self._networks.get(fabric, cluster))

    @property
    def algorithms(self) -> CollectiveChoice | None:
        """Which algorithms run collectives; None where rings alone do."""
        return self._model.algorithms if isinstance(self._model, HasAlgorithms) else None

    def draws(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether the iteration time is one draw of many: some message has several paths to take."""
        if isinstance(fabric, ReconfigurableFabric):
            stretches = segments(taskgraph, fabric, cluster.device_host)
            return any(self.draws(excerpt(taskgraph, s.tasks), s.fabric, cluster) for s in stretches)
        prepared = self._model.prepare(self._rewritten(taskgraph, cluster), self._networks.get(fabric, cluster))
        return self._model.draws(prepared)

    def makespans(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster, seeds: Sequence[int]) -> F64:
        """(n,) iteration times under these seeds, as `with_seed` and `makespan` give them.

        The task graph is lowered once, and simulated once where nothing is drawn.

        Raises:
            TopoplanError: a cycle, a starved task or an unreachable pair.
        """
        if isinstance(fabric, ReconfigurableFabric):
            return super().makespans(taskgraph, fabric, cluster, seeds)
        network = self._networks.get(fabric, cluster)
        taskgraph = self._rewritten(taskgraph, cluster)
        prepared = self._model.prepare(taskgraph, network)
        times = []
        for seed in seeds if self._model.draws(prepared) else seeds[:1]:
            stop_if_wanted()
            outcome = self._model.with_seed(seed).simulate(prepared)
            check_finished(taskgraph, outcome.finish)
            times.append(float(outcome.makespan))
        return np.full(len(seeds), times, dtype=np.float64)

    def __call__(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> Timeline:
        """Run one iteration.

        Raises:
            TopoplanError: a column out of range, a cycle, a starved task or an unreachable pair.
        """
        taskgraph.check()
        if isinstance(fabric, ReconfigurableFabric):
            return phased_timeline(self, taskgraph, fabric, cluster)
        iteration = self._iteration(taskgraph, fabric, cluster)
        return self._timeline(iteration, self._model.simulate(iteration.prepared))

    def record(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> tuple[Timeline, Recording]:
        """Run one iteration, and write down which task kept each link busy and what each waited for; no memory.

        The timeline is that of a run, to the last bit.

        Raises:
            TopoplanError: as a run; or there are too many rows.
        """
        taskgraph.check()
        if isinstance(fabric, ReconfigurableFabric):
            return phased_recording(self.record, taskgraph, fabric, cluster)
        iteration = self._iteration(taskgraph, fabric, cluster)
        outcome, links = self._model.record(iteration.prepared)
        timeline = self._timeline(iteration, outcome)
        joined = written_out(taskgraph, self._single)
        rows = origin_of_rows(joined.taskgraph, iteration.taskgraph, server=self._server)
        origin = np.where(rows < 0, -1, joined.origin[rows])
        run = Run(
            iteration.prepared.tasks,
            outcome,
            links,
            iteration.network.paths.bandwidth,
            self._model.processing_times(iteration.prepared),
        )
        return timeline, recorded(run, origin, fabric.n_links)

    @property
    def runs_all_to_alls(self) -> bool:
        """Whether an all-to-all may be one task: it has an algorithm, or its messages are flows of one task."""
        return Collective.ALL_TO_ALL in self._single

    @property
    def _single(self) -> Collection[Collective]:
        """The collectives that are not written out as transfers."""
        direct = isinstance(self._model, SendsDirectly) and self._model.sends_directly
        return {*self.chosen_collectives, *((Collective.ALL_TO_ALL,) if direct else ())}

    @property
    def chosen_collectives(self) -> Collection[Collective]:
        """The collectives that have algorithms."""
        return () if self._chosen is None else self._chosen.algorithms.algorithms

    def _iteration(self, taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> _Iteration:
        network = self._networks.get(fabric, cluster)
        rewritten = self._rewritten(taskgraph, cluster)
        return _Iteration(taskgraph, rewritten, network, self._model.prepare(rewritten, network))

    def _timeline(self, iteration: _Iteration, outcome: Outcome) -> Timeline:
        """Check that everything ended, and return when."""
        original, taskgraph, network, prepared = iteration
        fabric, cluster = network.fabric, network.cluster
        check_finished(taskgraph, outcome.finish)
        summed = taskgraph if self._serial else original
        busy = device_busy(original, self._model.run_times(prepared)[: original.n_tasks], cluster.n_devices)
        link_busy = outcome.link_bytes / network.paths.bandwidth
        start, finish = outcome.start[: original.n_tasks], outcome.finish[: original.n_tasks]
        joined = written_out(original, self._single)
        if len(joined.task):
            start = start.copy()
            start[joined.task] = outcome.start[joined.join]
        if self._server:
            extra = joined.origin[server_origin(joined.taskgraph)[joined.taskgraph.n_tasks :]]
            rows = slice(taskgraph.n_tasks - len(extra), taskgraph.n_tasks)  # barriers stand before them
            start, finish = start.copy(), finish.copy()
            np.minimum.at(start, extra, outcome.start[rows])
            np.maximum.at(finish, extra, outcome.finish[rows])
        words = ""
        if isinstance(self._model, CouplesMessages):
            words = self._model.coupled_words(prepared)
            start = starts_of_coupled(original, prepared.tasks, start, finish)
        timeline = Timeline(
            start=start,
            finish=finish,
            makespan=float(outcome.makespan),
            device_busy=_occupied(original, start, finish) if len(original.slowdown) else busy,
            link_bytes=outcome.link_bytes[: fabric.n_links],
            link_busy=link_busy[: fabric.n_links],
            bounds=bounds(
                prepared.tasks,
                self._model.processing_times(prepared),
                busy,
                link_busy,
                0.0 if self._chosen else collective_bound(summed, fabric, cluster, self._model.transport),
            ),
            events=int(outcome.events),
        )
        return with_words(original, timeline, words) if words else timeline

    def makespan(
        self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster, cutoff_seconds: float = float("inf")
    ) -> float:
        """Return the iteration time only; infinite once it is proven to be no less than the cutoff.

        ``taskgraph`` must be in range (`TaskGraph.check`).

        Raises:
            TopoplanError: a cycle, a starved task or an unreachable pair.
        """
        if isinstance(fabric, ReconfigurableFabric):
            return phased_makespan(self.makespan, taskgraph, fabric, cluster, cutoff_seconds)
        network = self._networks.get(fabric, cluster)
        taskgraph = self._rewritten(taskgraph, cluster)
        prepared = self._model.prepare(taskgraph, network)
        stop_if_wanted()
        outcome = (
            self._model.simulate(prepared)
            if cutoff_seconds == np.inf
            else self._model.simulate_below(prepared, cutoff_seconds)
        )
        if outcome is None:
            return float("inf")
        check_finished(taskgraph, outcome.finish)
        return float(outcome.makespan)

    def has_quotient(self, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether `quotient_makespan` can simulate one task for all that nothing tells apart."""
        if isinstance(fabric, ReconfigurableFabric) or self._barriers or self._chosen or self._collective != "ring":
            return False
        model = self._model
        return isinstance(model, QuotientModel) and model.has_quotient(self._networks.get(fabric, cluster))

    @property
    def in_turn_bytes(self) -> int:
        """Messages of no more bytes from one device to the same other one are served in turn; 0 for none."""
        return self._model.in_turn_bytes if isinstance(self._model, QuotientModel) else 0

    def quotient_makespan(
        self, quotient: Quotient, fabric: AnyFabric, cluster: Cluster, cutoff_seconds: float = float("inf")
    ) -> float:
        """Return the time of an iteration, given its quotient, as `makespan` does."""
        return float(self.quotient_outcome(quotient, fabric, cluster, cutoff_seconds).makespan)

    def quotient_outcome(
        self, quotient: Quotient, fabric: AnyFabric, cluster: Cluster, cutoff_seconds: float = float("inf")
    ) -> Outcome:
        """Simulate a quotient."""
        assert isinstance(fabric, Fabric)  # see `has_quotient`
        assert isinstance(self._model, QuotientModel)
        outcome = self._model.simulate_quotient(quotient, self._networks.get(fabric, cluster), cutoff_seconds)
        if outcome.makespan < np.inf:
            check_finished(quotient.taskgraph, outcome.finish)
        return outcome

    def has_single_paths(self, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether all hosts hang on one switch, so that no message draws its path."""
        return isinstance(fabric, Fabric) and switch_links(self._networks.get(fabric, cluster)) is not None

    def has_folds(self, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether one task can stand for each class of tasks of a staged strategy."""
        if isinstance(fabric, ReconfigurableFabric) or self._barriers or self._collective != "ring":
            return False
        model = self._model
        return isinstance(model, FoldingModel) and model.has_folds(self._folding_network(fabric, cluster))

    def message_loads(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> MessageLoads:
        """Return what messages that do not wait put on links."""
        assert isinstance(fabric, Fabric)
        assert isinstance(self._model, FoldingModel)
        return self._model.message_loads(taskgraph, self._folding_network(fabric, cluster))

    def _folding_network(self, fabric: Fabric, cluster: Cluster) -> Network:
        """Return the network for folded iterations; algorithms are priced on the paths of messages."""
        return (self._networks.get if self._chosen else self._networks.for_folds)(fabric, cluster)

    def run_folded(self, folded: FoldedIteration, fabric: AnyFabric, cluster: Cluster) -> FoldedRun:
        """Run an iteration, given one task of each class."""
        assert isinstance(fabric, Fabric)  # `has_folds` says no to any other
        assert isinstance(self._model, FoldingModel)
        network = self._folding_network(fabric, cluster)
        outcome, prepared = self._model.simulate_folded(folded, network)
        check_finished(folded.taskgraph, outcome.finish)
        return FoldedRun(folded, outcome, prepared, network)

    def folded_timeline(self, run: FoldedRun, whole: Callable[[], TaskGraph]) -> Timeline:
        """Return the timeline of an iteration, given one task of each class; starts and ends are made if asked for."""
        folded, outcome, prepared, network = run
        fabric, cluster = network.fabric, network.cluster
        busy = device_busy(folded.taskgraph, self._model.run_times(prepared), cluster.n_devices)
        occupied = busy
        if len(folded.taskgraph.slowdown):
            occupied = _occupied(folded.taskgraph, outcome.start, outcome.finish)
        busy, occupied = (each[folded.representatives] for each in (busy, occupied))
        link_busy, n_links = outcome.link_bytes / network.paths.bandwidth, fabric.n_links
        fields: dict[str, Any] = {
            "makespan": float(outcome.makespan),
            "device_busy": occupied,
            "link_bytes": outcome.link_bytes[:n_links],
            "link_busy": link_busy[:n_links],
            "bounds": bounds(
                prepared.tasks,
                self._model.processing_times(prepared),
                busy,
                link_busy,
                0.0
                if self._chosen
                else collective_bound(folded.taskgraph, fabric, cluster, self._model.transport, folded),
            ),
            "events": int(outcome.events),
        }
        first = Timeline(start=outcome.start, finish=outcome.finish, **fields)
        paths = f", each message spread over its equal paths ({_DRAWN_PATHS})" if folded.draws else ""
        paths += f", those of one kind as slow as the slowest of them ({_EVENED})" if folded.evened else ""
        words = f"{folded.taskgraph.n_tasks:,} of {folded.n_tasks:,} tasks, one for all that are equal{paths}"
        return DeferredTimeline.of(lambda: self(whole(), fabric, cluster), (folded.taskgraph, first), words, **fields)

    def link_seconds(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> F64:
        """(n, E) seconds that the messages of operators 0 .. n-1 are guaranteed to keep each link busy."""
        if isinstance(fabric, ReconfigurableFabric):  # a message alone does not tell its phase, nor then its path
            return np.zeros((1, fabric.links.n_links + 2 * cluster.n_devices))
        network = self._networks.get(fabric, cluster)
        if self._chosen or self._collective != "ring":
            return np.zeros((1, network.n_links))
        seconds: F64 = self._model.guaranteed_bytes(taskgraph, network) / network.paths.bandwidth
        return seconds

    def interfaces(self, fabric: AnyFabric, cluster: Cluster) -> Interfaces | None:
        """Return the interfaces of a network that is a star, and what messages send over them as `link_seconds` says.

        None of another network, and where all-reduces are no rings.
        """
        if isinstance(fabric, ReconfigurableFabric) or self._chosen or self._collective != "ring":
            return None
        network = self._networks.get(fabric, cluster)
        links = star(network)
        return links and Interfaces(*links, network.paths.bandwidth, self._model.message_bytes)

    def _rewritten(self, taskgraph: TaskGraph, cluster: Cluster) -> TaskGraph:
        taskgraph = written_out(taskgraph, self._single).taskgraph
        if self._barriers:
            taskgraph = with_barriers(taskgraph)
        if self._serial:
            return with_serial_sums(taskgraph, cluster)
        return with_parameter_server(taskgraph) if self._server else taskgraph


def _occupied(taskgraph: TaskGraph, start: F64, finish: F64) -> F64:
    """(D,) seconds from start to end of what each device computes, beside messages or not."""
    return device_busy(taskgraph, finish - start, taskgraph.n_devices)
