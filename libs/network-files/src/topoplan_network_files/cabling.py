"""Which interface is joined to which: a list for whoever plugs the cables.

Interface ``i`` of host ``h`` is wired for good to port ``h · interfaces + i`` of the patch panel, counted from 0.  The
list says which ports are joined.  A connection has a fibre each way, where there is a link each way; what is left are
single fibres, from the sending side of one interface to the receiving side of another.  Where switches stand in the
place of a panel, cables lead to their ports.
"""

from __future__ import annotations

import csv
import io

import attrs
import numpy as np

from topoplan import Cluster, Fabric, LinkKind, TopoplanError
from topoplan.arrays import I64

__all__ = ["Connection", "as_csv", "as_markdown", "connections"]


@attrs.frozen
class Connection:
    """One row: two ends, their ports on the panel (-1 where there is none), both ways or one, and bytes/s."""

    first: str
    first_port: int
    second_port: int
    second: str
    both_ways: bool
    bandwidth: float


def connections(fabric: Fabric, cluster: Cluster) -> list[Connection]:
    """Return the connections of a fabric, sorted by the first host.

    Raises:
        TopoplanError: links are shares of interfaces, or a host has fewer interfaces than links.
    """
    if (fabric.link_kind == LinkKind.LANE).any():
        raise TopoplanError(f"cabling: links of fabric {fabric.name!r} are shares of interfaces (breakout cables)")
    panel = fabric.switching in ("patch-panel", "ocs")
    free = np.zeros((2, fabric.n_nodes), dtype=np.int64)  # the next interface that sends, and that receives
    first_port = np.concatenate([[0], np.cumsum(cluster.interfaces)])
    rows = []
    for source, target, count, back, bandwidth in _pairs(fabric):
        for number in range(count):
            duplex = number < back
            out, into = _take(free, source, target, duplex)
            for node, interface in ((source, out), (target, into)):
                if node < fabric.n_hosts and interface >= cluster.interfaces[node]:
                    have = f"{fabric.node_name(node)} has {cluster.interfaces[node]} interfaces"
                    raise TopoplanError(f"cabling: {have}, but more links (--degree)")
            first, second = (
                int(first_port[node] + interface) if panel and node < fabric.n_hosts else -1
                for node, interface in ((source, out), (target, into))
            )
            names = [f"{fabric.node_name(node)}:{interface}" for node, interface in ((source, out), (target, into))]
            rows.append(Connection(names[0], first, second, names[1], duplex, bandwidth))
    return rows


def _pairs(fabric: Fabric) -> list[tuple[int, int, int, int, float]]:
    """Return (from, to, cables, how many of them lead back, bytes/s of one): both ways first, each pair once."""
    wired = fabric.link_kind == LinkKind.NETWORK
    back = fabric.link_rows(fabric.link_dst, fabric.link_src)
    pairs, single = [], []
    for row in np.flatnonzero(wired).tolist():
        source, target, count = int(fabric.link_src[row]), int(fabric.link_dst[row]), int(fabric.link_count[row])
        reverse = int(back[row])
        speed = float(fabric.link_bandwidth[row] / count)
        same = reverse >= 0 and speed == float(fabric.link_bandwidth[reverse] / fabric.link_count[reverse])
        shared = min(count, int(fabric.link_count[reverse])) if same else 0
        if shared and source < target:
            pairs.append((source, target, shared, shared, speed))
        if count > shared:
            single.append((source, target, count - shared, 0, speed))
    return [*pairs, *single]


def _take(free: I64, source: int, target: int, duplex: bool) -> tuple[int, int]:
    """Take the next free interface at each end; a cable both ways takes both of its sides."""
    out, into = int(free[0, source]), int(free[1, target])
    free[0, source] += 1
    free[1, target] += 1
    if duplex:  # these come first, so both sides of an interface are free together
        free[1, source] += 1
        free[0, target] += 1
    return out, into


_COLUMNS = ("from", "from panel port", "to panel port", "to", "direction", "Gbps")


def _cells(row: Connection) -> tuple[str, ...]:
    ports = tuple("" if port < 0 else str(port) for port in (row.first_port, row.second_port))
    direction = "both ways" if row.both_ways else "one way"
    return (row.first, *ports, row.second, direction, f"{row.bandwidth * 8e-9:.9g}")


def as_csv(rows: list[Connection]) -> bytes:
    """Write connections as a table for spreadsheets."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.replace(" ", "_") for column in _COLUMNS])
    writer.writerows(map(_cell, _cells(row)) for row in rows)
    return out.getvalue().encode()


def _cell(text: str) -> str:
    """Return a cell for CSV: no formula of a spreadsheet, and no carriage return, which Python 3.11 does not quote."""
    text = text.replace("\r", r"\r")
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def as_markdown(rows: list[Connection]) -> bytes:
    """Write connections as a table of Markdown."""
    cells_of_rows = [_COLUMNS, *map(_cells, rows)]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in cells_of_rows]
    lines.insert(1, "|---|---:|---:|---|---|---:|")
    return ("\n".join(lines) + "\n").encode()
