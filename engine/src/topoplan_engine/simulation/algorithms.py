"""Collectives by chosen algorithms: one entity each, which loads links as all of its messages together.

Data flow: users or searchers name algorithms for kinds of collectives
(`topoplan_engine.simulation.collective_choice.CollectiveChoice`); `selected` prices those of every group on the network
(`topoplan_engine.network.rounds`) and takes the fastest for each group and size, and `with_algorithms` puts an entity
in the place of the collective's rings.  Like a coupled ring it waits for its latencies and then moves bytes over all of
its links at one rate: no faster than its rounds take one after the other, and as fast as the links let it that others
use at the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.errors import TopoplanError
from topoplan.model.collective import CollectiveGroup
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.plugin.components import CollectiveAlgorithm
from topoplan_engine.checked_values import build_rounds
from topoplan_engine.network.exchanged import is_unequal
from topoplan_engine.network.protocols import Chosen, Protocol, tuning_of
from topoplan_engine.network.rounds import RoundsPrice, grouped_rows, priced_groups
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.collective_choice import CollectiveChoice
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.simulation.replaced import replaced

__all__ = ["Kept", "Selected", "WithAlgorithms", "selected", "tensor_bytes", "with_algorithms"]

#: Algorithms, and rings of the network, are as fast if rounding alone tells them apart: the first one runs.
_LESS, _MORE = 1 - 1e-9, 1 + 1e-9
#: Names of protocols as users write them.
_PROTOCOLS = {"ll": Protocol.LL, "ll128": Protocol.LL128, "simple": Protocol.SIMPLE}


def tensor_bytes(collective: Collective, size: int) -> int:
    """Return the bytes of the tensor of a collective whose column ``size`` (`TaskGraph.size`) is this.

    Example:
        >>> tensor_bytes(Collective.ALL_REDUCE, 100), tensor_bytes(Collective.ALL_GATHER, 100)
        (100, 200)
    """
    return 2 * size if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) else size


class _Replacement(NamedTuple):
    """The entity of one kind of task: its seconds of latency, bytes, rate, row of loads, and algorithm."""

    latency: float
    volume: float
    rate: float
    row: int
    variant: int


class WithAlgorithms(NamedTuple):
    """Entities, and (T,) the number of the algorithm that runs each task (`CollectiveChoice.variants`), 0 for none.

    Rings of the network run tasks without one, which begin (T,) ``wait`` seconds later: what a protocol takes more.
    """

    entities: Entities
    variant: I64
    wait: F64


class Selected(NamedTuple):
    """The algorithm that runs a collective in a group.

    Attributes:
        key: of group, collective and algorithm in `Network.prices`.
        price: of its rounds.
        latency, per_byte: seconds with the protocol that sends it.
        variant: number of the algorithm (`CollectiveChoice.variants`).
    """

    key: tuple[bytes, Collective, CollectiveAlgorithm]
    price: RoundsPrice
    latency: float
    per_byte: float
    variant: int

    @property
    def units(self) -> I64:
        """The load of each of its links, in units of 1 / `LOAD` of the highest one."""
        units: I64 = np.maximum(1, np.rint(self.price.load / self.price.load.max() * LOAD)).astype(np.int64)
        return units


class Kept(NamedTuple):
    """Rings of the network run a collective, after so many seconds, which a protocol takes beside their bytes."""

    wait: float


def with_algorithms(
    choice: CollectiveChoice, taskgraph: TaskGraph, entities: Entities, network: Network, ring_seconds: F64
) -> WithAlgorithms:
    """Put an entity in the place of the rings of each collective that an algorithm is chosen for.

    Args:
        choice: of algorithms.
        taskgraph: what the entities are of.
        entities: of all its tasks; collectives run rings, and unequal all-to-alls flows that stay.
        network: of the entities; gets rows of loads.
        ring_seconds: (T,) seconds that each task takes by itself, with its rings.

    Raises:
        TopoplanError: no chosen algorithm can run a collective in its group.
    """
    chosen = np.isin(taskgraph.collective, [int(each) for each in choice.algorithms])
    chosen &= (taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.size > 0) & ~is_unequal(taskgraph)
    tasks = np.flatnonzero(chosen)
    tasks = tasks[np.diff(taskgraph.group_ptr)[taskgraph.group[tasks]] > 1]
    variant, wait = np.zeros(taskgraph.n_tasks, dtype=np.int64), np.zeros(taskgraph.n_tasks)
    if not len(tasks):
        return WithAlgorithms(entities, variant, wait)
    first, place, selections = selected(choice, taskgraph, tasks, network, ring_seconds)
    kinds = [_runnable(kind, taskgraph, task) for kind, task in zip(selections, tasks[first].tolist(), strict=True)]
    stays = np.array([isinstance(kind, Kept) for kind in kinds])[place]
    sizes = [tensor_bytes(Collective(taskgraph.collective[t]), int(taskgraph.size[t])) for t in tasks[first].tolist()]
    columns = np.array(
        [
            (kind.wait, 0.0, 0.0, -1.0, 0.0) if isinstance(kind, Kept) else _replacement(kind, nbytes, network)
            for kind, nbytes in zip(kinds, sizes, strict=True)
        ]
    )
    variant[tasks], wait[tasks[stays]] = columns[place, 4], columns[place[stays], 0]
    setup, volume, rate, row, _ = columns[place[~stays]].T
    values = {
        "path_set": -1,
        "ring": row.astype(np.int64),
        "volume": volume,
        "setup_latency": setup,
        "max_rate": rate,
        "cap": len(entities.caps) + np.arange(len(row)),
        "caps": rate,
    }
    ones = np.ones(len(row), dtype=np.int64)
    return WithAlgorithms(replaced(entities, tasks[~stays], ones, values, network), variant, wait)


def selected(
    choice: CollectiveChoice, taskgraph: TaskGraph, tasks: I64, network: Network, ring_seconds: F64
) -> tuple[I64, I64, list[Selected | Kept | TopoplanError]]:
    """Return the algorithms that run some collectives.

    Args:
        choice: of algorithms.
        taskgraph: has the collectives.
        tasks: (n,) which these are, of several members each.
        network: keeps the prices.
        ring_seconds: (T,) seconds that each task takes by itself, with the rings of the network.

    Returns:
        (k,) the first task of each group, collective and size, by its place in ``tasks``; (n,) which of these each
        task is; and their algorithms, or that the rings of the network run it, or why no chosen one can.
    """
    priced = _prices_of(choice, taskgraph, tasks, network)
    keys = np.stack([taskgraph.group[tasks], taskgraph.collective[tasks], taskgraph.size[tasks]])
    _, first, place = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    # Groups whose prices are equal have one algorithm, which is searched once: its number, or -1; latency, per byte.
    choices: dict[object, tuple[int, float, float]] = {}
    selections: list[Selected | Kept | TopoplanError] = []
    for task in tasks[first].tolist():
        collective, size = Collective(taskgraph.collective[task]), int(taskgraph.size[task])
        group = priced[int(collective), int(taskgraph.group[task])]
        seconds = float(ring_seconds[task]) - float(taskgraph.seconds[task])
        preset = network.cluster.device_preset[int(taskgraph.members(task)[0])]
        key = collective, size, seconds, preset, group.group, group.scalars
        if key not in choices:
            choices[key] = _fastest(choice, collective, size, group, preset, seconds)
        number, latency, per_byte = choices[key]
        if number < 0:
            selections.append(Kept(latency))
            continue
        algorithm, price = group.prices[number]
        if isinstance(price, TopoplanError):
            selections.append(price)
            continue
        variant = choice.variants[collective, algorithm]
        selections.append(Selected((group.members, collective, algorithm), price, latency, per_byte, variant))
    return first, place.ravel(), selections


def _runnable(kind: Selected | Kept | TopoplanError, taskgraph: TaskGraph, task: int) -> Selected | Kept:
    if isinstance(kind, TopoplanError):
        raise TopoplanError(f"{taskgraph.label(task)}: {kind}")
    return kind


class _PricedGroup(NamedTuple):
    """The prices of the algorithms of a collective in a group, or why they cannot run there.

    Attributes:
        members: bytes of the devices, host by host.
        group: how many are in each host.
        prices: of each algorithm.
        scalars: of these prices, what the choice depends on.
    """

    members: bytes
    group: CollectiveGroup
    prices: Sequence[tuple[CollectiveAlgorithm, RoundsPrice | TopoplanError]]
    scalars: tuple[object, ...]


def _prices_of(
    choice: CollectiveChoice, taskgraph: TaskGraph, tasks: I64, network: Network
) -> dict[tuple[int, int], _PricedGroup]:
    """Price the algorithms of tasks in their groups, all groups with as many members in each host together.

    Returns:
        By collective and group.
    """
    pairs = np.unique(np.stack([taskgraph.collective[tasks], taskgraph.group[tasks]]), axis=1)
    sizes = np.diff(taskgraph.group_ptr)[pairs[1]]
    groups_priced: dict[tuple[int, int], _PricedGroup] = {}
    for kind, size in np.unique(np.stack([pairs[0], sizes]), axis=1).T.tolist():
        collective, numbers = Collective(kind), pairs[1][(pairs[0] == kind) & (sizes == size)]
        members = taskgraph.group_members[taskgraph.group_ptr[numbers][:, None] + np.arange(size)]
        for rows, listed, group in grouped_rows(members, network.cluster.device_host):
            several = [each.tobytes() for each in listed]
            columns = []
            for algorithm in choice.of(collective, group):
                keys = [(each, collective, algorithm) for each in several]
                unknown = [row for row, key in enumerate(keys) if key not in network.prices]
                if unknown:
                    try:
                        new = priced_groups(network, listed[unknown], build_rounds(algorithm, collective, group))
                    except TopoplanError as error:
                        new = [error] * len(unknown)
                    network.prices.update(zip([keys[row] for row in unknown], new, strict=True))
                columns.append([(algorithm, network.prices[key]) for key in keys])
            for number, each, prices in zip(
                numbers[rows].tolist(), several, _transposed(columns, several), strict=True
            ):
                scalars = tuple(
                    None
                    if isinstance(price, TopoplanError)
                    else (price.latency, price.seconds_per_byte, price.inside, price.between)
                    for _, price in prices
                )
                groups_priced[kind, number] = _PricedGroup(each, group, prices, scalars)
    return groups_priced


def _transposed(columns: Sequence[Sequence[Any]], rows: Sequence[object]) -> list[tuple[Any, ...]]:
    """Return the rows of some columns, empty ones where there are none."""
    return list(zip(*columns, strict=True)) if columns else [()] * len(rows)


def _fastest(
    choice: CollectiveChoice,
    collective: Collective,
    size: int,
    priced: _PricedGroup,
    preset: str,
    ring_seconds: float,
) -> tuple[int, float, float]:
    """Return the number of the fastest algorithm, its latency and seconds for each byte; -1 where rings stay.

    The latency of these is what a protocol takes beside their seconds.  Where no algorithm can run, it is the first
    one, whose price says why.  Where none is chosen, rings stay.
    """
    if not priced.prices:
        return -1, 0.0, 0.0
    nbytes, group = tensor_bytes(collective, size), priced.group
    fastest = None if choice.protocol == "none" else _protocols(choice.protocol, preset, nbytes, group)
    best: tuple[float, int, float, float] | None = None
    for number, (algorithm, price) in enumerate(priced.prices):
        if isinstance(price, TopoplanError):
            continue
        latency, per_byte = price.latency, price.seconds_per_byte
        if fastest is not None:
            _, latency, per_byte = fastest(algorithm.tuned_as, price)
        seconds = latency + per_byte * nbytes
        if best is None or seconds < best[0] * _LESS:
            best = seconds, number, latency, per_byte
    if best is None:
        return 0, 0.0, 0.0
    seconds, number, latency, per_byte = best
    if not choice.keeps(collective, group):
        return number, latency, per_byte
    if fastest is None:
        return (-1, 0.0, 0.0) if ring_seconds <= seconds * _MORE else (number, latency, per_byte)
    wait = _ring_wait(priced, ring_seconds, nbytes, fastest)
    return (-1, wait, 0.0) if ring_seconds + wait < seconds * _LESS else (number, latency, per_byte)


def _protocols(protocol: str, preset: str, nbytes: int, group: CollectiveGroup) -> Callable[[str, RoundsPrice], Chosen]:
    """Return what says how the fastest protocol that may be used sends a tensor, given an algorithm and its price."""
    tuning, only, hosts = tuning_of(preset), _PROTOCOLS.get(protocol), len(group.in_hosts)
    return lambda name, price: tuning.fastest(name, price, nbytes, hosts=hosts, members=group.n_members, only=only)


def _ring_wait(
    priced: _PricedGroup, ring_seconds: float, nbytes: int, sent: Callable[[str, RoundsPrice], Chosen]
) -> float:
    """Return the seconds that rings of the network take more with a protocol; infinite where no algorithm is a ring.

    They have as many latencies in a row as one ring in the order of the members, and bytes at their own rate.
    """
    rings = (price for algorithm, price in priced.prices if algorithm.tuned_as == "ring")
    ring = next((price for price in rings if isinstance(price, RoundsPrice)), None)
    if ring is None:
        return float("inf")
    latency = min(ring.latency, ring_seconds)
    chosen = sent("ring", ring._replace(latency=latency, seconds_per_byte=(ring_seconds - latency) / nbytes))
    return chosen.latency + chosen.seconds_per_byte * nbytes - ring_seconds


def _replacement(kind: Selected, nbytes: int, network: Network) -> _Replacement:
    """Return the entity of a collective of so many bytes."""
    if kind.key not in network.load_rows:
        network.load_rows[kind.key] = network.add_loads([(kind.price.links, kind.units)])
    volume = nbytes * float(kind.price.load.max())
    rate = volume / (kind.per_byte * nbytes)
    return _Replacement(kind.latency, volume, rate, network.load_rows[kind.key], kind.variant)
