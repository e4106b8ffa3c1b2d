"""What an algorithm of collectives is asked, and what it answers: members, and the messages that they send.

A `CollectiveGroup` says who takes part, `CollectiveRounds` which message is sent in which round.  Whoever simulates or
checks an algorithm reads these columns and needs to know no algorithm by name.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, I8, I32, I64, OneLine, i8, i32, i64
from topoplan.errors import TopoplanError

__all__ = ["CollectiveGroup", "CollectiveRounds"]


@attrs.frozen
class CollectiveGroup:
    """The members of a collective, numbered 0 .. n-1 host by host.

    Attributes:
        in_hosts: members in each host.
        axes: sizes of the grid that the members lie on, innermost last; empty where nothing says so.
    """

    in_hosts: tuple[int, ...]
    axes: tuple[int, ...] = ()

    @property
    def n_members(self) -> int:
        """Number of members."""
        return sum(self.in_hosts)

    @property
    def in_each(self) -> int:
        """Members in each host; `TopoplanError` where hosts differ."""
        if len(odd := sorted({*self.in_hosts})) > 1:
            raise TopoplanError(f"hosts of {odd[0]} and of {odd[-1]} members (must be equal; NAME+ring runs rings)")
        return self.in_hosts[0]


@attrs.frozen(kw_only=True, repr=False)
class CollectiveRounds(OneLine):
    """Messages that make a collective, one row each; columns may be given as one number for all rows.

    A row is a message that is sent ``repeats`` times, once a round.  Each time its chunks move on by ``shift`` within
    their block of ``period`` chunks, and its target by ``turn``, modulo n.  Chunks are equal parts of the tensor;
    in an all-to-all, chunk ``n i + j`` is what member i has for member j.  Member 0 broadcasts.

    Attributes:
        chunks: how many chunks the tensor has; n in an all-to-all, where each member has another tensor.
        source, target: (m,) members; n stands for switches, which add what they receive and send the sum.
        owner: (chunks,) member that has each chunk at first in an all-gather, at the end in a reduce-scatter; None in
            other collectives, and where chunk c belongs to member c.
        chunk, count, stride: (m,) it carries ``count`` chunks: ``chunk``, ``chunk + stride``, ...
        add: (m,) the target adds what it receives to what it has; otherwise it keeps what it receives.
        step: (m,) ascending; those of a step are sent when those of earlier ones have arrived.
        repeats, shift, period, turn: (m,) see above; a period of 0 are all chunks.
        latencies: (m,) how many of the repeats wait for the one before; -1 if all do.
        between: (m,) how many of these latencies are those between hosts; -1 for all, where the message leaves a host.
        overlaps: all rounds are under way at a time, on small pieces of the tensor (a pipeline).
    """

    chunks: int
    source: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    target: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    chunk: I64 = attrs.field(converter=i64, eq=ARRAY_EQ)
    count: I64 = attrs.field(default=1, converter=i64, eq=ARRAY_EQ)
    stride: I64 = attrs.field(default=1, converter=i64, eq=ARRAY_EQ)
    add: I8 = attrs.field(default=0, converter=i8, eq=ARRAY_EQ)
    step: I32 = attrs.field(default=0, converter=i32, eq=ARRAY_EQ)
    repeats: I32 = attrs.field(default=1, converter=i32, eq=ARRAY_EQ)
    shift: I64 = attrs.field(default=0, converter=i64, eq=ARRAY_EQ)
    period: I64 = attrs.field(default=0, converter=i64, eq=ARRAY_EQ)
    turn: I32 = attrs.field(default=0, converter=i32, eq=ARRAY_EQ)
    latencies: I32 = attrs.field(default=-1, converter=i32, eq=ARRAY_EQ)
    between: I32 = attrs.field(default=-1, converter=i32, eq=ARRAY_EQ)
    overlaps: bool = False
    owner: I32 | None = attrs.field(default=None, converter=attrs.converters.optional(i32), eq=ARRAY_EQ)

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(CollectiveRounds)[1:-2]:
            column = getattr(self, field.name)
            if column.shape not in ((), self.source.shape):
                raise TopoplanError(f"rounds: {field.name} has {len(column)} rows, not {len(self.source)}")
            object.__setattr__(self, field.name, np.broadcast_to(column, self.source.shape))
