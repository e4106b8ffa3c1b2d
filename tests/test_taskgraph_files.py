"""Task graphs that the real FlexNet wrote: what we read of them, and that writing them loses nothing.

They are made again from their figures (`reference.task_graphs`), with numbers in the fields that only FlexNet fills.
Files are compared through a decoder of their own, which shares nothing with ours: it walks one table after
the other and yields every field of every table in order.
"""

from __future__ import annotations

import json
import struct
from functools import cache

import attrs
import numpy as np
import pytest
from reference.task_graphs import names, plan

from topoplan import TaskKind
from topoplan.plugin.host import Host
from topoplan_samples.long_tail import at_night

#: Of 32 and 128 hosts at night alone.
FILES = [pytest.param(name, marks=pytest.mark.slow if name.endswith(("_32", "_128")) else ()) for name in names()]

MESSAGE = 5

# Fields of the tables in the order of their slots: h short, I uint, i int, Q ulong, f float, s text,
# [x] a vector.
RING = {"jumps": "[i]"}
PATH = {"hopnode": "[I]", "chance": "f"}
SCHEMA = {
    "ngpupernode": "I",
    "nnode": "I",
    "nswitch": "I",
    "intergpubw": "f",
    "drambw": "f",
    "netbw": "f",
    "conn": [{"fromnode": "I", "tonode": "I", "nconn": "I"}],
    "ops": [{"opid": "Q", "type": "Q", "name": "s"}],
    "tasks": [{"type": "h", "taskid": "Q", "deviceid": "Q", "runtime": "f", "xfersize": "Q", "nexttasks": "[Q]"}],
    "devices": [{"type": "h", "deviceid": "Q", "nodeid": "Q", "deviceproperty": "Q", "bandwidth": "Q"}],
    "routes": [{"fromnode": "I", "tonode": "I", "paths": [PATH]}],
    "rings": [{"ringsz": "Q", "ringpaths": [RING]}],
}


def uint(data, at):
    return struct.unpack_from("<I", data, at)[0]


def fields(data, at, schema):
    """Decode the table at ``at``; a vector that is absent is None."""
    vtable = at - struct.unpack_from("<i", data, at)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    for slot, kind in enumerate(schema.values()):
        entry = 4 + 2 * slot
        offset = struct.unpack_from("<H", data, vtable + entry)[0] if entry < size else 0
        if not offset:
            yield 0 if kind in ("h", "I", "Q", "f") else None
        elif isinstance(kind, str) and len(kind) == 1 and kind != "s":
            yield struct.unpack_from(f"<{kind}", data, at + offset)[0]
        else:
            start = at + offset + uint(data, at + offset)
            count, start = uint(data, start), start + 4
            if kind == "s":
                yield data[start : start + count]
            elif isinstance(kind, str):
                yield struct.unpack_from(f"<{count}{kind[1]}", data, start)
            else:
                places = struct.unpack_from(f"<{count}I", data, start)
                yield [tuple(fields(data, start + 4 * i + p, kind[0])) for i, p in enumerate(places)]


def content(data):
    return dict(zip(SCHEMA, fields(data, uint(data, 0), SCHEMA), strict=True))


@pytest.fixture(scope="module")
def exporters():
    host = Host.discover()
    return {name: host.get("exporter", name) for name in ("flatbuffer", "json")}


#: Fields of FlexNet's that mean nothing to a plan: when a message ended, what an operator is, what a device can do.
ITS_OWN = ("tasks.runtime", "ops.type", "devices.bandwidth")


@pytest.fixture(scope="module")
def load(exporters):
    """Return a function from a name to the bytes of a file and the plan that is read from it."""
    exporter = exporters["flatbuffer"]

    @cache
    def load(name):
        copy = exporter().read(write(exporter, plan(name)), name)
        foreign = dict(copy.taskgraph.foreign)
        for field in ITS_OWN:
            column = foreign[f"flatbuffer.{field}"].copy()
            free = foreign["flatbuffer.tasks.type"] == MESSAGE if field == "tasks.runtime" else slice(None)
            column[free] = np.arange(len(column))[free] + 3
            foreign[f"flatbuffer.{field}"] = column
        taskgraph = attrs.evolve(copy.taskgraph, foreign=foreign)
        data = write(exporter, attrs.evolve(copy, taskgraph=taskgraph))
        return data, exporter().read(data, name)

    return load


def write(exporter, plan):
    return exporter().write(plan)


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", at_night(FILES, *list(FILES)[::2]))
def test_writing_what_was_read_loses_nothing(name, load, exporters):
    data, plan = load(name)
    before, after = content(data), content(write(exporters["flatbuffer"], plan))
    for field, value in before.items():
        assert value == after[field], field


@pytest.mark.by_day(4)
@pytest.mark.parametrize("name", [case for case in FILES if case.values != ("100dlrm_128",)])
def test_without_the_foreign_columns_the_meaning_stays(name, load, exporters):
    _, plan = load(name)
    exporter = exporters["flatbuffer"]
    bare = attrs.evolve(plan, taskgraph=attrs.evolve(plan.taskgraph, foreign={}))
    copy = exporter().read(write(exporter, bare), name)
    for field in ("cluster", "fabric", "taskgraph"):
        assert getattr(copy, field) == getattr(plan, field), field


@pytest.mark.parametrize("name", ["40vgg_16", "topoopt_d4_25dlrm_16"])
def test_json_between_loses_nothing(name, load, exporters):
    data, plan = load(name)
    copy = exporters["json"]().read(write(exporters["json"], plan), name)
    assert copy == plan
    assert content(write(exporters["flatbuffer"], copy)) == content(data)


# Tasks of each kind, smallest and largest message and their sum, group sizes, sums of forward and backward ms.
FIGURES = {
    "100candle_16": (
        [492, 492, 456, 140],
        (16777216, 67108864, 18522046464),
        {4: 86, 8: 32, 16: 22},
        (574.34, 1078.86),
    ),
    "40candle_16": (
        [548, 548, 632, 140],
        (16777216, 67108864, 19864223744),
        {4: 54, 8: 66, 16: 20},
        (592.56, 1085.55),
    ),
    "100dlrm_128": (
        [2904, 2904, 16528, 110],
        (524288, 33554432, 10603200512),
        {1: 64, 8: 2, 16: 2, 128: 42},
        (1023.71, 1922.30),
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_files(name, load):
    graph = plan(name).taskgraph
    counts, messages, groups, (forward, backward) = FIGURES[name]
    kinds = [TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.TRANSFER, TaskKind.COLLECTIVE]
    assert [int((graph.kind == kind).sum()) for kind in kinds] == counts
    size = graph.size[graph.kind == TaskKind.TRANSFER]
    assert (size.min(), size.max(), size.sum()) == messages
    sizes, often = np.unique(np.diff(graph.group_ptr), return_counts=True)
    assert dict(zip(sizes.tolist(), often.tolist(), strict=True)) == groups
    assert 1e3 * graph.seconds[graph.kind == TaskKind.FORWARD].sum() == pytest.approx(forward, abs=0.006)
    assert 1e3 * graph.seconds[graph.kind == TaskKind.BACKWARD].sum() == pytest.approx(backward, abs=0.006)


def test_a_star_takes_shortest_paths(load):
    plan = load("40vgg_16")[1]
    assert (plan.fabric.n_hosts, plan.fabric.n_switches, plan.fabric.n_links) == (16, 1, 32)
    assert plan.fabric.routes is None
    assert plan.cluster.interface_bandwidth.tolist() == [40e9 / 8] * 16
    assert set(plan.fabric.link_bandwidth.tolist()) == {40e9 / 8}


def test_a_fabric_without_switches_keeps_routes_and_rings(load):
    fabric = load("topoopt_d4_25dlrm_16")[1].fabric
    assert (fabric.n_switches, fabric.n_links, len(fabric.routes.pairs)) == (0, 64, 240)
    lengths = np.diff(fabric.routes.path_ptr)
    assert np.bincount(lengths).tolist() == [0, 64, 96, 64, 16]
    for pair, (source, target) in enumerate(fabric.routes.pairs.tolist()):
        path = fabric.routes.links[fabric.routes.path_ptr[pair] : fabric.routes.path_ptr[pair + 1]]
        assert (fabric.link_src[path[0]], fabric.link_dst[path[-1]]) == (source, target)
        assert np.array_equal(fabric.link_dst[path[:-1]], fabric.link_src[path[1:]])
    assert fabric.rings[16] == ((1,), (15,), (5,), (11,))
    assert {size: sum(rings[0]) % 16 for size, rings in fabric.rings.items()} == {8: 2, 4: 4, 2: 8, 16: 1}


def test_fields_of_its_own_are_in_the_file(load):
    fields = content(load("topoopt_d4_25dlrm_16")[0])
    runtimes = [(place, task[3]) for place, task in enumerate(fields["tasks"]) if task[0] == MESSAGE]
    assert len(runtimes) > 100
    assert all(runtime == place + 3 for place, runtime in runtimes)
    assert [op[1] for op in fields["ops"]] == list(range(3, 43))


def test_foreign_columns_are_plain_arrays(load):
    foreign = load("topoopt_d4_25vgg_16")[1].taskgraph.foreign
    assert foreign
    for key, value in foreign.items():
        assert isinstance(value, np.ndarray) or json.dumps(value), key
