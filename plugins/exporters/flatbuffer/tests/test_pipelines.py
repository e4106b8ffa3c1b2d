"""Task graphs of pipelines: the format holds the tasks, but not the schedule that they follow."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import TopoplanError
from topoplan.testing import reference
from topoplan_engine.lowering import Lowering
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_exporter_flatbuffer import Flatbuffer

WRITE = Flatbuffer().write
read = Flatbuffer().read
read_strategy = Flatbuffer().read_strategy


def test_a_pipeline_is_written_but_no_strategy_is_told_from_it():
    made = reference.pipelined()
    tasks = Lowering(made.graph, made.cluster, reference.Costs()).lower(made.strategy)
    made = attrs.evolve(made, taskgraph=tasks, timeline=None)
    data = WRITE(made)
    tasks, given = read(data, "x").taskgraph, made.taskgraph
    assert np.array_equal(tasks.succ, given.succ)
    assert np.array_equal(tasks.size, given.size)
    assert np.array_equal(tasks.kind, given.kind)
    with pytest.raises(TopoplanError, match="x: 32 forward and 24 backward tasks"):  # recomputation
        read_strategy(data, "x", made.graph)
    without = pipeline_strategy(made.strategy.placements, made.strategy.stage_of, "1f1b", 4)
    once = Lowering(made.graph, made.cluster, reference.Costs()).lower(without)
    with pytest.raises(TopoplanError, match="x: its tasks follow a schedule of micro-batches"):
        read_strategy(WRITE(attrs.evolve(made, taskgraph=once, timeline=None)), "x", made.graph)
