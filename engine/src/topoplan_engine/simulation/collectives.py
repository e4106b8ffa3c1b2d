"""All-reduces by an algorithm: rounds of messages between the members, in place of the rings of a simulator.

An algorithm is a function from the number of members to rounds of `Send`.  Data flow: `check_all_reduce` follows which
members' data each chunk is the sum of; `with_rounds` replaces the all-reduces of a task graph by transfers between two
joins; `AlgorithmRun` lets a simulator run that, and returns a timeline of the tasks that were there before.

    predecessors -> join -> messages of round 0 -> ... -> join (the row of the all-reduce) -> successors

A member begins a round when its messages of the rounds before have arrived, and those sent to it.  Members are devices:
messages between two of one host stay inside it, in place of the time that a ring spends inside its hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan.plugin.simulate import Simulate
from topoplan_engine.simulation.gradients import extended

__all__ = ["AlgorithmRun", "Rounds", "Send", "check_all_reduce", "with_rounds"]


class Send(NamedTuple):
    """A message of a round.

    Attributes:
        source, target: members, 0 .. n-1.
        chunks: what is sent; the data of n members has n chunks, whose sizes differ by a byte at most.
        add: the target adds the chunks to its own; otherwise they replace them.
    """

    source: int
    target: int
    chunks: Sequence[int]
    add: bool = False


#: From the number of members, two or more, to rounds; the messages of a round carry what was there before it.
Rounds = Callable[[int], Sequence[Sequence[Send]]]


def check_all_reduce(rounds: Rounds, n_members: int) -> None:
    """Raise `TopoplanError` unless each member ends with the sum of all members' data, each counted once.

    Sums are followed as sets of members, one bit each.
    """
    contributions = [[1 << member] * n_members for member in range(n_members)]
    for number, sends in enumerate(rounds(n_members)):
        where = f"all-reduce of {n_members} members, round {number}"
        sent = [_carried(contributions, send, where) for send in sends]
        replaced = set[tuple[int, int]]()
        arrived = set[tuple[int, int]]()
        for send, sums in zip(sends, sent, strict=True):
            for chunk, of in zip(send.chunks, sums, strict=True):
                place = (send.target, chunk)
                what = f"{where}: chunk {chunk} from member {send.source} to {send.target}"
                if place in replaced or (place in arrived and not send.add):
                    raise TopoplanError(f"{what}: another message of the round replaces it, or is replaced")
                mine = contributions[send.target][chunk]
                if send.add and mine & of:
                    twice = (mine & of).bit_length() - 1
                    raise TopoplanError(f"{what}: the data of member {twice} would be added twice")
                contributions[send.target][chunk] = mine | of if send.add else of
                arrived.add(place)
                if not send.add:
                    replaced.add(place)
    for member, sums in enumerate(contributions):
        for chunk, of in enumerate(sums):
            missing = ~of & ((1 << n_members) - 1)
            if missing:
                raise TopoplanError(
                    f"all-reduce of {n_members} members: at the end, chunk {chunk} of member {member} "
                    f"lacks the data of member {(missing & -missing).bit_length() - 1}"
                )


def _carried(contributions: list[list[int]], send: Send, where: str) -> list[int]:
    """Return what each chunk of a message is the sum of; the message must be possible."""
    n = len(contributions)
    if not (0 <= send.source < n and 0 <= send.target < n and send.source != send.target):
        raise TopoplanError(
            f"{where}: a message from member {send.source} to {send.target} (must be two of 0..{n - 1})"
        )
    if not send.chunks or len({*send.chunks}) < len(send.chunks) or min(send.chunks) < 0 or max(send.chunks) >= n:
        raise TopoplanError(
            f"{where}: a message from member {send.source} has chunks {list(send.chunks)} "
            f"(must be some of 0..{n - 1}, each once)"
        )
    return [contributions[send.source][chunk] for chunk in send.chunks]


@attrs.frozen(eq=False)
class _Layout:
    """The messages of an algorithm for one number of members.

    Attributes:
        source, target: (s,) members.
        chunks, chunk_ptr: compressed rows, chunks of each message; ``chunk_ptr`` has the starts alone.
        tail, head: messages, and messages that wait for them.
        first, last: messages that wait for none, and those that the end waits for.
    """

    source: I64
    target: I64
    chunks: I64
    chunk_ptr: I64
    tail: I64
    head: I64
    first: I64
    last: I64

    @property
    def n_members(self) -> int:
        """Members of the all-reduce."""
        return int(self.target.max()) + 1

    @classmethod
    def of(cls, rounds: Rounds, n_members: int) -> _Layout:
        """Lay the messages out, once they are shown to be an all-reduce."""
        check_all_reduce(rounds, n_members)
        sends: list[Send] = []
        edges: list[tuple[int, int]] = []
        before: list[list[int]] = [[] for _ in range(n_members)]  # what a member's next message waits for
        for messages in rounds(n_members):
            sent: dict[int, list[int]] = {}
            received: dict[int, list[int]] = {}
            for send in messages:
                edges += [(earlier, len(sends)) for earlier in before[send.source]]
                sent.setdefault(send.source, []).append(len(sends))
                received.setdefault(send.target, []).append(len(sends))
                sends.append(send)
            for member, numbers in sent.items():
                before[member] = numbers
            for member, arriving in received.items():
                before[member] = before[member] + arriving
        tail, head = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        lengths = np.array([len(send.chunks) for send in sends])
        return cls(
            source=np.array([send.source for send in sends]),
            target=np.array([send.target for send in sends]),
            chunks=np.concatenate([np.asarray(send.chunks, dtype=np.int64) for send in sends]),
            chunk_ptr=np.cumsum(lengths) - lengths,
            tail=tail,
            head=head,
            first=np.setdiff1d(np.arange(len(sends)), head),
            last=np.array(sorted({number for numbers in before for number in numbers})),
        )

    def bytes_of(self, size: int) -> I64:
        """(s,) bytes of the messages where the data has ``size`` bytes."""
        ends = size * np.arange(self.n_members + 1) // self.n_members
        sums: I64 = np.add.reduceat(np.diff(ends)[self.chunks], self.chunk_ptr)
        return sums


@attrs.frozen(eq=False)
class _Replaced:
    """All-reduces that messages take the place of.

    Attributes:
        task: (r,) rows, ascending.
        join: (r,) appended rows of the joins before them; their messages follow each.
        devices: for each, its members.
        layouts: for each, its messages.
    """

    task: I64
    join: I64
    devices: list[I32]
    layouts: list[_Layout]


def with_rounds(taskgraph: TaskGraph, rounds: Rounds) -> TaskGraph:
    """Replace every all-reduce of several members by the messages of an algorithm.

    The row of the all-reduce becomes the join behind them.  Appended are, all-reduce by all-reduce, the join before
    them, and the messages.

    Raises:
        TopoplanError: the algorithm is no all-reduce of so many members; see `check_all_reduce`.
    """
    return _rewritten(taskgraph, _replaced(taskgraph, rounds, {}))


def _replaced(taskgraph: TaskGraph, rounds: Rounds, cache: dict[int, _Layout]) -> _Replaced:
    """Find the all-reduces of several members; ``cache`` has layouts by their number, and gets new ones."""
    tasks, devices, layouts = [], [], []
    for task in np.flatnonzero(taskgraph.collective == Collective.ALL_REDUCE).tolist():
        members = taskgraph.members(task)
        n = len(members)
        if n < 2:
            continue
        if n not in cache:
            cache[n] = _Layout.of(rounds, n)
        tasks.append(task)
        devices.append(members)
        layouts.append(cache[n])
    counts = np.array([1 + len(layout.source) for layout in layouts], dtype=np.int64)
    join = taskgraph.n_tasks + np.cumsum(counts) - counts
    return _Replaced(np.array(tasks, dtype=np.int64), join, devices, layouts)


def _rewritten(taskgraph: TaskGraph, replaced: _Replaced) -> TaskGraph:
    if not len(replaced.task):
        return taskgraph
    count, groups = len(replaced.task), taskgraph.n_groups
    kind, size, src, dst, group, op = (list[np.ndarray]() for _ in range(6))
    tails, heads = (list[np.ndarray]() for _ in range(2))
    for number, (task, join, devices, layout) in enumerate(
        zip(replaced.task.tolist(), replaced.join.tolist(), replaced.devices, replaced.layouts, strict=True)
    ):
        n, first = len(layout.source), join + 1
        kind.append(np.append(TaskKind.COLLECTIVE, np.full(n, TaskKind.TRANSFER)))
        size.append(np.append(0, layout.bytes_of(int(taskgraph.size[task]))))
        src.append(np.append(-1, devices[layout.source]))
        dst.append(np.append(-1, devices[layout.target]))
        group.append(np.append(groups + number, np.full(n, -1)))
        op.append(np.full(n + 1, taskgraph.op[task]))
        tails += [np.full(len(layout.first), join), first + layout.tail, first + layout.last]
        heads += [first + layout.first, first + layout.head, np.full(len(layout.last), task)]
    before, after = taskgraph.edges()
    into = np.arange(taskgraph.n_tasks)
    into[replaced.task] = replaced.join
    columns = {name: getattr(taskgraph, name).copy() for name in ("size", "seconds", "group", "collective")}
    columns["size"][replaced.task], columns["seconds"][replaced.task] = 0, 0.0
    columns["group"][replaced.task] = groups + np.arange(count)
    columns["collective"][replaced.task] = Collective.JOIN
    joined = np.array([devices[0] for devices in replaced.devices])
    kinds = np.concatenate(kind)
    return extended(
        attrs.evolve(
            taskgraph,
            **columns,
            group_ptr=np.concatenate([taskgraph.group_ptr, taskgraph.group_ptr[-1] + 1 + np.arange(count)]),
            group_members=np.concatenate([taskgraph.group_members, joined]),
        ),
        np.concatenate([before, *tails]),
        np.concatenate([into[after], *heads]),
        kind=kinds,
        size=np.concatenate(size),
        src=np.concatenate(src),
        dst=np.concatenate(dst),
        group=np.concatenate(group),
        op=np.concatenate(op),
        collective=np.where(kinds == TaskKind.COLLECTIVE, int(Collective.JOIN), -1),
    )


class AlgorithmRun(Simulate):
    """A simulator in which all-reduces follow an algorithm.

    All-gathers and reduce-scatters stay as the simulator has them.  Layouts are kept by the number of members.
    """

    def __init__(self, simulate: Simulate, rounds: Rounds, cache: dict[int, _Layout] | None = None) -> None:
        self._simulate, self._rounds = simulate, rounds
        self._layouts: dict[int, _Layout] = {} if cache is None else cache
        self.lower_bounds = simulate.lower_bounds

    def __call__(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> Timeline:
        """Run one iteration.

        Raises:
            TopoplanError: the fabric is rebuilt, the algorithm is no all-reduce, or as the simulator says.
        """
        taskgraph.check()
        replaced = self._replaced(taskgraph, fabric)
        timeline = self._simulate(_rewritten(taskgraph, replaced), fabric, cluster)
        start, finish = timeline.start[: taskgraph.n_tasks].copy(), timeline.finish[: taskgraph.n_tasks]
        start[replaced.task] = timeline.start[replaced.join]
        return attrs.evolve(timeline, start=start, finish=finish)

    def _replaced(self, taskgraph: TaskGraph, fabric: AnyFabric) -> _Replaced:
        if not isinstance(fabric, Fabric):
            raise TopoplanError("all-reduces by rounds need a fabric that stays (this one is rebuilt in the iteration)")
        return _replaced(taskgraph, self._rounds, self._layouts)

    def _rounds_of(self, taskgraph: TaskGraph, fabric: AnyFabric) -> TaskGraph:
        return _rewritten(taskgraph, self._replaced(taskgraph, fabric))

    def makespan(
        self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster, cutoff_seconds: float = np.inf
    ) -> float:
        """Return the seconds of an iteration, or ``inf`` once they are proven to be no less than the cutoff."""
        messages = self._rounds_of(taskgraph, fabric)
        return self._simulate.makespan(messages, fabric, cluster, cutoff_seconds)

    def draws(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether some message has several equal paths to take."""
        return self._simulate.draws(self._rounds_of(taskgraph, fabric), fabric, cluster)

    def with_seed(self, seed: int) -> AlgorithmRun:
        """Return the same simulator with other draws of paths."""
        return AlgorithmRun(self._simulate.with_seed(seed), self._rounds, self._layouts)

    def makespans(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster, seeds: Sequence[int]) -> F64:
        """(n,) seconds under each of n seeds."""
        return self._simulate.makespans(self._rounds_of(taskgraph, fabric), fabric, cluster, seeds)
