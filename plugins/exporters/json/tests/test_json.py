"""A plan survives JSON to the last bit, and a damaged document names the place of the damage."""

from __future__ import annotations

import copy
import json
import math

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import (
    Axis,
    Collective,
    Dimension,
    Operator,
    OperatorGraph,
    Placement,
    Role,
    Routes,
    TaskKind,
    Tensor,
    TopoplanError,
)
from topoplan.model.graph import Slices
from topoplan.model.recording import (
    Cause,
    CriticalPath,
    LinkUse,
    MemoryKind,
    MemoryLevels,
    Recording,
    SearchHistory,
)
from topoplan.testing import reference
from topoplan_exporter_json import Json

WRITE = Json().write
read = Json().read


def survives(plan):
    """Assert that ``plan`` is read as it was written; return the document."""
    data = WRITE(plan)
    found = read(data, "plan.json")
    assert found == plan
    assert WRITE(found) == data
    return json.loads(data, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))


def test_a_complete_plan_survives():
    document = survives(reference.plan())
    assert (document["format"], document["version"]) == ("topoplan-plan", 2)
    assert document["graph"]["operators"][0]["dims"][2] == {"name": "input", "size": 256, "role": "reduction"}


def test_slices_of_unequal_sizes_survive():
    plan = reference.plan()
    size = plan.graph.operators[0].dims[0].size
    uneven = Placement((Slices((size - 3, 1, 1, 1)), 1, 1), range(4))
    document = survives(attrs.evolve(plan, strategy=plan.strategy.with_changes({0: uneven})))
    assert document["strategy"]["placements"][0]["degrees"] == [[size - 3, 1, 1, 1], 1, 1]
    assert document["strategy"]["placements"][1]["degrees"] == [4, 1, 1]


def test_gpus_per_device_keep_their_key():
    plan = reference.plan()
    document = survives(attrs.evolve(plan, cluster=attrs.evolve(plan.cluster, gpus_per_device=4)))
    assert document["cluster"]["big_gpu"] == 4
    assert "gpus_per_device" not in document["cluster"]


def test_a_damaged_number_of_gpus_is_named_as_the_document_does():
    document = json.loads(WRITE(reference.plan()))
    document["cluster"]["big_gpu"] = "four"
    with pytest.raises(TopoplanError, match=r"x: \$\.cluster\.big_gpu: expected an integer, got 'four'"):
        read(json.dumps(document).encode(), "x")


def test_tags_survive_and_those_of_flexnet_keep_their_keys():
    plan = reference.plan()
    document = survives(plan)
    assert document["graph"]["dialect"] == "standard"
    assert document["graph"]["operators"][0]["structure"] == "Dense_256_256"
    assert not {"tags", "reduces_per_part"} & (document["graph"].keys() | document["graph"]["operators"][0].keys())
    flexnet = attrs.evolve(plan.graph, tags={"dialect": "flexnet"}, reduces_per_part=True)
    document = survives(attrs.evolve(plan, graph=flexnet))
    assert document["graph"]["dialect"] == "flexnet"
    assert "reduces_per_part" not in document["graph"]
    first, *rest = plan.graph.operators
    first = attrs.evolve(first, tags={"colour": "red"})
    other = attrs.evolve(plan.graph, tags={"origin": "here"}, reduces_per_part=True, operators=(first, *rest))
    document = survives(attrs.evolve(plan, graph=other))
    assert (document["graph"]["tags"], document["graph"]["reduces_per_part"]) == ({"origin": "here"}, True)
    assert document["graph"]["operators"][0]["tags"] == {"colour": "red"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tags", ["x"], "expected texts by name under tags"),
        ("tags", {"x": 1}, "expected texts by name under tags"),
        ("reduces_per_part", "yes", "expected true or false under reduces_per_part"),
        ("dialect", 3, r"\$\.graph\.dialect: expected text, got 3"),
    ],
)
def test_damaged_tags_are_named(field, value, message):
    document = json.loads(WRITE(reference.plan()))
    document["graph"][field] = value
    with pytest.raises(TopoplanError, match=message):
        read(json.dumps(document).encode(), "x")


def test_a_plan_of_only_a_task_graph_survives():
    survives(attrs.evolve(reference.plan(), graph=None, strategy=None, timeline=None))


def recorded(plan):
    """Give a plan some rows of everything that can be recorded."""
    links = LinkUse(link=[0, 1], task=[2, 2], start=[0.0, 0.5], finish=[0.25, 1.0], nbytes=[1e6, 1 / 3])
    critical = CriticalPath(task=[0, 2], cause=[Cause.START, Cause.LINK], by=[-1, 1])
    memory = MemoryLevels(time=[0.0, 1.0], device=[0, 0], kind=[MemoryKind.WEIGHTS] * 2, nbytes=[3.0, 4.0])
    history = SearchHistory(
        chain=[0, 0], evaluation=[1, 2], seconds=[0.1, 0.2], current=[2.0, math.inf], best=[2.0, 2.0], accepted=[1, 0]
    )
    return attrs.evolve(plan, recording=Recording(links=links, critical=critical, memory=memory), history=history)


def test_recordings_survive_and_leave_no_trace_where_there_are_none():
    assert {"recording", "history"} <= survives(recorded(reference.plan())).keys()
    assert not {"recording", "history"} & survives(reference.plan()).keys()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("recording", "links", "task"), [2], r"\$\.recording\.links\.task: 1 values \(expected 2\)"),
        (("recording", "links", "link"), [0, 99], r"\$\.recording\.links\.link: 99 \(expected 0 to 7\)"),
        (
            ("recording", "links", "nbytes"),
            [1.0, -1.0],
            r"links\.nbytes: -1\.0 \(must not be negative\)",
        ),
        (("recording", "critical", "cause"), [0, 9], r"\$\.recording\.critical\.cause: 9 \(expected 0 to 4\)"),
        (("recording", "memory", "device"), [0, 4], r"\$\.recording\.memory\.device: 4 \(expected 0 to 3\)"),
        (("recording", "memory", "time"), [0.0, "x"], r"\$\.recording\.memory\.time\[1\]: expected a number"),
        (("history", "seconds"), [0.0], r"\$\.history\.seconds: 1 values \(expected 2\)"),
        (("history", "best"), "x", r"\$\.history\.best: expected a list of numbers"),
    ],
)
def test_damaged_recordings_are_named(place, value, message):
    document = json.loads(WRITE(recorded(reference.plan())))
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(TopoplanError, match=message):
        read(json.dumps(document).encode(), "x")


def test_routes_and_rings_survive():
    plan = reference.plan()
    routes = Routes(pairs=[[0, 1], [1, 0]], pair_ptr=[0, 1, 1], path_ptr=[0, 1], links=[0], weight=[1.0])
    fabric = attrs.evolve(plan.fabric, routes=routes, rings={4: ((1,), (-1, 2))})
    document = survives(attrs.evolve(plan, fabric=fabric))
    assert document["fabric"]["routes"]["pairs"] == {"shape": [2, 2], "values": [0, 1, 1, 0]}
    assert document["fabric"]["rings"] == {"4": [[1], [-1, 2]]}


def test_names_of_nodes_survive_and_leave_no_trace_where_there_are_none():
    plain = reference.plan()
    assert b"node_names" not in WRITE(plain)
    names = tuple(f"gpu-{node}" for node in range(plain.fabric.n_nodes))
    plan = attrs.evolve(plain, fabric=attrs.evolve(plain.fabric, node_names=names))
    again = read(WRITE(plan), "plan.json")
    assert again.fabric.node_names == names


def test_phases_survive():
    document = survives(attrs.evolve(reference.plan(), fabric=reference.rebuilt(delay=1e-3), timeline=None))
    assert document["fabric"]["phases"]["delay"] == 1e-3
    assert document["fabric"]["phases"]["forward"]["phases"] is None
    assert document["fabric"]["phases"]["reduce"]["n_hosts"] == 4


def test_older_plans_without_phases_can_be_read():
    plan = reference.plan()
    older = json.loads(WRITE(plan))
    del older["fabric"]["phases"]
    assert read(json.dumps(older).encode(), "old") == plan


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("link_src", [[0], [1]], "backward.link_src"),
        ("max_paths", 0, r"backward\.max_paths: 0 \(expected at least 1\)"),
        ("n_hosts", 5, "a phase has other nodes"),
        ("link_bandwidth", "x", r"\$\.fabric\.phases\.backward\.link_bandwidth: expected a list of numbers"),
    ],
)
def test_a_damaged_phase_is_named(field, value, message):
    plan = attrs.evolve(reference.plan(), fabric=reference.rebuilt(delay=1e-3), timeline=None)
    document = json.loads(WRITE(plan))
    document["fabric"]["phases"]["backward"][field] = value
    with pytest.raises(TopoplanError, match=message):
        read(json.dumps(document).encode(), "plan.json")


def test_links_that_are_not_those_of_the_phases_are_named():
    document = json.loads(WRITE(attrs.evolve(reference.plan(), fabric=reference.rebuilt(delay=1e-3), timeline=None)))
    document["fabric"]["link_bandwidth"][0] *= 2
    with pytest.raises(TopoplanError, match=r"\$\.fabric\.link_bandwidth: not that of the phases"):
        read(json.dumps(document).encode(), "plan.json")


def test_a_schedule_survives():
    document = survives(reference.pipelined())
    first, second = document["strategy"]["stages"]
    assert (first["operators"], second["operators"]) == ([0], [1, 2])
    assert [[placement["devices"] for placement in stage["body"]] for stage in (first, second)] == [
        [[0, 1]],
        [[2, 3]] * 2,
    ]
    assert (first["recomputed"], second["recomputed"]) == ([0], [])
    assert document["strategy"]["order"]["name"] == "1f1b"
    assert set(document["taskgraph"]["micro_batch"]) == {-1, 0, 1, 2, 3}


def with_collectives(plan, *kinds):
    """Let the collectives of a plan be of these kinds, in turn; joins get one member and no bytes."""
    graph = plan.taskgraph
    tasks = np.flatnonzero(graph.kind == TaskKind.COLLECTIVE)
    collective, size, group = graph.collective.copy(), graph.size.copy(), graph.group.copy()
    collective[tasks] = np.resize(kinds, len(tasks))
    joins = collective == Collective.JOIN
    size[joins], group[joins] = 0, graph.n_groups
    members, ptr = np.append(graph.group_members, 0), np.append(graph.group_ptr, len(graph.group_members) + 1)
    graph = attrs.evolve(graph, collective=collective, size=size, group=group, group_members=members, group_ptr=ptr)
    return attrs.evolve(plan, taskgraph=graph, timeline=None)


def first_version(plan):
    """Write a plan as version 1, in which a collective goes once or twice round its ring."""
    document = json.loads(WRITE(plan))
    kinds = document["taskgraph"].pop("collective")
    once = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    turns = None if kinds is None else [1 if kind in once else 2 for kind in kinds]
    document["taskgraph"]["turns"], document["version"] = turns, 1
    return document


@pytest.mark.parametrize("kind", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
def test_kinds_of_collectives_survive(kind):
    document = survives(with_collectives(reference.plan(), kind, Collective.JOIN, Collective.ALL_REDUCE))
    assert set(document["taskgraph"]["collective"]) >= {-1, kind, Collective.JOIN}
    assert "turns" not in document["taskgraph"]
    document["taskgraph"]["collective"][0] = 200
    with pytest.raises(TopoplanError, match=r"\$\.taskgraph\.collective\[0\]: expected an integer from -128 to 127"):
        read(json.dumps(document).encode(), "plan.json")
    document["taskgraph"]["collective"] = [1]
    with pytest.raises(TopoplanError, match=r"\$\.taskgraph\.collective: expected a list of \d+ numbers, got \[1\]"):
        read(json.dumps(document).encode(), "plan.json")


def test_turns_of_collectives_in_the_first_version_are_read():
    plan = with_collectives(reference.plan(), Collective.ALL_GATHER, Collective.JOIN, Collective.ALL_REDUCE)
    document = first_version(plan)
    assert read(json.dumps(document).encode(), "plan.json") == plan
    document["taskgraph"]["turns"][0] = 3
    with pytest.raises(TopoplanError, match=r"\$\.taskgraph\.turns\[0\]: expected 1 or 2, got 3"):
        read(json.dumps(document).encode(), "plan.json")
    document["taskgraph"]["turns"] = [1]
    with pytest.raises(TopoplanError, match=r"\$\.taskgraph\.turns: expected a list of \d+ numbers, got \[1\]"):
        read(json.dumps(document).encode(), "plan.json")


def test_a_reduce_scatter_comes_back_from_the_first_version_as_the_all_gather_of_as_many_bytes():
    scattered = first_version(with_collectives(reference.plan(), Collective.REDUCE_SCATTER))
    plan = read(json.dumps(scattered).encode(), "plan.json")
    assert set(plan.taskgraph.collective.tolist()) == {-1, Collective.ALL_GATHER}
    assert first_version(plan) == scattered


def test_a_plan_without_kinds_of_collectives_has_all_reduces():
    document = survives(reference.plan())
    assert document["taskgraph"]["collective"] is None
    del document["taskgraph"]["collective"]
    assert read(json.dumps(document).encode(), "old") == reference.plan()


def test_older_plans_without_schedules_can_be_read():
    plan = reference.plan()
    older = json.loads(WRITE(plan))
    assert older["strategy"].pop("schedule") is None
    assert older["taskgraph"].pop("micro_batch") is None
    assert read(json.dumps(older).encode(), "old") == plan


def older_pipeline():
    """Return a document of a pipeline as version 1 had it, and its plan."""
    plan = reference.pipelined()
    document = json.loads(WRITE(plan))
    assert document["strategy"].pop("order")["name"] == "1f1b"
    for field in ("stages", "micro_batches"):
        del document["strategy"][field]
    stages = {"kind": "1f1b", "micro_batches": 4, "stage": [0, 1, 1], "recompute": [True, False]}
    document["strategy"]["schedule"] = stages
    return document, plan


def test_older_pipelines_can_be_read():
    document, plan = older_pipeline()
    assert read(json.dumps(document).encode(), "old") == plan


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kind", "2f2b", r"\$\.strategy: schedule: kind '2f2b' is unknown \(must be gpipe, 1f1b"),
        ("micro_batches", 5, r"\$\.strategy: strategy: 5 micro-batches do not divide a batch of 64"),
        ("micro_batches", 2.0, r"schedule\.micro_batches: expected an integer, got 2\.0"),
        ("stage", [1, 0, 0], "must not fall along an edge"),
        ("stage", [0, 2, 2], r"\$\.strategy: schedule: stage 1 of 3 has no operator"),
        ("recompute", [1, 0], r"recompute\[0\]: expected true or false, got 1"),
    ],
)
def test_a_damaged_schedule_is_named(field, value, message):
    document, _ = older_pipeline()
    document["strategy"]["schedule"][field] = value
    with pytest.raises(TopoplanError, match=message):
        read(json.dumps(document).encode(), "plan.json")


def test_a_column_of_micro_batches_is_as_long_as_the_others():
    document = json.loads(WRITE(reference.pipelined()))
    document["taskgraph"]["micro_batch"].pop()
    with pytest.raises(TopoplanError, match="column micro_batch has"):
        read(json.dumps(document).encode(), "plan.json")


def test_bounds_survive_and_older_plans_without_one_of_them_can_be_read():
    plan = reference.plan()
    timeline = attrs.evolve(plan.timeline, bounds=attrs.evolve(plan.timeline.bounds, collective=0.1234567890123))
    written = Json().write(attrs.evolve(plan, timeline=timeline))
    assert read(written, "new").timeline.bounds == timeline.bounds
    older = json.loads(written)
    del older["timeline"]["bounds"]["collective"]
    assert read(json.dumps(older).encode(), "old").timeline.bounds == attrs.evolve(timeline.bounds, collective=0.0)


def test_an_empty_array_keeps_its_shape():
    only = Operator(
        name="only",
        kind="softmax",
        dims=(Dimension("n", 2, Role.SAMPLE), Dimension("m", 3)),
        outputs=(Tensor("y", (Axis(2, 0), Axis(3, -1))),),
    )
    graph = OperatorGraph(name="one", operators=(only,), edges=np.empty((0, 4)), batch_size=2)
    plan = attrs.evolve(reference.plan(), graph=graph, strategy=None)
    assert read(WRITE(plan), "x").graph.edges.shape == (0, 4)


def test_foreign_columns_keep_their_types():
    plan = reference.plan()
    foreign = {
        "ids": np.array([0, 2**64 - 1], dtype="<u8"),
        "ms": np.array([0.1, np.inf], dtype="<f4"),
        "grid": np.zeros((2, 3), dtype=np.int16),
        "names": ("a", "b"),
        "count": 3,
    }
    plan = attrs.evolve(plan, taskgraph=attrs.evolve(plan.taskgraph, foreign=foreign))
    found = read(WRITE(plan), "x").taskgraph.foreign
    assert found.keys() == foreign.keys()
    for key, value in foreign.items():
        assert np.array_equal(found[key], value), key
        assert getattr(found[key], "dtype", None) == getattr(value, "dtype", None)
    assert isinstance(found["names"], tuple)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0, 1000), min_size=8, max_size=8), st.floats(allow_nan=False))
def test_floats_survive_to_the_last_bit(latencies, seconds):
    plan = reference.plan()
    plan = attrs.evolve(
        plan,
        fabric=attrs.evolve(plan.fabric, link_latency=latencies),
        timeline=attrs.evolve(plan.timeline, makespan=seconds),
    )
    found = read(WRITE(plan), "x")
    assert found.fabric.link_latency.tobytes() == plan.fabric.link_latency.tobytes()
    assert math.copysign(1, found.timeline.makespan) == math.copysign(1, seconds)
    assert found.timeline.makespan == seconds


def test_not_a_number_is_written_as_text():
    plan = reference.plan()
    timeline = attrs.evolve(plan.timeline, makespan=math.nan, link_busy=[math.inf] * plan.fabric.n_links)
    data = WRITE(attrs.evolve(plan, timeline=timeline))
    assert b"NaN" not in data
    assert b"Infinity" not in data
    found = read(data, "x").timeline
    assert math.isnan(found.makespan)
    assert np.isposinf(found.link_busy).all()


def test_provenance_beyond_json_is_refused():
    with pytest.raises(TopoplanError, match="provenance"):
        WRITE(attrs.evolve(reference.plan(), provenance={"when": object()}))


# ── Damage ──────────────────────────────────────────────────────────────────────────────────────────────

DOCUMENT = json.loads(WRITE(reference.plan()))


def damaged(path, value):
    """The reference document with one value replaced; ``...`` removes it."""
    document = copy.deepcopy(DOCUMENT)
    *parents, last = path
    place = document
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["fabric", "link_src", 3], "a", r"p: \$\.fabric\.link_src\[3\]: expected an integer from .*, got 'a'"),
        (["fabric", "link_src", 3], 1.0, r"p: \$\.fabric\.link_src\[3\]: expected an integer"),
        (["fabric", "link_src", 3], 2**31, r"p: \$\.fabric\.link_src\[3\]: .*, got 2147483648"),
        (["fabric", "link_src", 3], True, r"p: \$\.fabric\.link_src\[3\]: .*, got True"),
        (["fabric", "link_src", 3], 99, r"p: \$\.fabric: .* does not exist"),
        (["fabric", "link_src"], {"shape": [3], "values": []}, r"p: \$\.fabric\.link_src: .*shape"),
        (["fabric", "link_src"], "01", r"p: \$\.fabric\.link_src: expected a list"),
        (["fabric", "link_bandwidth", 1], None, r"p: \$\.fabric\.link_bandwidth\[1\]: expected a number"),
        (["fabric", "link_bandwidth", 1], "NaN", r"p: \$\.fabric\.link_bandwidth\[1\]: expected a number"),
        (["fabric", "rings"], {"x": []}, r"p: \$\.fabric\.rings: expected keys that are integers, got 'x'"),
        (["fabric", "rings"], {"4": [[1], [0.5]]}, r"p: \$\.fabric\.rings\['4'\]\[1\]\[0\]: expected an integer"),
        (["fabric", "n_hosts"], ..., r"p: \$\.fabric\.n_hosts: missing"),
        (["fabric", "colour"], 1, r"p: \$\.fabric: unknown field 'colour'"),
        (["fabric"], [], r"p: \$\.fabric: expected an object, got \[\]"),
        (["fabric", "max_paths"], 0, r"p: \$\.fabric\.max_paths: 0"),
        (["fabric", "n_switches"], 2**31 - 9, r"p: \$\.fabric: .*2147483639 switches"),
        (["graph", "operators", 1, "dims", 0, "role"], "x", r"p: \$\.graph\.operators\[1\]\.dims\[0\]\.role: expected"),
        (["graph", "operators", 1, "name"], 7, r"p: \$\.graph\.operators\[1\]\.name: expected text, got 7"),
        (["graph", "operators", 1, "outputs"], [], r"p: \$\.graph"),
        (["graph", "edges"], [0, 0, 1, 0], r"p: \$\.graph\.edges: shape \(4,\) \(expected rows of 4"),
        (
            ["graph", "edges"],
            {"shape": [1, 4], "values": [0, -1, 1, 0]},
            r"p: \$\.graph: .* an edge joins output -1 of",
        ),
        (["taskgraph", "succ"], {"shape": [1, 0], "values": []}, r"p: \$\.taskgraph\.succ: shape \(1, 0\)"),
        (["graph"], None, r"p: \$\.graph: missing"),
        (["cluster", "latency"], "slow", r"p: \$\.cluster\.latency: expected a number"),
        (["cluster", "interfaces", 0], 0, r"p: \$\.cluster: cluster: interfaces\[0\] is 0"),
        (["strategy", "placements", 0, "devices"], [0], r"p: \$\.strategy\.placements\[0\]: placement: degrees"),
        (
            ["strategy", "placements", 0, "degrees", 0],
            [],
            r"p: \$\.strategy\.placements\[0\]\.degrees\[0\]: expected an i",
        ),
        (
            ["strategy", "placements", 0, "degrees", 0],
            ["a"],
            r"p: \$\..*\.degrees\[0\]: .* a list of the sizes of slices",
        ),
        (
            ["strategy", "placements", 0, "degrees", 0],
            [1, 2, 3, 4],
            r"p: \$\.strategy: .*slices of 1 \+ 2 \+ 3 \+ 4 \(",
        ),
        (["strategy", "placements", 0, "devices", 1], 99, r"p: \$\.strategy: .*'dense1' names device 99"),
        (["taskgraph", "group_ptr"], [], r"p: \$\.taskgraph\.group_ptr: empty"),
        (["taskgraph", "seconds", 0], "nan", r"p: \$\.taskgraph: task 0 .* runs nan s"),
        (["taskgraph", "n_devices"], 9, r"p: \$\.taskgraph\.n_devices: 9"),
        (["timeline", "start", 0], ..., r"p: \$\.timeline\.start: .* values \(expected"),
        (["format"], "other", r"p: \$\.format: "),
        (["version"], 3, r"p: \$\.version: 3 cannot be read \(expected 1 or 2\)"),
    ],
)
def test_the_place_is_named(path, value, message):
    with pytest.raises(TopoplanError, match=message):
        read(damaged(path, value), "p")


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[1,", b"[" * 100_000, b"NaN", b"1" * 5000, b"[]", b"null", b'{"format": "topoplan-plan"}']
)
def test_what_is_no_plan_is_refused(data):
    with pytest.raises(TopoplanError, match=r"^p: .*expected"):
        read(data, "p")


def paths(value, here=()):
    """Every place of a document."""
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*here, key))


PLACES = [list(path) for path in paths(DOCUMENT) if path]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PLACES), JSON_VALUES | st.just(...))
def test_any_damage_is_survived(path, value):
    problem = "p: "
    try:
        read(damaged(path, value), "p")
    except TopoplanError as error:
        problem = str(error)
    assert problem.startswith("p: ")
    assert "\n" not in problem
