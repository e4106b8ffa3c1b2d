"""Plans whose all-to-alls are one task are written by all formats, and read or simulated again."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Collective, Exporter, Host
from topoplan_engine import optimize

HOST = Host.discover()


@pytest.fixture(scope="module")
def plan():
    """Data parallelism whose sums are all-to-alls instead."""
    made = optimize("alexnet", batch_size=64, servers=4, budget=0).plan
    kinds = made.taskgraph.collective
    tasks = attrs.evolve(
        made.taskgraph, collective=np.where(kinds == Collective.ALL_REDUCE, int(Collective.ALL_TO_ALL), kinds)
    )
    run = HOST.make("simulator", "fluid", {"algorithms": "all-to-all=pairwise"}).build()
    return attrs.evolve(made, taskgraph=tasks, timeline=run(tasks, made.fabric, made.cluster), strategy=None)


@pytest.mark.parametrize("name", ["json", "flatbuffer", "chakra", "perfetto", "dot"])
def test_formats_write_them(plan, name):
    exporter = HOST.make(Exporter, name)
    data = exporter.write(plan)
    if name in ("json", "flatbuffer", "chakra"):
        again = exporter.read(data, f"plan{exporter.suffix}")
        single = int((again.taskgraph.collective == Collective.ALL_TO_ALL).sum())
        assert single == (int((plan.taskgraph.collective == Collective.ALL_TO_ALL).sum()) if name == "json" else 0)
        run = HOST.make("simulator", "fluid").build()
        before = run(plan.taskgraph, plan.fabric, plan.cluster).makespan
        assert run(again.taskgraph, again.fabric, again.cluster).makespan == pytest.approx(before, rel=0.02)
