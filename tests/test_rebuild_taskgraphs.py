"""Task graphs that the real FlexNet wrote, made again from the model and the strategy that they encode."""

from __future__ import annotations

import pytest
from reference.task_graphs import COLUMNS, digests, model_of, names, plan, spell_strategy, wanted

from topoplan import Host, TopoplanError


@pytest.mark.parametrize("name", names())
def test_every_column_is_that_of_the_published_file(name):
    row = wanted(name)
    graph, _, _ = model_of(row["preset"])
    table = digests(plan(name).taskgraph, [op.name for op in graph.operators])
    assert table == {column: row[column] for column in COLUMNS}


@pytest.mark.by_day(4)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name.endswith(("_32", "_128")) else ()) for name in names()],
)
def test_its_strategy_is_read_back_from_a_file(name):
    exporter = Host.discover().get("exporter", "flatbuffer")
    row = wanted(name)
    graph, _, _ = model_of(row["preset"])
    data = exporter().write(plan(name))
    assert spell_strategy(exporter().read_strategy(data, name, graph), graph) == row["strategy"]


def test_a_task_graph_of_another_model_is_refused():
    exporter = Host.discover().get("exporter", "flatbuffer")
    data = exporter().write(plan("100vgg_16"))
    with pytest.raises(TopoplanError, match=r"x\.fbuf: has 32 all-reduces, model 'dlrm' has 62 weights"):
        exporter().read_strategy(data, "x.fbuf", model_of("dlrm16")[0])
