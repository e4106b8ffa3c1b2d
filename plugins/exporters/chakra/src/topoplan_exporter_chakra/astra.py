"""What ASTRA-sim reads beside traces: system, memory and network, and a script that runs it and counts.

Read in ASTRA-sim at commit 518bd51 and its analytical network backend.  Durations in traces are whole microseconds,
which is coarse: so one nanosecond of a plan is written as one microsecond, and ASTRA-sim's cycle, elsewhere a
nanosecond, is a picosecond.  Bandwidths are divided and latencies multiplied by 1000 to match.  Its ``GB/s`` are
2^30 bytes/s.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from topoplan import Fabric, Plan
from topoplan.errors import TopoplanWarning
from topoplan_engine.network.rings import cycles_of, rings_of
from topoplan_exporter_chakra.implementations import implementations
from topoplan_exporter_chakra.product import Axis, axes_of
from topoplan_exporter_chakra.ranks import GROUPS, STEM, Written, traces
from topoplan_exporter_chakra.replayed import replayed_seconds

__all__ = ["input_files", "system_file"]

#: Seconds that a trace calls a microsecond, and those of one cycle.
_NANOSECOND, _CYCLE = 1e-9, 1e-12
#: Times that differ by no more than this share are equal.
_EQUAL = 0.03
_NONE: Mapping[str, str] = MappingProxyType({})
_NETWORK, _SYSTEM, _MEMORY = "network.yml", "system.json", "memory.json"

_SCRIPT = f"""#!/bin/sh
# sh run.sh BINARY: runs ASTRA-sim on these traces.  It ends with status 0 even where ranks wait for each other for
# ever, so the ranks that have finished are counted.  A cycle is a picosecond.
here=$(dirname "$0")
logs=$(mktemp -d)
"$1" --workload-configuration="$here/{STEM}" --comm-group-configuration="$here/{GROUPS}" \\
  --system-configuration="$here/{_SYSTEM}" --remote-memory-configuration="$here/{_MEMORY}" \\
  --network-configuration="${{NETWORK:-$here/{_NETWORK}}}" --logging-folder="$logs" > "$logs/out" 2>&1
status=$?
cat "$logs/out"
finished=$(grep -c 'sys\\[[0-9]*\\] finished' "$logs/out")
rm -r "$logs"
[ "$status" -eq 0 ] || exit "$status"
[ "$finished" -eq RANKS ] || {{ echo "only $finished of RANKS ranks have finished" >&2; exit 1; }}
"""


def input_files(plan: Plan) -> dict[str, bytes]:
    """Return all input files, by name.

    A warning says that a fabric is none that ASTRA-sim's network file can say, and another one how long ASTRA-sim takes
    and why, if that is not what the plan takes.

    Raises:
        TopoplanError: the fabric is rebuilt during the iteration, or the tasks wait for each other.
    """
    written = traces(plan, _NANOSECOND, has_cpu=False)
    ranks = plan.cluster.n_devices
    assert isinstance(plan.fabric, Fabric)  # as `traces` has seen
    axes, of_kinds = axes_of(plan.fabric, plan.cluster), implementations(plan)
    if isinstance(axes, str):
        supported = "its networks are products of rings, switches and full meshes"
        warnings.warn(TopoplanWarning(f"astra-sim: no {_NETWORK} is written: {axes} ({supported})"), stacklevel=2)
        axes = ()
    elif not {*of_kinds.values()} - {"ring"} and (note := _difference(plan, written, axes)):  # it replays rings
        warnings.warn(TopoplanWarning(f"astra-sim: {note}"), stacklevel=2)
    network = {_NETWORK: _network(axes)} if axes else {}
    return {
        **written.files(),
        **network,
        _SYSTEM: system_file(["ring"] * max(len(axes), 1), of_kinds),
        _MEMORY: b'{"memory-type": "NO_MEMORY_EXPANSION"}\n',
        "run.sh": _SCRIPT.replace("RANKS", str(ranks)).encode(),
    }


def _difference(plan: Plan, written: Written, axes: tuple[Axis, ...]) -> str:
    """Say how long ASTRA-sim takes, and why, where it is not as long as the plan; empty where it is, or has no time."""
    if plan.timeline is None or plan.timeline.makespan <= 0 or not axes:
        return ""
    makespan = plan.timeline.makespan
    takes = replayed_seconds(written.nodes, written.groups, axes, _NANOSECOND)
    if abs(takes - makespan) <= _EQUAL * makespan:
        return ""
    reasons = []
    if (rings := _rings(plan)) > 1:
        faster = tuple(attrs.evolve(axis, bandwidth=axis.bandwidth * rings) for axis in axes)
        of_all_rings = replayed_seconds(written.nodes, written.groups, faster, _NANOSECOND)
        reasons.append(f"its collectives go round one ring, where the plan has {rings} ({_ms(takes - of_all_rings)})")
    together = replayed_seconds(written.nodes, written.groups, axes, _NANOSECOND, in_turn=False)
    if together < (1 - _EQUAL / 2) * takes:
        reasons.append(f"a rank runs one message or collective at a time (up to {_ms(takes - together)})")
    if len(axes) > 1:
        reasons.append("collectives go axis by axis, and a message crosses one axis only")
    if takes < makespan:
        reasons.append("messages share no links")
    if not reasons:
        reasons.append("collectives wait for all of their ranks, and for every one before them")
    times = f"takes {_ms(takes)} for this plan, {takes / makespan - 1:+.1%} to {_ms(makespan)} here"
    return f"its congestion-unaware backend {times}: {'; '.join(reasons)}"


def _rings(plan: Plan) -> int:
    """Return how many rings a collective of all hosts walks at a time."""
    fabric = plan.fabric.links
    hosts = np.arange(fabric.n_hosts, dtype=np.int32)
    return max(len(rings_of(fabric, hosts)), len(cycles_of(fabric, hosts)), 1)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _network(axes: tuple[Axis, ...]) -> bytes:
    """Return the network file."""
    columns = {
        "topology": [axis.shape for axis in axes],
        "npus_count": [str(axis.size) for axis in axes],
        "bandwidth": [repr(axis.bandwidth * _CYCLE * 1e9 / 2**30) for axis in axes],
        "latency": [repr(axis.latency / _CYCLE) for axis in axes],
    }
    return "".join(f"{name}: [ {', '.join(values)} ]\n" for name, values in columns.items()).encode()


def system_file(implementation: Sequence[str], of_kinds: Mapping[str, str] = _NONE) -> bytes:
    """Return the system file: algorithms of collectives along each dimension, in one piece, in the order of the traces.

    Args:
        implementation: along each dimension; rings are what simulators here run unless users or searchers choose.
        of_kinds: of kinds of collectives that have another one along all dimensions.
    """
    collectives = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system = {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 1,  # 0 ends ASTRA-sim on an assertion
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{f"{kind}-implementation": [of_kinds.get(kind, each) for each in implementation] for kind in collectives},
        "collective-optimization": "localBWAware",
        "local-mem-bw": 1600,
        "boost-mode": 0,
        "roofline-enabled": 0,
        "peak-perf": 900,
    }
    return json.dumps(system, indent=2).encode() + b"\n"
