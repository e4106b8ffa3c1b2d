"""Collectives by chosen algorithms: one entity each, which loads links as all of its messages together.

Data flow: users name algorithms for kinds of collectives (`CollectiveChoice`, from ``--collective``); `with_algorithms`
prices those of every group on the network (`topoplan_engine.network.rounds`), takes the fastest for each group and
size, and puts an entity in the place of the collective's rings.  Like a coupled ring it waits for its latencies and
then moves bytes over all of its links at one rate: no faster than its rounds take one after the other, and as fast as
the links let it that others use at the time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.errors import TopoplanError, shown
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.options import parse_component
from topoplan.plugin.components import CollectiveAlgorithm
from topoplan.plugin.host import Host
from topoplan_engine.network.protocols import Protocol, tuning_of
from topoplan_engine.network.rounds import RoundsPrice, grouped, priced
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.wordlists import listed_components

__all__ = ["AUTO", "CollectiveChoice", "tensor_bytes", "with_algorithms"]

#: The word for all algorithms that need nothing but links; the fabric's own rings are one of them.
AUTO = "auto"
_IN_SWITCHES = ("nvls", "collnet")
_LABELS = {each.label: each for each in Collective if each is not Collective.JOIN}
#: Names of protocols as users write them.
_PROTOCOLS = {"ll": Protocol.LL, "ll128": Protocol.LL128, "simple": Protocol.SIMPLE}


@attrs.frozen
class CollectiveChoice:
    """Which algorithms run which collectives.

    Attributes:
        text: ``all-reduce=ring+tree;all-to-all=pxn``: algorithms with plus signs between, options after a colon.
        protocol: ``none``: latencies of links alone; ``auto``, ``ll``, ``ll128``, ``simple``: NCCL's.
        host: has the algorithms; None for all that are installed.
    """

    text: str
    protocol: str = "none"
    host: Host | None = attrs.field(default=None, eq=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.text) or self.protocol != "none"

    @functools.cached_property
    def algorithms(self) -> Mapping[Collective, tuple[CollectiveAlgorithm, ...]]:
        """The algorithms of each collective that is named.

        Raises:
            TopoplanError: there is no such collective or algorithm, or the algorithm does not run the collective.
        """
        host = self.host or Host.discover(prefix="collective-")
        chosen: dict[Collective, tuple[CollectiveAlgorithm, ...]] = {}
        for part in filter(None, (part.strip() for part in self.text.split(";"))):
            label, equals, names = part.partition("=")
            if label not in _LABELS or not equals:
                raise TopoplanError(
                    f"collective {shown(part)}: expected COLLECTIVE=ALGORITHM, the collective being one of "
                    f"{', '.join(_LABELS)}"
                )
            if _LABELS[label] in chosen:
                raise TopoplanError(f"collective {shown(part)}: {label} is given twice")
            words = listed_components([names.replace("+", ",")], f"collective {label}")
            every = dict.fromkeys(word for name in words for word in (_all(host, label) if name == AUTO else [name]))
            chosen[_LABELS[label]] = tuple(_made(host, name, label) for name in every)
        if self.protocol != "none":
            ring = ("ring", "staggered")
            for collective, label in ((each, each.label) for each in Collective if each.label in _LABELS):
                if collective not in chosen:
                    able = [cls.name for cls in host.components(CollectiveAlgorithm) if label in cls.collectives]
                    chosen[collective] = tuple(_made(host, name, label) for name in ring if name in able)
        return chosen

    @property
    def keeps_rings(self) -> frozenset[Collective]:
        """Collectives that may stay as the network has them: with ``auto``, unless a protocol has other latencies."""
        if self.protocol != "none":
            return frozenset()
        named = (part.partition("=") for part in self.text.split(";"))
        return frozenset(
            _LABELS[label.strip()] for label, _, names in named if AUTO in names.replace("+", ",").split(",")
        )


def _all(host: Host, label: str) -> list[str]:
    """Return the names of all algorithms of a collective that need no switches which add."""
    return [
        cls.name
        for cls in host.components(CollectiveAlgorithm)
        if label in cls.collectives and cls.tuned_as not in _IN_SWITCHES
    ]


def _made(host: Host, text: str, label: str) -> CollectiveAlgorithm:
    name, options = parse_component(text, "collective")
    algorithm = host.make(CollectiveAlgorithm, name, options)
    if label not in algorithm.collectives:
        able = [cls.name for cls in host.components(CollectiveAlgorithm) if label in cls.collectives]
        raise TopoplanError(f"collective {name}: runs no {label} (these do: {', '.join([AUTO, *able])})")
    return algorithm


def tensor_bytes(collective: Collective, size: int) -> int:
    """Return the bytes of the tensor of a collective whose column ``size`` (`TaskGraph.size`) is this.

    Example:
        >>> tensor_bytes(Collective.ALL_REDUCE, 100), tensor_bytes(Collective.ALL_GATHER, 100)
        (100, 200)
    """
    return 2 * size if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) else size


class _Replacement(NamedTuple):
    """The entity of one kind of task: its seconds of latency, bytes, rate, and row of loads."""

    latency: float
    volume: float
    rate: float
    row: int


def with_algorithms(
    choice: CollectiveChoice, taskgraph: TaskGraph, entities: Entities, network: Network, ring_seconds: F64
) -> Entities:
    """Put an entity in the place of the rings of each collective that an algorithm is chosen for.

    Args:
        choice: of algorithms.
        taskgraph: what the entities are of.
        entities: of all its tasks; collectives run rings.
        network: of the entities; gets rows of loads.
        ring_seconds: (T,) seconds that each task takes by itself, with its rings.

    Raises:
        TopoplanError: no chosen algorithm can run a collective in its group.
    """
    chosen = np.isin(taskgraph.collective, [int(each) for each in choice.algorithms])
    chosen &= (taskgraph.kind == TaskKind.COLLECTIVE) & (taskgraph.size > 0)
    tasks = np.flatnonzero(chosen)
    tasks = tasks[np.diff(taskgraph.group_ptr)[taskgraph.group[tasks]] > 1]
    if not len(tasks):
        return entities
    keys = np.stack([taskgraph.group[tasks], taskgraph.collective[tasks], taskgraph.size[tasks]])
    _, first, place = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    kinds = [_replacement(choice, taskgraph, int(tasks[i]), network, float(ring_seconds[tasks[i]])) for i in first]
    place = place.ravel()
    stays = np.array([kind is None for kind in kinds])[place]
    columns = np.array([(0.0, 0.0, 0.0, -1.0) if kind is None else kind for kind in kinds])
    return _replaced(entities, tasks[~stays], columns[place[~stays]], network)


def _replacement(
    choice: CollectiveChoice, taskgraph: TaskGraph, task: int, network: Network, ring_seconds: float
) -> _Replacement | None:
    """Return the fastest of the chosen algorithms for a task; None where it may stay as it is, and is faster so."""
    collective = Collective(taskgraph.collective[task])
    members, group = grouped(taskgraph.members(task), network.cluster.device_host)
    nbytes = tensor_bytes(collective, int(taskgraph.size[task]))
    tuning = None if choice.protocol == "none" else tuning_of(network.cluster.device_preset[int(members[0])])
    best: tuple[float, float, float, RoundsPrice, Any] | None = None
    refusal: TopoplanError | None = None
    for algorithm in choice.algorithms[collective]:
        key = (members.tobytes(), collective, algorithm)
        try:
            price = network.prices.get(key) or priced(network, members, algorithm.rounds(collective, group))
        except TopoplanError as error:
            refusal = refusal or error
            continue
        network.prices[key] = price
        latency, per_byte = price.latency, price.seconds_per_byte
        if tuning is not None:
            only, hosts = _PROTOCOLS.get(choice.protocol), len(group.in_hosts)
            _, latency, per_byte = tuning.fastest(
                algorithm.tuned_as, price, nbytes, hosts=hosts, members=group.n_members, only=only
            )
        seconds = latency + per_byte * nbytes
        if best is None or seconds < best[0]:
            best = seconds, latency, per_byte, price, key
    if best is None:
        raise TopoplanError(f"{taskgraph.label(task)}: {refusal}")
    seconds, latency, per_byte, price, key = best
    if collective in choice.keeps_rings and ring_seconds - float(taskgraph.seconds[task]) <= seconds:
        return None
    if key not in network.load_rows:
        units = np.maximum(1, np.rint(price.load / price.load.max() * LOAD)).astype(np.int64)
        network.load_rows[key] = network.add_loads([(price.links, units)])
    volume = nbytes * float(price.load.max())
    return _Replacement(latency, volume, volume / (per_byte * nbytes), network.load_rows[key])


def _replaced(entities: Entities, tasks: I64, columns: F64, network: Network) -> Entities:
    """Return entities in which these tasks have one each, with these (n, 4) columns of `_Replacement`."""
    if not len(tasks):
        return entities
    n_tasks = len(entities.of_task) - 1
    is_new = np.zeros(n_tasks, dtype=bool)
    is_new[tasks] = True
    counts = np.where(is_new, 1, np.diff(entities.of_task))
    of_task = np.append(0, np.cumsum(counts)).astype(entities.of_task.dtype)
    rows = np.flatnonzero(~is_new[entities.task])
    place = of_task[entities.task[rows]] + rows - entities.of_task[entities.task[rows]]
    new = of_task[tasks]
    rings, count = network.rings_in_full, int(of_task[-1])
    row = columns[:, 3].astype(np.int64)
    values: dict[str, Any] = {
        "task": tasks,
        "path_set": -1,
        "ring": row,
        "drawn": -1,
        "drawn_flows": 0,
        "latencies": 1,
        "volume": columns[:, 1],
        "setup_latency": columns[:, 0],
        "drain_latency": 0.0,
        "max_rate": columns[:, 2],
        "rounds": 1,
        "ring_size": 1,
        "cap": len(entities.caps) + np.arange(len(tasks)),
        "load": LOAD,
    }
    columns_of: dict[str, Any] = {"of_task": of_task, "caps": np.concatenate([entities.caps, columns[:, 2]])}
    for name, value in values.items():
        old = getattr(entities, name)
        columns_of[name] = column = np.empty(count, dtype=old.dtype)
        column[place], column[new] = old[rows], value
    slots = np.zeros(count, dtype=np.int64)
    slots[place] = np.diff(entities.slot_ptr)[rows]
    slots[new] = np.diff(rings.load_ptr)[row] + 1  # its links, and the one that holds it to its rate
    return Entities(slot_ptr=np.append(0, np.cumsum(slots)), **columns_of)
