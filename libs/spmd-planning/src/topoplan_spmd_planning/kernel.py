"""The compiled kernel of HiDup's search.

It processes cuts in order, and the states of a cut in the order of their insertion.  From every state it grows stages
depth first, on a stack of keys, and offers each stage to the frontier of its end state.  A hash table finds states by
their keys.  If the tables are full, the kernel returns.  With larger tables it continues with the state at which it
stopped.  This does not change the result: entries that it offers again are dominated by those in the tables.

If an earlier cut has had the same states and instructions, its stages are read instead of grown; see
`topoplan_spmd_planning.repeats`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan_engine.kernels.jit import inline_kernel, kernel
from topoplan_spmd_planning.columns import LONGEST, PATH_BITS, Columns
from topoplan_spmd_planning.repeats import Repeats
from topoplan_spmd_planning.tables import CUT, ENTRIES, FILLED, GONE_ON, STATE, STATES, TAKEN_OUT, Tables

__all__ = ["DONE", "FULL", "OVER_BEAM", "PAUSED", "Stack", "expand", "refill", "stack_for"]

DONE, FULL, PAUSED, OVER_BEAM = range(4)

#: Instead of a state: a stage that ends nowhere, and tables without room.
_NOWHERE, _NO_ROOM = -1, -2
_LENGTH_SHIFT = LONGEST * PATH_BITS
#: Earlier cuts that are compared with a cut before it is taken for a new one.
_TRIES = 4


class Stack(NamedTuple):
    """Partial stages, (D,) each: key, cut, length, conversions, signatures so far, seconds and bytes."""

    key: I64
    cut: I64
    length: I64
    conversions: I64
    path: I64
    compute: F64
    forward: F64
    backward: F64
    back: F64
    second_forward: F64
    second_backward: F64
    nbytes: F64


def stack_for(columns: Columns) -> Stack:
    """Return a stack on which no stage of the program overflows."""
    most = int(np.diff(columns.signature_at).max())
    depth = 1 + LONGEST * most
    return Stack(
        key=np.zeros((depth, columns.words), np.int64),
        cut=np.zeros(depth, np.int64),
        length=np.zeros(depth, np.int64),
        conversions=np.zeros(depth, np.int64),
        path=np.zeros(depth, np.int64),
        compute=np.zeros(depth),
        forward=np.zeros(depth),
        backward=np.zeros(depth),
        back=np.zeros(depth),
        second_forward=np.zeros(depth),
        second_backward=np.zeros(depth),
        nbytes=np.zeros(depth),
    )


@inline_kernel
def _hash(key: I64, row: int, cut: int, words: int) -> int:
    digest = cut * 0x9E3779B1
    for word in range(words):
        digest = (digest ^ key[row, word]) * 0x2545F4914F6CDD1D
        digest ^= (digest >> 29) & 0x7FFFFFFFF
    return digest & 0x7FFFFFFFFFFFFFFF


@inline_kernel
def _same_key(keys: I64, row: int, keys2: I64, row2: int, words: int) -> bool:
    same = True
    for word in range(words):
        same = same and keys[row, word] == keys2[row2, word]
    return same


@inline_kernel
def _find(tables: Tables, keys: I64, row: int, cut: int, words: int) -> int:
    """Return the state at a cut with the key in a row of ``keys``; insert it if it is new; -1 if there is no room."""
    mask = len(tables.buckets) - 1
    slot = _hash(keys, row, cut, words) & mask
    while tables.buckets[slot] >= 0:
        state = tables.buckets[slot]
        if tables.cut[state] == cut and _same_key(tables.key, state, keys, row, words):
            return int(state)
        slot = (slot + 1) & mask
    state = tables.counts[STATES]
    if state == len(tables.cut) or 2 * tables.counts[FILLED] >= len(tables.buckets):
        return -1
    tables.counts[STATES] += 1
    tables.counts[FILLED] += 1
    tables.buckets[slot] = state
    tables.cut[state], tables.after[state], tables.head[state] = cut, -1, -1
    for word in range(words):
        tables.key[state, word] = keys[row, word]
    if tables.last[cut] < 0:
        tables.first[cut] = state
    else:
        tables.after[tables.last[cut]] = state
    tables.last[cut] = state
    return int(state)


@inline_kernel
def _no_worse(
    overlapped: bool,
    time: float,
    debt: float,
    due: float,
    nbytes: float,
    time2: float,
    debt2: float,
    due2: float,
    nbytes2: float,
) -> bool:
    """Say whether the first entry dominates the second: every continuation of it is at least as good.

    The next stage takes the maximum of a debt and its own communication.  A longer debt therefore costs at most its
    excess, and a shorter debt saves at least nothing.
    """
    if not overlapped:
        return time <= time2 and debt <= debt2
    return time + max(0.0, debt - debt2) + max(0.0, due - due2) <= time2 and nbytes <= nbytes2


@inline_kernel
def _offer(
    overlapped: bool,
    tables: Tables,
    state: int,
    time: float,
    debt: float,
    due: float,
    nbytes: float,
    predecessor: int,
    path: int,
) -> bool:
    """Insert an entry into a frontier unless it is dominated; remove those that it dominates; say if there was room."""
    previous, entry = -1, tables.head[state]
    while entry >= 0:
        successor = tables.following[entry]
        labels = (tables.time[entry], tables.debt[entry], tables.due[entry], tables.nbytes[entry])
        if _no_worse(overlapped, labels[0], labels[1], labels[2], labels[3], time, debt, due, nbytes):
            return True
        if _no_worse(overlapped, time, debt, due, nbytes, labels[0], labels[1], labels[2], labels[3]):
            if previous < 0:
                tables.head[state] = successor
            else:
                tables.following[previous] = successor
            tables.following[entry] = tables.counts[TAKEN_OUT]
            tables.counts[TAKEN_OUT] = entry
        else:
            previous = entry
        entry = successor
    entry = tables.counts[TAKEN_OUT]
    if entry >= 0:
        tables.counts[TAKEN_OUT] = tables.following[entry]
    else:
        entry = tables.counts[ENTRIES]
        if entry == len(tables.time):
            return False
        tables.counts[ENTRIES] += 1
    tables.time[entry], tables.debt[entry] = time, debt
    tables.due[entry], tables.nbytes[entry] = due, nbytes
    tables.before[entry], tables.path[entry] = predecessor, path
    tables.following[entry] = tables.head[state]
    tables.head[state] = entry
    return True


@inline_kernel
def _hidup(time: float, debt: float, compute: float, forward: float, backward: float) -> float:
    """Return the seconds after a stage in HiDup's recursion, without its debt."""
    overlapped = max(debt, forward) + max(compute, forward)
    serial = 2 * debt + backward + 2 * compute + backward
    return time + overlapped + serial


@inline_kernel
def _end_stage(columns: Columns, tables: Tables, stack: Stack, top: int, start: int) -> int:
    """Offer the stage on ``top`` of the stack after every entry of state ``start``.

    Returns:
        Its end state; `_NOWHERE` if no entry may have this stage after it; `_NO_ROOM`.
    """
    compute, forward, backward = stack.compute[top], stack.forward[top], stack.backward[top]
    path = stack.path[top] | (stack.length[top] << _LENGTH_SHIFT)
    state = _NOWHERE
    entry = tables.head[start]
    while entry >= 0:
        length = tables.path[entry] >> _LENGTH_SHIFT
        nbytes = tables.nbytes[entry] + stack.nbytes[top]
        free = columns.overlapped or stack.conversions[top] > 0 or length == 0 or length == LONGEST
        if free and nbytes + columns.min_bytes[stack.cut[top]] <= columns.limit:
            debt = tables.debt[entry]
            due = 0.0
            if columns.overlapped:
                time = max(debt, forward) + max(compute, stack.second_forward[top])
                time += max(tables.due[entry], backward) + max(stack.back[top], stack.second_backward[top])
                time += tables.time[entry]
                if columns.priced:
                    time, nbytes = time + stack.nbytes[top], 0.0
                due = stack.back[top]
                if columns.bound < np.inf:
                    bound = time + columns.charge * (compute + due) + columns.tail[stack.cut[top]]
                    if bound > columns.bound:
                        entry = tables.following[entry]
                        continue
            else:
                time = _hidup(tables.time[entry], debt, compute, forward, backward)
            if state < 0:
                state = _find(tables, stack.key, top, stack.cut[top], columns.words)
                if state < 0:
                    return _NO_ROOM
            if not _offer(columns.overlapped, tables, state, time, compute, due, nbytes, entry, path):
                return _NO_ROOM
        entry = tables.following[entry]
    return state


@inline_kernel
def _end_recorded_stage(columns: Columns, tables: Tables, repeats: Repeats, row: int, start: int, later: int) -> bool:
    """Offer a recorded stage after every entry of ``start``, ``later`` instructions later; say if there was room."""
    model = repeats.end[row]
    cut, state = tables.cut[model] + later, repeats.twin[model]
    if state == 0 or tables.cut[state] != cut:
        state = _find(tables, tables.key, model, cut, columns.words)
        if state < 0:
            return False
        repeats.twin[model] = state
    compute, forward, backward = repeats.compute[row], repeats.forward[row], repeats.backward[row]
    entry = tables.head[start]
    while entry >= 0:
        time = _hidup(tables.time[entry], tables.debt[entry], compute, forward, backward)
        if not _offer(False, tables, state, time, compute, 0.0, 0.0, entry, repeats.path[row]):
            return False
        entry = tables.following[entry]
    return True


@inline_kernel
def _record(stack: Stack, top: int, repeats: Repeats, state: int) -> bool:
    """Record the stage on ``top`` of the stack, with its end state; say if there was room."""
    row = repeats.counts[0]
    if row == len(repeats.end):
        return False
    repeats.end[row], repeats.path[row] = state, stack.path[top] | (stack.length[top] << _LENGTH_SHIFT)
    repeats.compute[row] = stack.compute[top]
    repeats.forward[row], repeats.backward[row] = stack.forward[top], stack.backward[top]
    repeats.counts[0] += 1
    return True


@inline_kernel
def _grow(columns: Columns, stack: Stack, top: int, start: int) -> int:
    """Replace the stage on ``top`` of the stack by those with one instruction more; return their number.

    ``start`` is the cut at which the stage starts: only values that are live there may be converted.  The stage itself
    is overwritten last, by the first possible signature.
    """
    cut, words, bits, above = stack.cut[top], columns.words, columns.bits, top
    code = (1 << bits) - 1
    first, last = columns.signature_at[cut], columns.signature_at[cut + 1]
    for signature in range(last - 1, first - 1, -1):
        above += 1
        for word in range(words):
            stack.key[above, word] = stack.key[top, word]
        count, forward, backward = stack.conversions[top], stack.forward[top], stack.backward[top]
        second_forward, second_backward, nbytes = (
            stack.second_forward[top],
            stack.second_backward[top],
            stack.nbytes[top],
        )
        need, legal = columns.needs_at[signature], True
        for number in range(columns.input_at[cut], columns.input_at[cut + 1]):
            target, need = columns.needs[need], need + 1
            word, shift = columns.place[number] >> 6, columns.place[number] & 63
            low = stack.key[above, word] >> shift & code
            high = stack.key[above, word] >> (shift + bits) & code
            if low == target or high == target:
                continue
            value = columns.value[number]
            if high or columns.producer[value] >= start or columns.forward[value, low, target] == np.inf:
                legal = False
                break
            count += 1
            forward += columns.forward[value, low, target]
            backward += columns.backward[value, low, target]
            if columns.overlapped:
                second_forward += columns.second_forward[value, low, target]
                second_backward += columns.second_backward[value, low, target]
                nbytes += columns.gathered_bytes[value, low, target]
            pair = (low << bits | target) if target < low else (target << bits | low)
            stack.key[above, word] += (pair - low) << shift
        if not legal:
            above -= 1
            continue
        _replace_values(columns, stack, above, cut, signature)
        stack.cut[above] = cut + 1
        stack.length[above] = stack.length[top] + 1
        stack.conversions[above] = count
        stack.path[above] = stack.path[top] | ((signature - first) << (stack.length[top] * PATH_BITS))
        stack.compute[above] = stack.compute[top] + columns.seconds[signature]
        stack.forward[above] = forward
        stack.backward[above] = backward + columns.sums[signature]
        stack.back[above] = stack.back[top] + columns.back[signature]
        stack.second_forward[above], stack.second_backward[above] = second_forward, second_backward
        stack.nbytes[above] = nbytes + columns.signature_bytes[signature]
    if above > top:
        _copy(stack, above, top, words)
    return above - top


@inline_kernel
def _replace_values(columns: Columns, stack: Stack, above: int, cut: int, signature: int) -> None:
    """Remove from a key the values that are dead after the next instruction, and insert its outputs."""
    both_codes = (1 << 2 * columns.bits) - 1
    for number in range(columns.freed_at[cut], columns.freed_at[cut + 1]):
        word, shift = columns.freed[number] >> 6, columns.freed[number] & 63
        stack.key[above, word] -= (stack.key[above, word] >> shift & both_codes) << shift
    make = columns.makes_at[signature]
    for number in range(columns.output_at[cut], columns.output_at[cut + 1]):
        place = columns.output_place[number]
        if place >= 0:
            stack.key[above, place >> 6] += columns.makes[make] << (place & 63)
        make += 1


@inline_kernel
def _copy(stack: Stack, source: int, target: int, words: int) -> None:
    for word in range(words):
        stack.key[target, word] = stack.key[source, word]
    stack.cut[target], stack.length[target] = stack.cut[source], stack.length[source]
    stack.conversions[target], stack.path[target] = stack.conversions[source], stack.path[source]
    stack.compute[target] = stack.compute[source]
    stack.forward[target], stack.backward[target] = stack.forward[source], stack.backward[source]
    stack.second_forward[target], stack.second_backward[target] = (
        stack.second_forward[source],
        stack.second_backward[source],
    )
    stack.back[target], stack.nbytes[target] = stack.back[source], stack.nbytes[source]


@kernel
def refill(columns: Columns, tables: Tables) -> None:
    """Insert the states at the current and later cuts into empty buckets."""
    tables.buckets[:] = -1
    tables.counts[FILLED] = 0
    mask = len(tables.buckets) - 1
    for cut in range(tables.counts[CUT] + 1, len(tables.first)):
        state = tables.first[cut]
        while state >= 0:
            slot = _hash(tables.key, state, cut, columns.words) & mask
            while tables.buckets[slot] >= 0:
                slot = (slot + 1) & mask
            tables.buckets[slot] = state
            tables.counts[FILLED] += 1
            state = tables.after[state]


@inline_kernel
def _over_beam(tables: Tables, cut: int, beam: int, max_entries: int) -> bool:
    """Say whether a cut has more than ``beam`` states, or more than ``max_entries`` entries."""
    states, entries, state = 0, 0, tables.first[cut]
    while state >= 0 and states <= beam and entries <= max_entries:
        entry = tables.head[state]
        while entry >= 0:
            entries, entry = entries + 1, tables.following[entry]
        states, state = states + 1, tables.after[state]
    return state >= 0 or entries > max_entries


@inline_kernel
def _look_back(columns: Columns, tables: Tables, repeats: Repeats, cut: int) -> None:
    """Find an earlier cut with equal states and instructions, and join their states; see `Repeats`."""
    repeats.root[cut] = cut if repeats.recorded[cut] else -1
    earlier = repeats.earlier[cut]
    for _ in range(_TRIES):
        if earlier < 0:
            return
        root = repeats.root[earlier]
        if root >= 0:
            state, model = tables.first[cut], tables.first[root]
            while state >= 0 and model >= 0 and _same_key(tables.key, state, tables.key, model, columns.words):
                state, model = tables.after[state], tables.after[model]
            if state < 0 and model < 0:
                repeats.root[cut] = root
                state, model = tables.first[cut], tables.first[root]
                while state >= 0:
                    repeats.origin[state] = model
                    state, model = tables.after[state], tables.after[model]
                return
        earlier = repeats.earlier[earlier]


@inline_kernel
def _needs_no_conversion(tables: Tables, state: int) -> bool:
    """Say whether a stage without conversions may follow any entry: at the start, and after a full stage."""
    entry = tables.head[state]
    while entry >= 0:
        length = tables.path[entry] >> _LENGTH_SHIFT
        if length == 0 or length == LONGEST:
            return True
        entry = tables.following[entry]
    return False


@inline_kernel
def _expand_state(columns: Columns, tables: Tables, stack: Stack, repeats: Repeats, cut: int, state: int) -> bool:
    """Offer all stages that start with a state; say if there was room."""
    every = columns.overlapped or _needs_no_conversion(tables, state)
    source = repeats.origin[state]
    if not every and repeats.complete[source]:
        later = cut - tables.cut[source]
        for row in range(repeats.begins[source], repeats.ends[source]):
            if not _end_recorded_stage(columns, tables, repeats, row, state, later):
                return False
        return True
    records = not every and repeats.root[cut] == cut
    repeats.counts[0] = repeats.begins[state] = repeats.counts[1]
    for word in range(columns.words):
        stack.key[0, word] = tables.key[state, word]
    stack.cut[0], stack.length[0], stack.conversions[0], stack.path[0] = cut, 0, 0, 0
    stack.compute[0] = stack.forward[0] = stack.backward[0] = 0.0
    stack.back[0] = stack.second_forward[0] = stack.second_backward[0] = stack.nbytes[0] = 0.0
    top = 0
    while top >= 0:
        if stack.length[top] > 0 and (every or stack.conversions[top] > 0):
            end = _end_stage(columns, tables, stack, top, state)
            if end == _NO_ROOM or (records and not _record(stack, top, repeats, end)):
                return False
        if stack.length[top] < LONGEST and stack.cut[top] < len(columns.signature_at) - 1:
            top += _grow(columns, stack, top, cut) - 1
        else:
            top -= 1
    if records:
        repeats.ends[state] = repeats.counts[1] = repeats.counts[0]
        repeats.complete[state] = 1
    return True


@kernel
def expand(
    columns: Columns, tables: Tables, stack: Stack, repeats: Repeats, most: int, beam: int, max_entries: int
) -> int:
    """Expand states until the end of the program, or until about ``most`` of their entries are expanded.

    Returns:
        `DONE`, `FULL` (no room), `PAUSED`, or `OVER_BEAM`: the next cut has more than ``beam`` states, or more than
        ``max_entries`` entries; see `topoplan_spmd_planning.tables.thin`.
    """
    for cut in range(tables.counts[CUT], len(columns.signature_at) - 1):
        begins = cut > tables.counts[CUT]
        state = tables.first[cut] if begins else tables.counts[STATE]
        if begins and 4 * tables.counts[FILLED] > len(tables.buckets):
            tables.counts[CUT] = cut
            refill(columns, tables)
        if begins:
            if _over_beam(tables, cut, beam, max_entries):
                tables.counts[CUT], tables.counts[STATE] = cut, state
                return OVER_BEAM
            _look_back(columns, tables, repeats, cut)
        while state >= 0:
            tables.counts[CUT], tables.counts[STATE] = cut, state
            if tables.head[state] < 0:
                state = tables.after[state]
                continue
            if most <= 0:
                return PAUSED
            if not _expand_state(columns, tables, stack, repeats, cut, state):
                return FULL
            entry = tables.head[state]
            while entry >= 0:
                tables.counts[GONE_ON] += 1
                most -= 1
                entry = tables.following[entry]
            state = tables.after[state]
    return DONE
