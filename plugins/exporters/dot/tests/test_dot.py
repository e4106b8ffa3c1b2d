"""The drawing names every task and every dependency, and stays valid whatever operators are called."""

from __future__ import annotations

import re

import attrs

from topoplan import TaskKind
from topoplan.testing import reference
from topoplan_exporter_dot import Dot

WRITE = Dot().write


def test_every_task_and_every_edge():
    plan = reference.plan()
    lines = WRITE(plan).decode().splitlines()
    assert lines[0] == "digraph taskgraph {"
    assert lines[-1] == "}"
    nodes = [line for line in lines if "[label=" in line]
    assert [int(re.match(r"  t(\d+) ", line)[1]) for line in nodes] == list(range(plan.taskgraph.n_tasks))
    edges = [tuple(map(int, match)) for match in re.findall(r"^  t(\d+) -> t(\d+);$", "\n".join(lines), re.MULTILINE)]
    assert edges == reference.edges_of(plan.taskgraph)


def test_a_record_holds_name_type_start_and_end():
    plan = reference.plan()
    task = 0
    timeline = attrs.evolve(
        plan.timeline,
        start=[0.0015] * plan.taskgraph.n_tasks,
        finish=[0.25] * plan.taskgraph.n_tasks,
    )
    line = WRITE(attrs.evolve(plan, timeline=timeline)).decode().splitlines()[2 + task]
    assert plan.taskgraph.kind[task] == TaskKind.FORWARD
    assert line == r'  t0 [label="{ dense1\ (device\ 0) | FORWARD | { 1.5 | 250 } }"];'


def test_without_a_timeline_there_are_no_times():
    line = WRITE(attrs.evolve(reference.plan(), timeline=None)).decode().splitlines()[2]
    assert line == r'  t0 [label="{ dense1\ (device\ 0) | FORWARD }"];'


def test_odd_names_are_escaped():
    text = WRITE(reference.plan(names=('a|b{c}"d\\<e>\n', "größe"))).decode()
    assert 'a\\|b\\{c\\}\\"d\\\\\\<e\\>' in text
    assert "größe" in text
    quoted = re.compile(r'^  t\d+ \[label="(?:[^"\\]|\\.)*"\];$')
    assert all(quoted.match(line) for line in text.splitlines() if "label=" in line)


def test_tasks_name_their_micro_batch():
    text = WRITE(reference.pipelined()).decode()
    assert r"dense1\ #3\ (device\ 0) | FORWARD" in text
    assert text.count("[label=") == reference.pipelined().taskgraph.n_tasks


def test_tasks_that_the_simulator_inserts_are_drawn():
    plan = reference.plan()
    options = {"gradient_sync": "barrier", "collective": "parameter-server"}
    simulated = attrs.evolve(plan, provenance={"components": [{"kind": "simulator", "options": options}]})
    plain, drawn = WRITE(plan).decode(), WRITE(simulated).decode()
    assert " | BARRIER" not in plain
    assert " | UPDATE" not in plain
    assert drawn.count(" | BARRIER") == 4
    assert drawn.count(" | UPDATE") == 2
    assert drawn.count(" | TRANSFER") == plain.count(" | TRANSFER") + 2 * 2 * 3
