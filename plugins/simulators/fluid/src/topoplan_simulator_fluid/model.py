"""The fluid model: messages flow at rates that they share, with the latency of every hop.

What messages send and how they share links is a `Transport`.  The default is the wire:

* A message of S bytes on a path of links with latency d and bandwidth C begins to flow after sum(d): alone it takes
  sum(d) + S / min(C).
* Flows share links max-min fairly (`topoplan_simulator_fluid.max_min`).
* An all-reduce of S bytes over m members sends S/m from each member to the next in each of 2 (m-1) rounds; an
  all-gather or a reduce-scatter, in m-1 rounds.  With k rings each carries 1/k of this; rings run independently and
  the last one ends the collective.  One with one member ends when the GPUs that its device stands for have summed.
* ``coupled``: a ring is one entity that loads each of its links once per crossing and moves the bytes of all
  rounds at one rate; its latencies are those of 2 (m-1), or m-1, paths in a row, where they are longest: a member waits
  for the one before it alone.  ``stepped``: every round is m flows and a barrier, so that each has the longest latency.
* A flow that has several paths draws one by their weights when it starts, at level ``coupled`` once for each flow of a
  ring: a link that several flows of a ring have drawn carries the bytes of all of them, and sets the pace of the ring.
  Rings of more members than `topoplan_engine.network.tables` lets draw load each path by its weight.  Every pair of
  hosts has a stream of draws of its own, so that a change of some transfers leaves the paths of all other pairs as they
  were.
* A device runs its tasks one at a time, in the order in which they become ready; where the task graph says so, slower
  while messages of its are on the way (`topoplan_simulator_fluid.slowed`).

``transport=flexnetpacket`` follows what iteration times of FlexNetPacket (TopoOpt, NSDI'23) were found to depend on.
What is not said here is as on the wire:

* Every packet is simulated (`topoplan_simulator_fluid.packets`), at level ``stepped`` up to some minutes of work, at
  level ``coupled`` up to a second, and there on clusters of up to 64 devices alone, so that what is larger is folded.
* Beyond, packets become flows.  A message is ``ceil(S / 8936)`` packets of 8936 bytes, at least one.  It starts to flow
  after sum(d + 1/C), when its first, empty packet has been answered, and is there sum(d) + sum(8936/C) - max(8936/C)
  after its last byte has left: alone it takes exactly what store-and-forward of packets takes.
* The rate of a flow is the smallest share that it has on its links.  Bandwidth that a flow cannot use because of
  another link is not given to others.
* Links are queues that flows fill with their windows, and shares are as these
  (`topoplan_engine.simulation.flows.window`): rings start every round with a large window, beside which long transfers
  starve.
* Messages of at most one window leave as bursts: between the same two hosts they are served one after the other
  (`topoplan_simulator_fluid.bursts`).
* A ring pays the latency of its longest path in every round at both levels.
* An all-reduce sends floor(S/m) per member and round.  If S < 9000 m it sends all in one round,
  floor(2 S (m-1)/m)/m; if S m <= 18000 m (m-1), it stops after the first round.
* An all-reduce of one member ends at once, though its device stands for several GPUs.
* Paths are drawn anew in every round: rings of up to 64 flows are stepped at both levels where some of these have
  several paths.

Data flow: `Model.prepare` lowers a task graph through a `Network` and lists the entities, `Model.simulate` runs
the kernel over them, and `Model.processing_times` gives lower bounds on the time of each task, for the bounds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64, f64
from topoplan.errors import TopoplanError, shown
from topoplan.model.recording import LinkUse
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.plugin.host import Host
from topoplan_engine.network.star import star, switch_links
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation import flows
from topoplan_engine.simulation.collective_choice import CollectiveChoice
from topoplan_engine.simulation.columns import Outcome, TaskColumns, check_not_slowed, columns
from topoplan_engine.simulation.coupled_messages import (
    MOST_MESSAGES,
    coupled_messages,
    coupled_words,
    with_coupled_messages,
)
from topoplan_engine.simulation.critical_path import critical_path_bound
from topoplan_engine.simulation.direct import MOST_FLOWS, with_direct_all_to_alls
from topoplan_engine.simulation.inside_waits import with_inside_waits
from topoplan_engine.simulation.messages import PACKET, Transport
from topoplan_engine.simulation.recording import expanded
from topoplan_engine.simulation.striped import with_stripes
from topoplan_simulator_fluid.bursts import BURST
from topoplan_simulator_fluid.kernel import TOGETHER, run
from topoplan_simulator_fluid.max_min import ALWAYS, LATE_ENDS
from topoplan_simulator_fluid.prepared import InPackets, Prepared
from topoplan_simulator_fluid.slowed import beside
from topoplan_simulator_fluid.windows import LOOK

if TYPE_CHECKING:
    from topoplan_engine.lowering.folding.layout import FoldedIteration
    from topoplan_engine.lowering.folding.patterns import MessageLoads
    from topoplan_engine.lowering.symmetry.quotient import Quotient

__all__ = ["MOST_PACKETS", "Model", "Prepared"]

#: Packets on links of an iteration that level coupled, and level stepped, simulate one by one, with looks at timers:
#: about a second, and about a minute.
MOST_PACKETS = (1 << 22, 1 << 28)
#: Devices of the largest cluster whose iterations level coupled simulates so.
_FEW_DEVICES = 64


class Model(NamedTuple):
    """The fluid simulator.

    Attributes:
        stepped: run the rounds of an all-reduce one by one.
        seed: draws paths.
        transport: how messages are sent.
        most_packets: packets on links up to which an iteration runs packet by packet, with FlexNetPacket's transport.
        algorithms: which run collectives, on the wire; none of them: rings of the network.
        waits: collectives inside hosts have latencies of NCCL (`topoplan_engine.simulation.inside_waits`), on the wire.
    """

    stepped: bool = False
    seed: int = 0
    transport: Transport = Transport.WIRE
    most_packets: int = 0
    algorithms: CollectiveChoice = CollectiveChoice("")
    waits: bool = False

    @property
    def in_turn_bytes(self) -> int:
        """The size of a burst: see `topoplan_simulator_fluid.bursts`; none on the wire."""
        return BURST if self.transport == Transport.FLEXNETPACKET else 0

    def prepare(self, taskgraph: TaskGraph, network: Network) -> Prepared:
        """Make the columns of one iteration.

        Raises:
            TopoplanError: a pair that must communicate cannot.
        """
        if self.transport != Transport.WIRE:
            check_not_slowed(taskgraph, "simulator fluid: transport=flexnetpacket")
        coupled = coupled_messages(taskgraph, MOST_MESSAGES) if self._couples(network) else None
        taskgraph = taskgraph if coupled is None else coupled.taskgraph
        traffic = network.lower(taskgraph)
        tasks = columns(taskgraph)
        devices, transport = network.cluster.n_devices, int(self.transport)
        late_ends = ALWAYS if switch_links(network) is not None else LATE_ENDS
        if self._in_packets(network) and float(np.sum(tasks.size, dtype=np.float64)) <= self.most_packets * PACKET:
            entities = flows.build(tasks, traffic, network.paths, network.rings_in_full, True, transport)
            events = _packets_on_links(entities) + _looks_at_timers(tasks, entities, network)
            if events <= self.most_packets:
                none = beside(taskgraph, entities.of_task)
                rings = network.rings_in_full
                return InPackets(tasks, entities, network.paths, rings, devices, transport, late_ends, none)
        entities = flows.build(tasks, traffic, network.paths, network.rings, self.stepped, transport)
        if transport == Transport.WIRE:
            entities = with_stripes(taskgraph, entities, network)
        entities = self._with_direct(taskgraph, entities, network)
        if self.algorithms:
            from topoplan_engine.simulation.algorithms import with_algorithms

            seconds = flows.processing_times(tasks, entities, network.paths, transport)
            entities, _, wait = with_algorithms(self.algorithms, taskgraph, entities, network, seconds)
            tasks = tasks._replace(seconds=f64(tasks.seconds + wait))
        if self.waits:
            tasks = with_inside_waits(tasks, taskgraph, network.cluster)
        rings = network.rings_in_full if self.stepped else network.rings
        if coupled is not None:
            entities, rings = with_coupled_messages(coupled, entities, network)
        messages = beside(taskgraph, entities.of_task, coupled)
        return Prepared(tasks, entities, network.paths, rings, devices, transport, late_ends, messages)

    @property
    def sends_directly(self) -> bool:
        """Whether all-to-alls without an algorithm are tasks of many flows; messages of the transport are not."""
        return self.transport == Transport.WIRE

    def _couples(self, network: Network) -> bool:
        """Whether very many messages are coupled; on one switch quotients stand for equal ones."""
        return not self.stepped and self.transport == Transport.WIRE and star(network) is None

    def coupled_words(self, prepared: Prepared) -> str:
        """Return which messages of an iteration one flow stands for, in words; empty where none does."""
        if self.stepped or self.transport != Transport.WIRE:
            return ""
        all_to_alls = Collective.ALL_TO_ALL not in self._by_algorithm
        return coupled_words(prepared.tasks, prepared.entities, all_to_alls=all_to_alls)

    @property
    def _most_flows(self) -> float:
        """How many flows the all-to-alls of an iteration may have before they are coupled."""
        return np.inf if self.stepped else MOST_FLOWS

    @property
    def _by_algorithm(self) -> Collection[Collective]:
        """The collectives that algorithms run, all-to-alls of equal messages among them."""
        return self.algorithms.algorithms if self.algorithms else ()

    def _with_direct(self, taskgraph: TaskGraph, entities: flows.Entities, network: Network) -> flows.Entities:
        """Put flows in the place of the all-to-alls that no algorithm runs."""
        if not self.sends_directly:
            return entities
        equal = Collective.ALL_TO_ALL not in self._by_algorithm
        return with_direct_all_to_alls(taskgraph, entities, network, self._most_flows, equal=equal)

    def _in_packets(self, network: Network) -> bool:
        """Whether iterations on a network run packet by packet, if they are short."""
        few = self.stepped or network.cluster.n_devices <= _FEW_DEVICES
        return self.transport == Transport.FLEXNETPACKET and self.most_packets > 0 and few

    def with_host(self, host: Host) -> Model:
        """Return the same model, whose algorithms of collectives are those of a host; all of them must be there."""
        algorithms = attrs.evolve(self.algorithms, host=host)
        if algorithms:
            _ = algorithms.algorithms
        return self._replace(algorithms=algorithms)

    def with_algorithms(self, text: str) -> Model:
        """Return the same model, which runs what its options name no algorithm for by those of a text, too.

        Raises:
            TopoplanError: its transport has rings alone, or there is no such algorithm.
        """
        if self.transport != Transport.WIRE:
            raise TopoplanError(f"algorithms {shown(text)}: FlexNetPacket has rings (transport=wire has others)")
        algorithms = self.algorithms.completed(text)
        _ = algorithms.algorithms
        return self._replace(algorithms=algorithms)

    def selections(self, taskgraph: TaskGraph, network: Network) -> list[tuple[int, str]]:
        """Return a collective of each group, kind and size that has algorithms, and which runs; empty for rings."""
        from topoplan_simulator_fluid.folded import selections

        return selections(taskgraph, network, self.algorithms)

    def with_seed(self, seed: int) -> Model:
        """Return the same model with other draws; columns that one has prepared hold for the other."""
        return self._replace(seed=seed)

    def draws(self, prepared: Prepared) -> bool:
        """Whether some flow has several paths, so that the time depends on the seed."""
        entities = prepared.entities
        row = entities.path_set[entities.path_set >= 0]
        return bool((entities.drawn_flows > 0).any() or (np.diff(prepared.paths.row_ptr)[row] > 1).any())

    def simulate(self, prepared: Prepared) -> Outcome:
        """Run one iteration."""
        if isinstance(prepared, InPackets):
            return Outcome(*_run_packets(prepared, self.seed)[:-1])
        outcome = Outcome(*run(*prepared, self.seed, np.zeros(0), np.inf))
        return (
            outcome if self.stepped else outcome._replace(link_bytes=outcome.link_bytes[prepared.rings.representative])
        )

    def record(self, prepared: Prepared) -> tuple[Outcome, LinkUse]:
        """Run one iteration, and return the use of all links, by link and time, as well."""
        if isinstance(prepared, InPackets):
            from topoplan_simulator_fluid.packets import PS

            *outcome_, rows = _run_packets(prepared, self.seed, record=True)
            seconds = {name: rows[name] / PS for name in ("start", "finish")}
            use = LinkUse(link=rows["link"], task=rows["task"], nbytes=rows["nbytes"], **seconds)
            return Outcome(*outcome_), expanded(use, np.arange(len(prepared.paths.bandwidth)))
        from topoplan_simulator_fluid.recording import record

        outcome, rows = record(prepared, self.seed)
        links = np.arange(len(prepared.paths.bandwidth)) if self.stepped else prepared.rings.representative
        return outcome._replace(link_bytes=outcome.link_bytes[links]), expanded(rows, links)

    def simulate_below(self, prepared: Prepared, cutoff_seconds: float) -> Outcome | None:
        """Run one iteration; None once a lower bound on its time reaches the cutoff."""
        tasks, entities, paths = prepared.tasks, prepared.entities, prepared.paths
        uses = flows.link_uses(entities, paths, prepared.rings)
        bound, time_to_end = critical_path_bound(
            tasks, self.processing_times(prepared), uses, len(paths.bandwidth), prepared.n_devices
        )
        # Rounding, and events that happen up to a picosecond early: four for a task or round.
        stop = cutoff_seconds * (1 + 1e-9) + 4 * TOGETHER * (len(tasks.kind) + int(entities.rounds.sum()))
        if bound >= stop:
            return None
        if isinstance(prepared, InPackets):
            outcome = Outcome(*_run_packets(prepared, self.seed, time_to_end, stop)[:-1])
        else:
            outcome = Outcome(*run(*prepared, self.seed, time_to_end, stop))
        return outcome if outcome.makespan < np.inf else None

    def processing_times(self, prepared: Prepared) -> F64:
        """(T,) lower bound on the seconds that each task takes, from its last dependency on."""
        seconds: F64 = flows.processing_times(prepared.tasks, prepared.entities, prepared.paths, int(self.transport))
        return seconds

    def run_times(self, prepared: Prepared) -> F64:
        """(T,) seconds of each compute task."""
        return prepared.tasks.seconds

    def guaranteed_bytes(self, taskgraph: TaskGraph, network: Network) -> F64:
        """(n, E) bytes that each operator sends over each link under any draw; path sets of several do not count."""
        traffic = network.lower(taskgraph)
        rings, transport = network.rings_in_full, int(self.transport)
        entities = flows.build(columns(taskgraph), traffic, network.paths, rings, self.stepped, transport)
        entities = self._with_direct(taskgraph, entities, network)
        sent: F64 = flows.guaranteed_bytes(taskgraph.op, entities, network.paths, network.rings_in_full)
        return sent

    def message_bytes(self, size: I64, members: I32) -> F64:
        """(n,) bytes that each message sends over an interface, in all rounds."""
        return flows.message_bytes(size, members, int(self.transport))

    def has_quotient(self, network: Network) -> bool:
        """Whether `simulate_quotient` holds: coupled flows, on one switch that all hosts reach in the same way."""
        return not self.stepped and not self._in_packets(network) and star(network) is not None

    def simulate_quotient(self, quotient: Quotient, network: Network, cutoff_seconds: float) -> Outcome:
        """Run a quotient; the makespan is infinite once a lower bound on it reaches the cutoff."""
        from topoplan_simulator_fluid.quotient import quotient_loads

        links = star(network)
        assert links is not None
        prepared = quotient_loads(self.prepare(quotient.taskgraph, network), quotient, links)
        return Outcome(*run(*prepared, 0, np.zeros(quotient.taskgraph.n_tasks), cutoff_seconds))

    def has_folds(self, network: Network) -> bool:
        """Whether `simulate_folded` holds: coupled flows on the wire."""
        return not self.stepped and self.transport == Transport.WIRE

    def message_loads(self, taskgraph: TaskGraph, network: Network) -> MessageLoads:
        """Return what messages that do not wait put on links."""
        from topoplan_simulator_fluid.folded import message_loads

        return message_loads(taskgraph, network, self.algorithms)

    def simulate_folded(self, folded: FoldedIteration, network: Network) -> tuple[Outcome, Prepared]:
        """Run a folded iteration; return bytes of all links, and the columns that were run."""
        from topoplan_simulator_fluid.folded import folded_loads, link_bytes, on_loaded_links

        prepared = folded_loads(folded, network, self.algorithms, waits=self.waits)
        outcome = Outcome(*run(*on_loaded_links(prepared), self.seed, np.zeros(0), np.inf))
        return outcome._replace(link_bytes=link_bytes(folded, prepared, network)), prepared


def _run_packets(
    prepared: InPackets, seed: int, time_to_end: F64 | None = None, stop: float = np.inf, *, record: bool = False
) -> Any:
    """Run one iteration packet by packet; kernels that few iterations need are imported here."""
    from topoplan_simulator_fluid.packets import run_packets

    return run_packets(prepared, seed, np.zeros(0) if time_to_end is None else time_to_end, stop, record)


def _packets_on_links(entities: flows.Entities) -> float:
    """Packets of all messages, counted on each link of the longest path that they can take."""
    return float(np.sum(entities.volume / PACKET * entities.rounds * np.diff(entities.slot_ptr)))


def _looks_at_timers(tasks: TaskColumns, entities: flows.Entities, network: Network) -> float:
    """How often timers of flows are looked at, at least: on a link that is slow enough, more often than packets go."""
    from topoplan_simulator_fluid.packets import PS

    seconds = flows.processing_times(tasks, entities, network.paths, int(Transport.FLEXNETPACKET))
    seconds[tasks.kind < TaskKind.TRANSFER] = 0.0
    return float(np.sum(seconds * np.diff(entities.of_task))) * PS / LOOK
