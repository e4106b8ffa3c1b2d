"""The model as prefix sums: columns over cuts, each with the sum over all operators before the cut.

A pipeline is cut between states of the operator graph, as in HPGO (`topoplan_pipeline_planning.states`).  Cut 0 is
before the first operator, cut ``i`` after state ``i - 1``.  A stage is the operators between two cuts, and its sums are
differences of columns.  `columns_of` prices every operator for every number of replicas, so that uneven shares of a
batch, and prices that are not proportional to the number of replicas, are exact.  An operator that has a price only as
a whole, such as an embedding table that was measured uncut, is on one device of its stage: sums have an equal share of
all of them for every device, and `topoplan_searcher_pipeline.whole` what a device has beyond that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan import Cluster, CostFunction, MicroBatch, Operator, OperatorGraph, PartCosts
from topoplan.arrays import F64, I32, I64
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.lowering import weight_seconds
from topoplan_engine.lowering.gradient_peaks import order_of_edges, widest
from topoplan_engine.tied import tied_weights
from topoplan_engine.training import gradient_flow, trained_bytes
from topoplan_pipeline_planning.states import (
    States,
    TooManyStatesError,
    antichain_states,
    joined_states,
    prefix_states,
)
from topoplan_searcher_pipeline.whole import WholeOperators

__all__ = ["Bools", "Columns", "StageColumns", "columns_of", "cuts_of_branches", "states_of"]

Bools = NDArray[np.bool_]

#: Seconds of the largest part: forward, backward, and of it gradients of weights.
_Seconds = tuple[float, float, float]

#: On at most so many devices a stage may have any number of them.
_ANY_SIZE = 32


@runtime_checkable
class ReplicaCosts(Protocol):
    """What costs may offer besides prices of one operator at a time: those of all operators in one call."""

    def replica_prices(self, counts: Sequence[int]) -> tuple[F64, I32] | None:
        """Return what `_prices` returns, to the last bit, or None where only ``price`` knows.

        Args:
            counts: (R,) ascending numbers of equal devices among which the samples of an operator are divided.
        """


class Tied(NamedTuple):
    """A weight that several operators use, of which every stage that has one of them has a copy.

    Attributes:
        owner, users: the operator that has the weight in its columns, and the others.
        nbytes: of its gradient; 0 if it is not trained.
        kept: bytes of a copy, with its gradient and optimizer state.
    """

    owner: int
    users: tuple[int, ...]
    nbytes: float
    kept: float


class StageColumns(NamedTuple):
    """The columns of `Columns` that sums over stages read, as kernels take them."""

    forward: F64
    backward: F64
    weight_gradient: F64
    kept: F64
    activations: F64
    rise_before: F64
    rise_after: F64
    deferred: F64
    unpriced: I32
    crossing: F64
    closed: Bools
    whole: WholeOperators
    operator_backward: F64
    operator_gradients: F64
    edge: I64
    edge_bytes: F64
    edge_tensor: I64
    edge_returns: Bools


@attrs.frozen(kw_only=True, eq=False)
class Columns:
    """Prefix sums over C cuts, the last one after all operators, for R numbers of replicas.

    All seconds and bytes are those of the whole batch, on one device of a stage that has that many replicas.  Seconds
    are those of ``micro_batches`` passes, one after the other (`at`).

    Attributes:
        replicas: (R,) ascending, from 1.
        forward, backward, weight_gradient: (R, C) seconds; the last is the part of ``backward`` that gradients of
            weights take.
        kept, activations: (R, C) bytes that persist for the iteration, and bytes of activations.
        rise_before, rise_after: (R, C) the most bytes of gradients of activations while the backward pass of any
            operator before a cut runs, and of any after it; a stage has no more than the lesser one of its two ends.
        deferred: (R, C) bytes of the gradients of outputs that gradients of weights are made of.
        unpriced: (R, C) number of operators that cannot be cut into so many parts.
        gradients: (C,) bytes that replicas have to sum.
        crossing: (C,) bytes of the tensors that are made before a cut and read after it, by however many operators; 0
            at both ends.
        returning: (C,) those of them whose gradients go back; all but where something is frozen.
        closed: (C, n) the operators before each cut.
        operator_forward, operator_backward, operator_gradients: (R, n) seconds and (n,) bytes of each operator by
            itself.
        operator_kept: (n,) bytes of ``kept`` of each undivided operator.
        edge, edge_bytes, edge_tensor: (E, 2) producers and consumers, (E,) bytes between them, and an ascending number
            of the tensor: of those that read one, each stage gets it once.
        edge_returns: (E,) whether a gradient goes back.
        before_ptr, before: compressed rows: for each cut, the cuts at which a stage that ends there may start, the
            nearest (in seconds) first.
        samples: greatest number of micro-batches that divides the batch for every operator.
        whole: operators that are not cut.
        tied: weights that several operators use.
        micro_batches: passes in which operators run the batch.
    """

    replicas: I32
    forward: F64
    backward: F64
    weight_gradient: F64
    kept: F64
    activations: F64
    rise_before: F64
    rise_after: F64
    deferred: F64
    unpriced: I32
    gradients: F64
    crossing: F64
    returning: F64
    closed: Bools
    operator_forward: F64
    operator_backward: F64
    operator_gradients: F64
    operator_kept: F64
    edge: I64
    edge_bytes: F64
    edge_tensor: I64
    edge_returns: Bools
    before_ptr: I64
    before: I32
    samples: int
    whole: WholeOperators
    tied: tuple[Tied, ...] = ()
    micro_batches: int = 1
    _price: Callable[[int], tuple[F64, NDArray[np.int32]]] | None = None
    _at: dict[int, Columns] = attrs.field(factory=dict, init=False)

    def at(self, micro_batches: int) -> Columns:
        """Return the columns where operators run the batch in so many passes, each priced at its size (cached).

        Bytes are the same.  They are these columns where seconds are proportional to samples.
        """
        if micro_batches == self.micro_batches or self._price is None:
            return self
        if micro_batches not in self._at:
            self._at[micro_batches] = self._priced(micro_batches, *self._price(micro_batches))
        return self._at[micro_batches]

    def _priced(self, micro_batches: int, prices: F64, unpriced: NDArray[np.int32]) -> Columns:
        """Return these columns with the seconds of ``prices``; see `_prices`."""
        whole = self.whole.op
        undivided = np.concatenate([prices[:2, 0], np.zeros_like(prices[:2, 0])])
        undivided[2:, whole] = self.whole.prices[2:]
        if len(whole):
            _share_among(prices, unpriced, self.replicas, whole)
        closed = self.closed.T.astype(np.float64)
        forward, backward, weight_gradient = prices[:3] @ closed
        seconds = undivided[:2].sum(axis=0)[whole].tolist()
        return attrs.evolve(
            self,
            forward=forward,
            backward=backward,
            weight_gradient=weight_gradient,
            unpriced=unpriced @ self.closed.T.astype(np.int32),
            operator_forward=prices[0],
            operator_backward=prices[1],
            whole=WholeOperators.of(dict(zip(whole.tolist(), seconds, strict=True)), undivided, self.closed),
            micro_batches=micro_batches,
            price=None,
        )

    @property
    def linear(self) -> bool:
        """Whether seconds are proportional to samples: any number of micro-batches computes equally long."""
        return self._price is None

    @property
    def n_cuts(self) -> int:
        """Number of cuts, both ends included."""
        return len(self.crossing)

    @property
    def seconds(self) -> float:
        """Forward and backward pass of the whole batch on one device."""
        return float(self.forward[0, -1] + self.backward[0, -1])

    @functools.cached_property
    def row_of_replicas(self) -> dict[int, int]:
        """The row of each number of replicas that has one."""
        return {count: row for row, count in enumerate(self.replicas.tolist())}

    @functools.cached_property
    def of_stages(self) -> StageColumns:
        """The columns that sums over stages read."""
        return StageColumns(*[getattr(self, name) for name in StageColumns._fields])

    def between(self, start: int, end: int) -> list[int]:
        """Return the cuts at which a stage from ``start`` may end and a stage to ``end`` may start."""
        rows = self.before[self.before_ptr[end] : self.before_ptr[end + 1]].tolist()
        return [cut for cut in rows if cut > start and self.follows(start, cut)]

    def follows(self, start: int, end: int) -> bool:
        """Say whether a stage may start at cut ``start`` and end at cut ``end``."""
        return bool((self.before[self.before_ptr[end] : self.before_ptr[end + 1]] == start).any())


def states_of(graph: OperatorGraph, limit: int) -> tuple[States, bool]:
    """Return the states of a graph, and whether they are all of its antichain states.

    If there are more than ``limit``, or the first operator does not lead to all others, there is one state for each
    operator instead, in the order of the graph.
    """
    children: list[list[int]] = [[] for _ in graph.operators]
    for u, _, v, _ in graph.edges.reshape(-1, 4).tolist():
        if v not in children[u]:
            children[u].append(v)
    try:
        states = antichain_states(children, limit)
    except TooManyStatesError:
        return prefix_states(children), False
    if states.closed[-1].all():
        return states, True
    return prefix_states(children), False


def cuts_of_branches(graph: OperatorGraph, states: States, limit: int) -> tuple[States, I64]:
    """Add cuts inside of branches that do not begin at the first operator, such as towers and embedding tables.

    Antichain states follow the paths from the first operator, and take such a branch as a whole where it ends.

    Args:
        graph: the model.
        states: all its antichain states.
        limit: no cuts are added if there were more than this.

    Returns:
        The states, and where those of ``states`` are among them.
    """
    rows = graph.edges.reshape(-1, 4)[:, [0, 2]].tolist()
    children: list[list[int]] = [[] for _ in graph.operators]
    for u, v in rows:
        children[u].append(v)
    descendants, consumers = {0}, {v for _, v in rows}
    for u, heads in enumerate(children):
        descendants |= set(heads) if u in descendants else set()
    branches = any(
        op not in descendants and (op in consumers or operator.weights) for op, operator in enumerate(graph.operators)
    )
    if not branches or len(states.closed) + len(graph.operators) > limit:
        return states, np.arange(len(states.closed), dtype=np.int64)
    return joined_states(states, prefix_states(children))


def _divided_gradients(graph: OperatorGraph, whole: Container[int]) -> F64:
    """Return (n,) bytes of the gradients of operators that are cut by samples; none of those in ``whole``."""
    return np.array(
        [
            trained_bytes(graph, op) if operator.sample_dim >= 0 and op not in whole else 0.0
            for op, operator in enumerate(graph.operators)
        ],
        np.float64,
    )


def columns_of(graph: OperatorGraph, cluster: Cluster, costs: CostFunction, states: States) -> Columns:
    """Price the operators of a graph and sum them over the states.

    Raises:
        TopoplanError: an operator has no price.
    """
    n, replicas = len(graph.operators), _replicas(cluster.n_devices)
    prices, unpriced, gradients_held = _prices(graph, cluster, costs, replicas)
    undivided = prices[[0, 1, 3, 4], 0]
    whole = _share_whole(graph, replicas, prices, unpriced)
    gradients = _divided_gradients(graph, whole)
    closed = np.concatenate([np.zeros((1, n), dtype=np.bool_), states.closed])
    of_whole = WholeOperators.of(whole, undivided, closed)
    forward, backward, weight_gradient, persistent, activations = prices @ closed.T.astype(np.float64)
    ends = graph.edges.reshape(-1, 4)
    by_tensor = np.lexsort((ends[:, 2], ends[:, 1], ends[:, 0]))
    ends, returns = ends[by_tensor], gradient_flow(graph).edges[by_tensor]
    edge = ends[:, [0, 2]].astype(np.int64, order="C")  # also of one edge, for kernels are compiled for an order
    rise = widest(order_of_edges(edge, n), *gradients_held)
    starts = np.append(True, (ends[1:, :2] != ends[:-1, :2]).any(axis=1))[: len(ends)]
    first = np.flatnonzero(starts)
    edge_bytes = np.array([graph.operators[v].inputs[place].nbytes for _, _, v, place in ends.tolist()], np.float64)
    crosses = closed[:, edge[:, 0]] & ~closed[:, edge[:, 1]]
    goes_back = crosses & returns
    if len(first):
        crosses, goes_back = (np.logical_or.reduceat(rows, first, axis=1) for rows in (crosses, goes_back))
    before_ptr, before = _before(states, forward[0] + backward[0])
    return Columns(
        replicas=np.array(replicas, dtype=np.int32),
        forward=forward,
        backward=backward,
        weight_gradient=weight_gradient,
        kept=persistent,
        activations=activations,
        rise_before=_most(rise, closed),
        rise_after=_most(rise, ~closed),
        deferred=(gradients_held[0] * (prices[2] > 0)) @ closed.T.astype(np.float64),
        unpriced=unpriced @ closed.T.astype(np.int32),
        gradients=closed @ gradients,
        crossing=crosses @ edge_bytes[first],
        returning=goes_back @ edge_bytes[first],
        closed=closed,
        operator_forward=prices[0],
        operator_backward=prices[1],
        operator_gradients=gradients,
        operator_kept=prices[3, 0],
        edge=edge,
        edge_bytes=edge_bytes,
        edge_tensor=np.cumsum(starts) - 1,
        edge_returns=returns,
        before_ptr=before_ptr,
        before=before,
        samples=math.gcd(
            graph.batch_size, *(op.dims[op.sample_dim].size for op in graph.operators if op.sample_dim >= 0)
        ),
        whole=of_whole,
        tied=_tied(graph, prices[3, 0]),
        price=None if costs.linear_in_samples else _Passes(graph, cluster, costs, replicas).prices,
    )


class _Passes:
    """Seconds of micro-batches, of which parts of one size are priced once.

    On equal devices what counts is how many samples the largest part has: the same for one of two replicas as for one
    device that has half of the micro-batch.  Cost functions with a rule of their own are asked for each of them.
    """

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction, replicas: Sequence[int]) -> None:
        self._graph, self._costs, self._replicas = graph, costs, replicas
        self._slowest_first = np.argsort(cluster.device_speed, kind="stable").astype(np.int32)
        equal = len(set(cluster.device_preset)) == 1 and len(set(cluster.device_speed.tolist())) == 1
        self._by_size = equal and type(costs).price_micro_batch is CostFunction.price_micro_batch
        self._known: dict[object, _Seconds | None] = {}
        # Equal operators may have one price; with it, so that no two have one id.
        self._largest: dict[int, tuple[PartCosts, _Seconds]] = {}

    def prices(self, micro_batches: int) -> tuple[F64, NDArray[np.int32]]:
        """Return `_prices` of ``micro_batches`` passes, without bytes."""
        prices = np.zeros((3, len(self._replicas), len(self._graph.operators)))
        unpriced = np.zeros(prices.shape[1:], dtype=np.int32)
        for op, operator in enumerate(self._graph.operators):
            stop_if_wanted()
            batch = MicroBatch.of(operator, micro_batches)
            for row, count in enumerate(self._replicas):
                seconds = self._part(op, operator, batch, count)
                if seconds is None:
                    unpriced[row, op] = 1
                else:
                    prices[:, row, op] = seconds
        return prices * micro_batches, unpriced

    def _part(self, op: int, operator: Operator, batch: MicroBatch, replicas: int) -> _Seconds | None:
        """Return the seconds of the largest part in one micro-batch; None if it has no price."""
        pieces = batch.count * replicas if batch.dim >= 0 else 1
        if pieces > batch.size:
            return None
        samples = -(-batch.size // pieces)
        key: object = (op, samples) if self._by_size else (op, batch.count, replicas)
        if key not in self._known:
            if self._by_size:  # the coarsest cut whose largest part has so many samples
                cut, whole = operator.sample_cut(-(-batch.size // samples)), MicroBatch.of(operator, 1)
            else:
                cut, whole = operator.sample_cut(replicas), batch
            self._known[key] = self._price(op, operator, cut, whole)
        # Parts of other sizes may have no price, as where equal ones were measured.
        uneven = batch.dim >= 0 and batch.size % pieces
        if uneven and not self._costs.supports_micro_batch(op, operator.sample_cut(replicas), batch):
            return None
        return self._known[key]

    def _price(self, op: int, operator: Operator, cut: tuple[int, ...], batch: MicroBatch) -> _Seconds | None:
        if not self._costs.supports_micro_batch(op, cut, batch):
            return None
        devices = np.resize(self._slowest_first, math.prod(cut))
        price = self._costs.price_micro_batch(op, cut, devices, batch)
        if id(price) not in self._largest:
            gradient = weight_seconds(operator, price)
            seconds = float(price.forward.max()), float(price.backward.max()), float(gradient.max())
            self._largest[id(price)] = price, seconds
        return self._largest[id(price)][1]


def _most(values: F64, chosen: Bools) -> F64:
    """(R, C) the greatest of (R, n) values, none below 0, among the operators that (C, n) choose; 0 if none."""
    most, last = np.zeros((len(values), len(chosen))), None
    for row, each in enumerate(values):
        order = np.argsort(-each, kind="stable")
        if last is None or not np.array_equal(order, last):  # rows differ by a factor most of the time
            descending, last = chosen[:, order], order
            first, some = descending.argmax(axis=1), descending.any(axis=1)
        most[row] = np.where(some, each[order[first]], 0.0)
    return most


def _prices(
    graph: OperatorGraph, cluster: Cluster, costs: CostFunction, replicas: Sequence[int]
) -> tuple[F64, NDArray[np.int32], F64]:
    """Price every operator for every number of replicas.

    Returns:
        (5, R, n) forward, backward, gradients of weights (seconds), persistent bytes and activations of each operator,
        (R, n) 1 for an operator that cannot be cut into so many parts, and (2, R, n) bytes of gradients of activations.
    """
    gradients = np.zeros((2, len(replicas), len(graph.operators)))
    if isinstance(costs, ReplicaCosts) and (all_prices := costs.replica_prices(replicas)) is not None:
        return *all_prices, gradients
    prices = np.zeros((5, len(replicas), len(graph.operators)))
    unpriced = np.zeros(prices.shape[1:], dtype=np.int32)
    slowest_first = np.argsort(cluster.device_speed, kind="stable").astype(np.int32)
    outputs = [float(sum(tensor.nbytes for tensor in operator.outputs)) for operator in graph.operators]
    for row, count in enumerate(replicas):  # one by one, so that equal operators are priced in a row
        stop_if_wanted()
        devices, rows = slowest_first[:count], dict[Any, tuple[PartCosts, list[float]]]()
        for op, operator in enumerate(graph.operators):
            if row and operator.sample_dim < 0:  # one part, however many devices the stage has
                prices[:, row, op], unpriced[row, op] = prices[:, 0, op], unpriced[0, op]
                gradients[:, row, op] = gradients[:, 0, op]
                continue
            cut = operator.sample_cut(count) if operator.sample_dim >= 0 else (1,) * len(operator.dims)
            if row and not costs.supports(op, cut):
                unpriced[row, op] = 1
                continue
            price = costs.price(op, cut, devices)
            key = id(price), outputs[op], any(tensor.requires_grad for tensor in operator.weights)
            if key not in rows:  # with the price, so that no two have one id
                rows[key] = price, _largest(operator, price, outputs[op] / count)
            prices[:, row, op], gradients[:, row, op] = rows[key][1][:5], rows[key][1][5:]
    return prices, unpriced, gradients


def _largest(operator: Operator, price: PartCosts, output: float) -> list[float]:
    """Return the rows of `_prices` of the largest part of an operator, whose outputs have so many bytes a part."""
    persistent = price.memory - np.minimum(price.memory, output) if price.kept is None else price.kept
    rows = (price.forward, price.backward, weight_seconds(operator, price), persistent, price.memory - persistent)
    # Of a few numbers Python finds the greatest faster than numpy.
    of_gradients = [0.0, 0.0] if price.gradients is None else [max(values.tolist()) for values in price.gradients]
    return [*(max(values.tolist()) for values in rows), *of_gradients]


def _tied(graph: OperatorGraph, persistent: F64) -> tuple[Tied, ...]:
    """Return the weights that several operators use; (n,) ``persistent`` are bytes of each operator."""
    flow, tied = gradient_flow(graph), []
    for owner, weight, users in tied_weights(graph):
        tensors = graph.operators[owner].weights
        nbytes = tensors[weight].nbytes
        share = nbytes / sum(tensor.nbytes for tensor in tensors)
        gradient = float(nbytes) if flow.weights[owner][weight] else 0.0
        tied.append(Tied(owner, tuple(user for user, _ in users), gradient, float(persistent[owner]) * share))
    return tuple(tied)


def _share_whole(
    graph: OperatorGraph, replicas: Sequence[int], prices: F64, unpriced: NDArray[np.int32]
) -> dict[int, float]:
    """Return the operators that have a price only as a whole, and the seconds of each.

    Args:
        graph: the model.
        replicas: (R,) numbers of replicas.
        prices, unpriced: see `_prices`; rows of more than one replica are replaced by shares of the first one.
    """
    if len(replicas) == 1:
        return {}
    only_whole = (unpriced[1:] == 1).all(axis=0) & (unpriced[0] == 0)
    whole = [op for op in np.flatnonzero(only_whole).tolist() if graph.operators[op].sample_dim >= 0]
    _share_among(prices, unpriced, np.array(replicas), np.array(whole, dtype=np.int64))
    return {op: float(prices[0, 0, op] + prices[1, 0, op]) for op in whole}


def _share_among(prices: F64, unpriced: NDArray[np.int32], replicas: I32, whole: I64) -> None:
    """Write an equal share for each number of replicas over the prices of operators that are not cut."""
    prices[:, :, whole] = prices[:, :1, whole] / replicas[None, :, None]
    unpriced[:, whole] = unpriced[0, whole]


def _replicas(devices: int) -> list[int]:
    """Return the numbers of devices that a stage may have: all, or on large clusters divisors and powers of two."""
    if devices <= _ANY_SIZE:
        return list(range(1, devices + 1))
    return [size for size in range(1, devices + 1) if devices % size == 0 or size & (size - 1) == 0]


def _before(states: States, seconds: F64) -> tuple[I64, I32]:
    """Return ``before_ptr`` and ``before`` of `Columns`."""
    rows = [np.zeros(0, dtype=np.int32)]
    for state, predecessors in enumerate(states.before):
        cuts = np.append(0, np.flatnonzero(predecessors[:state]) + 1)
        rows.append(cuts[np.argsort(-seconds[cuts], kind="stable")].astype(np.int32))
    return np.concatenate(([0], np.cumsum([len(row) for row in rows]))), np.concatenate(rows)
