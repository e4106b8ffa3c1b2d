"""A program and its prices as integer-coded columns for the kernel.

Two recursions use them: HiDup's, and one that also overlaps the backward pass and prices the two copies of the model
separately, so that parameters are charged to the first copy alone.

The possible forms of each value are numbered from 1; 0 is none.  The key of a state consists of 64-bit words.  Every
live value has a *slot* in the key: some bits with the codes of its one or two current forms, the lower code in the low
half.  When the value is dead, its slot is free again.  The number of words therefore depends on the greatest number of
live values, not on the length of the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from topoplan import TopoplanError
from topoplan.arrays import F64, I32
from topoplan_spmd_planning.program import Instruction, Program, R, Rule

__all__ = ["LONGEST", "PATH_BITS", "Columns", "Pricing", "columns_of", "forms_of", "unpriced_columns"]

#: Instructions of a stage that is full.
LONGEST = 11
#: Bits of the number of an instruction's signature in an entry's path.
PATH_BITS = 5


R_contra = TypeVar("R_contra", bound=Rule, contravariant=True)


class Pricing(Protocol[R_contra]):
    """Prices of instructions and conversions; forms are those of the program's rules."""

    def compute(self, instruction: Instruction[Any], signature: R_contra, /) -> float:
        """Return the seconds of an instruction's forward pass."""

    def conversion(self, nbytes: int, source: Any, target: Any, /) -> tuple[float, float] | None:
        """Return the seconds of converting a value, forward and backward; None if no conversion exists."""


class Columns(NamedTuple):
    """The program, (n,) instructions with (S,) signatures and (V,) values.

    Attributes:
        signature_at: (n+1,) offsets of the signatures of each instruction.
        seconds: (S,) forward seconds.
        input_at: (n+1,) offsets of the inputs of each instruction in ``place`` and ``value``.
        place, value: for each input, the position of its slot in the key (64 times the word, plus the bit), and the
            number of the value.
        needs_at: (S,) offsets of the codes of the input forms of each signature in ``needs``.
        output_at: (n+1,) offsets of the outputs of each instruction in ``output_place``, which is -1 for unused ones.
        makes_at: (S,) offsets of the codes of the output forms of each signature in ``makes``.
        freed_at: (n+1,) offsets in ``freed``: the positions of the slots that each instruction is the last to use.
        producer: (V,) instruction that makes each value.
        like: (V,) the first value of the same bytes and forms, which has the same conversions.
        forward, backward: (V, F, F) seconds of converting each value from form to form; ``inf`` if that is illegal.
        words: words of a key; ``bits``: bits of the code of a form.
        overlapped: selects the second recursion.  All further columns are for that recursion alone.
        back, sums, signature_bytes: (S,) backward seconds of each signature, seconds to sum its gradients, and bytes
            that it holds.
        second_forward, second_backward: like ``forward`` and ``backward``, for the second copy.
        gathered_bytes: (V, F, F) bytes that a conversion holds.
        priced: bytes have a price: ``signature_bytes`` and ``gathered_bytes`` are seconds that add to those of a plan,
            and nothing counts bytes.
        limit: memory limit in bytes.
        min_bytes: (n+1,) lower bound on the bytes of all instructions after each cut.
        bound: upper limit on the seconds of a useful plan.
        tail: (n+1,) lower bound on the seconds after each cut, in addition to ``charge`` times the debts there.
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
    producer: I32
    like: I32
    forward: F64
    backward: F64
    words: int
    bits: int
    overlapped: bool
    back: F64
    sums: F64
    signature_bytes: F64
    second_forward: F64
    second_backward: F64
    gathered_bytes: F64
    priced: bool
    limit: float
    min_bytes: F64
    bound: float
    tail: F64
    charge: float


def columns_of(program: Program[R], prices: Pricing[R], subject: str) -> Columns:
    """Return the columns of a program; error messages begin with ``subject``.

    Raises:
        TopoplanError: a tensor of more than 255 forms, or an instruction of more than 32 signatures.
    """
    forms = forms_of(program)
    columns = unpriced_columns(program, forms, subject)
    forward, backward = _conversions(program, prices, forms, columns.like.tolist())
    return columns._replace(
        seconds=np.array([prices.compute(i, rule) for i in program.instructions for rule in i.signatures]),
        forward=forward,
        backward=backward,
        second_forward=forward,
        second_backward=backward,
    )


def unpriced_columns(program: Program[Any], forms: list[tuple[Any, ...]], subject: str) -> Columns:
    """Return the columns of a program in which nothing takes time and nothing can be converted.

    Args:
        program: instructions and values.
        forms: of the values, as `forms_of` returns them.
        subject: the beginning of error messages.

    Raises:
        TopoplanError: see `columns_of`.
    """
    bits = _bits(program, forms, subject)
    codes = _Codes(forms)
    place, freed, words = _places(program, 2 * bits)
    lists = _Lists()
    for position, instruction in enumerate(program.instructions):
        lists.value += instruction.inputs
        lists.place += [place[v] for v in instruction.inputs]
        lists.output_place += [place[v] for v in instruction.outputs]
        lists.freed += freed[position]
        lists.append(codes.of(instruction), len(instruction.inputs), len(instruction.outputs))
    none = np.full((len(program.values), 1, 1), np.inf)
    return Columns(
        **lists.columns(),
        seconds=(zeros := np.zeros(lists.signature_at[-1])),
        producer=_ints([value.producer for value in program.values]),
        like=_ints(_like(program, forms)),
        forward=none,
        backward=none,
        words=words,
        bits=bits,
        overlapped=False,
        back=zeros,
        sums=zeros,
        signature_bytes=zeros,
        second_forward=none,
        second_backward=none,
        gathered_bytes=np.zeros((1, 1, 1)),
        priced=False,
        limit=np.inf,
        min_bytes=np.zeros(len(program.instructions) + 1),
        bound=np.inf,
        tail=np.zeros(1),
        charge=0.0,
    )


def forms_of(program: Program[Any]) -> list[tuple[Any, ...]]:
    """Return the possible forms of each value, as output or input; the code of a form is its index plus 1.

    Values with the same forms have the same tuple of them.
    """
    uses: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in program.values]
    signatures: dict[int, tuple[Any, ...]] = {}
    for instruction in program.instructions:
        signatures[id(instruction.signatures)] = instruction.signatures
        arguments = (*instruction.inputs, *instruction.outputs)
        for value in dict.fromkeys(arguments):
            places = tuple(k for k, argument in enumerate(arguments) if argument == value)
            uses[value].append((id(instruction.signatures), places))
    by_uses: dict[object, tuple[Any, ...]] = {}  # equal layers share signatures, so that their values have equal uses
    distinct: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for value_uses in map(tuple, uses):
        if value_uses not in by_uses:
            forms = tuple(
                dict.fromkeys(
                    (*rule.inputs, *rule.outputs)[k]
                    for number, places in value_uses
                    for rule in signatures[number]
                    for k in places
                )
            )
            by_uses[value_uses] = distinct.setdefault(forms, forms)
    return [by_uses[tuple(value_uses)] for value_uses in uses]


class _Rows(NamedTuple):
    """The codes of the forms that the signatures of an instruction need and make, one signature after the other."""

    signatures: int
    needs: list[int]
    makes: list[int]


class _Codes:
    """The codes of the forms that signatures need and make; equal layers have the same."""

    def __init__(self, forms: list[tuple[Any, ...]]) -> None:
        self._forms = forms
        self._codes = {id(those): {form: 1 + number for number, form in enumerate(those)} for those in forms}
        self._found: dict[object, _Rows] = {}

    def of(self, instruction: Instruction[Any]) -> _Rows:
        """Return the codes of inputs and outputs for each signature of an instruction."""
        inputs = [id(self._forms[v]) for v in instruction.inputs]
        outputs = [id(self._forms[v]) for v in instruction.outputs]
        key = id(instruction.signatures), *inputs, *outputs
        if key not in self._found:
            rules, codes = instruction.signatures, self._codes
            self._found[key] = _Rows(
                len(rules),
                [codes[v][form] for rule in rules for v, form in zip(inputs, rule.inputs, strict=True)],
                [codes[v][form] for rule in rules for v, form in zip(outputs, rule.outputs, strict=True)],
            )
        return self._found[key]


class _Lists:
    """Columns that grow instruction by instruction."""

    def __init__(self) -> None:
        self.signature_at, self.input_at, self.output_at, self.freed_at = [0], [0], [0], [0]
        self.place: list[int] = []
        self.value: list[int] = []
        self.needs_at: list[int] = []
        self.needs: list[int] = []
        self.output_place: list[int] = []
        self.makes_at: list[int] = []
        self.makes: list[int] = []
        self.freed: list[int] = []

    def append(self, rows: _Rows, inputs: int, outputs: int) -> None:
        """Add the signatures of an instruction with so many inputs and outputs, and end it."""
        count, needs, makes = rows.signatures, len(self.needs), len(self.makes)
        self.needs_at += range(needs, needs + count * inputs, inputs) if inputs else [needs] * count
        self.makes_at += range(makes, makes + count * outputs, outputs) if outputs else [makes] * count
        self.needs += rows.needs
        self.makes += rows.makes
        self.signature_at.append(len(self.needs_at))
        self.input_at.append(len(self.place))
        self.output_at.append(len(self.output_place))
        self.freed_at.append(len(self.freed))

    def columns(self) -> dict[str, Any]:
        """Return the columns by their names in `Columns`."""
        return {name: _ints(values) for name, values in vars(self).items()}


def _places(program: Program[Any], width: int) -> tuple[list[int], list[list[int]], int]:
    """Return the position of each value's slot (-1: never live), those that each instruction frees, and words of a key.

    Words are not filled to the last bit, so that keys are not negative.
    """
    slot = [-1] * len(program.values)
    freed: list[list[int]] = [[] for _ in program.instructions]
    free_slots: list[int] = []
    count = 0
    for position, instruction in enumerate(program.instructions):
        # Slots of dead inputs are cleared before the outputs are written, so that outputs can reuse them.
        freed[position] = [slot[v] for v in dict.fromkeys(instruction.inputs) if program.values[v].last == position]
        free_slots += sorted(freed[position], reverse=True)
        for value in instruction.outputs:
            if program.values[value].last >= 0:
                if not free_slots:
                    free_slots.append(count)
                    count += 1
                slot[value] = free_slots.pop()
    slots_per_word = 63 // width

    def position_of(number: int) -> int:
        return number // slots_per_word * 64 + number % slots_per_word * width if number >= 0 else -1

    return (
        [position_of(number) for number in slot],
        [[position_of(k) for k in slots] for slots in freed],
        max(1, -(-count // slots_per_word)),
    )


def _like(program: Program[Any], forms: list[tuple[Any, ...]]) -> list[int]:
    """Return for each value the first that shares its conversions: same bytes and forms."""
    numbers: dict[Hashable, int] = {}
    return [
        numbers.setdefault((value.nbytes, id(those)), number)
        for number, (value, those) in enumerate(zip(program.values, forms, strict=True))
    ]


def _conversions(
    program: Program[Any], prices: Pricing[Any], forms: list[tuple[Any, ...]], like: list[int]
) -> tuple[F64, F64]:
    """Return the seconds of all conversions; values are ``like`` the first that shares them."""
    most = 1 + max(map(len, forms), default=0)
    forward = np.full((len(program.values), most, most), np.inf)
    backward = np.full_like(forward, np.inf)
    for number, (value, those) in enumerate(zip(program.values, forms, strict=True)):
        if like[number] < number:
            continue
        for (a, source), (b, target) in itertools.permutations(enumerate(those, 1), 2):
            price = prices.conversion(value.nbytes, source, target)
            if price is not None:
                forward[number, a, b], backward[number, a, b] = price
    return forward[like], backward[like]


def _bits(program: Program[Any], forms: list[tuple[Any, ...]], subject: str) -> int:
    """Return the bits that the code of a form needs, 4 or 8."""
    for instruction in program.instructions:
        if len(instruction.signatures) > 1 << PATH_BITS:
            raise TopoplanError(
                f"{subject}: operator {instruction.name!r} has {len(instruction.signatures)} signatures "
                f"(at most {1 << PATH_BITS})"
            )
    most = max(map(len, forms), default=0)
    if most > 255:
        raise TopoplanError(f"{subject}: a tensor has {most} forms (the limit is 255)")
    return 4 if most < 16 else 8


def _ints(values: list[int]) -> I32:
    return np.array(values, dtype=np.int32)
