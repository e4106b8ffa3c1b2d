"""Lower bounds on the cost of a candidate, computed from cached fragments before lowering and simulation.

A device computes its parts one after the other, a link carries its messages one after the other, and exceeded memory
costs its penalty.  These are sums over operators and edges, so that those of a candidate follow from those of its base
by the difference of the fragments that changed.  The largest of them is a lower bound on the cost.  If the search
passes a cutoff, most candidates are rejected at this point.

Data flow: `IncrementalLowerBound` asks `Pieces` for the numbers of the fragments that a change brings and the simulator
for the seconds that each of them keeps each link busy, and keeps what each fragment adds as a row under its number.
One compiled pass over a change (`topoplan_engine.search.fragment_sums`) finds the fragments of edges and adds the
differences; where it meets a fragment that has no row yet, it is run again when there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I64, f64
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.placement import Placement
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.search.protocol import Candidate, State
from topoplan_engine.cache import LruCache
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.fragments import messages
from topoplan_engine.lowering.piece_loads import load_devices, load_interfaces
from topoplan_engine.network.star import Interfaces
from topoplan_engine.search.fragment_sums import COMPLETE, DEVICES_MISSING, LINKS_MISSING, Memory, Rows, Sums, shift

__all__ = ["NO_BOUND", "IncrementalLowerBound", "LinkSeconds", "LowerBound"]

#: (task graph, fabric, cluster) -> (n, E) seconds for which the messages of each of its operators (column ``op``) are
#: guaranteed to keep each link busy, in any order.
LinkSeconds = Callable[[TaskGraph, AnyFabric, Cluster], F64]

#: Differences after which sums are taken anew.
_REFRESH = 200
#: States whose sums are kept, the bytes that sums of links may take, and fabrics whose rows are kept.
_STATES, _BYTES_OF_SUMS, _FABRICS = 4096, 1 << 28, 4
#: Links of the largest network whose links are counted: a row of every fragment has eight megabytes.
_MOST_LINKS = 1 << 20


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


class _LinkRows(Rows):
    """Rows of seconds of links on one fabric, and its interfaces if it is one switch."""

    def __init__(self, width: int, interfaces: Interfaces | None) -> None:
        super().__init__(width)
        self.interfaces = interfaces


class _Base(NamedTuple):
    """A state that changes are counted from.

    Attributes:
        state: what it is.
        sums: of it.
        age: differences since they were taken anew.
        links: rows of its fabric.
        keys: of its placements, then that of its fabric.
    """

    state: State
    sums: Sums
    age: int
    links: _LinkRows
    keys: list[bytes]


class _Change(NamedTuple):
    """The change of which the bound was asked last; its sums are where the kernel has left them."""

    base: _Base
    placements: Mapping[int, Placement]
    bound: LowerBound
    counts_links: bool


class IncrementalLowerBound:
    """Lower bounds on the costs of candidates of one problem, with one simulator.

    Args:
        lowering: of the problem.
        link_seconds: of the simulator.
        seconds_per_byte: what each byte costs that exceeds the memory of a device; infinite where none may.
        of_star: of the simulator, what it says of interfaces (`HasInterfaces.interfaces`); None: nothing.
    """

    def __init__(
        self,
        lowering: Lowering,
        link_seconds: LinkSeconds,
        seconds_per_byte: float,
        of_star: Callable[[AnyFabric, Cluster], Interfaces | None] | None = None,
    ) -> None:
        self._lowering, self._link_seconds = lowering, link_seconds
        self._of_star = of_star
        self._pieces = lowering.pieces
        self._memory = Memory(f64(lowering.cluster.usable_memory), seconds_per_byte)
        # Sums of bytes are no peaks where gradients of activations come and go: what fits by them may not fit.
        self._holds_gradients = True
        self._forget()

    def _forget(self) -> None:
        self._generation = self._pieces.generation
        self._device_rows = Rows(2 * self._lowering.cluster.n_devices)
        self._link_rows: LruCache[bytes, _LinkRows] = LruCache(_FABRICS)
        self._sums: LruCache[bytes, tuple[Sums, int]] = LruCache(_STATES)
        self._widest = 1
        self._edges = self._lowering.edge_numbers()
        self._base: _Base | None = None
        self._after: Sums | None = None
        self._last: _Change | None = None

    def of(self, candidate: Candidate, state: State) -> LowerBound:
        """Return a lower bound on the cost of ``candidate``, which describes ``state``; none on a new fabric.

        Links are left out if devices and memory alone reach the cutoff.
        """
        if state.fabric.key != candidate.base.fabric.key:
            return NO_BOUND
        bound = self.proposed(candidate.base, candidate.placements, candidate.cutoff_seconds)
        assert self._last is not None
        assert self._after is not None
        if self._last.counts_links:
            sums = self._after.copy()
            self._keep(state.strategy.key + state.fabric.key, sums, self._last.base.age + 1)
            self._pieces.put_numbers(state.strategy, sums.numbers)
        return bound

    def proposed(self, base: State, placements: Mapping[int, Placement], cutoff: float) -> LowerBound:
        """Return a lower bound on what ``base`` costs with other placements.

        Links are left out if devices and memory alone reach the cutoff.  The bound on this very change is kept until
        another one is asked for.
        """
        last, pieces = self._last, self._pieces
        pieces.make_room()
        if (
            last is not None
            and last.placements is placements
            and last.base.state is base
            and pieces.generation == self._generation
            and (last.counts_links or last.bound.seconds >= cutoff)
        ):
            return last.bound
        self._last = None
        if pieces.generation != self._generation:
            self._forget()
        if self._base is None or self._base.state is not base:
            self._base = self._base_of(base)
            self._after = self._base.sums.copy()
        numbers = [pieces.operator(op, placement) for op, placement in placements.items()]
        change = np.array([list(placements), numbers], dtype=np.int64)
        answer = self._pass_over(change, cutoff)
        if answer[0] == DEVICES_MISSING:
            self._add_device_rows([*self._base.sums.numbers[change[0]].tolist(), *numbers])
            answer = self._pass_over(change, cutoff)
        if answer[0] == LINKS_MISSING:
            self._complete_links(placements, numbers)
            answer = self._pass_over(change, cutoff)
        state, seconds, fits = answer
        bound = LowerBound(seconds, fits and not self._holds_gradients)
        self._last = _Change(self._base, placements, bound, state == COMPLETE)
        return self._last.bound

    def key(self) -> bytes:
        """Return the keys of the strategy whose bound was asked last, which is of placements alone, and its fabric."""
        assert self._last is not None
        keys = self._last.base.keys.copy()
        for op, placement in self._last.placements.items():
            keys[op] = placement.key
        return b"".join(keys)

    def placement_key(self) -> int:
        """Return the `Lowering.placement_key` of the strategy whose bound was asked last, where links were counted."""
        return self._pieces.key_of_numbers(self.numbers())

    def numbers(self) -> I64:
        """Return the numbers of its fragments; they change with the next bound."""
        assert self._last is not None
        assert self._last.counts_links
        assert self._after is not None
        return self._after.numbers

    def _pass_over(self, change: I64, cutoff: float) -> tuple[int, float, bool]:
        """Run the kernel over a change: operators, and the numbers of their fragments."""
        assert self._base is not None
        assert self._after is not None
        rows = (*self._device_rows.columns, *self._base.links.columns)
        answer: tuple[int, float, bool] = shift(
            *self._base.sums, change, *self._edges.columns, *rows, *self._memory, cutoff, *self._after
        )
        return answer

    def _complete_links(self, placements: Mapping[int, Placement], numbers: list[int]) -> None:
        """See to it that all fragments of edges at a change are known, and what every fragment asks of links."""
        assert self._base is not None
        after, state = self._base.sums.numbers.tolist(), self._base.state
        changed = list(state.strategy.placements)
        for (op, placement), number in zip(placements.items(), numbers, strict=True):
            changed[op], after[op] = placement, number
        edges = self._lowering.edges_at(placements)
        of_edges = self._pieces.edges(edges, changed, after)
        self._edges.put(edges, after, of_edges)
        places = [*placements, *(len(changed) + edge for edge in edges)]
        before = self._base.sums.numbers[places].tolist()
        self._add_link_rows([*before, *numbers, *of_edges], self._base.links)

    def _base_of(self, state: State) -> _Base:
        """Make a base of a state: its sums, the rows of its fabric, and the keys that make up its own."""
        keys = [placement.key for placement in state.strategy.placements]
        sums, age = self._sums_of(state)
        links = self._link_rows.find(state.fabric.key) or self._link_rows.put(
            state.fabric.key,
            _LinkRows(len(sums.links), self._of_star and self._of_star(state.fabric, self._lowering.cluster)),
        )
        return _Base(state, sums, age, links, [*keys, state.fabric.key])

    def _sums_of(self, state: State) -> tuple[Sums, int]:
        """Return the sums of a state, and how many differences ago they were taken anew."""
        key = state.strategy.key + state.fabric.key
        aged_sums = self._sums.find(key)
        if aged_sums is None or aged_sums[1] >= _REFRESH:
            self._holds_gradients = self._lowering.holds_gradients(state.strategy)
            taskgraph, cluster = self._lowering.lower(state.strategy), self._lowering.cluster
            devices = np.concatenate([_compute_seconds(taskgraph), self._lowering.resting_memory(state.strategy)])
            links, fabric = np.empty(0), state.fabric
            if not isinstance(fabric, Fabric) or fabric.n_links <= _MOST_LINKS:
                links = self._link_seconds(taskgraph, fabric, cluster).sum(axis=0)
            aged_sums = self._keep(key, Sums(self._pieces.numbers(state.strategy), devices, links), 0)
        return aged_sums

    def _keep(self, key: bytes, sums: Sums, age: int) -> tuple[Sums, int]:
        """Keep the sums of a state: as many states as memory allows where a network has very many links."""
        if len(sums.links) > self._widest:
            self._widest = len(sums.links)
            self._sums = LruCache(max(4, min(_STATES, _BYTES_OF_SUMS // (8 * self._widest))))
        return self._sums.put(key, (sums, age))

    def _add_device_rows(self, numbers: Iterable[int]) -> None:
        """Add the rows of seconds of compute, then bytes of memory, of every device, of fragments that have none."""
        missing = self._device_rows.missing(numbers)
        load_devices(self._pieces, missing, self._device_rows.columns.rows)
        self._device_rows.complete(missing)

    def _add_link_rows(self, numbers: Iterable[int], rows: _LinkRows) -> None:
        """Add the rows of seconds of every link, of fragments that have none; they are priced together."""
        missing, cluster = rows.missing(numbers), self._lowering.cluster
        if not rows.columns.rows.shape[1]:
            pass  # of a network with very many links none is counted
        elif rows.interfaces is not None:
            load_interfaces(self._pieces, missing, rows.interfaces, rows.columns.rows)
        elif len(missing):
            assert self._base is not None
            fragments = [self._pieces.fragment(number) for number in missing.tolist()]
            seconds = self._link_seconds(messages(fragments, cluster.n_devices), self._base.state.fabric, cluster)
            rows.columns.rows[missing] = 0.0  # the last fragments may have no messages, and no seconds then
            rows.columns.rows[missing[: len(seconds)]] = seconds
        rows.complete(missing)


def _compute_seconds(taskgraph: TaskGraph) -> Any:
    """(D,) seconds of compute on each device."""
    computes = taskgraph.device >= 0
    return np.bincount(taskgraph.device[computes], taskgraph.seconds[computes], taskgraph.n_devices).astype(np.float64)
