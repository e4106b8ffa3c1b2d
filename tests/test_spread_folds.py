"""Folded iterations on networks with many equal paths, none of which is written out."""

from __future__ import annotations

import itertools

import attrs
import networkx as nx
import numpy as np
import pytest

from topoplan import Cluster, Host, TopoplanError, stated_plan
from topoplan.model.taskgraph import TaskKind
from topoplan_engine import ClusterOptions, available
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering.folding import layout
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.network.kept import NetworkCache
from topoplan_engine.network.machine import network_of, spreading_network
from topoplan_engine.network.spreading import Routes, Spreading
from topoplan_engine.network.tables import Network
from topoplan_estimator_roofline import Roofline
from topoplan_samples.fabrics import star
from topoplan_samples.plans_drawn import cluster_of, fabric_of, models_in, some_plans
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings
from topoplan_simulator_fluid import Fluid
from topoplan_simulator_fluid.drawn_rings import seconds_of_draws
from topoplan_simulator_fluid.folded import message_loads
from topoplan_simulator_fluid.max_min import ALWAYS
from topoplan_simulator_fluid.model import Model

#: Trees whose paths are all kept, and divide messages into whole units of load: halves, quarters, eighths, sixteenths.
TREES = [
    {"paths": 400},
    {"paths": 400, "oversubscription": 2},
    {"paths": 400, "k": 8},
    {"paths": 400, "k": 8, "oversubscription": 4},
    {"levels": 2, "radix": 16},
    {"levels": 2, "radix": 16, "oversubscription": 3},
]
SIZES = [3, 6, 8, 13], [1, 2, 4]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    return models_in(tmp_path_factory.mktemp("models"))


def folded_on(network, graph, cluster, strategy):
    """Return a folded iteration on a network, and what it takes."""
    lowering = StagedLowering(graph, cluster, Roofline().build(graph, cluster))
    folded = lowering.fold(strategy, lambda messages: message_loads(messages, network))
    return folded, Model().simulate_folded(folded, network)[0]


@pytest.mark.parametrize("options", TREES, ids=str)
def test_messages_that_spread_take_what_they_take_where_all_paths_are_written_out(options, model_of):
    plans = some_plans(7000, 3, model_of, options_of={"fattree": options}, topology="fattree", sizes=SIZES)
    compared = 0
    for graph, cluster, fabric, strategy in plans:
        network = spreading_network(fabric, cluster)
        if network is None:
            continue
        written, expected = folded_on(Network(fabric, cluster), graph, cluster, strategy)
        folded, outcome = folded_on(network, graph, cluster, strategy)
        assert folded.draws == written.draws
        assert folded.taskgraph.n_tasks <= written.taskgraph.n_tasks
        assert outcome.makespan == pytest.approx(expected.makespan, rel=1e-9)
        np.testing.assert_allclose(outcome.link_bytes, expected.link_bytes, rtol=1e-5, atol=1.0)
        compared += 1
    assert compared


def test_a_tree_that_is_not_full_takes_what_one_switch_takes(model_of):
    """By hand: where nothing waits between switches, and links have no latency, no message knows of them."""
    graph, cluster = model_of("experts", 4, 96), attrs.evolve(cluster_of(24, 4), latency=0.0)
    for settings in (Settings(tp=2, pp=4), Settings(tp=4, pp=2, zero=3), Settings(tp=8, pp=4, zero=1)):
        strategy, _ = strategy_of(settings, graph, cluster.n_devices)
        on_switch = fabric_of("bigswitch", cluster, {})
        switch, expected = folded_on(Network(on_switch, cluster), graph, cluster, strategy)
        fabric = fabric_of(
            "fattree", cluster, {"k": 10}
        )  # racks of 5, pods of 25 hosts; 25 paths, of which 16 are kept
        folded, outcome = folded_on(spreading_network(fabric, cluster), graph, cluster, strategy)
        assert outcome.makespan == pytest.approx(expected.makespan, rel=1e-9)
        assert folded.taskgraph.n_tasks == switch.taskgraph.n_tasks


@pytest.mark.parametrize("topology", ["fattree", "jellyfish", "degraded:of=fattree,links=10%,seed=1"])
def test_shares_of_links_are_those_of_all_shortest_paths(topology):
    """networkx lists the paths, each with the same weight."""
    cluster = cluster_of(20, 1)
    name, _, text = topology.partition(":")
    fabric = fabric_of(name, cluster, dict(each.split("=", 1) for each in text.split(",")) if text else {})
    links = np.flatnonzero(np.minimum(fabric.link_src, fabric.link_dst) >= fabric.n_hosts)
    graph = nx.DiGraph()
    for link in links.tolist():
        graph.add_edge(int(fabric.link_src[link]), int(fabric.link_dst[link]), link=link)
    racks = np.unique(fabric.link_dst[fabric.link_src < 20])
    source, target = (ends.ravel() for ends in np.meshgrid(racks, racks, indexing="ij"))
    away = source != target
    source, target = source[away].astype(np.int64), target[away].astype(np.int64)
    nbytes, expected = np.arange(1.0, len(source) + 1), np.zeros(fabric.n_links)
    for start, end, size in zip(source.tolist(), target.tolist(), nbytes.tolist(), strict=True):
        paths = list(nx.all_shortest_paths(graph, start, end))
        for path in paths:
            for tail, head in itertools.pairwise(path):
                expected[graph.edges[tail, head]["link"]] += size / len(paths)
    np.testing.assert_allclose(Spreading(fabric).carried(source, target, nbytes), expected, rtol=1e-12)


def test_links_that_may_hold_messages_up_are_listed_once_for_equal_ones():
    """By hand: 3:1, so that the uplinks of a rack are slower than its hosts, and those of a pod are not."""
    cluster = cluster_of(16, 1)
    fabric = fabric_of("fattree", cluster, {"k": 8, "oversubscription": 4 / 3})
    racks = np.unique(fabric.link_dst[fabric.link_src < 16]).astype(np.int64)
    enters = np.bincount(fabric.link_dst[:16], fabric.link_bandwidth[:16], fabric.n_nodes)
    limits = Spreading(fabric).limiting(Routes(racks[:1], racks[1:2], enters, enters))
    assert limits.least_share.tolist() == pytest.approx([1 / 3])
    assert limits.shares.tolist() == pytest.approx([1 / 3] * len(limits.shares))
    assert fabric.link_src[limits.links].tolist() == [racks[0]]  # what enters the other rack is as much


@pytest.mark.parametrize("topology", ["fattree", "rail-optimized", "slim-fly", "torus"])
def test_one_walk_says_what_two_walks_say(topology, monkeypatch):
    """Routes of which a walk is not kept are walked from both ends, as far as memory goes; links are the same."""
    cluster = cluster_of(24, 1, 4)
    fabric = fabric_of(topology, cluster, {})
    found = []
    for at_a_time in (1 << 22, 1 << 6):
        monkeypatch.setattr("topoplan_engine.network.spreading._AT_A_TIME", at_a_time)
        spreading = Spreading(fabric)
        source, target = (ends.ravel() for ends in np.meshgrid(np.arange(24), np.arange(24), indexing="ij"))
        routes, _ = spreading.routes(source, target)
        found.append(spreading.limiting(routes))
    np.testing.assert_array_equal(found[0].links, found[1].links)
    np.testing.assert_array_equal(found[0].ptr, found[1].ptr)
    np.testing.assert_allclose(found[0].shares, found[1].shares, rtol=1e-12)
    np.testing.assert_allclose(found[0].least_share, found[1].least_share, rtol=1e-12)


def test_classes_that_do_not_fold_are_evened_and_the_timeline_says_so(model_of, monkeypatch):
    graph, cluster = model_of("dense", 4, 96), cluster_of(24, 4)
    strategy, _ = strategy_of(Settings(tp=4, pp=4, zero=1), graph, cluster.n_devices)
    fabric = fabric_of("fattree", cluster, {"k": 10, "oversubscription": 5})
    network = spreading_network(fabric, cluster)
    distinguished, expected = folded_on(network, graph, cluster, strategy)
    assert not distinguished.evened
    monkeypatch.setattr(layout, "_MOST_PASSES", -1)
    folded, outcome = folded_on(network, graph, cluster, strategy)
    assert folded.evened
    assert folded.taskgraph.n_tasks < distinguished.taskgraph.n_tasks
    assert folded.n_tasks == distinguished.n_tasks
    assert outcome.makespan == pytest.approx(expected.makespan, rel=0.01)
    np.testing.assert_allclose(outcome.link_bytes, expected.link_bytes, rtol=1e-5, atol=1.0)


@pytest.mark.parametrize("machine", [True, False], ids=["insides", "endpoints"])
@pytest.mark.parametrize(("topology", "hosts"), [("torus", 16), ("torus", 24), ("random", 16), ("fully-connected", 8)])
@pytest.mark.parametrize("settings", [Settings(tp=4, pp=4), Settings(tp=2, pp=2, zero=3)], ids=str)
def test_paths_of_their_own_are_evened_and_bytes_of_links_stay(
    machine, topology, hosts, settings, model_of, monkeypatch
):
    cluster = slow_cluster(hosts, 4, 4)
    if machine:
        built = build_cluster(ClusterOptions(machine="dgx-h100", servers=hosts), Host.discover())
        cluster = attrs.evolve(built, latency=0.0, interface_bandwidth=built.interface_bandwidth / 2000)
    graph = model_of("dense", 4, 384)
    strategy, _ = strategy_of(settings, graph, cluster.n_devices)
    network = network_of(fabric_of(topology, cluster, {}), cluster)
    distinguished, expected = folded_on(network, graph, cluster, strategy)
    assert not distinguished.evened
    monkeypatch.setattr(layout, "_FEW_DEVICES", 0)
    monkeypatch.setattr(layout, "_MOST_PASSES", -1)
    folded, outcome = folded_on(network, graph, cluster, strategy)
    assert folded.evened
    assert folded.taskgraph.n_tasks <= distinguished.taskgraph.n_tasks
    assert folded.n_tasks == distinguished.n_tasks
    # Where hosts differ, those whose messages cross full links set the pace.  On tori all wait for the slowest GPU.
    within = {"random": 0.12, "torus": 2e-3}.get(topology, 1e-3)
    assert outcome.makespan == pytest.approx(expected.makespan, rel=within)
    assert outcome.makespan >= expected.makespan * (1 - 1e-3)
    np.testing.assert_allclose(outcome.link_bytes, expected.link_bytes, rtol=1e-5, atol=1.0)


def test_what_does_not_fold_and_is_too_large_is_refused_before_it_is_written(model_of, monkeypatch):
    graph, cluster = model_of("dense", 4), cluster_of(8, 2)
    strategy, _ = strategy_of(Settings(tp=2, pp=2), graph, cluster.n_devices)
    monkeypatch.setattr(layout, "_MOST_FOLDED", 100)
    with pytest.raises(TopoplanError, match=r"one of each kind has more than 100 passes .* \(use fewer micro-batches"):
        folded_on(Network(fabric_of("torus", cluster, {}), cluster), graph, cluster, strategy)


def test_what_takes_more_memory_than_there_is_is_refused_before_it_is_copied(model_of, monkeypatch):
    """By hand: eleven columns of eight bytes for each task, in parts and put together, and its edges."""
    graph, cluster = model_of("dense", 4), cluster_of(8, 2)
    strategy, _ = strategy_of(Settings(tp=2, pp=2), graph, cluster.n_devices)
    lowering = StagedLowering(graph, cluster, Roofline().build(graph, cluster))
    tasks = lowering.lower(strategy).n_tasks
    monkeypatch.setattr(available, "_BASE", 0)
    monkeypatch.setattr(available, "available_bytes", lambda: 150 * tasks)
    with pytest.raises(TopoplanError, match=r"tasks that differ take some .* and this process may have"):
        lowering.lower(strategy)
    monkeypatch.setattr(available, "available_bytes", lambda: 400 * tasks)
    assert lowering.lower(strategy).n_tasks == tasks


def test_networks_without_a_choice_of_paths_keep_them():
    cluster = cluster_of(16, 4, 4)
    networks = NetworkCache()
    for name, options in (("torus", {}), ("bigswitch", {}), ("fattree", {"paths": 1})):
        fabric = fabric_of(name, cluster, options)
        assert networks.for_folds(fabric, cluster) is networks.get(fabric, cluster)
    fabric = fabric_of("fattree", cluster, {})
    assert networks.for_folds(fabric, cluster).spreading is not None
    assert networks.for_folds(fabric, cluster) is networks.for_folds(fabric, cluster)


def slow_cluster(hosts, devices, interfaces):
    """Hosts whose links take longer than passes, so that what is compared depends on them."""
    cluster = cluster_of(hosts, devices, interfaces)
    return attrs.evolve(
        cluster,
        latency=0.0,
        interface_bandwidth=cluster.interface_bandwidth / 2000,
        inside_bandwidth=cluster.inside_bandwidth / 200,
    )


@pytest.mark.parametrize("topology", ["rail-optimized", "rail-only", "dragonfly", "hyperx", "slim-fly"])
@pytest.mark.parametrize("settings", [Settings(tp=2, pp=4), Settings(tp=2, pp=2, zero=3), Settings(ep=4)], ids=str)
def test_hosts_on_several_switches_take_what_all_paths_written_out_take(topology, settings, model_of):
    graph, cluster = model_of("experts", 4, 64), slow_cluster(16, 4, 4)
    strategy, _ = strategy_of(settings, graph, cluster.n_devices)
    fabric = attrs.evolve(fabric_of(topology, cluster, {}), max_paths=400)
    written, expected = folded_on(Network(fabric, cluster), graph, cluster, strategy)
    network = spreading_network(fabric, cluster)
    folded, outcome = folded_on(network, graph, cluster, strategy)
    assert folded.taskgraph.n_tasks <= written.taskgraph.n_tasks
    assert outcome.makespan == pytest.approx(expected.makespan, rel=1e-9)
    np.testing.assert_allclose(outcome.link_bytes, expected.link_bytes, rtol=1e-5, atol=1.0)


@pytest.mark.parametrize("machine", [True, False], ids=["insides", "endpoints"])
@pytest.mark.parametrize(
    ("topology", "options"),
    [
        ("multi-plane", {"of": "bigswitch", "planes": "2"}),
        ("multi-plane", {"of": "fattree", "planes": "4"}),
        ("rail-optimized", {"planes": "2"}),
    ],
)
def test_planes_take_what_whole_iterations_take_where_no_two_messages_meet(machine, topology, options, model_of):
    """A message takes one plane, so that one at a time is as fast as one lane; rings have the lanes of all planes."""
    graph = model_of("dense", 4, 64)
    if machine:
        cluster = attrs.evolve(
            build_cluster(ClusterOptions(machine="dgx-h100", servers=4), Host.discover()), latency=0.0
        )
        cluster = attrs.evolve(cluster, interface_bandwidth=cluster.interface_bandwidth / 2000)
        several = [Settings(tp=8, pp=4, micro_batch=64), Settings(tp=8, zero=3)]
    else:
        cluster = slow_cluster(4, 1, 8)
        several = [Settings(pp=4, micro_batch=64), Settings(zero=3)]
        if topology == "rail-optimized":  # eight rails: a ring of drawn paths is as fast as one of them at best
            several = several[:1]
    fabric = fabric_of(topology, cluster, options)
    compared = NetworkCache().for_folds(fabric, cluster)
    for settings in several:
        strategy, _ = strategy_of(settings, graph, cluster.n_devices)
        _, outcome = folded_on(compared, graph, cluster, strategy)
        lowering = StagedLowering(graph, cluster, Roofline().build(graph, cluster))
        network = network_of(fabric, cluster)
        whole = Model().simulate(Model().prepare(lowering.lower(strategy), network))
        assert outcome.makespan == pytest.approx(whole.makespan, rel=1e-9)


@pytest.mark.parametrize("settings", [Settings(tp=4), Settings(tp=4, zero=1), Settings(tp=2, zero=3)], ids=str)
@pytest.mark.parametrize("planes", ["2", "4"])
def test_planes_that_keep_one_path_each_take_what_whole_iterations_take(planes, settings, model_of):
    """A ring has one path on every plane, so that nothing draws; the paths of its members meet in the planes."""
    graph, cluster = model_of("dense", 4, 64), slow_cluster(32, 4, 4)
    fabric = fabric_of("multi-plane", cluster, {"of": "fattree/paths=1", "planes": planes})
    strategy, _ = strategy_of(settings, graph, cluster.n_devices)
    _, outcome = folded_on(NetworkCache().for_folds(fabric, cluster), graph, cluster, strategy)
    lowering = StagedLowering(graph, cluster, Roofline().build(graph, cluster))
    prepared = Model().prepare(lowering.lower(strategy), network_of(fabric, cluster))
    assert not Model().draws(prepared)
    whole = Model().simulate(prepared)
    assert outcome.makespan == pytest.approx(whole.makespan, rel=1e-9)
    np.testing.assert_allclose(outcome.link_bytes, whole.link_bytes, rtol=1e-9, atol=1.0)


@pytest.mark.parametrize("plane", ["bigswitch", "fattree/paths=1"])
def test_a_message_on_planes_is_as_fast_as_one_lane(plane, model_of):
    """By hand: what one stage sends the next one, and gets back, goes over half of an interface."""
    graph, cluster = model_of("dense", 4, 64), slow_cluster(2, 1, 1)
    strategy, _ = strategy_of(Settings(pp=2, micro_batch=64), graph, cluster.n_devices)
    seconds = []
    for topology, options in (("multi-plane", {"of": plane, "planes": "2"}), ("bigswitch", {})):
        fabric = fabric_of(topology, cluster, options)
        network = NetworkCache().for_folds(fabric, cluster)
        folded, outcome = folded_on(network, graph, cluster, strategy)
        seconds.append(outcome.makespan)
    sent = folded.taskgraph.size[folded.taskgraph.kind == TaskKind.TRANSFER]
    rate = cluster.interface_bandwidth[0]
    assert seconds[0] - seconds[1] == pytest.approx(sent.sum() * (2 / rate - 1 / rate), rel=1e-9)


@pytest.mark.parametrize("topology", ["rail-only", "rail-optimized"])
@pytest.mark.parametrize("settings", [Settings(tp=2, pp=4), Settings(tp=2, pp=2, zero=3), Settings(ep=4)], ids=str)
@pytest.mark.parametrize("devices", [1, 4])
def test_rails_of_hosts_without_insides_take_what_one_switch_takes(topology, settings, devices, model_of):
    """By hand: each rail carries an equal part of all that hosts send, and is an equal part of one switch."""
    graph, cluster = model_of("experts", 4, 64), slow_cluster(16, devices, 4)
    strategy, _ = strategy_of(settings, graph, cluster.n_devices)
    tasks = StagedLowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
    seconds = []
    for name in (topology, "bigswitch"):
        fabric = fabric_of(name, cluster, {})
        folded, outcome = folded_on(
            spreading_network(fabric, cluster) or Network(fabric, cluster), graph, cluster, strategy
        )
        prepared = Model().prepare(tasks, Network(fabric, cluster))
        assert not folded.draws
        assert not Model().draws(prepared)
        seconds += [outcome.makespan, Model().simulate(prepared).makespan]
    assert seconds == pytest.approx([seconds[-1]] * 4, rel=1e-9)


def test_a_ring_that_draws_its_ways_is_as_slow_as_the_hand_calculation_says():
    """A ring over every other host of a 4 x 4 torus takes 85/54 of what it takes where no two steps share a link.

    Steps inside a row have two ways, which nothing else goes.  A step to the next row goes k = 0, 1 or 2 of its two
    hops along the row before it descends, forward or backward, each of the six ways as likely.  The step that leaves a
    row and the one that enters it meet on a link if both go the same way round and k is larger than that of the one
    that enters.  Over the four rows that is the trace of a matrix: 31/54 of all draws have a link with two steps, and
    take twice as long.
    """
    ways = list(itertools.product(range(3), range(2)))
    apart = np.array(
        [[entering[1] != leaving[1] or entering[0] >= leaving[0] for leaving in ways] for entering in ways]
    )
    meets = 1 - np.trace(np.linalg.matrix_power(apart.astype(float), 4)) / len(ways) ** 4
    assert meets == pytest.approx(31 / 54)
    cluster = attrs.evolve(cluster_of(16, 1, 4), latency=0.0)
    network = Network(fabric_of("torus", cluster, {}), cluster)
    tasks = task_graph([collective(list(range(0, 16, 2)), 1 << 30)], n_devices=16)
    draws = [Model().with_seed(seed) for seed in range(400)]
    seconds = np.array([model.simulate(model.prepare(tasks, network)).makespan for model in draws])
    one_link = 2 * 7 / 8 * (1 << 30) / cluster.interface_bandwidth[0]
    assert set(np.round(seconds / one_link, 6)) == {1.0, 2.0}
    deviation = np.sqrt(meets * (1 - meets) / len(draws))
    assert np.mean(seconds / one_link) == pytest.approx(1 + meets, abs=3 * deviation)


def test_a_folded_ring_that_draws_its_ways_takes_the_mean_of_the_hand_calculation():
    """85/54 of a byte's time on one link, as above: the mean of 512 draws, of which 31/54 take twice as long."""
    cluster = attrs.evolve(cluster_of(16, 1, 4), latency=0.0)
    network = Network(fabric_of("torus", cluster, {}), cluster)
    seconds = seconds_of_draws(np.arange(0, 16, 2)[None], network)
    deviation = np.sqrt(31 / 54 * 23 / 54 / 512)
    assert seconds * network.fabric.link_bandwidth[0] == pytest.approx(85 / 54, abs=3 * deviation)


@pytest.mark.parametrize(
    ("topology", "hosts", "settings", "before"),
    [
        ("fattree", 16, Settings(tp=2, zero=3), 0.69),
        ("torus", 16, Settings(tp=2, zero=3), 1.32),
        ("dragonfly", 16, Settings(tp=2, zero=3), 0.38),
        ("dragonfly", 16, Settings(), 0.51),
        ("torus", 64, Settings(tp=2, pp=2, zero=3), None),
    ],
    ids=str,
)
def test_folds_whose_rings_draw_take_the_mean_of_whole_iterations(topology, hosts, settings, before, model_of):
    """Whole iterations took so much longer than folds that spread the steps of rings over all ways."""
    graph = model_of("dense", 4, 64)
    cluster = attrs.evolve(slow_cluster(hosts, 1, 4), inside_bandwidth=np.full(hosts, 1e9))
    fabric, (strategy, _) = fabric_of(topology, cluster, {}), strategy_of(settings, graph, hosts)
    prepared = Model().prepare(
        StagedLowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy), network_of(fabric, cluster)
    )
    whole = np.mean([Model().with_seed(seed).simulate(prepared).makespan for seed in range(5)])
    network = NetworkCache().for_folds(fabric, cluster)
    folded, outcome = folded_on(network, graph, cluster, strategy)
    assert folded.draws
    assert outcome.makespan == pytest.approx(whole, rel=0.07)
    if before is not None:
        spread = Model().simulate_folded(folded._replace(groups=()), network)[0].makespan
        assert whole / spread - 1 == pytest.approx(before, abs=0.03)


@pytest.mark.parametrize(
    ("topology", "nics"), [("rail-only", 1), ("rail-optimized/unit=2", 2), ("bigswitch", 1), ("fattree", 3)]
)
@pytest.mark.parametrize("settings", [Settings(tp=8, zero=1), Settings(tp=2, pp=2, zero=3)], ids=str)
def test_hosts_whose_interfaces_failed_are_folded(topology, nics, settings, model_of):
    """No switch leads to another one on rails, so that there is no link for messages to spread over."""
    graph = model_of("dense", 4, 64)
    cluster = build_cluster(ClusterOptions(machine="dgx-h100", servers=4), Host.discover())
    fabric = fabric_of("degraded", cluster, {"of": topology, "nics": str(nics)})
    strategy, _ = strategy_of(settings, graph, cluster.n_devices)
    network = NetworkCache().for_folds(fabric, cluster)
    folded, outcome = folded_on(network, graph, cluster, strategy)
    prepared = Model().prepare(
        StagedLowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy), network_of(fabric, cluster)
    )
    whole = Model().simulate(prepared._replace(late_ends=ALWAYS))
    assert outcome.makespan == pytest.approx(whole.makespan, rel=1e-9 if not folded.draws else 0.01)


@pytest.mark.parametrize(("computes_first", "expected"), [(False, 30e-3), (True, 21e-3)])
def test_devices_in_lockstep_take_longer_than_those_set_apart(computes_first, expected):
    """By hand: ten rounds of 1 ms on an interface alone and 1 ms of work; two in lockstep send for 2 ms.

    Set apart by more work of one of them, each sends while the other one computes: 1 ms, and ten times 2 ms.
    """
    tasks, edges = [], []
    for device in (0, 1):
        if computes_first and device == 1:
            tasks.append(compute(device, 1e-3))
        for number in range(10):
            if number or (computes_first and device == 1):
                edges.append((len(tasks) - 1, len(tasks)))
            edges.append((len(tasks), len(tasks) + 1))
            tasks += [transfer(device, device + 2, 1_000_000), compute(device, 1e-3)]
    hosts = Cluster.uniform(n_hosts=2, devices_per_host=2)
    makespan = Fluid().build().makespan(task_graph(tasks, edges, 4), star(2, 1e9, 0.0), hosts)
    assert makespan == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_the_published_layout_of_deepseek_v3_is_not_too_large():
    """17 million passes and messages: 120 micro-batches, in two directions, of 61 layers with experts on 64 devices."""
    words = "pp=16,ep=64,zero=1,schedule=dualpipe,layers=3+4*14+2"
    machine = {"machine": "dgx-h100", "servers": 256, "topology": "rail-optimized", "precision": "bf16"}
    plan = stated_plan("huggingface:preset=deepseek-v3,sequence-length=4096", words, batch_size=15360, **machine)
    assert plan.timeline.makespan > 0
