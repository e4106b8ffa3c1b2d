"""What numbered fragments ask of devices, and of interfaces on one switch: a row of numbers for each of them.

Data flow: `topoplan_engine.search.lower_bounds` names fragments of `Pieces` that it has no rows for; compiled passes
read the columns of all of them at once and write their rows.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import kernel
from topoplan_engine.lowering.pieces import (
    CUT,
    FIRST_FLOAT,
    FIRST_INT,
    FIRST_LONG,
    GROUP_PARTS,
    GROUPS,
    OF_EDGE,
    ONE_WAY,
    PARTS,
    SOURCE,
    TARGET,
    Pieces,
)
from topoplan_engine.network.star import Interfaces

__all__ = ["load_devices", "load_interfaces"]

#: (0,) members of all-reduces: the messages are transfers.
_TRANSFERS: I32 = np.zeros(0, np.int32)


def load_devices(pieces: Pieces, numbers: I64, rows: F64) -> None:
    """Write the seconds of compute of the parts of operators on every device, then their bytes of memory.

    Args:
        pieces: the fragments.
        numbers: (n,) of fragments of operators.
        rows: (m, 2 * D) by the number of the fragment; those of ``numbers`` are written.
    """
    columns = pieces.columns
    _load_devices(numbers, columns.rows, columns.ints, columns.floats, rows)


def load_interfaces(pieces: Pieces, numbers: I64, interfaces: Interfaces, rows: F64) -> None:
    """Write the seconds that the messages of fragments keep each link busy, on a network that is one switch.

    Args:
        pieces: the fragments.
        numbers: (n,) of fragments of operators and edges.
        interfaces: of the network.
        rows: (m, E) by the number of the fragment; those of ``numbers`` are written.
    """
    columns = pieces.columns
    counts = _count_messages(numbers, columns.rows)
    pair_sizes, group_sizes = np.empty(counts[0], np.int64), np.empty(counts[1], np.int64)
    members = np.empty(counts[1], np.int32)
    _gather_messages(numbers, columns.rows, columns.ints, columns.longs, pair_sizes, group_sizes, members)
    pair_bytes = interfaces.guaranteed_bytes(pair_sizes, _TRANSFERS)
    group_bytes = interfaces.guaranteed_bytes(group_sizes, members) if len(members) else np.zeros(0)
    _load_interfaces(numbers, columns.rows, columns.ints, pair_bytes, group_bytes, *interfaces[:3], rows)


@kernel
def _load_devices(numbers: I64, pieces: I64, ints: I32, floats: F64, rows: F64) -> None:
    """See `load_devices`; ``pieces``, ``ints`` and ``floats`` are the columns of all fragments."""
    n_devices = rows.shape[1] // 2
    for number in numbers:
        for k in range(2 * n_devices):
            rows[number, k] = 0.0
        parts, first, forward = pieces[number, PARTS], pieces[number, FIRST_INT], pieces[number, FIRST_FLOAT]
        backward, memory = forward + parts, forward + 2 * parts + pieces[number, GROUPS]
        for p in range(parts):
            device = ints[first + p]
            rows[number, device] += floats[forward + p] + floats[backward + p]
            rows[number, n_devices + device] += floats[memory + p]


@kernel
def _count_messages(numbers: I64, pieces: I64) -> tuple[int, int]:
    """Return how many pairs the edges among fragments have, and how many all-reduces the operators."""
    pairs, groups = 0, 0
    for number in numbers:
        if pieces[number, CUT] == OF_EDGE:
            pairs += pieces[number, PARTS]
        else:
            groups += pieces[number, GROUPS]
    return pairs, groups


@kernel
def _gather_messages(
    numbers: I64, pieces: I64, ints: I32, longs: I64, pair_sizes: I64, group_sizes: I64, members: I32
) -> None:
    """Copy the bytes of pairs, and bytes and members of all-reduces, fragment after fragment."""
    pair, group = 0, 0
    for number in numbers:
        first = pieces[number, FIRST_LONG]
        if pieces[number, CUT] == OF_EDGE:
            for k in range(pieces[number, PARTS]):
                pair_sizes[pair] = longs[first + k]
                pair += 1
        else:
            counts = pieces[number, FIRST_INT] + pieces[number, PARTS]
            counts += pieces[number, GROUPS] + pieces[number, GROUP_PARTS]
            for k in range(pieces[number, GROUPS]):
                group_sizes[group], members[group] = longs[first + k], ints[counts + k]
                group += 1


@kernel
def _load_interfaces(
    numbers: I64,
    pieces: I64,
    ints: I32,
    pair_bytes: F64,
    group_bytes: F64,
    up: I64,
    down: I64,
    bandwidth: F64,
    rows: F64,
) -> None:
    """Add the bytes of messages to the interfaces that they pass, and divide by the bandwidth.

    A pair sends there and, as gradients if there are any, back; each member of an all-reduce sends to the next one.
    """
    pair, group = 0, 0
    for number in numbers:
        for k in range(len(bandwidth)):
            rows[number, k] = 0.0
        parts, first = pieces[number, PARTS], pieces[number, FIRST_INT]
        if pieces[number, CUT] == OF_EDGE:
            source = pieces[pieces[number, SOURCE], FIRST_INT]
            target = pieces[pieces[number, TARGET], FIRST_INT]
            for k in range(parts):
                a, b = ints[source + ints[first + k]], ints[target + ints[first + parts + k]]
                sent = pair_bytes[pair]
                pair += 1
                if a == b:
                    continue
                rows[number, up[a]] += sent
                rows[number, down[b]] += sent
                if not pieces[number, ONE_WAY]:
                    rows[number, up[b]] += sent
                    rows[number, down[a]] += sent
        else:
            groups = pieces[number, GROUPS]
            counts = first + parts + groups + pieces[number, GROUP_PARTS]
            member = counts + groups
            for g in range(groups):
                last = member + ints[counts + g]
                before, sent = ints[last - 1], group_bytes[group]
                group += 1
                while member < last:
                    if ints[member] != before:
                        rows[number, up[before]] += sent
                        rows[number, down[ints[member]]] += sent
                    before = ints[member]
                    member += 1
        for k in range(len(bandwidth)):
            rows[number, k] /= bandwidth[k]
