"""Task graphs: kinds of collectives, edges, and what is out of range."""

import attrs
import numpy as np
import pytest

from topoplan import Collective, TaskGraph, TaskKind, TopoplanError
from topoplan.testing import reference


def joined(**columns):
    """Two devices that compute, and a collective that waits for both."""
    given = {
        "kind": [TaskKind.FORWARD, TaskKind.FORWARD, TaskKind.COLLECTIVE],
        "size": [0, 0, 8],
        "group_ptr": [0, 2],
        "group_members": [0, 1],
        **columns,
    }
    none = [-1, -1, -1]
    return TaskGraph(
        device=[0, 1, -1],
        seconds=[1.0, 1.0, 0.0],
        src=none,
        dst=none,
        group=[-1, -1, 0],
        succ_ptr=[0, 1, 2, 2],
        succ=[2, 2],
        op=none,
        n_devices=2,
        **given,
    )


def test_collectives_are_all_reduces_unless_said_otherwise():
    assert joined().collective.tolist() == [-1, -1, Collective.ALL_REDUCE]
    joined().check()


def test_messages_name_the_collective():
    gathered = joined(collective=[-1, -1, Collective.ALL_GATHER])
    gathered.check()
    assert gathered.label(2) == "task 2 (all-gather, 2 members)"


@pytest.mark.parametrize("kind", [Collective.ALL_TO_ALL, Collective.BROADCAST])
def test_all_to_alls_and_broadcasts_may_be_one_task(kind):
    joined(collective=[-1, -1, kind]).check()


@pytest.mark.parametrize(
    "columns", [{}, {"size": [0, 0, 0]}, {"group_ptr": [0, 1], "group_members": [0]}], ids=["both", "members", "bytes"]
)
def test_a_join_has_one_member_and_no_bytes(columns):
    kinds = [-1, -1, Collective.JOIN]
    with pytest.raises(TopoplanError, match="join"):
        joined(collective=kinds, **columns).check()
    joined(collective=kinds, size=[0, 0, 0], group_ptr=[0, 1], group_members=[0]).check()


@pytest.mark.parametrize(
    ("collective", "message"),
    [
        ([-1, -1, -1], r"collective has -1 \(must be 0 to 5\)"),
        ([-1, -1, 6], r"collective has 6 \(must be 0 to 5\)"),
        ([0, -1, 0], r"collective of other tasks has 0 \(must be -1 to -1\)"),
        ([-1, 0], "column collective has 2 rows, not 3"),
    ],
)
def test_kinds_out_of_range_are_named(collective, message):
    with pytest.raises(TopoplanError, match=message):
        joined(collective=collective).check()


@pytest.mark.parametrize("ops", [[0, 64, -1], [0, 2, 1], [-2, 0, 0]])
def test_tasks_belong_to_operators_that_have_names(ops):
    named = attrs.evolve(joined(), op=ops, op_names=("one", "two"))
    with pytest.raises(TopoplanError, match=rf"op has {min(ops) if min(ops) < -1 else max(ops)} \(must be -1 to 1\)"):
        named.check()
    attrs.evolve(named, op=[0, 1, -1]).check()
    attrs.evolve(joined(), op=[0, 64, -1]).check()  # of another program, which says no names


def test_edges_are_those_of_the_successors():
    graph = reference.plan().taskgraph
    tails, heads = graph.edges()
    assert [heads[tails == task].tolist() for task in range(graph.n_tasks)] == [
        graph.successors(task).tolist() for task in range(graph.n_tasks)
    ]
    assert np.array_equal(np.bincount(heads, minlength=graph.n_tasks), graph.predecessor_counts())


def test_a_changed_kind_needs_a_changed_collective():
    with pytest.raises(TopoplanError, match="collective of other tasks"):
        attrs.evolve(joined(), kind=[TaskKind.FORWARD, TaskKind.FORWARD, TaskKind.BARRIER], device=[0, 1, 0]).check()
