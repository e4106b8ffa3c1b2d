"""A lower bound on the iteration time over all strategies and all wirings of a problem.

What it takes for granted, and nothing else:

- every operator is computed once at least, in parts that the cost function prices, each part on a device of its own;
  parts may be copied to further devices, as SPMD programs do.  This covers placements, SPMD programs (their parameters
  and states whole or sharded), and pipelines, whose micro-batches divide the price of a part;
- a device computes one part after the other, and a host sends no faster than all its interfaces together; latency,
  packets, paths and waiting are free but in the last bound, and so are messages inside a host;
- copies of a weight on ``h`` hosts cost ``2 (h - 1)`` times its bytes to keep equal, all of which leave interfaces
  (Patarasuk, Yuan, J. Parallel Distrib. Comput. 69, 2009).  Where ``c`` hosts compute every share of the gradient, of
  ``r`` shares, the first host that has the sum has it after ``r - 1`` messages, and each of the other ``c r - 1`` has
  it after one more.  On the wire that holds for weights of any size.  For simulators with another transport, which may
  send small ones in one round of a ring, those cost nothing;
- what a host computes with it has made itself, or it has come over the network.  Its gradient goes back, unless the
  operator has copies, which know the whole gradient.  A tensor that several operators read counts for them in equal
  shares, since they may share what has come;
- no cut computes less than the cuts that are looked at, and none has a shorter part: those of the strategy space, and
  cuts of the samples over any number of devices, all in slices as even as can be.  Estimators by roofline, profile and
  rate compute least where nothing is cut, which is among them; measured ones price few other cuts, or none.

Then for any time T that a strategy reaches, and any share ``s``,

    T >= sum over operators of (s * work / devices + (1 - s) * bytes sent / bandwidth of all hosts),

since both parts alone are at most T.  Each operator chooses the cut that makes the sum least, of those whose parts take
T at most; bytes between two operators depend on the choices of both.  Edges beyond a spanning forest are left out, so
that the least sum is found exactly, from the leaves to the roots.  The bound is the least T for which no ``s``
contradicts it.

Two further bounds say what no mean over all hosts can.  They hold where every host has one device and equal bandwidth,
each for one of two kinds of strategies, which cover all:

- A program runs every operator on all devices, so that parts and copies are as many as devices: the sum above, over
  cuts of this kind alone.
- Elsewhere no part has a copy, and a cut into ``d`` parts has ``d`` hosts.  Such a host computes its part, and receives
  its share of what keeps weights equal: the mean host, one ``d``-th of it all.  It also receives what its part needs
  and what it has not made itself; what it has made, it has computed, and has received what that needed.  So for any
  share ``s``,

      T >= least over cuts of (s * part + (1 - s) * bytes to keep equal / d / bandwidth of a host
                               + least over hosts of (s * other parts + (1 - s) * bytes received / bandwidth)),

  since each host takes at most T for work and at most T to receive; the cut may be chosen first, and ``s`` for it.  The
  other parts on a host are chosen from the leaves of the forest to its root.

The last bound counts what waits for messages, which take as long as a simulator says at least
(`topoplan_studies.problems.paths`).

The bound is the greatest of the sum over all cuts, the lesser of these two, and that of paths.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from networkx.utils import UnionFind
from numpy.typing import NDArray

from topoplan.arrays import F64
from topoplan.errors import TopoplanError
from topoplan.model.graph import Operator
from topoplan.model.problem import Problem
from topoplan_engine.partition import replica_groups, slice_elements
from topoplan_engine.training import gradient_flow, trained_weights
from topoplan_studies.problems.cuts import degrees_of
from topoplan_studies.problems.paths import path_bound

__all__ = ["Bound", "lower_bound"]

#: Shares of work in the sum that are tried, and the relative precision of the bound.
_SHARES = np.array([0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
_PRECISION = 1e-4
#: Columns of cuts that are no tensors'.
_COLUMNS = 9
#: Weights with fewer bytes for each device may be small to a transport other than the wire.
_SMALL_BYTES = 18_000
#: Below the exact sum, for sums that others take in another order.
_SLACK = 1 - 1e-9


@attrs.frozen(kw_only=True)
class Bound:
    """A lower bound on the iteration time, in seconds.

    Attributes:
        seconds: the bound.
        work: its simplest part: the least work of all operators, over all devices.
        part: another one: the least time of the longest part that is sure to run somewhere.
        path: another one: of operators that follow each other, with messages between them (`path_bound`).
    """

    seconds: float
    work: float
    part: float
    path: float


@attrs.frozen(eq=False)
class _Cuts:
    """The cuts of one operator, with their copies: (n,) each.

    Attributes:
        work: seconds of compute, all parts and copies together.
        parts, copies: how many parts, and how often each is computed.
        longest, shortest: seconds of the longest and of the shortest part, forward and backward.
        sent: bytes that leave hosts to keep copies of weights equal.
        hosts: the fewest hosts that hold all parts and copies, and in ``most_hosts`` the most.
        ways: how often its inputs cross the network: once, and a second time, as gradients, where there are no copies.
        needs: for each input, bytes that a host needs at least, which computes any part.
        makes: for each output, bytes that a host can have made at most.
    """

    work: F64
    parts: F64
    copies: F64
    longest: F64
    shortest: F64
    sent: F64
    hosts: F64
    most_hosts: F64
    ways: F64
    needs: tuple[F64, ...]
    makes: tuple[F64, ...]


@attrs.frozen
class _Edge:
    """An edge of the model: an output that an operator reads, and one over the number of operators that read it."""

    producer: int
    output: int
    consumer: int
    argument: int
    share: float


def lower_bound(problem: Problem, message_seconds: float = 0.0, *, on_the_wire: bool = True) -> Bound:
    """Return the bound of a problem.

    Args:
        problem: what is searched in.
        message_seconds: that a message between two hosts takes at least (`least_message_seconds` of
            `topoplan_studies.problems.paths`).
        on_the_wire: small all-reduces put as many bytes on links as large ones, each for its own
            (`topoplan_engine.simulation.messages.Transport`).

    Raises:
        TopoplanError: its devices or hosts differ, which the arguments above do not cover.
    """
    cluster = problem.cluster
    counts = np.bincount(cluster.device_host)
    kinds = (cluster.device_speed.tolist(), cluster.device_preset, counts.tolist())
    if any(len(set(kind)) > 1 for kind in kinds):
        raise TopoplanError(f"problem: no bound where devices or hosts differ ({problem.graph.name!r})")
    devices, bandwidth = cluster.n_devices, float((cluster.interfaces * cluster.interface_bandwidth).sum())
    small = 0 if on_the_wire else _SMALL_BYTES
    cuts = [_cuts_of(problem, index, int(counts[0]), small) for index in range(len(problem.graph.operators))]
    work = sum(float(column.work.min()) for column in cuts) / devices
    part = max(float(column.longest.min()) for column in cuts)
    forest = _forest(problem)
    tree, floor = _tree(cuts, forest), max(work, part)
    seconds = _least_uncontradicted(cuts, tree, floor, devices, bandwidth, [None] * len(cuts))
    rates = cluster.interfaces * cluster.interface_bandwidth
    if int(counts[0]) == 1 and devices > 1 and float(rates.min()) == float(rates.max()):
        of_hosts = _busiest_hosts(cuts, forest, bandwidth / devices)
        if of_hosts > seconds:
            whole_mesh = [column.parts * column.copies == devices for column in cuts]
            of_programs = _least_uncontradicted(cuts, tree, seconds, devices, bandwidth, whole_mesh)
            seconds = min(of_programs, of_hosts)
    path = path_bound(problem, message_seconds)
    return Bound(seconds=max(seconds, path) * _SLACK, work=work, part=part, path=path)


def _least_uncontradicted(
    cuts: Sequence[_Cuts],
    tree: _Tree,
    floor: float,
    devices: int,
    bandwidth: float,
    allowed: Sequence[NDArray[np.bool_] | None],
) -> float:
    """Return the least seconds, at least ``floor``, that no share of work and bytes contradicts.

    Args:
        cuts, tree: of the operators.
        floor: to begin at.
        devices, bandwidth: of the cluster, in all.
        allowed: (n,) the cuts of each operator that are looked at; None for all.
    """

    def contradicted(seconds: float) -> bool:
        barred = [
            np.where((column.longest <= seconds) & (True if rows is None else rows), 0.0, np.inf)
            for column, rows in zip(cuts, allowed, strict=True)
        ]
        for share in _SHARES.tolist():
            per_work, per_byte = share / devices, (1 - share) / bandwidth
            sums = [
                per_work * column.work + per_byte * column.sent + bar for column, bar in zip(cuts, barred, strict=True)
            ]
            if _least_sum(sums, tree, per_byte) > seconds:
                return True
        return False

    if any(rows is not None and not rows.any() for rows in allowed):
        return math.inf
    low = floor
    if not contradicted(low * (1 + _PRECISION)):
        return low
    high = 2 * low
    while contradicted(high):
        low, high = high, 2 * high
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if contradicted(middle) else (low, middle)
    return low


def _busiest_hosts(cuts: Sequence[_Cuts], forest: Sequence[_Edge], bandwidth: float) -> float:
    """Return the greatest over operators of the least seconds that the mean host of its parts is busy, without copies.

    Args:
        cuts: of the operators, on hosts of one device.
        forest: edges between them.
        bandwidth: of a host.
    """
    of_host = [_on_one_host(column) for column in cuts]
    tree = _tree(of_host, forest)
    mixed: list[list[F64]] = [[] for _ in cuts]
    for share in _SHARES.tolist():
        per_byte = (1 - share) / bandwidth
        sums = _least_sums([share * column.shortest for column in of_host], tree, per_byte)
        for op, column in enumerate(of_host):
            mixed[op].append(sums[op][1:] + per_byte * column.sent[1:])
    return max(float(np.max(rows, axis=0).min()) for rows in mixed)


def _on_one_host(column: _Cuts) -> _Cuts:
    """Return what one part of each cut without copies adds to its host, after a row for a host without a part."""
    rows = column.copies == 1

    def of_part(values: F64) -> F64:
        return np.concatenate([[0.0], values[rows]])

    ones = np.ones(1 + int(rows.sum()))
    return attrs.evolve(
        column,
        work=of_part(column.work / column.parts),
        parts=ones,
        copies=ones,
        longest=of_part(column.longest),
        shortest=of_part(column.shortest),
        sent=of_part(column.sent / column.parts),
        hosts=ones,
        most_hosts=ones,
        ways=ones,
        needs=tuple(map(of_part, column.needs)),
        makes=tuple(map(of_part, column.makes)),
    )


def _least_sums(sums: Sequence[F64], tree: _Tree, per_byte: float) -> list[F64]:
    """Return, for each cut of each operator, the least sum over all choices of the others in its tree.

    Args:
        sums: of each operator, what each of its cuts adds.
        tree: of the operators.
        per_byte: what a byte between two operators adds.
    """
    totals, from_child = list(sums), {}
    for op, parent, crossing in zip(tree.order[::-1], tree.parents[::-1], tree.crossings[::-1], strict=True):
        if crossing is not None:
            from_child[op] = (totals[op][:, None] + per_byte * crossing).min(axis=0)
            totals[parent] = totals[parent] + from_child[op]
    for op, parent, crossing in zip(tree.order, tree.parents, tree.crossings, strict=True):
        if crossing is not None:
            from_parent = totals[parent] - from_child[op]
            totals[op] = totals[op] + (from_parent[None, :] + per_byte * crossing).min(axis=1)
    return totals


def _cuts_of(problem: Problem, index: int, per_host: int, small: int = 0) -> _Cuts:
    """Price all cuts of an operator; of those that are equal in every column, one is left."""
    operator, devices, n_hosts = problem.graph.operators[index], problem.cluster.n_devices, problem.cluster.n_hosts
    rows, goes_back = [], gradient_flow(problem.graph).everything
    trained = attrs.evolve(operator, linear_in=(), weights=trained_weights(problem.graph, index))
    for degrees in degrees_of(problem, index):
        parts = math.prod(degrees)
        price = problem.costs.price(index, degrees, np.arange(parts, dtype=np.int32))
        seconds = price.forward + price.backward
        needs = [slice_elements(operator, tensor, degrees).min() * tensor.itemsize for tensor in operator.inputs]
        makes = [slice_elements(operator, tensor, degrees).max() * tensor.itemsize for tensor in operator.outputs]
        whole = [tensor.elements * tensor.itemsize for tensor in operator.outputs]
        for copies in range(1, devices // parts + 1):
            if devices % (parts * copies) and copies > 1:
                continue
            fewest, on_one = -(-parts * copies // per_host), min(per_host, parts * copies)
            rows.append(
                [
                    float(seconds.sum()) * copies,
                    parts,
                    copies,
                    float(seconds.max()),
                    float(seconds.min()),
                    _weight_bytes_sent(trained, degrees, per_host, copies, devices, small),
                    fewest,
                    min(parts * copies, n_hosts),
                    2.0 if copies == 1 and goes_back else 1.0,
                    *needs,
                    *(
                        min(on_one * slice_bytes, all_of_it)
                        for slice_bytes, all_of_it in zip(makes, whole, strict=True)
                    ),
                ]
            )
    table = np.unique(np.array(rows, dtype=np.float64), axis=0)
    first = _COLUMNS + len(operator.inputs)
    names = [field.name for field in attrs.fields(_Cuts)][:_COLUMNS]
    columns: dict[str, Any] = dict(zip(names, table[:, :_COLUMNS].T, strict=True))
    return _Cuts(**columns, needs=tuple(table[:, _COLUMNS:first].T), makes=tuple(table[:, first:].T))


def _weight_bytes_sent(
    operator: Operator, degrees: tuple[int, ...], per_host: int, copies: int, devices: int, small: int = 0
) -> float:
    """Bytes that leave hosts to keep copies of an operator's weights equal, where parts lie as close as they can.

    Copies of parts may lie on the hosts of the parts, unless these have one device each.  Weights of fewer than
    ``small`` bytes for each of the ``devices`` of the cluster count as nothing, and so do the bytes that each device
    may lose to rounding.
    """
    sent = 0.0
    for weight in operator.weights:
        groups = replica_groups(operator, weight, degrees)
        hosts = -(-groups.shape[1] // per_host)
        last_messages = copies * hosts - 1 if per_host == 1 and hosts > 1 else hosts - 1
        nbytes = slice_elements(operator, weight, degrees)[groups[:, 0]] * weight.itemsize
        large = nbytes[nbytes >= small * devices]
        sent += (hosts - 1 + last_messages) * float(np.maximum(large - devices, 0.0).sum())
    return sent


def _forest(problem: Problem) -> list[_Edge]:
    """Return the edges of a spanning forest, heaviest first (Kruskal)."""
    graph = problem.graph
    rows = graph.edges.reshape(-1, 4).tolist()
    readers = Counter((producer, output) for producer, output, _, _ in rows)
    edges = [_Edge(u, output, v, argument, 1.0 / readers[u, output]) for u, output, v, argument in rows]

    def weight(edge: _Edge) -> float:
        tensor = graph.operators[edge.producer].outputs[edge.output]
        return float(tensor.elements * tensor.itemsize * edge.share)

    trees = UnionFind()
    chosen = []
    for edge in sorted(edges, key=weight, reverse=True):
        if trees[edge.producer] != trees[edge.consumer]:
            trees.union(edge.producer, edge.consumer)
            chosen.append(edge)
    return chosen


@attrs.frozen(eq=False)
class _Tree:
    """The operators of a forest from the roots to the leaves, and what each edge to a parent costs.

    Attributes:
        order: operators, parents before children.
        parents: of each operator of ``order``; -1 for a root.
        crossings: (n, m) bytes between each cut of the operator and each of its parent; None for a root.
    """

    order: list[int]
    parents: list[int]
    crossings: list[F64 | None]


def _tree(cuts: Sequence[_Cuts], forest: Sequence[_Edge]) -> _Tree:
    """Go through the forest breadth first."""
    neighbours: list[list[_Edge]] = [[] for _ in cuts]
    for edge in forest:
        neighbours[edge.producer].append(edge)
        neighbours[edge.consumer].append(edge)
    tree, visited = _Tree([], [], []), [False] * len(cuts)
    for start in range(len(cuts)):
        if visited[start]:
            continue
        visited[start] = True
        tree.order.append(start)
        tree.parents.append(-1)
        tree.crossings.append(None)
        _visit(start, neighbours, cuts, visited, tree)
    return tree


def _visit(
    root: int, neighbours: Sequence[Sequence[_Edge]], cuts: Sequence[_Cuts], visited: list[bool], tree: _Tree
) -> None:
    """Add everything that hangs on an operator."""
    waiting = [root]
    while waiting:
        op = waiting.pop()
        for edge in neighbours[op]:
            child = edge.consumer if edge.producer == op else edge.producer
            if visited[child]:
                continue
            visited[child] = True
            crossing = edge.share * _crossing(cuts[edge.producer], edge.output, cuts[edge.consumer], edge.argument)
            tree.order.append(child)
            tree.parents.append(op)
            tree.crossings.append(crossing if edge.producer == child else crossing.T)
            waiting.append(child)


def _least_sum(sums: list[F64], tree: _Tree, per_byte: float) -> float:
    """Return the least sum over all choices of cuts, from the leaves to the roots; infinite if there is none.

    Args:
        sums: of each operator, what each of its cuts adds; infinite for one that cannot be chosen.
        tree: of the operators.
        per_byte: what a byte between two operators adds.
    """
    sums, total = list(sums), 0.0
    for op, parent, crossing in zip(tree.order[::-1], tree.parents[::-1], tree.crossings[::-1], strict=True):
        if crossing is None:
            total += float(sums[op].min())
        else:
            sums[parent] = sums[parent] + (sums[op][:, None] + per_byte * crossing).min(axis=0)
    return total


def _crossing(producer: _Cuts, output: int, consumer: _Cuts, argument: int) -> F64:
    """(n, m) bytes that come to the hosts of a consumer at least, for each cut of the producer and of the consumer.

    Every host of the consumer needs so many bytes; a host that has the producer, too, has made some of them.
    """
    needs, hosts = consumer.needs[argument][None, :], consumer.hosts[None, :]
    own_bytes = np.minimum(needs, producer.makes[output][:, None])
    shared = np.minimum(hosts, producer.most_hosts[:, None])
    crossing: F64 = consumer.ways[None, :] * np.maximum(hosts * needs - shared * own_bytes, 0.0)
    return crossing
