"""Task graphs that the real FlexNet wrote, rebuilt from the model and the strategy that they encode."""

from __future__ import annotations

import re

import numpy as np
import pytest

from topoplan import Cluster, Host, TaskKind, TopoplanError
from topoplan.lowering import Lowering

FILES = [
    "100candle_16", "100dlrm_128", "100dlrm_16", "100dlrm_32", "100transformer_16", "100vgg_16", "10dlrm_16",
    "10transformer_16", "10vgg_16", "1600candle_16", "1600dlrm_16", "200dlrm_16", "400transformer_16", "400vgg_16",
    "40candle_16", "40candle_32", "40transformer_32", "40vgg_16", "40vgg_32", "topoopt_d4_10transformer_16",
    "topoopt_d4_25dlrm_16", "topoopt_d4_25vgg_16",
]  # fmt: skip
FRONTENDS = {"candle": "candle-uno", "dlrm": "dlrm", "transformer": "transformer", "vgg": "vgg16"}


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def model_of(file, host, reference_data, shapes="auto"):
    """Return the graph, the costs and the cluster that FlexNet used for one of its files."""
    family, servers = re.fullmatch(r"(?:topoopt_d4_)?\d+([a-z]+)_(\d+)", file).groups()
    servers = int(servers)
    frontend, options = host.make("frontend", FRONTENDS[family], {"preset": f"{family}{servers}", "dialect": "flexnet"})
    graph = frontend.build(options, None)
    cluster = Cluster.uniform(n_hosts=servers, big_gpu=4, inside_bandwidth=25e9)
    measures = reference_data / "measures" / f"{family}{servers}.json"
    estimator, options = host.make("estimator", "measured", {"file": str(measures)})
    return graph, estimator.build(options, graph, cluster), cluster


@pytest.mark.parametrize("file", FILES)
def test_rebuilt_graph_equals_the_file(file, host, reference_data):
    exporter = host.get("exporter", "flatbuffer")
    data = (reference_data / "taskgraphs" / f"{file}.fbuf").read_bytes()
    written = exporter.read(data, file).taskgraph
    graph, costs, cluster = model_of(file, host, reference_data)
    strategy = exporter.read_strategy(data, file, graph)
    rebuilt = Lowering(graph, cluster, costs).lower(strategy)

    assert [op.name for op in graph.operators] == list(written.op_names)
    for column in ("kind", "device", "size", "src", "dst", "group", "group_ptr", "group_members", "succ_ptr", "succ"):
        assert np.array_equal(getattr(rebuilt, column), getattr(written, column)), column
    computes = rebuilt.kind != TaskKind.TRANSFER
    # The file holds float32 milliseconds.
    mine = (rebuilt.seconds[computes] * 1e3).astype(np.float32)
    theirs = (written.seconds[computes] * 1e3).astype(np.float32)
    assert np.allclose(mine, theirs, rtol=2e-7, atol=0)


def test_a_task_graph_of_another_model_is_refused(host, reference_data):
    exporter = host.get("exporter", "flatbuffer")
    data = (reference_data / "taskgraphs" / "100vgg_16.fbuf").read_bytes()
    graph = model_of("100dlrm_16", host, reference_data)[0]
    with pytest.raises(TopoplanError, match=r"x\.fbuf: has 32 all-reduces, model 'dlrm' has 62 weights"):
        exporter.read_strategy(data, "x.fbuf", graph)
