"""The recursion, written plainly and without any pruning: what the search must not lose anything of.

Two copies of the model go through stages of conversions, then instructions; the second copy is half a stage behind.
Forward, its instructions of the stage before run beside the first copy's conversions, and its conversions beside the
first copy's instructions; backward the same the other way round.  What waits for nothing but the next stage, forward
(*debt*) and backward (*due*), is counted when it is known beside what it runs.

With f1, b1 the conversions' seconds of the first copy, f2, b2 those of the second, c and d the instructions' of either:

    time += max(debt, f1) + max(c, f2) + max(due, b1) + max(d, b2);  debt = c;  due = d
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from topoplan_spmd_planning.columns import LONGEST, Columns, forms_of
from topoplan_spmd_planning.program import Program

__all__ = ["every_plan"]

#: Of each value made so far: the forms it is there in, that it was made in first.
_Forms = dict[int, tuple[Hashable, ...]]
#: Of each value, the codes of its forms.
_Codes = list[dict[Any, int]]
#: Sums of a stage: compute, back, f1, b1, f2, b2, bytes.
_Sums = tuple[float, ...]


def every_plan(program: Program[Any], columns: Columns) -> Iterator[tuple[float, float]]:
    """Yield the seconds and the bytes of every plan of a program, however bad."""
    codes = [{form: 1 + code for code, form in enumerate(those)} for those in forms_of(program)]
    yield from _plans(program, columns, codes, 0, {}, 0.0, 0.0, 0.0, 0.0)


def _plans(
    program: Program[Any],
    columns: Columns,
    codes: _Codes,
    cut: int,
    forms: _Forms,
    time: float,
    debt: float,
    due: float,
    kept: float,
) -> Iterator[tuple[float, float]]:
    if cut == len(program.instructions):
        yield time + debt + due, kept
        return
    for after, reached, sums in _stages(program, columns, codes, cut, cut, forms, (0.0,) * 7):
        compute, back, f1, b1, f2, b2, held = sums
        longer = time + max(debt, f1) + max(compute, f2) + max(due, b1) + max(back, b2)
        yield from _plans(program, columns, codes, after, reached, longer, compute, back, kept + held)


def _stages(
    program: Program[Any], columns: Columns, codes: _Codes, start: int, cut: int, forms: _Forms, sums: _Sums
) -> Iterator[tuple[int, _Forms, _Sums]]:
    """Yield every stage that begins at ``start``: where it ends, the forms there, and what it takes."""
    if cut > start:
        yield cut, forms, sums
    if cut == len(program.instructions) or cut - start == LONGEST:
        return
    instruction = program.instructions[cut]
    for number, rule in enumerate(instruction.signatures):
        row = int(columns.signature_at[cut]) + number
        reached, taken = dict(forms), np.array(sums)
        taken[[0, 1, 3, 6]] += columns.seconds[row], columns.back[row], columns.sums[row], columns.signature_bytes[row]
        legal = True
        for value, form in zip(instruction.inputs, rule.inputs, strict=True):
            there = reached[value]
            if form in there:
                continue
            at = value, codes[value][there[0]], codes[value][form]
            legal = legal and len(there) == 1 and program.values[value].producer < start
            legal = legal and columns.forward[at] < np.inf
            if not legal:
                break
            taken[2:7] += [
                columns.forward[at],
                columns.backward[at],
                columns.second_forward[at],
                columns.second_backward[at],
                columns.gathered_bytes[at],
            ]
            reached[value] = (there[0], form)
        if legal:
            made = zip(instruction.outputs, rule.outputs, strict=True)
            reached |= {value: (form,) for value, form in made}
            yield from _stages(program, columns, codes, start, cut + 1, reached, tuple(taken.tolist()))
