"""All-to-alls whose messages are not equal, as one task each: what they send and take, by hand, and files."""

from __future__ import annotations

import re

import attrs
import numpy as np
import pytest

from topoplan import Collective, TaskKind, TopoplanError
from topoplan.testing import reference
from topoplan_command_share.union import union
from topoplan_engine.lowering.task_columns import TaskColumns, Weights
from topoplan_engine.network.demand import taskgraph_demand
from topoplan_engine.network.exchanged import is_unequal, messages_of, scales_of
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.phases import excerpt
from topoplan_engine.simulation.written_out import written_out
from topoplan_exporter_json.document import read, write
from topoplan_samples.plans_drawn import cluster_of, fabric_of
from topoplan_samples.tasks import collective, compute, task_graph
from topoplan_simulator_fluid import Fluid, model
from topoplan_simulator_fluid.max_min import ALWAYS
from topoplan_simulator_fluid.model import Model

SIZE = 1 << 20
#: The first of four members gets twice as much as the mean, and of two halves each sends the other one half of that.
FACTORS = (((2.0, 0.5, 0.75, 0.75),), ((1.0, 0.5), (0.5, 1.0)))


def tasks_of(members=(range(8), [1, 3, 5, 7]), factors=((), FACTORS), size=SIZE):
    rows = [compute(0, 1e-4), *(collective(each, size, kind=Collective.ALL_TO_ALL) for each in members)]
    edges = [(0, number + 1) for number in range(len(members))]
    return attrs.evolve(task_graph(rows, edges, 8), shares=factors)


def test_factors_hold_for_equal_runs_of_members():
    tasks = tasks_of()
    assert is_unequal(tasks).tolist() == [False, False, True]
    sent = np.zeros((4, 4))
    messages = messages_of(tasks, 2)
    sent[messages.sender, messages.receiver] = messages.nbytes / (SIZE / 4)
    assert sent.tolist() == [[0, 0.5, 0.375, 0.375], [2, 0, 0.375, 0.375], [1, 0.25, 0, 0.75], [1, 0.25, 0.75, 0]]
    assert len(messages_of(tasks, 1).sender) == 56


def test_a_demand_has_the_bytes_of_the_transfers():
    tasks, cluster = tasks_of(), cluster_of(4, 2)
    whole = written_out(tasks).taskgraph
    assert (whole.kind == TaskKind.TRANSFER).sum() == 56 + 12
    asked, again = (taskgraph_demand(each, cluster) for each in (tasks, whole))
    np.testing.assert_allclose(asked.matrix, again.matrix, rtol=1e-6)


@pytest.mark.parametrize("topology", ["bigswitch", "torus", "fattree", "dragonfly"])
@pytest.mark.parametrize("stepped", [False, True])
def test_unequal_messages_share_links_as_transfers_do(topology, stepped):
    cluster = cluster_of(4, 2)
    network, tasks = Network(fabric_of(topology, cluster, {}), cluster), tasks_of()
    fluid = Model(stepped=stepped)
    prepared = [
        fluid.prepare(each, network)._replace(late_ends=ALWAYS) for each in (tasks, written_out(tasks).taskgraph)
    ]
    if fluid.draws(prepared[1]):  # each message draws its path when it starts, in the order of the messages
        assert len(prepared[0].entities.task) <= len(prepared[1].entities.task)
        return
    single, whole = map(fluid.simulate, prepared)
    assert single.finish[:3].tolist() == pytest.approx(whole.finish[:3].tolist(), rel=1e-9)
    np.testing.assert_allclose(single.link_bytes, whole.link_bytes, rtol=1e-9)


def test_coupled_ones_take_the_fullest_interface_by_hand(monkeypatch):
    """Eight hosts on a switch; the last one gets three times the mean, 7 x 3 of what others send it."""
    monkeypatch.setattr(model, "MOST_FLOWS", 0)
    cluster = cluster_of(8, 1)
    fabric = fabric_of("bigswitch", cluster, {})
    tasks = tasks_of([range(8)], ((((0.5,) * 7 + (3.0,),),),))
    latency, bandwidth = fabric.link_latency[0] + fabric.link_latency[-1], fabric.link_bandwidth[0]
    seconds = 1e-4 + latency + 21 * (SIZE / 8) / bandwidth
    assert len(Model().prepare(tasks, Network(fabric, cluster)).entities.task) == 1
    timeline = Fluid().build()(tasks, fabric, cluster)
    assert timeline.makespan == pytest.approx(seconds, rel=1e-6)
    assert timeline.link_bytes.sum() == pytest.approx(2 * 8 * 7 / 8 * (0.5 * 7 + 3.0) * SIZE / 8, rel=1e-5)


def test_members_that_send_nothing_take_no_time_of_links():
    cluster = cluster_of(8, 1)
    fabric = fabric_of("bigswitch", cluster, {})
    tasks = tasks_of([range(4)], ((((4.0,), (0.0,), (0.0,), (0.0,)),),))
    timeline = Fluid().build()(tasks, fabric, cluster)
    assert timeline.link_bytes.sum() == pytest.approx(2 * 3 * SIZE)
    latency = fabric.link_latency[0] + fabric.link_latency[-1]
    assert timeline.makespan == pytest.approx(1e-4 + latency + 3 * SIZE / fabric.link_bandwidth[0], rel=1e-9)


def test_algorithms_run_equal_all_to_alls_alone():
    cluster = cluster_of(8, 1)
    fabric, tasks = fabric_of("bigswitch", cluster, {}), tasks_of()
    fluid = Fluid().build().with_algorithms("all-to-all=staggered")
    assert [task for task, _ in fluid.selections(tasks, fabric, cluster)] == [1]
    alone = tasks_of([[1, 3, 5, 7]], (FACTORS,))
    assert fluid(alone, fabric, cluster).makespan == Fluid().build()(alone, fabric, cluster).makespan


def test_rows_of_groups_keep_their_factors():
    tasks = tasks_of()
    assert excerpt(tasks, np.array([0, 2])).shares == (FACTORS,)
    assert union([tasks, tasks], [range(8), range(8, 16)], 16).shares == ((), FACTORS) * 2
    assert written_out(tasks, [Collective.ALL_TO_ALL]).taskgraph is tasks


def test_files_keep_factors():
    plan, tasks = reference.plan(), attrs.evolve(tasks_of([range(4)], (FACTORS,)), n_devices=4)
    plan = attrs.evolve(plan, taskgraph=tasks, timeline=None, strategy=None, graph=None)
    document = write(plan)
    assert read(document, "plan.json").taskgraph == tasks
    assert b"shares" not in write(attrs.evolve(plan, taskgraph=attrs.evolve(tasks, shares=())))
    wrong = document.replace(b"0.75", b"5.75")
    with pytest.raises(TopoplanError, match="shares of group 0"):
        read(wrong, "plan.json")


def test_lowering_writes_few_numbers():
    """A token goes once to each pair of neighbours: blocks of two; the busiest member sends more: a column."""
    copies = np.where(np.arange(8)[:, None] // 2 == np.arange(8) // 2, 1.5, 0.5)
    weights = [Weights(np.array([2.0, *[6 / 7] * 7]), 0), Weights(copies, 2)]
    columns = TaskColumns(one_task=True)
    members, device_of_place = np.arange(8).reshape(1, 8), np.arange(8)
    for each in (weights, weights, ()):
        columns.collective(Collective.ALL_TO_ALL, members, device_of_place, each, size=SIZE, divisor=64, op=0)
    assert columns.n_tasks == 3
    shares = columns.group_columns()["shares"]
    assert len(columns.group_columns()["group_ptr"]) == 3
    assert [(len(each), len(each[0])) for each in shares[0]] == [(8, 1), (4, 4)]
    scales = scales_of(shares[0], 8)
    np.testing.assert_allclose(scales, copies * np.array([[2.0], *[[6 / 7]] * 7]))


@pytest.mark.parametrize(
    "factor", [((1.0, 1.0), (1.0,)), (), ((),), ((1.0,) * 3,), ((float("nan"),),), ((9.0,),), ((-1.0,),)], ids=str
)
def test_wrong_factors_are_refused(factor):
    with pytest.raises(TopoplanError, match=re.escape("shares of group 1 must divide 4 members, and be 0 to 4")):
        tasks_of(factors=((), (factor,))).check()


def test_factors_of_no_group_are_refused():
    with pytest.raises(TopoplanError, match=r"number of shares has 3 \(must be 0 to 2\)"):
        tasks_of(factors=((), (), FACTORS)).check()
