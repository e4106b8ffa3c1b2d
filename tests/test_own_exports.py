"""FlexNetPacket's transport, as flows, on task graphs that topoplan wrote, beside what that program made of them.

The targets are a median of 0.5, 4 for the ninth of ten rows, and 9 for the largest error, in percent.  Rows in which no
paths are drawn meet them.  Where they are, the packet time is one draw and ours another, and limits are what holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
from reference import own_exports

from topoplan import Host
from topoplan_samples.as_flows import as_flows

#: Median, the ninth of ten rows and the largest error, in percent: of rows without draws, and of means over draws.
TARGETS, LIMITS = (0.5, 4.0, 9.0), (1.0, 4.7, 6.7)
#: Mean packet time of an export whose time in the table is the fastest of eight draws of paths, in ms.
PACKET_MEANS = {"dlrm16_random": 203.1}


@pytest.fixture(scope="module")
def fabric_of():
    """Return what makes the network of a row, from the benchmark that shows the rows."""
    folder = str(Path(__file__).resolve().parents[1] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import agreement
    finally:
        sys.path.remove(folder)
    return agreement.fabric_of


def summary(errors):
    """Return median, ninth of ten and largest of absolute errors."""
    size = np.sort(np.abs(list(errors.values())))
    return np.median(size), size[int(np.ceil(0.9 * len(size))) - 1], size[-1]


@pytest.mark.slow
def test_iteration_times_of_our_own_exports_agree(fabric_of):
    host, simulate, errors, undrawn = Host.discover(), as_flows(), {}, {}
    for row, plan in own_exports.rows():
        arguments = f"-nodes {row['hosts']} " + ("-rttnet 1000" if row["network"] == "fattree" else "-rtt 1000")
        fabric = fabric_of({**row, "args": arguments}, plan, host)
        cluster = attrs.evolve(plan.cluster, latency=0.0)
        seconds = simulate.makespans(plan.taskgraph, fabric, cluster, range(8))
        name = row["export"], row["network"]
        packet_ms = PACKET_MEANS.get(row["export"], float(row["counts_ms"]))
        errors[name] = 100 * (seconds.mean() * 1e3 / packet_ms - 1)
        if seconds.min() == seconds.max():
            undrawn[name] = errors[name]
    assert (len(errors), len(undrawn)) == (36, 20)
    assert all(error <= limit for error, limit in zip(summary(errors), LIMITS, strict=True)), errors
    assert all(error <= target for error, target in zip(summary(undrawn), TARGETS, strict=True)), undrawn
