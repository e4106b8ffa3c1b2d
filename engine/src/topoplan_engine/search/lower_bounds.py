"""Lower bounds on the cost of a candidate, computed from cached fragments before lowering and simulation.

A device computes its parts one after the other, a link carries its messages one after the other, and exceeded memory
costs its penalty.  These are sums over operators and edges, so that those of a candidate follow from those of its base
by the difference of the fragments that changed.  The largest of them is a lower bound on the cost.  If the search
passes a cutoff, most candidates are rejected at this point.

Data flow: `IncrementalLowerBound.of` asks `Pieces` for the numbers of the fragments that a candidate changes and the
simulator for the seconds that each of them keeps each link busy, keeps what each fragment adds as a row under its
number, and adds the differences in compiled passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.placement import Placement
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.search.protocol import Candidate, State
from topoplan_engine.cache import LruCache
from topoplan_engine.kernels.jit import inline_kernel, kernel
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.fragments import OperatorFragment, messages
from topoplan_engine.network.star import HasInterfaces, Interfaces, NoInterfaces

__all__ = ["NO_BOUND", "Change", "IncrementalLowerBound", "LinkSeconds", "LowerBound"]

#: (task graph, fabric, cluster) -> (n, E) seconds for which the messages of each of its operators (column ``op``) are
#: guaranteed to keep each link busy, in any order.
LinkSeconds = Callable[[TaskGraph, AnyFabric, Cluster], F64]

#: Relative slack: sums are taken in another order than a simulator takes them, which may also round run times.
_SLACK = 1e-6
#: Differences after which sums are taken anew.
_REFRESH = 200
#: States whose sums are kept, and fabrics whose rows are.
_STATES, _FABRICS = 4096, 4


class LowerBound(NamedTuple):
    """What is known of a candidate before it is lowered.

    Attributes:
        seconds: it costs no less.
        fits: whether it certainly fits into the memory of every device.
    """

    seconds: float
    fits: bool


#: Of a candidate of which nothing is known.
NO_BOUND = LowerBound(0.0, False)


class _Rows:
    """Rows of numbered fragments, each of which is computed when it is asked for the first time."""

    def __init__(self, width: int) -> None:
        self.rows, self._known = np.empty((256, width)), bytearray(256)

    def missing(self, numbers: list[int]) -> list[int]:
        """Return the numbers that have no row yet; there is room for all."""
        largest = max(numbers, default=0)
        if largest >= len(self._known):
            longer = np.empty((max(largest + 1, 2 * len(self._known)), self.rows.shape[1]))
            longer[: len(self._known)] = self.rows
            self._known += bytes(len(longer) - len(self._known))
            self.rows = longer
        return [number for number in numbers if not self._known[number]]

    def put(self, number: int, row: F64) -> None:
        """Keep the row of a number for which there is room."""
        self.rows[number], self._known[number] = row, 1


class _LinkRows(_Rows):
    """Rows of seconds of links on one fabric, and its interfaces if it is one switch."""

    def __init__(self, width: int, interfaces: Interfaces | None) -> None:
        super().__init__(width)
        self.interfaces = interfaces

    def cleared(self, number: int) -> F64:
        """Return the row of a number for which there is room, all zero, to be written."""
        row: F64 = self.rows[number]
        row[:], self._known[number] = 0.0, 1
        return row


class _Sums(NamedTuple):
    """Sums over all fragments of a state, and how many differences ago they were taken anew.

    Attributes:
        numbers: of all fragments (`Pieces.numbers`).
        devices: (2 * D,) seconds of compute on every device, then bytes of memory.
        links: (E,) seconds of every link.
    """

    numbers: list[int]
    devices: F64
    links: F64
    age: int


class _Base(NamedTuple):
    """A state that changes are counted from, its sums, and the keys of its placements, then that of its fabric."""

    state: State
    sums: _Sums
    keys: list[bytes]


class Change:
    """A change to a state, and what is known of its cost.

    Attributes:
        base: what is changed.
        placements: of the operators that change.
        numbers: fragments by their places (`Pieces.numbers`): of these operators, once links are counted of edges.
        devices: (2 * D,) as `_Sums.devices`.
        penalty: seconds that exceeded memory costs at least.
        bound: so far.
        sums: of the changed state, once links are counted.
    """

    __slots__ = ("base", "bound", "devices", "numbers", "penalty", "placements", "sums")

    def __init__(
        self,
        base: _Base,
        placements: Mapping[int, Placement],
        numbers: dict[int, int],
        devices: F64,
        penalty: float,
        bound: LowerBound,
    ) -> None:
        self.base, self.placements, self.numbers = base, placements, numbers
        self.devices, self.penalty, self.bound = devices, penalty, bound
        self.sums: _Sums | None = None

    def key(self) -> bytes:
        """Return the key of the changed strategy, which is of placements alone, and of its fabric."""
        keys = self.base.keys.copy()
        for op, placement in self.placements.items():
            keys[op] = placement.key
        return b"".join(keys)


class IncrementalLowerBound:
    """Lower bounds on the costs of candidates of one problem, with one simulator.

    Args:
        lowering: of the problem.
        link_seconds: of the simulator.
        penalty: (D,) bytes used -> seconds.
        of_star: of the simulator, what it says of interfaces.
    """

    def __init__(
        self,
        lowering: Lowering,
        link_seconds: LinkSeconds,
        penalty: Callable[[F64], float],
        of_star: HasInterfaces = NoInterfaces(),  # noqa: B008 - it has no state
    ) -> None:
        self._lowering, self._link_seconds, self._penalty = lowering, link_seconds, penalty
        self._of_star = of_star
        self._pieces = lowering.pieces
        self._capacity = np.asarray(lowering.cluster.device_memory, dtype=np.float64)
        self._forget()

    def _forget(self) -> None:
        self._generation = self._pieces.generation
        self._device_rows = _Rows(2 * self._lowering.cluster.n_devices)
        self._link_rows: LruCache[bytes, _LinkRows] = LruCache(_FABRICS)
        self._sums: LruCache[bytes, _Sums] = LruCache(_STATES)
        self._base: _Base | None = None
        self._last: Change | None = None

    def of(self, candidate: Candidate, state: State) -> LowerBound:
        """Return a lower bound on the cost of ``candidate``, which describes ``state``; none on a new fabric.

        Links are left out if devices and memory alone reach the cutoff.
        """
        if state.fabric.key != candidate.base.fabric.key:
            return NO_BOUND
        change, self._last = self._last, None
        if change is None or change.placements is not candidate.placements or change.base.state is not candidate.base:
            change = self.begin(candidate.base, candidate.placements)
        if change.bound.seconds < candidate.cutoff_seconds:
            sums = self.count_links(change)
            self._sums.put(state.strategy.key + state.fabric.key, sums)
            self._pieces.put_numbers(state.strategy, sums.numbers)
        return change.bound

    def proposed(self, base: State, placements: Mapping[int, Placement]) -> Change:
        """Begin to bound what ``base`` costs with other placements, as `begin`; `of` goes on from there.

        That is so if the next candidate has this very mapping.
        """
        self._last = self.begin(base, placements)
        return self._last

    def begin(self, base: State, placements: Mapping[int, Placement]) -> Change:
        """Bound what ``base`` costs with other placements by devices and memory, without links."""
        pieces = self._pieces
        pieces.make_room()
        if pieces.generation != self._generation:
            self._forget()
        if self._base is None or self._base.state is not base:
            self._base = self._base_of(base)
        sums = self._base.sums
        numbers = {op: pieces.operator(op, placement) for op, placement in placements.items()}
        fragments = self._difference(sums.numbers, numbers)
        rows = self._device_rows_of(fragments)
        devices = np.empty(len(sums.devices))
        longest, exceeds = _shift_devices(sums.devices, fragments, rows, self._capacity, _SLACK, devices)
        penalty = self._penalty(devices[len(devices) // 2 :] * (1 - _SLACK)) if exceeds else 0.0
        bound = LowerBound((longest + penalty) * (1 - _SLACK), not exceeds)
        return Change(self._base, placements, numbers, devices, penalty, bound)

    def count_links(self, change: Change) -> _Sums:
        """Count links into the bound of a change, once; return the sums of the changed state."""
        if change.sums is not None:
            return change.sums
        before, pieces, state = change.base.sums, self._pieces, change.base.state
        numbers, placements = change.numbers, list(state.strategy.placements)
        for op, placement in change.placements.items():
            placements[op] = placement
        n_ops = len(placements)
        for edge in self._lowering.edges_at(change.placements):
            numbers[n_ops + edge] = pieces.edge(edge, placements)
        links = np.empty(len(before.links))
        fragments = self._difference(before.numbers, numbers)
        rows = self._link_rows_of(fragments, state.fabric, len(links))
        busiest = _shift_links(before.links, fragments, rows, links)
        seconds = (busiest + change.penalty) * (1 - _SLACK)
        change.bound = LowerBound(max(change.bound.seconds, seconds), change.bound.fits)
        after = before.numbers.copy()
        for place, number in numbers.items():
            after[place] = number
        change.sums = _Sums(after, change.devices, links, before.age + 1)
        return change.sums

    @staticmethod
    def _difference(before: list[int], after: Mapping[int, int]) -> I64:
        """(2, n) numbers of the fragments that go, and of those that come, where they differ."""
        gone = [before[place] for place in after]
        if gone == (coming := list(after.values())):
            return np.empty((2, 0), dtype=np.int64)
        return np.array([gone, coming], dtype=np.int64)

    def _base_of(self, state: State) -> _Base:
        """Make a base of a state: its sums, and the keys that make up its own."""
        keys = [placement.key for placement in state.strategy.placements]
        return _Base(state, self._sums_of(state), [*keys, state.fabric.key])

    def _sums_of(self, state: State) -> _Sums:
        key = state.strategy.key + state.fabric.key
        sums = self._sums.find(key)
        if sums is None or sums.age >= _REFRESH:
            taskgraph, cluster = self._lowering.lower(state.strategy), self._lowering.cluster
            devices = np.concatenate([_compute_seconds(taskgraph), self._lowering.memory(state.strategy)])
            links = self._link_seconds(taskgraph, state.fabric, cluster).sum(axis=0)
            sums = self._sums.put(key, _Sums(self._pieces.numbers(state.strategy), devices, links, 0))
        return sums

    def _device_rows_of(self, change: I64) -> F64:
        """Rows of seconds of compute, then bytes of memory, of every device; those of these fragments are there."""
        count = self._lowering.cluster.n_devices
        for number in self._device_rows.missing(change.ravel().tolist()):
            fragment = self._pieces.fragment(number)
            assert isinstance(fragment, OperatorFragment)
            columns = (fragment.forward + fragment.backward, fragment.memory)
            row = np.concatenate([np.bincount(fragment.devices, column, count) for column in columns])
            self._device_rows.put(number, row)
        return self._device_rows.rows

    def _link_rows_of(self, change: I64, fabric: AnyFabric, n_links: int) -> F64:
        """Rows of seconds of every link; those of these fragments are there, new ones are priced together."""
        cluster = self._lowering.cluster
        rows = self._link_rows.find(fabric.key) or self._link_rows.put(
            fabric.key, _LinkRows(n_links, self._of_star.interfaces(fabric, cluster))
        )
        missing = list(dict.fromkeys(rows.missing(change.ravel().tolist())))
        if missing and rows.interfaces is not None:
            for number in missing:
                self._pieces.load_interfaces(number, rows.interfaces, rows.cleared(number))
        elif missing:
            fragments = [self._pieces.fragment(number) for number in missing]
            seconds = self._link_seconds(messages(fragments, cluster.n_devices), fabric, cluster)
            for place, number in enumerate(missing):
                rows.put(number, seconds[place] if place < len(seconds) else np.zeros(n_links))
        return rows.rows


@inline_kernel
def _add_difference(before: F64, change: I64, rows: F64, after: F64) -> None:
    """Write what is left ``before`` without the rows ``change[0]`` and with the rows ``change[1]``."""
    for k in range(len(before)):
        after[k] = before[k]
    for c in range(change.shape[1]):
        for k in range(len(before)):
            after[k] += rows[change[1, c], k] - rows[change[0, c], k]


@kernel
def _shift_devices(before: F64, change: I64, rows: F64, capacity: F64, slack: float, after: F64) -> tuple[float, bool]:
    """Write the sums of devices after a change; return the most seconds, and whether memory may be exceeded."""
    _add_difference(before, change, rows, after)
    longest, exceeds = 0.0, False
    for device in range(len(capacity)):
        longest = max(longest, after[device])
        exceeds |= after[len(capacity) + device] * (1 + slack) > capacity[device]
    return longest, exceeds


@kernel
def _shift_links(before: F64, change: I64, rows: F64, after: F64) -> float:
    """Write the sums of links after a change, and return the largest."""
    _add_difference(before, change, rows, after)
    busiest = 0.0
    for link in range(len(after)):
        busiest = max(busiest, after[link])
    return busiest


def _compute_seconds(taskgraph: TaskGraph) -> Any:
    """(D,) seconds of compute on each device."""
    computes = taskgraph.device >= 0
    return np.bincount(taskgraph.device[computes], taskgraph.seconds[computes], taskgraph.n_devices).astype(np.float64)
