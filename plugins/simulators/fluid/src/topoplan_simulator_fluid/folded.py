"""Simulating a folded iteration: one flow for each class of flows, with the loads of all of them.

`message_loads` says what the messages of an iteration put on links, for the color refinement of
`topoplan_engine.lowering.folding`; `folded_loads` gives the flows of the folded iteration the loads of their classes.
Both ask the network as for any task graph, so that routes, rings and what is inside of hosts are those of the whole
iteration.  A flow that would draw one of several paths loads each by its weight.  Which algorithm runs a collective
depends on its size: the folding gets a flow for each of those that do, the folded iteration takes one.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64, f64, i8, i32, i64
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.csr import frozen, indptr
from topoplan_engine.kernels.jit import kernel
from topoplan_engine.lowering.folding.layout import FoldedIteration
from topoplan_engine.lowering.folding.patterns import BY_ALGORITHM, MessageLoads
from topoplan_engine.network.exchanged import is_unequal
from topoplan_engine.network.tables import LOAD, ONE_PATH, Network, RingColumns
from topoplan_engine.simulation.algorithms import Selected, selected, with_algorithms
from topoplan_engine.simulation.collective_choice import CollectiveChoice
from topoplan_engine.simulation.columns import columns
from topoplan_engine.simulation.flows import Entities, build, processing_times
from topoplan_engine.simulation.inside_waits import with_inside_waits
from topoplan_engine.simulation.messages import Transport
from topoplan_engine.simulation.striped import with_stripes
from topoplan_simulator_fluid.drawn_rings import held_to_draws
from topoplan_simulator_fluid.max_min import ALWAYS, GRAIN
from topoplan_simulator_fluid.prepared import Prepared
from topoplan_simulator_fluid.slowed import beside
from topoplan_simulator_fluid.spread import on_routes, with_rates_of_one_path, with_rates_of_one_way, with_spread

__all__ = ["folded_loads", "link_bytes", "message_loads", "on_loaded_links", "selections"]


#: Rings of the network for all collectives.
NO_ALGORITHMS = CollectiveChoice("")


def _entities(taskgraph: TaskGraph, network: Network) -> tuple[Entities, bool]:
    """Return the flows of a task graph on the wire, none of which draws paths, and whether one would."""
    traffic = network.lower(taskgraph)
    rings = network.rings_in_full
    draws = bool((rings.choice[np.unique(traffic.ring[traffic.ring >= 0])] != ONE_PATH).any())
    certain = rings._replace(choice=i8(np.full_like(rings.choice, ONE_PATH)))
    if network.spreading is not None:
        certain = _to_switches(certain, network)
    entities = build(columns(taskgraph), traffic, network.paths, certain, False, int(Transport.WIRE))
    if network.spreading is not None:
        entities = with_rates_of_one_way(entities, network)
    else:
        entities = with_rates_of_one_path(with_stripes(taskgraph, entities, network), network)
    rows = entities.path_set[entities.path_set >= 0]
    return entities, draws or bool((np.diff(network.paths.row_ptr)[rows] > 1).any())


def _to_switches(rings: RingColumns, network: Network) -> RingColumns:
    """Return rings without their loads of links between switches."""
    stays = ~on_routes(network)[rings.load_links]
    return rings._replace(
        load_ptr=i64(indptr(stays)[rings.load_ptr]),
        load_links=i32(rings.load_links[stays]),
        load=i64(rings.load[stays]),
    )


def message_loads(taskgraph: TaskGraph, network: Network, algorithms: CollectiveChoice = NO_ALGORITHMS) -> MessageLoads:
    """Return what each flow of each task puts on links; collectives have one for each algorithm, too."""
    entities, draws = _entities(taskgraph, network)
    loads = _network_loads(entities, network, draws)
    if network.spreading is not None:
        loads = with_spread(loads, entities, network)
    return _with_variants(loads, entities, taskgraph, network, algorithms) if algorithms else loads


def _network_loads(entities: Entities, network: Network, draws: bool) -> MessageLoads:
    """Return what each flow puts on links without algorithms."""
    paths, transfers = network.paths, entities.path_set >= 0
    rows = entities.path_set[transfers]
    load_ptr, links, loads, shares = _rows_of_flows(entities, network)
    constants = np.stack([entities.setup_latency, entities.drain_latency, entities.max_rate], axis=1)
    constants[transfers, 0] = paths.delay[paths.row_ptr[rows]]
    constants[:, 2] = np.where(entities.cap >= 0, constants[:, 2], 0.0)
    variant = np.zeros(len(entities.task), dtype=np.int64)
    return MessageLoads(
        entities.task,
        load_ptr,
        links,
        loads,
        shares,
        variant,
        constants,
        paths.bandwidth,
        draws,
        outside=network.outside,
    )


def _rows_of_flows(entities: Entities, network: Network) -> tuple[I64, I32, I64, I64]:
    """Return the links of all flows as compressed rows, with their loads and shares."""
    paths, rings, is_transfer = network.paths, network.rings_in_full, entities.path_set >= 0
    rows, ring = entities.path_set[is_transfer], entities.ring[~is_transfer]
    most = int((paths.path_ptr[paths.row_ptr[rows + 1]] - paths.path_ptr[paths.row_ptr[rows]]).sum())
    most += int((rings.load_ptr[ring + 1] - rings.load_ptr[ring]).sum())
    load_ptr, links, loads = (
        np.zeros(len(is_transfer) + 1, np.int64),
        np.empty(most, np.int32),
        np.empty(most, np.int64),
    )
    columns = paths.row_ptr, paths.path_ptr, paths.links, paths.cumulative_weight
    of_rings, after = (rings.load_ptr, rings.load_links, rings.load), (load_ptr, links, loads)
    is_exact = _write_rows(entities.path_set, entities.ring, columns, of_rings, np.zeros(network.n_links), after)
    links, loads = links[: load_ptr[-1]], loads[: load_ptr[-1]]
    return load_ptr, frozen(links), loads, loads if is_exact else -(-loads // GRAIN) * GRAIN


@kernel
def _write_rows(path_set: Any, ring: Any, paths: Any, rings: Any, total: F64, after: Any) -> bool:
    """Write links and loads of flows, which are rows of paths or, where they have none, rings.

    A flow with several paths loads each by its weight (`topoplan_engine.network.ring_loads`); ``total`` (E,) is room,
    all 0 between two flows.

    Returns:
        Whether all loads are shares: those are loads rounded as sharing rounds them.
    """
    (row_ptr, path_ptr, path_links, cumulative_weight), (load_ptr, links, loads) = paths, after
    end, is_exact = 0, True
    for flow in range(len(path_set)):
        row = path_set[flow]
        if row >= 0:
            before = 0.0
            for path in range(row_ptr[row], row_ptr[row + 1]):
                weight = cumulative_weight[path] - before
                before = cumulative_weight[path]
                for link in path_links[path_ptr[path] : path_ptr[path + 1]]:
                    if total[link] == 0.0 and weight != 0.0:
                        links[end] = link
                        end += 1
                    total[link] += weight
            for place in range(load_ptr[flow], end):
                loads[place] = max(1, int(np.rint(total[links[place]] * LOAD)))
                total[links[place]] = 0.0
        else:
            for place in range(rings[0][ring[flow]], rings[0][ring[flow] + 1]):
                links[end], loads[end] = rings[1][place], rings[2][place]
                end += 1
        for place in range(load_ptr[flow], end):
            is_exact &= loads[place] % GRAIN == 0
        load_ptr[flow + 1] = end
    return is_exact


def _with_variants(
    loads: MessageLoads, entities: Entities, taskgraph: TaskGraph, network: Network, algorithms: CollectiveChoice
) -> MessageLoads:
    """Add a flow for each algorithm that runs a collective of some size, behind those that its task has already.

    A collective that no algorithm can run is refused when it is to be run, by the name of its operator.
    """
    tasks = np.flatnonzero(taskgraph.op == BY_ALGORITHM)
    tasks = tasks[np.diff(taskgraph.group_ptr)[taskgraph.group[tasks]] > 1]
    seconds = processing_times(columns(taskgraph), entities, network.paths, int(Transport.WIRE))
    first, _, kinds = selected(algorithms, taskgraph, tasks, network, seconds)
    # By group and algorithm: several sizes have the same.
    flows: dict[tuple[int, int], tuple[int, Selected]] = {}
    for task, kind in zip(tasks[first].tolist(), kinds, strict=True):
        if isinstance(kind, Selected):
            flows.setdefault((int(taskgraph.group[task]), kind.variant), (task, kind))
    if not flows:
        return loads
    added = sorted(flows.values(), key=lambda flow: flow[0])
    task = np.append(loads.task, [task for task, _ in added])
    prices, units = [kind.price for _, kind in added], [kind.units for _, kind in added]
    order = np.argsort(task, kind="stable")
    lengths = np.append(np.diff(loads.load_ptr), [len(price.links) for price in prices])
    cuts = loads.load_ptr[np.searchsorted(loads.task, [task for task, _ in added], "right")].tolist()
    shares = [-(-each // GRAIN) * GRAIN for each in units]
    listed = _inserted(loads.loads, cuts, units)
    is_exact = loads.shares is loads.loads and all((each % GRAIN == 0).all() for each in units)
    constants = np.array([(p.latency, p.seconds_per_byte, p.load.max(), p.inside, p.between, p.part) for p in prices])
    before = np.pad(loads.constants, ((0, 0), (0, constants.shape[1] - loads.constants.shape[1])))
    return loads._replace(
        task=i32(task[order]),
        load_ptr=indptr(lengths[order]),
        links=frozen(_inserted(loads.links, cuts, [price.links for price in prices])),
        loads=listed,
        shares=listed if is_exact else _inserted(loads.shares, cuts, shares),
        variant=np.append(loads.variant, [kind.variant for _, kind in added])[order],
        constants=np.concatenate([before, constants])[order],
    )


def _inserted(column: NDArray[Any], cuts: list[int], added: list[I64]) -> NDArray[Any]:
    """Return a column with entries added where it is cut, ascending; without a column of where each entry goes."""
    parts = [column[: cuts[0]]]
    for each, (first, end) in zip(added, itertools.pairwise([*cuts, len(column)]), strict=True):
        parts += [each, column[first:end]]
    return np.concatenate(parts, dtype=column.dtype, casting="same_kind")


def selections(taskgraph: TaskGraph, network: Network, algorithms: CollectiveChoice) -> list[tuple[int, str]]:
    """Return a collective of each group, kind and size, and the name of the algorithm that runs it; empty for rings."""
    is_collective = (taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.size > 0) & ~is_unequal(taskgraph)
    tasks = np.flatnonzero(is_collective & np.isin(taskgraph.collective, [int(each) for each in algorithms.algorithms]))
    tasks = tasks[np.diff(taskgraph.group_ptr)[taskgraph.group[tasks]] > 1]
    if not len(tasks):
        return []
    entities, _ = _entities(taskgraph, network)
    seconds = processing_times(columns(taskgraph), entities, network.paths, int(Transport.WIRE))
    first, _, kinds = selected(algorithms, taskgraph, tasks, network, seconds)
    names = [kind.key[2].name if isinstance(kind, Selected) else "" for kind in kinds]
    return list(zip(tasks[first].tolist(), names, strict=True))


def folded_loads(
    folded: FoldedIteration, network: Network, algorithms: CollectiveChoice = NO_ALGORITHMS, *, waits: bool = False
) -> Prepared:
    """Return the columns of a folded iteration, whose flows have the loads of their classes.

    Args:
        folded: the iteration.
        network: where it runs.
        algorithms: of collectives.
        waits: whether collectives inside hosts have latencies (`topoplan_engine.simulation.inside_waits`).
    """
    entities, _ = _entities(folded.taskgraph, network)
    variant, tasks = np.zeros(folded.taskgraph.n_tasks, dtype=np.int64), columns(folded.taskgraph)
    if algorithms:
        seconds = processing_times(tasks, entities, network.paths, int(Transport.WIRE))
        entities, variant, wait = with_algorithms(algorithms, folded.taskgraph, entities, network, seconds)
        tasks = tasks._replace(seconds=f64(tasks.seconds + wait))
    entities = held_to_draws(folded, entities, variant == 0, network)
    flow = _flow_of(folded, entities, variant)
    lengths = np.diff(folded.load_ptr)
    rings = network.rings_in_full._replace(
        load_ptr=i64(folded.load_ptr), load_links=i32(folded.links), load=i64(folded.shares)
    )
    changed = entities._replace(ring=flow, slot_ptr=indptr(lengths[flow] + (entities.cap >= 0)))
    cluster = network.cluster
    if waits:
        tasks = with_inside_waits(tasks, folded.taskgraph, cluster)
    messages = beside(folded.taskgraph, changed.of_task, representative=folded.representatives)
    return Prepared(tasks, changed, network.paths, rings, cluster.n_devices, int(Transport.WIRE), ALWAYS, messages)


def on_loaded_links(prepared: Prepared) -> Prepared:
    """Return columns that know of no links but those that flows load: the kernel has room for each that it knows.

    The widest link stays, in whose parts bandwidths are counted.
    """
    bandwidth, rings = prepared.paths.bandwidth, prepared.rings
    stays = np.zeros(len(bandwidth), dtype=bool)
    stays[rings.load_links] = True
    stays[np.argmax(np.where(np.isfinite(bandwidth), bandwidth, 0.0))] = True
    place = indptr(stays)
    return prepared._replace(
        paths=prepared.paths._replace(bandwidth=f64(bandwidth[stays])),
        rings=rings._replace(load_links=i32(place[rings.load_links])),
    )


def _flow_of(folded: FoldedIteration, entities: Entities, variant: I64) -> I64:
    """(N,) the flow of the class of messages that each entity is, given (T,) algorithms."""
    task = entities.task
    count = int(folded.variant.max(initial=0)) + 1
    of_flow = np.repeat(np.arange(len(folded.flow_ptr) - 1), np.diff(folded.flow_ptr)) * count + folded.variant
    first = np.searchsorted(of_flow, folded.message[task] * count + variant[task])
    flow: I64 = first + np.arange(len(task)) - entities.of_task[task]
    assert (of_flow[flow] == folded.message[task] * count + variant[task]).all(), "a collective of no listed size"
    return flow


def link_bytes(folded: FoldedIteration, prepared: Prepared, network: Network) -> F64:
    """(E,) bytes that cross each link of a network."""
    entities = prepared.entities
    sent = np.bincount(entities.ring, entities.volume * entities.rounds, len(folded.load_ptr) - 1)
    per_flow = np.repeat(sent, np.diff(folded.load_ptr))
    total = np.bincount(folded.links, per_flow * (folded.loads / LOAD), len(folded.first_link))
    crossed: F64 = total[folded.first_link].astype(np.float64)
    spread = folded.spread
    if spread is not None and network.spreading is not None:
        nbytes: F64 = np.bincount(spread.route, sent[spread.flow] * spread.times, len(spread.source)).astype(np.float64)
        between = np.flatnonzero(spread.between)
        crossed[between] = network.spreading.carried(spread.source, spread.target, nbytes)[between]
    if (carried := folded.carried) is not None:
        parts = np.repeat(sent, np.diff(carried.load_ptr)) * (carried.loads / LOAD)
        crossed[carried.between] = np.bincount(carried.links, parts, len(crossed))[carried.between]
    return crossed
