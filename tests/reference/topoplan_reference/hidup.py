"""HiDup's search, written plainly: what the kernel is compared with.

Source: HiDup (Zhang et al., SoCC 2022, section 4) as released (ylxdzsw/hidup, the module it calls dp3).

A *cut* is a place between two instructions, and a *state* at a cut says in which forms each live value is there: the
one it was made in, and at most one that it was converted to.  A *stage* is some conversions of values that live where
it begins, then at most 11 instructions.  Of two copies of the model, each with half of the batch, the second is half
a stage behind: its instructions run beside the conversions of the first, and its conversions beside the first's
instructions.  What is left to run of it when the first has finished a stage is the *debt*.
"""

from __future__ import annotations

import attrs

from topoplan.model.sharding import Sharding, Signature
from topoplan_spmd_planning.columns import LONGEST
from topoplan_spmd_planning.planning import Outcome
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import Program

__all__ = ["search"]

#: Of each live value, by number: the forms it is there in.
State = tuple[tuple[int, frozenset[Sharding]], ...]


@attrs.frozen
class _Entry:
    """One way to reach a state: seconds without the debt, the debt, and the number of instructions of its stage."""

    time: float
    debt: float
    length: int


@attrs.frozen
class _Branch:
    """A stage that is being grown: where it stands, its conversions so far, and their and its instructions' seconds."""

    cut: int
    state: State
    length: int = 0
    conversions: int = 0
    compute: float = 0.0
    forward: float = 0.0
    backward: float = 0.0


def search(program: Program[Signature], prices: Prices) -> Outcome:
    """Find the best plan of a program; it must have one."""
    end = len(program.instructions)
    frontiers: list[dict[State, list[_Entry]]] = [{} for _ in range(end + 1)]
    frontiers[0][()] = [_Entry(0.0, 0.0, 0)]
    states = entries = 0
    for cut in range(end):
        states += len(frontiers[cut])
        entries += sum(map(len, frontiers[cut].values()))
        for state, reached in frontiers[cut].items():
            stack = [_Branch(cut, state)]
            while stack:
                branch = stack.pop()
                for entry in reached if branch.length else ():
                    if branch.conversions or entry.length in (0, LONGEST):
                        _offer(frontiers[branch.cut].setdefault(branch.state, []), _after(entry, branch))
                if branch.length < LONGEST and branch.cut < end:
                    stack += _grown(program, prices, cut, branch)
        frontiers[cut].clear()
    best = min(entry.time + entry.debt for entry in frontiers[end][()])
    return Outcome(best, states, entries)


def _after(entry: _Entry, stage: _Branch) -> _Entry:
    """Return what a stage makes of an entry: forward the copies overlap, backward they take turns."""
    debt = entry.debt
    forward = max(debt, stage.forward) + max(stage.compute, stage.forward)
    backward = 2 * debt + stage.backward + 2 * stage.compute + stage.backward
    return _Entry(entry.time + forward + backward, stage.compute, stage.length)


def _offer(frontier: list[_Entry], new: _Entry) -> None:
    """Put an entry into a frontier, unless one there is as good; take out what is no better."""
    if not any(old.time <= new.time and old.debt <= new.debt for old in frontier):
        frontier[:] = [old for old in frontier if not (new.time <= old.time and new.debt <= old.debt)]
        frontier.append(new)


def _grown(program: Program[Signature], prices: Prices, start: int, branch: _Branch) -> list[_Branch]:
    """Return the stage with one instruction more, under each signature that can be had."""
    instruction = program.instructions[branch.cut]
    grown = []
    for signature in instruction.signatures:
        forms = dict(branch.state)
        count, forward, backward = branch.conversions, branch.forward, branch.backward
        for number, wanted in zip(instruction.inputs, signature.inputs, strict=True):
            value, there = program.values[number], forms[number]
            if wanted in there:
                continue
            if len(there) > 1 or value.producer >= start:
                break
            (given,) = there
            price = prices.conversion(value.nbytes, given, wanted)
            if price is None:
                break
            forms[number] = there | {wanted}
            count, forward, backward = count + 1, forward + price[0], backward + price[1]
        else:
            forms.update(zip(instruction.outputs, (frozenset({form}) for form in signature.outputs), strict=True))
            live = ((number, forms[number]) for number in sorted(forms) if program.values[number].last > branch.cut)
            grown.append(
                _Branch(
                    cut=branch.cut + 1,
                    state=tuple(live),
                    length=branch.length + 1,
                    conversions=count,
                    compute=branch.compute + prices.compute(instruction, signature),
                    forward=forward,
                    backward=backward,
                )
            )
    return grown
