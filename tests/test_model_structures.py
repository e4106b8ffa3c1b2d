"""Models of the frontends against FlexNet's measurement and task graph files, and for any batch size."""

from __future__ import annotations

import importlib
from typing import Any

import flatbuffers
import flatbuffers.table
import pytest
from flatbuffers import number_types
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import task_graphs

from topoplan import Host
from topoplan.model.graph import OperatorGraph
from topoplan.options import structure
from topoplan.plugin.components import Frontend
from topoplan_engine.partition import replica_groups, slice_elements, transfers
from topoplan_estimator_measured.profiles import profile
from topoplan_estimator_measured.profiles import rows as rows_of
from topoplan_samples.long_tail import at_night

NAMES = ("alexnet", "candle-uno", "dlrm", "inception-v3", "moe", "ncf", "resnet50", "transformer", "vgg16")

#: Preset, which is also the name of FlexNet's times of it -> frontend.
PRESETS = {
    "alexnet": "alexnet",
    "candle16": "candle-uno",
    "candle32": "candle-uno",
    "candle128": "candle-uno",
    "dlrm16": "dlrm",
    "dlrm32": "dlrm",
    "dlrm128": "dlrm",
    "ncf128": "ncf",
    "resnet128": "resnet50",
    "transformer16": "transformer",
    "transformer32": "transformer",
    "transformer128": "transformer",
    "vgg16": "vgg16",
    "vgg32": "vgg16",
    "vgg128": "vgg16",
}

#: Task graph of FlexNet -> preset of its model.
TASK_GRAPHS = {
    "100candle_16": "candle16",
    "40candle_32": "candle32",
    "100dlrm_16": "dlrm16",
    "100dlrm_32": "dlrm32",
    "100dlrm_128": "dlrm128",
    "100transformer_16": "transformer16",
    "100vgg_16": "vgg16",
    "40vgg_32": "vgg32",
    "topoopt_d4_25vgg_16": "vgg16",
}
ALLREDUCE = 6


def frontend(name: str) -> type[Frontend]:
    module = importlib.import_module(f"topoplan_frontend_{name.replace('-', '_')}")
    return module.topoplan_frontends()


def build(name: str, batch_size: int | None = None, **given: Any) -> OperatorGraph:
    component = frontend(name)
    return structure(component, given, name).build(batch_size)


@pytest.mark.parametrize("preset", PRESETS)
def test_structures_are_those_that_flexnet_measured(preset: str) -> None:
    graph = build(PRESETS[preset], preset=preset, dialect="flexnet")
    assert graph.batch_size == profile(preset).batch_size
    rows = {(row["operator"], row["degrees"].count("x") + 1) for row in rows_of(preset)}
    assert {(op.tags["flexnet"], len(op.outputs[0].axes)) for op in graph.operators} == rows


@pytest.mark.parametrize("file", at_night(TASK_GRAPHS, *(file for file in TASK_GRAPHS if file != "100dlrm_128")))
def test_operators_and_weights_are_those_of_the_task_graph(file: str) -> None:
    # Its digests say that this task graph is the published one (test_rebuild_taskgraphs).
    preset = TASK_GRAPHS[file]
    graph = build(PRESETS[preset], preset=preset, dialect="flexnet")
    exporter = Host.discover().get("exporter", "flatbuffer")
    data = exporter().write(task_graphs.plan(file))
    names, allreduces = read_task_graph(data)
    assert names == [op.name for op in graph.operators]
    assert allreduces == [weight.nbytes for op in graph.operators for weight in op.weights]


def read_task_graph(data: bytes) -> tuple[list[str], list[int]]:
    """Return the operators' names, and the bytes of each all-reduce in order, of a file of FlexNet."""
    root = flatbuffers.table.Table(data, flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 0))

    def rows(field: int) -> list[flatbuffers.table.Table]:
        offset = root.Offset(4 + 2 * field)
        start = root.Vector(offset)
        return [flatbuffers.table.Table(data, root.Indirect(start + 4 * k)) for k in range(root.VectorLen(offset))]

    def scalar(row: flatbuffers.table.Table, field: int, flags: Any) -> int:
        offset = row.Offset(4 + 2 * field)
        return row.Get(flags, row.Pos + offset) if offset else 0

    names = [row.String(row.Pos + row.Offset(4 + 2 * 2)).decode() for row in rows(7)]
    sizes = [
        scalar(row, 4, number_types.Uint64Flags)
        for row in rows(8)
        if scalar(row, 0, number_types.Int16Flags) == ALLREDUCE
    ]
    return names, sizes


@pytest.mark.parametrize("dialect", ["standard", "flexnet"])
@pytest.mark.parametrize("name", NAMES)
@given(batch_size=st.integers(1, 100_000))
@settings(max_examples=5, deadline=None)
def test_every_batch_size_builds_a_sound_graph(name: str, dialect: str, batch_size: int) -> None:
    component = frontend(name)
    graph = build(name, batch_size, **{**component.example, "dialect": dialect})
    assert graph.batch_size == batch_size
    for op in graph.operators:
        for index, dim in enumerate(op.dims):
            if dim.role is None or dim.size < 2:
                continue
            degrees = tuple(2 if k == index else 1 for k in range(len(op.dims)))
            for tensor in op.outputs:
                held = slice_elements(op, tensor, degrees)
                copies = replica_groups(op, tensor, degrees).shape[1]
                assert held.sum() == tensor.elements * copies, (op.name, dim.name)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_cut_every_part_gets_what_it_needs(name: str) -> None:
    graph = build(name, 16, **frontend(name).example)
    for u, output, v, into in graph.edges.tolist():
        producer, consumer = graph.operators[u], graph.operators[v]
        given_, wanted = producer.outputs[output], consumer.inputs[into]
        whole = (1,) * len(producer.dims)
        for index, dim in enumerate(consumer.dims):
            if dim.role is None or dim.size < 2:
                continue
            degrees = tuple(2 if k == index else 1 for k in range(len(consumer.dims)))
            moved = transfers(producer, given_, whole, consumer, wanted, degrees)
            needed = slice_elements(consumer, wanted, degrees)
            assert moved.elements.sum() == needed.sum(), (producer.name, consumer.name, dim.name)
