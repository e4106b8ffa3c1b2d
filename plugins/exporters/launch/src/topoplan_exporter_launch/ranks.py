"""Shell scripts that start torchrun on every host of a plan, so that every rank gets the device that the plan means.

torchrun numbers ranks host by host.  If the plan's order of ranks goes host by host, too, one torchrun a host starts
them, and ``CUDA_VISIBLE_DEVICES`` puts the GPUs of the host in order.  Otherwise every rank gets a torchrun of its own.
The variable ``TOPOPLAN_DEVICES`` tells programs which device of the plan each rank has.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan import Cluster
from topoplan.arrays import I32

__all__ = ["script"]

_TORCHRUN = 'torchrun --nnodes {nodes} --nproc-per-node {each} --node-rank "$node"'
_MEETING = '--master-addr "$address" --master-port "${PORT:-29500}"'


@attrs.frozen
class _Ranks:
    """Ranks that one torchrun starts: its number among them all, its host, and the GPUs of the host in order."""

    node: int
    host: int
    gpus: tuple[int, ...]


def script(
    cluster: Cluster, devices: I32, about: Sequence[str], flags: Sequence[str] = (), settings: Sequence[str] = ()
) -> bytes:
    """Return a shell script.

    Args:
        cluster: the plan's hosts and devices.
        devices: (ranks,) the device of each rank.
        about: what the script is for, a line each.
        flags: lines of flags for the program, before those that the user gives.
        settings: lines of shell that set what the program needs.
    """
    host = cluster.device_host[devices]
    first = np.searchsorted(cluster.device_host, np.arange(cluster.n_hosts))
    gpus = (devices - first[host]).tolist()
    runs = [[*group] for _, group in itertools.groupby(range(len(devices)), key=lambda rank: int(host[rank]))]
    if len(runs) > len(np.unique(host)):
        runs = [[rank] for rank in range(len(devices))]
    ranks = [_Ranks(node, int(host[run[0]]), tuple(gpus[k] for k in run)) for node, run in enumerate(runs)]
    hosts = sorted({row.host for row in ranks})
    lines = [
        "#!/usr/bin/env bash",
        *(f"# {line}" for line in about),
        "#",
        "# usage: bash SCRIPT HOST ADDRESS PROGRAM [ARGUMENT]...",
        f"#   HOST     number of this host in the plan, {_span(hosts)}",
        f"#   ADDRESS  name or address of host {ranks[0].host}, which has rank 0",
        "#   PROGRAM  Python script, the same on every host",
        "# Run it once on every host. PORT is the port of rank 0 (default 29500).",
        "set -euo pipefail",
        "if [ $# -lt 3 ]; then",
        '  echo "usage: bash $0 HOST ADDRESS PROGRAM [ARGUMENT]..." >&2',
        "  exit 2",
        "fi",
        "host=$1 address=$2 program=$3",
        "shift 3",
        f"export TOPOPLAN_DEVICES={','.join(map(str, devices.tolist()))}",
        *settings,
        *_flags(flags),
        *(_one_each(ranks, hosts, bool(flags)) if len(ranks) == len(hosts) else _one_a_rank(ranks, hosts, bool(flags))),
    ]
    return ("\n".join(lines) + "\n").encode()


def _span(hosts: list[int]) -> str:
    if len(hosts) == 1:
        return str(hosts[0])
    if hosts == [*range(hosts[0], hosts[-1] + 1)]:
        return f"{hosts[0]} to {hosts[-1]}"
    return ", ".join(map(str, hosts))


def _flags(flags: Sequence[str]) -> list[str]:
    return ["flags=(", *(f"  {line}" for line in flags), ")"] if flags else []


def _unknown(hosts: list[int]) -> list[str]:
    return [f"  *) {_refusal(hosts)} ;;", "esac"]


def _refusal(hosts: list[int]) -> str:
    return f'echo "$0: host $host is not in the plan (its hosts: {_span(hosts)})" >&2; exit 2'


def _program(flags: bool) -> str:
    return '"$program" "${flags[@]}" "$@"' if flags else '"$program" "$@"'


def _one_each(ranks: list[_Ranks], hosts: list[int], flags: bool) -> list[str]:
    """Return the lines that start one torchrun on each host; hosts with the same line share it."""
    start = _TORCHRUN.format(nodes=len(ranks), each='"$each"')
    by_host = sorted(ranks, key=lambda row: row.host)
    if all(row.node == row.host and row.gpus == ranks[0].gpus for row in by_host) and len(ranks) > 1:
        gpus = f"gpus={','.join(map(str, ranks[0].gpus))} each={len(ranks[0].gpus)}"
        table = [
            f"if ! [[ $host =~ ^[0-9]{{1,9}}$ ]] || (( 10#$host >= {len(ranks)} )); then",
            f"  {_refusal(hosts)}",
            "fi",
            f"node=$host {gpus}",
        ]
    else:
        rows = [
            f"  {row.host}) node={row.node} gpus={','.join(map(str, row.gpus))} each={len(row.gpus)} ;;"
            for row in by_host
        ]
        table = ["case $host in", *rows, *_unknown(hosts)]
    return [
        *table,
        'export CUDA_VISIBLE_DEVICES="$gpus"',
        f"exec {start} {_MEETING} \\",
        f"  {_program(flags)}",
    ]


def _one_a_rank(ranks: list[_Ranks], hosts: list[int], flags: bool) -> list[str]:
    """Return the lines that start one torchrun for each rank, and wait for those of the host."""
    rows = []
    for host in hosts:
        mine = [row for row in ranks if row.host == host]
        nodes, gpus = " ".join(str(row.node) for row in mine), " ".join(str(row.gpus[0]) for row in mine)
        rows.append(f"  {host}) nodes=({nodes}) gpus=({gpus}) ;;")
    return [
        "case $host in",
        *rows,
        *_unknown(hosts),
        "started=()",
        'for k in "${!nodes[@]}"; do',
        "  node=${nodes[k]}",
        '  CUDA_VISIBLE_DEVICES="${gpus[k]}" \\',
        f"    {_TORCHRUN.format(nodes=len(ranks), each=1)} {_MEETING} \\",
        f"    {_program(flags)} &",
        "  started+=($!)",
        "done",
        "status=0",
        'for process in "${started[@]}"; do wait "$process" || status=$?; done',
        "exit $status",
    ]
