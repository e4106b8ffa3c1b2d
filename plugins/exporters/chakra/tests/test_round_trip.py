"""What is written is read as it was: every column, the network, and the simulated time."""

from __future__ import annotations

import json
import warnings

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import (
    Cluster,
    Collective,
    Device,
    Fabric,
    Host,
    HostLink,
    HostModel,
    HostNode,
    Plan,
    Timeline,
    TopoplanError,
)
from topoplan.testing import reference
from topoplan_engine.experiment import Choice
from topoplan_engine.exporting import read_plan, write_outputs
from topoplan_engine.folders import files_of
from topoplan_engine.replay import simulate_file
from topoplan_exporter_chakra import AstraSim, Chakra
from topoplan_exporter_chakra.extras import around, metadata
from topoplan_exporter_chakra.schema import NodeType, decode
from topoplan_samples.random_graphs import networks, taskgraphs
from topoplan_samples.tasks import collective, compute, task_graph, transfer

HOST = Host.discover()


def traces(data):
    files = files_of(data, "x")
    return [decode(files[f"rank.{rank}.et"], "x") for rank in range(len(files) - 1)]


def reads_as_written(plan):
    data = Chakra().write(plan)
    read = Chakra().read(data, "x")
    assert read.taskgraph == plan.taskgraph
    assert read.cluster == plan.cluster
    assert read.fabric == plan.fabric
    assert Chakra().write(read) == data


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_task_graph(data):
    network = data.draw(networks())
    graph = data.draw(taskgraphs(network.cluster.n_devices))
    reads_as_written(Plan(cluster=network.cluster, fabric=network.fabric, taskgraph=graph))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_communication_of_ranks_is_in_one_order(data):
    """The first node in the order of all ranks that has not run can run, whatever ranks do at a time."""
    network = data.draw(networks())
    graph = data.draw(taskgraphs(network.cluster.n_devices))
    plan = Plan(cluster=network.cluster, fabric=network.fabric, taskgraph=graph)
    assert unreleased(traces(Chakra().write(plan))) == 0


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_astra_sim_gets_has_no_operators_of_a_cpu_and_is_read_as_written(data):
    """ASTRA-sim ends where its statistics meet one; joins are in the metadata, and hold back what they held back."""
    network = data.draw(networks())
    graph = data.draw(taskgraphs(network.cluster.n_devices))
    plan = Plan(cluster=network.cluster, fabric=network.fabric, taskgraph=graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = AstraSim().write(plan)
    files = files_of(written, "x")
    ranks = [decode(files[f"rank.{rank}.et"], "x") for rank in range(network.cluster.n_devices)]
    assert not any(node.attributes.get("is_cpu_op") for trace in ranks for node in trace.nodes)
    assert unreleased(ranks) == 0
    assert Chakra().read(written, "x").taskgraph == plan.taskgraph


def unreleased(ranks):
    """Run traces as ASTRA-sim does, one SEND or COLL of a rank at a time, and count what never runs."""
    waits = [{node.id: {*node.ctrl_deps, *node.data_deps} for node in trace.nodes} for trace in ranks]
    at = [{node.id: node for node in trace.nodes} for trace in ranks]
    calls, sent, entered, in_call = {}, set(), {}, [False] * len(ranks)
    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(waits):
            for number in sorted(number for number, needed in mine.items() if not needed):
                node, ended = at[rank][number], [(rank, number)]
                message = tuple(node.attributes.get(f"comm_{end}") for end in ("src", "dst", "tag"))
                if node.type is NodeType.SEND:
                    if in_call[rank]:
                        continue
                    sent.add(message)
                elif node.type is NodeType.RECV and message not in sent:
                    continue
                elif node.type is NodeType.COLL:
                    if (rank, number) in entered or in_call[rank]:
                        continue
                    group = node.attributes["pg_name"]
                    calls[rank, group] = calls.get((rank, group), 0) + 1
                    key = group, calls[rank, group]
                    entered[rank, number] = key
                    in_call[rank] = True
                    members = [place for place, other in entered.items() if other == key]
                    if len(members) < group_size(ranks, group):
                        continue
                    ended = members
                    for other, _ in members:
                        in_call[other] = False
                for other, done in ended:
                    del waits[other][done]
                    for needed in waits[other].values():
                        needed.discard(done)
                moved = True
    return sum(map(len, waits))


def group_size(ranks, group):
    return sum(any(node.attributes.get("pg_name") == group for node in trace.nodes) for trace in ranks)


def test_orders_that_differ_would_never_end():
    """The run above does find that two collectives in two orders block each other."""
    plan = plan_of([collective([0, 1], 8), collective([0, 1, 2], 8)], [], 3)
    right = traces(Chakra().write(plan))
    assert unreleased(right) == 0
    first, second = right[0].nodes
    swapped = (attrs.evolve(second, ctrl_deps=()), attrs.evolve(first, ctrl_deps=(second.id,)))
    assert unreleased([attrs.evolve(right[0], nodes=swapped), *right[1:]]) > 0


def plan_of(tasks, edges, n_devices, **columns):
    graph = attrs.evolve(task_graph(tasks, edges=edges, n_devices=n_devices), **columns)
    return Plan(cluster=reference.cluster(n_devices), fabric=reference.ring(n_devices), taskgraph=graph)


def test_plans_with_micro_batches_and_names():
    reads_as_written(attrs.evolve(reference.pipelined(), timeline=None, graph=None, strategy=None, memory=None))
    read = Chakra().read(Chakra().write(reference.pipelined()), "x")
    assert read.taskgraph == reference.pipelined().taskgraph
    reads_as_written(attrs.evolve(reference.plan(names=("größe", 'a "b"')), timeline=None))


def test_a_dependency_between_ranks_without_a_transfer_is_a_message_of_one_byte():
    plan = plan_of([compute(0), compute(1)], [(0, 1)], 2)
    first, second = traces(Chakra().write(plan))
    assert [node.type for node in first.nodes] == [NodeType.COMP, NodeType.SEND]
    assert first.nodes[1].data_deps == (0,)
    assert first.nodes[1].attributes["comm_size"] == 1
    assert [node.type for node in second.nodes] == [NodeType.RECV, NodeType.COMP]
    assert second.nodes[1].data_deps == (0,)
    reads_as_written(plan)


def test_sizes_of_collectives_are_those_of_the_schema():
    """An all-gather is counted by what a rank has, a reduce-scatter by the tensor; columns hold half of the tensor."""
    kinds = [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
    tasks = [collective([0, 1, 2, 3], 4096) for _ in kinds]
    plan = plan_of(tasks, [], 4, collective=[int(kind) for kind in kinds])
    for trace in traces(Chakra().write(plan)):
        assert [node.attributes["comm_type"] for node in trace.nodes] == [0, 2, 7]
        assert [node.attributes["comm_size"] for node in trace.nodes] == [4096, 2048, 8192]
        assert {node.attributes["pg_name"] for node in trace.nodes} <= {"1", "2", "3"}
    reads_as_written(plan)


def test_durations():
    plan = plan_of([compute(0, seconds=1.2345e-3), compute(1, seconds=2e-10)], [], 2)
    first, second = traces(Chakra().write(plan))
    assert [first.nodes[0].duration, second.nodes[0].duration] == [1234, 0]
    files = files_of(AstraSim().write(plan), "x")
    assert decode(files["rank.0.et"], "x").nodes[0].duration == 1_234_500
    reads_as_written(plan)


def test_a_folder_is_replayed_as_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = reference.plan()
    written = write_outputs(HOST, plan, ((Choice("chakra"), "traces"), (Choice("chakra"), "traces.et.tar")))
    assert not written.refused
    assert sorted(path.name for path in tmp_path.joinpath("traces").iterdir())[:2] == ["comm_groups.json", "rank.0.et"]
    for path in ("traces", "traces.et.tar"):
        assert read_plan(HOST, tmp_path / path).taskgraph == plan.taskgraph
    expected = HOST.make("simulator", "fluid").build()(plan.taskgraph, plan.fabric, plan.cluster)
    replayed = simulate_file(tmp_path / "traces", simulator="fluid", host=HOST)
    assert isinstance(replayed.timeline, Timeline)
    assert np.array_equal(replayed.timeline.finish, expected.finish)
    other = simulate_file(tmp_path / "traces", topology="bigswitch", host=HOST)
    assert other.fabric.name == "bigswitch"


def test_what_was_changed_is_refused():
    plan = plan_of([compute(0), transfer(0, 1, 100), compute(1)], [(0, 1), (1, 2)], 2)
    data = Chakra().write(plan)
    for end in range(0, len(data.rstrip(b"\0")), 256):
        with pytest.raises(TopoplanError, match=r"^x"):
            Chakra().read(data[:end], "x")


def test_a_task_graph_with_a_circle_is_refused():
    plan = plan_of([compute(0), compute(1)], [(0, 1), (1, 0)], 2)
    with pytest.raises(TopoplanError, match=r"chakra: task 0 \(forward on device 0\) waits for itself"):
        Chakra().write(plan)


def test_self_transfers_and_single_members():
    tasks = [compute(0), transfer(0, 0, 64), collective([0], 0), transfer(0, 1, 0), collective([1], 5)]
    reads_as_written(plan_of(tasks, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (0, 4)], 3))


@pytest.mark.parametrize(
    "device",
    [
        None,
        Device(
            name="X", peak_flops={"bf16": 1e15}, memory_bandwidth=1e12, memory=8e10, kernel_overhead=0, sources=("a",)
        ),
    ],
)
def test_what_is_inside_a_host_is_read_as_written(device):
    """Nodes, links and owners of NICs are those that the replay of a trace sends over."""
    nodes = HostNode.DEVICE, HostNode.DEVICE, HostNode.SWITCH, HostNode.NIC, HostNode.NIC
    links = HostLink(0, 2, 4e9), HostLink(1, 2, 4e9), HostLink(0, 3, 1e9), HostLink(1, 4, 1e9, 1e-6)
    inside = HostModel(device=device, nodes=nodes, links=links, nic_bandwidth=1e9, nic_owners=((0,), (1,)))
    uniform = Cluster.uniform(
        n_hosts=2, devices_per_host=2, inside_bandwidth=4e9, interfaces=2, interface_bandwidth=1e9
    )
    cluster = attrs.evolve(uniform, host=inside)
    pairs = [(host, 2) for host in (0, 0, 1, 1)]
    joined = [*pairs, *((last, first) for first, last in pairs)]
    fabric = Fabric.from_links(name="one", n_hosts=2, n_switches=1, links=joined, bandwidth=1e9, latency=0.0)
    graph = task_graph([compute(0), transfer(0, 3, 1e6)], [(0, 1)])
    plan = Plan(cluster=cluster, fabric=fabric, taskgraph=graph)
    reads_as_written(plan)
    text = json.loads(metadata(graph, cluster, fabric))
    text["cluster"]["host"]["links"] = 3
    with pytest.raises(TopoplanError, match="damaged"):
        around(json.dumps(text), "x")
