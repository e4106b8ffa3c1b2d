"""Sums along paths, the rows of paths that transfers take, and the links that rows cross.

Data flow: `topoplan_engine.network.tables` appends paths as CSR; `sum_paths` sums over the links of each of them,
`find_rows` looks up the rows of transfers, `cross` marks the links that they can take, `find_nics` finds their NICs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I8, I32, I64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.kernels.hashing import slot_of
from topoplan_engine.kernels.jit import kernel

__all__ = ["cross", "find_nics", "find_rows", "sum_paths"]

Bools = NDArray[np.bool_]
_TRANSFER = int(TaskKind.TRANSFER)


@kernel
def sum_paths(lengths: I64, links: I32, latency: F64, bandwidth: F64, delay: F64, per_byte: F64, slowest: F64) -> None:
    """Write latency, seconds per byte and smallest bandwidth of every path.

    Args:
        lengths, links: (P,) links of each path, and these links, path by path.
        latency, bandwidth: (E,) of every link.
        delay, per_byte, slowest: (P,) written.
    """
    first = 0
    for path in range(len(lengths)):
        delay[path], per_byte[path], slowest[path] = 0.0, 0.0, np.inf
        for link in links[first : first + lengths[path]]:
            delay[path] += latency[link]
            per_byte[path] += 1.0 / bandwidth[link]
            slowest[path] = min(slowest[path], bandwidth[link])
        first += lengths[path]


@kernel
def find_rows(
    kind: I8,
    src: I32,
    dst: I32,
    host: I32,
    first_device: I64,
    n_inside: I64,
    first_row: I64,
    keys: I64,
    numbers: I32,
    visited: Bools,
    row: I32,
) -> bool:
    """Write the row of each transfer, and -1 for other tasks; say whether all rows are known and ``visited``.

    Args:
        kind, src, dst: (T,) of the tasks.
        host: (D,) of the devices.
        first_device, n_inside, first_row: (H,) of the devices of each host, and of the rows between them.
        keys, numbers: hash table of pairs of hosts (`topoplan_engine.network.pairs`): row + 2.
        visited: (R,) see `cross`.
        row: (T,) written.
    """
    for t in range(len(kind)):
        row[t] = -1
        if kind[t] != _TRANSFER:
            continue
        a, b = host[src[t]], host[dst[t]]
        if a == b:
            number = first_row[a] + (src[t] - first_device[a]) * n_inside[a] + dst[t] - first_device[a]
        else:
            number = numbers[slot_of(keys, numbers, np.int64(a) * len(n_inside) + b)] - 2
        if not 0 <= number < len(visited) or not visited[number]:
            return False
        row[t] = number
    return True


@kernel
def cross(rows: I32, visited: Bools, row_ptr: I64, path_ptr: I64, links: I32, crossed: Bools) -> None:
    """Mark the links of rows that are not ``visited`` as ``crossed``, and these rows as visited.

    Args:
        rows: of paths.
        visited: (R,) marks of rows.
        row_ptr, path_ptr, links: see `topoplan_engine.network.tables.PathColumns`.
        crossed: (E,) marks of links.
    """
    for row in rows:
        if not visited[row]:
            visited[row] = True
            for link in links[path_ptr[row_ptr[row]] : path_ptr[row_ptr[row + 1]]]:
                crossed[link] = True


@kernel
def find_nics(
    rows: I32, row_ptr: I64, path_ptr: I64, links: I32, first: int, inside: int, nics: int, lanes: int, ends: I64
) -> None:
    """Write the NICs by which the first path of each row leaves and arrives; a path of two NICs has both.

    Args:
        rows: of paths.
        row_ptr, path_ptr, links: see `topoplan_engine.network.tables.PathColumns`.
        first, inside, nics, lanes: of `topoplan_engine.network.machine.HostLinks`.
        ends: (2, n) written: ``host * nics + nic``, or -1 inside a host, and -2 where the path goes through others.
    """
    block = inside + 2 * nics * lanes
    for k in range(len(rows)):
        count = 0
        ends[0, k] = ends[1, k] = -1
        path = row_ptr[rows[k]]
        for i in range(path_ptr[path], path_ptr[path + 1]):
            place = links[i] - first
            lane = place % block - inside
            if place < 0 or lane < 0:
                continue
            count += 1
            ends[lane % 2, k] = place // block * nics + lane // 2 // lanes
        if count != 2:
            ends[0, k] = ends[1, k] = -2 if count > 2 else -1
