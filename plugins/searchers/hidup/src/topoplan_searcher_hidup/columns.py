"""A program and its prices as integer-coded columns, and the tables in which the kernel keeps what it reaches.

Two recursions share them, that of HiDup (`topoplan_searcher_hidup.reference`) and one that overlaps the backward pass,
too, and prices the two copies of the model apart: what parameters take is charged to the first one alone.

Every live value has a *slot*, a byte of the words that are a state's key: the codes of the one or two forms that it
is there in, the lower one in the low half.  A slot is free again when its value is dead, so that a key has as many
words as the most values alive at once need, whatever the length of the program.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan import TopoplanError
from topoplan.arrays import F64, I32, I64
from topoplan.forms import FULL, REDUCE, REPLICATE, Form, gather
from topoplan_searcher_hidup.prices import Prices
from topoplan_searcher_hidup.program import Program

__all__ = ["FORMS", "PATH_BITS", "SLOTS_PER_WORD", "Columns", "Tables", "columns_of", "empty_tables", "grown"]

#: Forms by code, from 1 on; 0 is none, and codes fit into half a byte.
FORMS: tuple[Form, ...] = (REPLICATE, FULL, REDUCE, REPLICATE, *(gather(axis) for axis in range(12)))
_CODE = {form: code for code, form in enumerate(FORMS) if code}

#: Slots in one word of a key; its uppermost byte stays free of them, so that keys are not negative.
SLOTS_PER_WORD = 7

#: Bits of the number of an instruction's signature in an entry's path.
PATH_BITS = 5


class Columns(NamedTuple):
    """The program, (n,) instructions with (S,) signatures and (V,) values.

    Attributes:
        signature_at: (n+1,) where the signatures of each instruction begin.
        seconds: (S,) forward seconds.
        input_at: (n+1,) where the inputs of each instruction begin in ``slot`` and ``value``.
        slot, value: of each input.
        needs_at: (S,) where the codes of the input forms of each signature begin in ``needs``.
        output_at: (n+1,) where the outputs of each instruction begin in ``output_slot``, which is -1 for unused ones.
        makes_at: (S,) where the codes of the output forms of each signature begin in ``makes``.
        freed_at: (n+1,) where the slots that each instruction is the last to use begin in ``freed``.
        born: (V,) instruction that makes each value.
        forward, backward: (V, F, F) seconds of converting each value from form to form; ``inf`` where that is illegal.
        words: words of a key.
        overlapped: whether the second recursion is meant; the rest is for it alone.
        back, sums, held: (S,) backward seconds of each signature, seconds in which gradients are summed for it, and
            bytes that it keeps.
        again_forward, again_backward: like ``forward`` and ``backward``, of the second copy.
        put_together: (V, F, F) bytes that a conversion keeps.
        limit: bytes that may be kept.
    """

    signature_at: I32
    seconds: F64
    input_at: I32
    slot: I32
    value: I32
    needs_at: I32
    needs: I32
    output_at: I32
    output_slot: I32
    makes_at: I32
    makes: I32
    freed_at: I32
    freed: I32
    born: I32
    forward: F64
    backward: F64
    words: int
    overlapped: bool
    back: F64
    sums: F64
    held: F64
    again_forward: F64
    again_backward: F64
    put_together: F64
    limit: float


class Tables(NamedTuple):
    """States and entries reached so far, with room for more.

    Attributes:
        key: (S, W) slots of each state; ``cut``: (S,) where it is; ``after``: (S,) the next state at that cut, or -1;
            ``head``: (S,) its first entry, or -1.
        first, last: (n+1,) first and last state at each cut, or -1.
        buckets: states by hash, -1 where there is none; a power of two of them.  States at cuts gone through are no
            longer looked for, so that these need not grow with the program.
        time, debt: (E,) seconds of each entry; ``due``, ``kept``: its debt of the backward pass and its bytes, where
            the recursion has them; ``before``: (E,) the entry it continues; ``path``: (E,) the numbers of
            the signatures of its stage, lowest bits first, and above them how many; ``following``: (E,) the next
            entry of its state, or of those taken out.
        counts: states, entries in use, first entry taken out (or -1), cut and state to go on from, entries gone on
            from, buckets in use.
    """

    key: I64
    cut: I32
    after: I32
    head: I32
    first: I32
    last: I32
    buckets: I32
    time: F64
    debt: F64
    due: F64
    kept: F64
    before: I32
    path: I64
    following: I32
    counts: I64


def columns_of(program: Program, prices: Prices) -> Columns:
    """Return the columns of a program.

    Raises:
        TopoplanError: a tensor of more than 12 axes, or an instruction of more than 32 signatures.
    """
    slot, freed, words = _slots(program)
    used = {form for i in program.instructions for s in i.signatures for form in (*s.inputs, *s.outputs)}
    _check(program, used)
    lists = _Lists()
    for here, instruction in enumerate(program.instructions):
        lists.value += instruction.inputs
        lists.slot += [slot[v] for v in instruction.inputs]
        lists.output_slot += [slot[v] for v in instruction.outputs]
        lists.freed += freed[here]
        for signature in instruction.signatures:
            lists.needs_at.append(len(lists.needs))
            lists.makes_at.append(len(lists.makes))
            lists.needs += [_CODE[form] for form in signature.inputs]
            lists.makes += [_CODE[form] for form in signature.outputs]
            lists.seconds.append(prices.compute(instruction, signature))
        lists.close()
    forward, backward = _conversions(program, prices, 1 + max(map(_CODE.__getitem__, used)))
    return Columns(
        signature_at=_ints(lists.signature_at),
        seconds=np.array(lists.seconds),
        input_at=_ints(lists.input_at),
        slot=_ints(lists.slot),
        value=_ints(lists.value),
        needs_at=_ints(lists.needs_at),
        needs=_ints(lists.needs),
        output_at=_ints(lists.output_at),
        output_slot=_ints(lists.output_slot),
        makes_at=_ints(lists.makes_at),
        makes=_ints(lists.makes),
        freed_at=_ints(lists.freed_at),
        freed=_ints(lists.freed),
        born=_ints([value.born for value in program.values]),
        forward=forward,
        backward=backward,
        words=words,
        overlapped=False,
        back=(nothing := np.zeros(len(lists.seconds))),
        sums=nothing,
        held=nothing,
        again_forward=forward,
        again_backward=backward,
        put_together=np.zeros((1, 1, 1)),
        limit=np.inf,
    )


class _Lists:
    """Columns that grow instruction by instruction."""

    def __init__(self) -> None:
        self.signature_at, self.input_at, self.output_at, self.freed_at = [0], [0], [0], [0]
        self.seconds: list[float] = []
        self.slot: list[int] = []
        self.value: list[int] = []
        self.needs_at: list[int] = []
        self.needs: list[int] = []
        self.output_slot: list[int] = []
        self.makes_at: list[int] = []
        self.makes: list[int] = []
        self.freed: list[int] = []

    def close(self) -> None:
        """End an instruction."""
        self.signature_at.append(len(self.seconds))
        self.input_at.append(len(self.slot))
        self.output_at.append(len(self.output_slot))
        self.freed_at.append(len(self.freed))


def empty_tables(columns: Columns, states: int, entries: int) -> Tables:
    """Return tables with room, that hold the start: one state without values, one entry without time."""
    cuts = len(columns.signature_at)
    tables = Tables(
        key=np.zeros((states, columns.words), np.int64),
        cut=np.zeros(states, np.int32),
        after=np.full(states, -1, np.int32),
        head=np.full(states, -1, np.int32),
        first=np.full(cuts, -1, np.int32),
        last=np.full(cuts, -1, np.int32),
        buckets=_buckets(1 << (4 * states - 1).bit_length()),
        time=np.zeros(entries),
        debt=np.zeros(entries),
        due=np.zeros(entries),
        kept=np.zeros(entries),
        before=np.full(entries, -1, np.int32),
        path=np.zeros(entries, np.int64),
        following=np.full(entries, -1, np.int32),
        counts=np.array([1, 1, -1, 0, 0, 0, 0], np.int64),
    )
    tables.first[0] = tables.last[0] = tables.head[0] = 0
    return tables


def grown(tables: Tables, max_states: int) -> Tables:
    """Return tables with twice the room wherever there is none, and the same contents.

    The buckets are empty and must be filled again.
    """
    room = len(tables.cut), len(tables.time), len(tables.buckets)
    used = int(tables.counts[0]), int(tables.counts[1]), 2 * int(tables.counts[6])
    states, entries, buckets = (2 * have if need >= have else have for have, need in zip(room, used, strict=True))
    states = min(states, max_states)

    def longer(name: str, rows: int, fill: int) -> np.ndarray:
        column = getattr(tables, name)
        return np.concatenate([column, np.full((rows - len(column), *column.shape[1:]), fill, column.dtype)])

    return tables._replace(
        key=longer("key", states, 0),
        cut=longer("cut", states, 0),
        after=longer("after", states, -1),
        head=longer("head", states, -1),
        buckets=_buckets(buckets),
        time=longer("time", entries, 0),
        debt=longer("debt", entries, 0),
        due=longer("due", entries, 0),
        kept=longer("kept", entries, 0),
        before=longer("before", entries, -1),
        path=longer("path", entries, 0),
        following=longer("following", entries, -1),
    )


def _buckets(count: int) -> I32:
    return np.full(count, -1, np.int32)


def _slots(program: Program) -> tuple[list[int], list[list[int]], int]:
    """Return the slot of each value (-1: never live), the slots that each instruction frees, and words of a key."""
    slot = [-1] * len(program.values)
    freed: list[list[int]] = [[] for _ in program.instructions]
    free: list[int] = []
    count = 0
    for here, instruction in enumerate(program.instructions):
        # What dies here is cleared before what is made here is written.
        freed[here] = [slot[v] for v in dict.fromkeys(instruction.inputs) if program.values[v].last == here]
        free += sorted(freed[here], reverse=True)
        for value in instruction.outputs:
            if program.values[value].last >= 0:
                if not free:
                    free.append(count)
                    count += 1
                slot[value] = free.pop()
    return slot, freed, max(1, -(-count // SLOTS_PER_WORD))


def _conversions(program: Program, prices: Prices, forms: int) -> tuple[F64, F64]:
    """Return the seconds of all conversions; values of equal size share them."""
    sizes, which = np.unique([value.nbytes for value in program.values], return_inverse=True)
    forward = np.full((len(sizes), forms, forms), np.inf)
    backward = np.full_like(forward, np.inf)
    pairs = [(given, wanted) for given in range(1, forms) for wanted in range(1, forms)]
    for number, nbytes in enumerate(sizes.tolist()):
        for given, wanted in pairs:
            price = prices.conversion(nbytes, FORMS[given], FORMS[wanted])
            if price is not None:
                forward[number, given, wanted], backward[number, given, wanted] = price
    return forward[which], backward[which]


def _check(program: Program, used: set[Form]) -> None:
    for form in used - _CODE.keys():
        raise TopoplanError(
            f"searcher hidup: a tensor is sliced along axis {form.axis} (axes 0 to 11 can be told apart)"
        )
    for instruction in program.instructions:
        if len(instruction.signatures) > 1 << PATH_BITS:
            raise TopoplanError(
                f"searcher hidup: operator {instruction.name!r} has {len(instruction.signatures)} signatures "
                f"(at most {1 << PATH_BITS})"
            )


def _ints(values: list[int]) -> I32:
    return np.array(values, dtype=np.int32)
