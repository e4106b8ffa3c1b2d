"""All-to-alls that are one task take what their transfers take one by one, where no algorithm is chosen."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from topoplan import Collective, TaskKind, TopoplanError
from topoplan_engine.lowering.folding.pair_messages import pair_messages
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.network.demand import taskgraph_demand
from topoplan_engine.network.exchanged import is_unequal
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.written_out import written_out
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.plans_drawn import EXPERTS, LAYOUTS, ONE_PATH, cluster_of, fabric_of, write
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings
from topoplan_simulator_fluid import Fluid
from topoplan_simulator_fluid.folded import message_loads
from topoplan_simulator_fluid.max_min import ALWAYS
from topoplan_simulator_fluid.model import Model

SIZE = 1 << 24
#: Networks on which some messages draw one of several paths.
SEVERAL_PATHS = {"fattree": {}, "torus": {}, "jellyfish": {}}


def drawn_experts(seed, folder, hosts=(2, 4, 8), devices=(1, 2, 4), experts=8, batch=32):
    """A plan with experts on several devices, or Ulysses's attention, and a network; None for what does not fit."""
    draw = random.Random(seed)
    config = write(folder, num_hidden_layers=2, **{**EXPERTS, "num_local_experts": experts})
    model = HuggingFace(config=config, sequence_length=32).build(batch)
    cluster = cluster_of(draw.choice(hosts), draw.choice(devices), draw.choice([1, 2]))
    settings = Settings(
        tp=draw.choice([1, 2]),
        pp=draw.choice([1, 1, 2]),
        cp=draw.choice([1, 2]),
        ep=draw.choice([2, 4, experts]),
        zero=draw.choice([0, 1]),
        micro_batch=draw.choice([1, 2]),
        cp_comm=draw.choice(["ulysses", "gather"]),
        layout=draw.choice(LAYOUTS),
        schedule=draw.choice(["1f1b", "zb-h1"]),
    )
    networks = draw.choice([ONE_PATH, SEVERAL_PATHS])
    topology = draw.choice(sorted(networks))
    try:
        strategy, _ = strategy_of(settings, model, cluster.n_devices)
        return model, cluster, fabric_of(topology, cluster, networks[topology]), strategy
    except TopoplanError:
        return None


def runs(model, cluster, fabric, strategy):
    """Return task graphs and outcomes with transfers and with single tasks; None without an all-to-all."""
    both, network, fluid = [], Network(fabric, cluster), Model(seed=3)
    for one_task in (False, True):
        lowering = StagedLowering(model, cluster, Roofline().build(model, cluster), one_task=one_task)
        tasks = lowering.lower(strategy)
        prepared = fluid.prepare(tasks, network)._replace(late_ends=ALWAYS)
        both.append((tasks, prepared, fluid.simulate(prepared)))
        if one_task and not fluid.draws(prepared):
            folded = lowering.fold(strategy, lambda messages: message_loads(messages, network))
            assert folded.n_tasks == tasks.n_tasks
            outcome = fluid.simulate_folded(folded, network)[0]
            assert outcome.makespan == pytest.approx(both[-1][2].makespan, rel=1e-9)
    return both if (both[1][0].collective == Collective.ALL_TO_ALL).any() else None


def assert_equal(pair):
    (tasks, prepared, outcome), (single, fewer, again) = pair
    assert single.n_tasks < tasks.n_tasks
    assert len(fewer.entities.task) <= len(prepared.entities.task)
    assert again.makespan == pytest.approx(outcome.makespan, rel=1e-9)
    np.testing.assert_allclose(again.link_bytes, outcome.link_bytes, rtol=1e-9, atol=1.0)


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 24), marks=pytest.mark.slow)], ids=str)
def test_iterations_with_experts_take_what_their_transfers_take(seeds, tmp_path):
    plans = filter(None, (drawn_experts(seed, tmp_path) for seed in seeds))
    compared = [pair for pair in (runs(*plan) for plan in plans) if pair is not None]
    assert len(compared) >= len(seeds) // 3
    for pair in compared:
        assert_equal(pair)


@pytest.mark.slow
def test_experts_on_64_devices_take_what_their_transfers_take(tmp_path):
    wide = ((8, 16), (4, 8), 64, 256)
    plans = filter(None, (drawn_experts(seed, tmp_path, *wide) for seed in range(8)))
    compared = [pair for pair in (runs(*plan) for plan in plans) if pair is not None]
    assert len(compared) >= 3
    for pair in compared:
        assert_equal(pair)


@pytest.mark.parametrize("topology", ["bigswitch", "fattree", "torus", "dragonfly"])
@pytest.mark.parametrize("stepped", [False, True])
def test_all_to_alls_share_links_as_transfers_do(topology, stepped):
    """Two all-to-alls, one across the other, beside a transfer and an all-reduce that hold up some messages."""
    cluster = cluster_of(8, 2, 2)
    network = Network(fabric_of(topology, cluster, ONE_PATH[topology]), cluster)
    rows = [
        compute(0, 1e-3),
        collective(range(16), SIZE, kind=Collective.ALL_TO_ALL),
        collective(range(0, 16, 2), SIZE, kind=Collective.ALL_TO_ALL),
        transfer(0, 9, SIZE),
        collective([3, 8, 13], SIZE),
        compute(5, 1e-4),
    ]
    tasks, model = task_graph(rows, [(0, 1), (1, 5)], 16), Model(stepped=stepped)
    # With many flows on other networks than a switch, rates are renewed a little late: by how many flows there are.
    whole, single = (
        model.simulate(model.prepare(each, network)._replace(late_ends=ALWAYS))
        for each in (written_out(tasks).taskgraph, tasks)
    )
    assert single.finish.tolist() == pytest.approx(whole.finish[: tasks.n_tasks].tolist(), rel=1e-9)
    np.testing.assert_allclose(single.link_bytes, whole.link_bytes, rtol=1e-9)


def test_all_to_alls_ask_of_the_network_what_their_transfers_ask():
    """Topologies that follow the demand would else build rings for them, and bounds and tax count all-reduces."""
    cluster = cluster_of(8, 2, 2)
    rows = [
        collective(range(16), SIZE, kind=Collective.ALL_TO_ALL),
        collective(range(0, 16, 2), SIZE, kind=Collective.ALL_TO_ALL),
        collective([0, 1], SIZE, kind=Collective.ALL_TO_ALL),
        transfer(0, 9, SIZE),
        collective([3, 8, 13], SIZE),
    ]
    tasks = task_graph(rows, [], 16)
    forward = np.array([True, False, True, False, False])
    single, whole = taskgraph_demand(tasks, cluster, forward), taskgraph_demand(written_out(tasks).taskgraph, cluster)
    np.testing.assert_allclose(single.matrix, whole.matrix)
    assert single.group_bytes.tolist() == whole.group_bytes.tolist() == [SIZE]
    assert single.forward is not None
    assert single.forward[0, 1] == pytest.approx(4 * SIZE / 16)  # two devices of a host to two of the other


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_all_to_alls_are_recorded_and_bounded(level):
    cluster = cluster_of(4, 2)
    fabric, run = fabric_of("fattree", cluster, {}), Fluid(level=level).build()
    tasks = task_graph([collective(range(8), SIZE, kind=Collective.ALL_TO_ALL)], n_devices=8)
    timeline, recording = run.record(tasks, fabric, cluster)
    assert timeline.makespan == run(tasks, fabric, cluster).makespan
    assert timeline.bounds.best <= timeline.makespan * (1 + 1e-9)
    carried = np.bincount(recording.links.link, recording.links.nbytes, fabric.n_links)
    np.testing.assert_allclose(carried, timeline.link_bytes, rtol=1e-9)


def test_512_members_on_64_hosts_by_hand():
    """Each interface carries what its 8 devices send to 504 others; inside a host there is more bandwidth."""
    cluster = cluster_of(64, 8)
    fabric = fabric_of("bigswitch", cluster, {})
    tasks = task_graph([collective(range(512), 512 * 1000, kind=Collective.ALL_TO_ALL)], n_devices=512)
    prepared = Model().prepare(tasks, Network(fabric, cluster))
    assert len(prepared.entities.task) == 64 * 63 + 64 * 8 * 7  # of 261,632 messages
    assert (tasks.kind == TaskKind.COLLECTIVE).all()
    seconds = Fluid().build().makespan(tasks, fabric, cluster)
    latencies = fabric.link_latency[0] + fabric.link_latency[-1]
    assert seconds == pytest.approx(latencies + 8 * 504 * 1000 / fabric.link_bandwidth[0], rel=1e-9)


def test_listed_messages_are_all_messages():
    """Every pair of members is in one message: of their hosts, or of its own inside a host."""
    draw = np.random.default_rng(2)
    for _ in range(20):
        groups, size = draw.integers(1, 5), draw.integers(1, 9)
        endpoint = draw.integers(0, 4, (groups, size))
        messages = pair_messages(endpoint)
        ends = [[[] for _ in messages.n_messages] for _ in range(2)]
        for members, (of_message, member) in zip(ends, (messages.senders, messages.receivers), strict=True):
            for message, each in zip(of_message.tolist(), member.tolist(), strict=True):
                members[message].append(each)
        found = [(a, b) for sends, receives in zip(*ends, strict=True) for a, b in itertools.product(sends, receives)]
        expected = [(a, b) for a in range(groups * size) for b in range(groups * size) if a // size == b // size]
        assert sorted(found) == [(a, b) for a, b in expected if a != b]
        assert messages.n_messages.tolist() == [len(a) * len(b) for a, b in zip(*ends, strict=True)]
        hosts = endpoint.ravel()
        assert all(len(set(hosts[each].tolist())) == 1 for members in ends for each in members)


def drawn_unequal(seed, folder):
    """Whole iterations of a plan whose members send different numbers of bytes, and its folding; None for no plan.

    The first one has a task for each all-to-all, the second one transfers.
    """
    draw = random.Random(seed)
    config = write(folder, num_hidden_layers=2, **{**EXPERTS, "num_local_experts": 16})
    model = HuggingFace(config=config, sequence_length=32).build(64)
    cluster = cluster_of(draw.choice([2, 4, 8, 16]), draw.choice([2, 4, 8]), draw.choice([1, 2]))
    settings = Settings(
        tp=draw.choice([1, 2]),
        pp=draw.choice([1, 1, 2]),
        ep=draw.choice([2, 4, 8, 16]),
        zero=draw.choice([0, 1]),
        skew=draw.choice([None, 1.3, 2.0]),
        dispatch=draw.choice([0, 1, 2, 4]),
        layout=draw.choice(LAYOUTS),
        overlap=draw.choice(["all", "experts"]),
    )
    topology = draw.choice(sorted(ONE_PATH))
    try:
        strategy, _ = strategy_of(settings, model, cluster.n_devices)
        network = Network(fabric_of(topology, cluster, ONE_PATH[topology]), cluster)
    except TopoplanError:
        return None
    costs = Roofline().build(model, cluster)
    lowering = StagedLowering(model, cluster, costs, one_task=True)
    tasks, transfers = lowering.lower(strategy), StagedLowering(model, cluster, costs).lower(strategy)
    folded = lowering.fold(strategy, lambda messages: message_loads(messages, network))
    return (tasks, transfers, folded, network) if is_unequal(tasks).any() else None


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_unequal_all_to_alls_of_folds_take_what_their_transfers_take(part, tmp_path):
    """Messages of equal size between the same two hosts are one: there are no more of them than with equal members."""
    plans = [plan for seed in range(16 * part, 16 * part + 16) if (plan := drawn_unequal(seed, tmp_path))]
    assert len(plans) >= 4
    model, fewer = Model(), 0
    for tasks, transfers, folded, network in plans:
        one, whole = (
            model.simulate(model.prepare(each, network)._replace(late_ends=ALWAYS)) for each in (tasks, transfers)
        )
        outcome = model.simulate_folded(folded, network)[0]
        assert tasks.n_tasks == folded.n_tasks < transfers.n_tasks
        for again in (one, outcome):
            assert again.makespan == pytest.approx(whole.makespan, rel=1e-9)
            np.testing.assert_allclose(again.link_bytes, whole.link_bytes, rtol=1e-9, atol=1.0)
        fewer += folded.taskgraph.n_tasks < transfers.n_tasks
    assert fewer >= len(plans) // 2


@pytest.mark.parametrize(("kind", "messages"), [([1, 0, 0, 0, 0, 0], 4), ([1, 0, 0, 1, 0, 0], 8), ([0] * 6, 2)])
def test_messages_of_equal_members_are_listed_together(kind, messages):
    """Two hosts of three devices: one for each pair of kinds on different hosts, both ways, and all pairs inside."""
    listed = pair_messages(np.array([[0, 0, 0, 1, 1, 1]]), np.array([kind]))
    between = listed.sender // 3 != listed.receiver // 3
    assert between.sum() == messages
    assert listed.n_messages[between].sum() == 18
    assert (~between).sum() == 12
