"""A program and its prices as integer-coded columns, which the kernel reads.

Two recursions share them, that of HiDup and one that overlaps the backward pass, too, and prices the two copies of the
model apart: what parameters take is charged to the first one alone.

The forms that a value may have are numbered from 1 on, value by value; 0 is none.  Every live value has a *slot*, some
bits of the words that are a state's key: the codes of the one or two forms that it is there in, the lower one in the
low half.  A slot is free again when its value is dead, so that a key has as many words as the most values alive at
once need, whatever the length of the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from topoplan import TopoplanError
from topoplan.arrays import F64, I32
from topoplan_spmd_planning.program import Instruction, Program, R, Rule

__all__ = ["LONGEST", "PATH_BITS", "Columns", "Pricing", "columns_of", "forms_of"]

#: Instructions of a stage that is full.
LONGEST = 11
#: Bits of the number of an instruction's signature in an entry's path.
PATH_BITS = 5


R_contra = TypeVar("R_contra", bound=Rule, contravariant=True)


class Pricing(Protocol[R_contra]):
    """What prices instructions and conversions; forms are those of the program's rules."""

    def compute(self, instruction: Instruction[Any], signature: R_contra, /) -> float:
        """Return the seconds of an instruction's forward pass."""

    def conversion(self, nbytes: int, source: Any, target: Any, /) -> tuple[float, float] | None:
        """Return the seconds of converting a value, forward and backward; None where it cannot be done."""


class Columns(NamedTuple):
    """The program, (n,) instructions with (S,) signatures and (V,) values.

    Attributes:
        signature_at: (n+1,) where the signatures of each instruction begin.
        seconds: (S,) forward seconds.
        input_at: (n+1,) where the inputs of each instruction begin in ``slot`` and ``value``.
        place, value: of each input: where its slot begins in the key (64 for each word before its own, and bits), and
            its number.
        needs_at: (S,) where the codes of the input forms of each signature begin in ``needs``.
        output_at: (n+1,) where the outputs of each instruction begin in ``output_place``, which is -1 for unused ones.
        makes_at: (S,) where the codes of the output forms of each signature begin in ``makes``.
        freed_at: (n+1,) where the places of slots that each instruction is the last to use begin in ``freed``.
        born: (V,) instruction that makes each value.
        forward, backward: (V, F, F) seconds of converting each value from form to form; ``inf`` where that is illegal.
        words: words of a key; ``bits``: of a form's code in it.
        overlapped: whether the second recursion is meant; the rest is for it alone.
        back, sums, held: (S,) backward seconds of each signature, seconds in which gradients are summed for it, and
            bytes that it keeps.
        again_forward, again_backward: like ``forward`` and ``backward``, of the second copy.
        put_together: (V, F, F) bytes that a conversion keeps.
        limit: bytes that may be kept.
        lean: (n+1,) bytes that what follows each cut keeps at least.
        bound: seconds that no plan of use may exceed.
        rest: (n+1,) seconds that what follows each cut takes at least, beside ``charge`` times the debts there.
    """

    signature_at: I32
    seconds: F64
    input_at: I32
    place: I32
    value: I32
    needs_at: I32
    needs: I32
    output_at: I32
    output_place: I32
    makes_at: I32
    makes: I32
    freed_at: I32
    freed: I32
    born: I32
    forward: F64
    backward: F64
    words: int
    bits: int
    overlapped: bool
    back: F64
    sums: F64
    held: F64
    again_forward: F64
    again_backward: F64
    put_together: F64
    limit: float
    lean: F64
    bound: float
    rest: F64
    charge: float


def columns_of(program: Program[R], prices: Pricing[R], who: str) -> Columns:
    """Return the columns of a program; ``who`` begins messages.

    Raises:
        TopoplanError: a tensor of more than 255 forms, or an instruction of more than 32 signatures.
    """
    forms = forms_of(program)
    bits = _bits(program, forms, who)
    code = [{form: 1 + number for number, form in enumerate(those)} for those in forms]
    place, freed, words = _places(program, 2 * bits)
    lists = _Lists()
    for position, instruction in enumerate(program.instructions):
        lists.value += instruction.inputs
        lists.place += [place[v] for v in instruction.inputs]
        lists.output_place += [place[v] for v in instruction.outputs]
        lists.freed += freed[position]
        for rule in instruction.signatures:
            lists.needs_at.append(len(lists.needs))
            lists.makes_at.append(len(lists.makes))
            lists.needs += [code[v][form] for v, form in zip(instruction.inputs, rule.inputs, strict=True)]
            lists.makes += [code[v][form] for v, form in zip(instruction.outputs, rule.outputs, strict=True)]
            lists.seconds.append(prices.compute(instruction, rule))
        lists.close()
    forward, backward = _conversions(program, prices, forms)
    return Columns(
        signature_at=_ints(lists.signature_at),
        seconds=np.array(lists.seconds),
        input_at=_ints(lists.input_at),
        place=_ints(lists.place),
        value=_ints(lists.value),
        needs_at=_ints(lists.needs_at),
        needs=_ints(lists.needs),
        output_at=_ints(lists.output_at),
        output_place=_ints(lists.output_place),
        makes_at=_ints(lists.makes_at),
        makes=_ints(lists.makes),
        freed_at=_ints(lists.freed_at),
        freed=_ints(lists.freed),
        born=_ints([value.born for value in program.values]),
        forward=forward,
        backward=backward,
        words=words,
        bits=bits,
        overlapped=False,
        back=(nothing := np.zeros(len(lists.seconds))),
        sums=nothing,
        held=nothing,
        again_forward=forward,
        again_backward=backward,
        put_together=np.zeros((1, 1, 1)),
        limit=np.inf,
        lean=np.zeros(len(program.instructions) + 1),
        bound=np.inf,
        rest=np.zeros(1),
        charge=0.0,
    )


def forms_of(program: Program[Any]) -> list[tuple[Any, ...]]:
    """Return the forms that each value may be made or wanted in; the code of a form is 1 more than where it stands."""
    forms: list[dict[Hashable, None]] = [{} for _ in program.values]
    for instruction in program.instructions:
        for rule in instruction.signatures:
            for value, form in zip(instruction.inputs, rule.inputs, strict=True):
                forms[value][form] = None
            for value, form in zip(instruction.outputs, rule.outputs, strict=True):
                forms[value][form] = None
    return [tuple(those) for those in forms]


class _Lists:
    """Columns that grow instruction by instruction."""

    def __init__(self) -> None:
        self.signature_at, self.input_at, self.output_at, self.freed_at = [0], [0], [0], [0]
        self.seconds: list[float] = []
        self.place: list[int] = []
        self.value: list[int] = []
        self.needs_at: list[int] = []
        self.needs: list[int] = []
        self.output_place: list[int] = []
        self.makes_at: list[int] = []
        self.makes: list[int] = []
        self.freed: list[int] = []

    def close(self) -> None:
        """End an instruction."""
        self.signature_at.append(len(self.seconds))
        self.input_at.append(len(self.place))
        self.output_at.append(len(self.output_place))
        self.freed_at.append(len(self.freed))


def _places(program: Program[Any], width: int) -> tuple[list[int], list[list[int]], int]:
    """Return the place of each value's slot (-1: never live), those that each instruction frees, and words of a key.

    Words are not filled to the last bit, so that keys are not negative.
    """
    slot = [-1] * len(program.values)
    freed: list[list[int]] = [[] for _ in program.instructions]
    free: list[int] = []
    count = 0
    for position, instruction in enumerate(program.instructions):
        # What dies here is cleared before what is made here is written.
        freed[position] = [slot[v] for v in dict.fromkeys(instruction.inputs) if program.values[v].last == position]
        free += sorted(freed[position], reverse=True)
        for value in instruction.outputs:
            if program.values[value].last >= 0:
                if not free:
                    free.append(count)
                    count += 1
                slot[value] = free.pop()
    each = 63 // width

    def placed(number: int) -> int:
        return number // each * 64 + number % each * width if number >= 0 else -1

    return (
        [placed(number) for number in slot],
        [[placed(k) for k in those] for those in freed],
        max(1, -(-count // each)),
    )


def _conversions(program: Program[Any], prices: Pricing[Any], forms: list[tuple[Any, ...]]) -> tuple[F64, F64]:
    """Return the seconds of all conversions; values of equal size and forms share them."""
    most = 1 + max(map(len, forms), default=0)
    forward = np.full((len(program.values), most, most), np.inf)
    backward = np.full_like(forward, np.inf)
    numbers: dict[Hashable, int] = {}
    for number, (value, those) in enumerate(zip(program.values, forms, strict=True)):
        like = numbers.setdefault((value.nbytes, those), number)
        if like < number:
            forward[number], backward[number] = forward[like], backward[like]
            continue
        for (a, source), (b, target) in itertools.permutations(enumerate(those, 1), 2):
            price = prices.conversion(value.nbytes, source, target)
            if price is not None:
                forward[number, a, b], backward[number, a, b] = price
    return forward, backward


def _bits(program: Program[Any], forms: list[tuple[Any, ...]], who: str) -> int:
    """Return the bits that the code of a form needs, 4 or 8."""
    for instruction in program.instructions:
        if len(instruction.signatures) > 1 << PATH_BITS:
            raise TopoplanError(
                f"{who}: operator {instruction.name!r} has {len(instruction.signatures)} signatures "
                f"(at most {1 << PATH_BITS})"
            )
    most = max(map(len, forms), default=0)
    if most > 255:
        raise TopoplanError(f"{who}: a tensor has {most} forms (255 can be told apart)")
    return 4 if most < 16 else 8


def _ints(values: list[int]) -> I32:
    return np.array(values, dtype=np.int32)
