"""Collectives by chosen algorithms take what their formulas say, share links with others, and are chosen by size."""

from __future__ import annotations

import re

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Collective, CollectiveGroup, Host, TaskKind, TopologyContext, TopoplanError
from topoplan.plugin.components import CollectiveAlgorithm
from topoplan_engine.network.protocols import NCCL, PCI, Protocol
from topoplan_engine.network.rounds import grouped, grouped_rows, priced, priced_groups
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.collective_choice import CollectiveChoice
from topoplan_samples.tasks import collective, task_graph, transfer

HOST = Host.discover()
#: Interfaces of 8 x 50 GB/s, and 450 GB/s inside; a link takes a microsecond.
NETWORK, INSIDE, LATENCY = 400e9, 450e9, 1e-6
SIZE = 10**9


def built(hosts, devices=1, topology="bigswitch", **options):
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=devices,
        interfaces=8,
        interface_bandwidth=NETWORK / 8,
        latency=LATENCY,
        inside_bandwidth=INSIDE,
    )
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return HOST.make("topology", topology, options).build(context), cluster


def graph(tasks, cluster):
    return task_graph(tasks, n_devices=cluster.n_devices)


def seconds(fabric, cluster, tasks, **options):
    return HOST.make("simulator", "fluid", options).build()(graph(tasks, cluster), fabric, cluster).makespan


def all_reduce(hosts, devices, algorithm, size=SIZE, protocol="none"):
    fabric, cluster = built(hosts, devices)
    tasks = [collective(range(hosts * devices), size)]
    return seconds(fabric, cluster, tasks, algorithms=f"all-reduce={algorithm}", protocol=protocol)


@pytest.mark.parametrize(
    ("algorithm", "hosts", "devices", "rounds", "byte"),
    [
        ("ring", 8, 1, 14, 2 * 7 / 8 / NETWORK),
        ("ring", 8, 8, 14, 2 * 63 / 64 / NETWORK),
        ("ring", 1, 8, 0, 2 * 7 / 8 / INSIDE),
        ("multi-ring", 64, 8, 126, 2 * 511 / 512 / NETWORK),
        ("halving-doubling", 64, 1, 12, 2 * 63 / 64 / NETWORK),
        ("tree", 64, 1, 12, 2 / NETWORK),
        ("hierarchical", 8, 8, 14, 2 * 7 / 8 / INSIDE + 2 * 7 / 8 / NETWORK),
        ("parameter-server", 8, 1, 2, 14 / NETWORK),
        ("sharp", 64, 1, 1, 1 / NETWORK),
        ("nvls", 1, 8, 0, 9 / 8 / INSIDE),
    ],
)
@pytest.mark.parametrize("size", [SIZE // 1000, SIZE])
def test_an_all_reduce_takes_what_its_formula_says(algorithm, hosts, devices, rounds, byte, size):
    expected = rounds * 2 * LATENCY + byte * size
    assert all_reduce(hosts, devices, algorithm, size) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "latencies", "byte"),
    [
        ("direct", 1, 8 * 56 / 64 / NETWORK),
        ("staggered", 1, 8 * 56 / 64 / NETWORK),
        ("pairwise", 63, 8 * 56 / 64 / NETWORK),
        ("pxn", 1, 8 * 56 / 64 / NETWORK),
    ],
)
def test_an_all_to_all_sends_all_but_what_stays_in_the_host(name, latencies, byte):
    fabric, cluster = built(8, 8)
    members, group = grouped(np.arange(64, dtype=np.int32), cluster.device_host)
    rounds = HOST.make(CollectiveAlgorithm, name).rounds(Collective.ALL_TO_ALL, group)
    price = priced(Network(fabric, cluster), members, rounds)
    assert price.latency == pytest.approx(2 * latencies * LATENCY)
    if name in ("direct", "pxn"):
        assert price.seconds_per_byte == pytest.approx(byte)
    assert price.load.max() == pytest.approx(7)
    assert price.part == 1


def test_a_ring_by_its_rounds_is_the_ring_of_the_network():
    for hosts, devices in ((4, 1), (3, 4), (1, 8)):
        fabric, cluster = built(hosts, devices)
        tasks = [collective(range(hosts * devices), SIZE)]
        own = seconds(fabric, cluster, tasks)
        assert all_reduce(hosts, devices, "ring") == pytest.approx(own, rel=1e-12)


def test_members_are_taken_host_by_host_however_they_are_listed():
    fabric, cluster = built(4, 4)
    listed = np.arange(16).reshape(4, 4).T.ravel()
    tasks = [collective(listed, SIZE)]
    mixed = seconds(fabric, cluster, tasks, algorithms="all-reduce=hierarchical")
    assert mixed == pytest.approx(all_reduce(4, 4, "hierarchical"))


def test_an_algorithm_shares_links_with_other_messages():
    fabric, cluster = built(4)
    tasks = [collective(range(4), SIZE), transfer(0, 1, SIZE)]
    alone = all_reduce(4, 1, "ring")
    together = seconds(fabric, cluster, tasks, algorithms="all-reduce=ring")
    assert together == pytest.approx(alone + SIZE / NETWORK, rel=1e-2)  # host 0 sends the bytes of both


def test_the_fastest_is_chosen_for_each_size():
    sizes = (10**3, 10**9)
    fabric, cluster = built(64)
    for size in sizes:
        tasks = [collective(range(64), size)]
        each = [
            seconds(fabric, cluster, tasks, algorithms=f"all-reduce={name}")
            for name in ("ring", "tree", "halving-doubling")
        ]
        chosen = seconds(fabric, cluster, tasks, algorithms="all-reduce=ring+tree+halving-doubling")
        assert chosen == min(each)
        assert seconds(fabric, cluster, tasks, algorithms="all-reduce=auto") <= min(each)


def test_what_is_not_chosen_stays_as_it_is():
    fabric, cluster = built(4)
    tasks = [collective(range(4), SIZE, kind=Collective.ALL_GATHER)]
    assert seconds(fabric, cluster, tasks, algorithms="all-reduce=tree") == seconds(fabric, cluster, tasks)


@pytest.mark.parametrize("topology", ["fattree", "torus", "fully-connected", "dragonfly", "jellyfish", "hyperx"])
def test_auto_is_never_slower_than_rings_and_bounds_hold(topology):
    """On every network, and each link carries its bytes no faster than it can."""
    fabric, cluster = built(16, topology=topology)
    for members in (range(16), range(0, 16, 2), [3, 7, 11]):
        for size in (10**3, 10**8):
            tasks = [collective(members, size)]
            own = seconds(fabric, cluster, tasks)
            timeline = HOST.make("simulator", "fluid", {"algorithms": "all-reduce=auto"}).build()(
                graph(tasks, cluster), fabric, cluster
            )
            assert timeline.makespan <= own * (1 + 1e-9)
            assert timeline.bounds.best <= timeline.makespan * (1 + 1e-9)
            assert (timeline.link_bytes / fabric.link_bandwidth).max() <= timeline.makespan * (1 + 1e-6)


@pytest.mark.parametrize("name", [cls.name for cls in HOST.components(CollectiveAlgorithm) if cls.name != "msccl"])
def test_bytes_that_leave_members_enter_others(name):
    """On a star every byte goes up once and down once; what switches add goes up from each and down to each."""
    fabric, cluster = built(1 if name == "nvls" else 4, 4)
    devices = np.arange(cluster.n_devices, dtype=np.int32)
    network, group = Network(fabric, cluster), CollectiveGroup((4,) * cluster.n_hosts)
    algorithm = HOST.make(CollectiveAlgorithm, name)
    for label in type(algorithm).collectives:
        rounds = algorithm.rounds(next(each for each in Collective if each.label == label), group)
        price = priced(network, devices, rounds)
        if (rounds.target < group.n_members).all():
            sent = (rounds.count * rounds.repeats).sum() / rounds.chunks
            assert price.load.sum() == pytest.approx(2 * sent)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("all-reduce=rnig", "no collective named 'rnig'; did you mean 'ring'"),
        ("all-reduce", "expected COLLECTIVE=ALGORITHM"),
        ("reduce=ring", "'reduce=ring': expected COLLECTIVE=ALGORITHM, the collective being one of all-reduce"),
        ("all-to-all=ring", r"collective ring: runs no all-to-all \(these do: auto, direct"),
        ("all-reduce=ring;all-reduce=tree", "all-reduce is given twice"),
        ("all-reduce=torus:axes=4x4", "axes 4x4 have 16 places for 8 members"),
        ("all-reduce=nvls", "8 members in 8 hosts .must be in one"),
    ],
)
def test_what_cannot_be_chosen_is_named(text, why):
    fabric, cluster = built(8)
    tasks = [collective(range(8), SIZE)]
    with pytest.raises(TopoplanError, match=why):
        seconds(fabric, cluster, tasks, algorithms=text)


def test_sums_in_switches_need_switches():
    fabric, cluster = built(4, topology="fully-connected")
    tasks = [collective(range(4), SIZE)]
    with pytest.raises(TopoplanError, match="no switch between its hosts"):
        seconds(fabric, cluster, tasks, algorithms="all-reduce=sharp")


@pytest.mark.parametrize(
    ("algorithm", "protocol", "inside", "between", "microseconds"),
    [
        ("ring", Protocol.SIMPLE, 14, 0, 56.0),
        ("ring", Protocol.LL, 14, 0, 15.0),
        ("ring", Protocol.SIMPLE, 224, 30, 1190.0),
        ("ring", Protocol.LL, 224, 30, 311.6),
        ("tree", Protocol.SIMPLE, 14, 8, 176.4),
    ],
)
def test_latencies_are_those_of_nccls_tuner(algorithm, protocol, inside, between, microseconds):
    """8 GPUs in one host, and 16 hosts of 8; before the factor on large rings."""
    assert NCCL.latency(algorithm, protocol, inside, between) * 1e6 == pytest.approx(microseconds, abs=0.05)
    hosts = 16 if between else 1
    fabric, cluster = built(hosts, 8)
    members, group = grouped(np.arange(8 * hosts, dtype=np.int32), cluster.device_host)
    price = priced(
        Network(fabric, cluster),
        members,
        HOST.make(CollectiveAlgorithm, algorithm).rounds(Collective.ALL_REDUCE, group),
    )
    assert (price.inside, price.between) == (inside, between)


def test_pci_has_latencies_of_its_own():
    assert PCI.latency("ring", Protocol.SIMPLE, 14, 0) * 1e6 == pytest.approx(8.4 + 14 * 5.7)


def test_protocols_trade_latency_for_bandwidth():
    small, large = 10**3, 10**9
    by_protocol = {
        name: [all_reduce(1, 8, "ring", size, name) for size in (small, large)] for name in ("ll", "simple", "auto")
    }
    assert by_protocol["ll"][0] < by_protocol["simple"][0]
    assert by_protocol["ll"][1] > by_protocol["simple"][1]
    assert by_protocol["auto"] == [by_protocol["ll"][0], by_protocol["simple"][1]]


# Rings along all eight links of nine hosts, which a protocol leaves as they are.
@pytest.mark.parametrize("text", ["", "all-reduce=auto", "all-gather=ring"])
@pytest.mark.parametrize("topology", ["fully-connected", "torus", "topoopt", "bigswitch", "rail-only"])
def test_a_protocol_leaves_the_rings_of_the_network(topology, text):
    """What NCCL's protocol Simple takes beside the bytes: a base, 16 latencies, 1.4 times that on large tensors."""
    fabric, cluster = built(9, 1, topology)
    cluster = attrs.evolve(cluster, device_preset=("H100",) * 9)  # with the constants of NCCL's tuner alone
    tasks = [collective(range(9), SIZE)]
    by_links = seconds(fabric, cluster, tasks, protocol="none")
    assert by_links == pytest.approx(2 * 8 / 9 * SIZE / NETWORK, rel=0.02)
    expected = by_links + 1.4 * (8.4 + 16 * 14.0) * 1e-6
    found = seconds(fabric, cluster, tasks, protocol="simple", algorithms=text)
    assert found <= expected * (1 + 1e-6)
    if text != "all-reduce=auto":  # that may have a faster one
        assert found == pytest.approx(expected, rel=1e-3)


def test_choices_say_which_collectives_may_stay_as_they_are():
    choice = CollectiveChoice("all-reduce=auto+nvls;all-gather=ring")
    assert choice.keeps_rings == {Collective.ALL_REDUCE}
    assert "nvls" in [each.name for each in choice.algorithms[Collective.ALL_REDUCE]]
    assert not CollectiveChoice("")
    assert TaskKind.COLLECTIVE not in choice.algorithms


# 64 hosts of one device each: a ring has 2 x 63 latencies and sends 2 x 63/64 of the tensor, a tree 2 x log2(64) and
# twice the tensor, halving and doubling as many latencies as the tree and as many bytes as the ring; a server has the
# tensors of 63 others come and go.
_RING, _TREE, _HALVING, _SERVER = (126, 2 * 63 / 64), (12, 2.0), (12, 2 * 63 / 64), (2, 126)


@pytest.mark.parametrize(
    ("rule", "size", "by_hand"),
    [
        ("all-reduce@64x1=tree", 1000, _TREE),
        ("all-reduce@64x1=auto", 1000, _SERVER),
        ("all-reduce@64x1=auto", 10**6, _HALVING),
        ("all-reduce@64x1=ring+tree", 1000, _TREE),  # latencies count
        ("all-reduce@64x1=ring+tree", 100 * SIZE, _RING),  # bytes count
        ("all-reduce@32x2=tree", 1000, _RING),  # of groups of another shape: rings of the network
        ("all-reduce@32x2=ring;all-reduce=tree", 1000, _TREE),
        ("all-reduce@64x1=ring;all-reduce=tree", 1000, _RING),
    ],
)
def test_rules_of_shapes_go_before_those_of_kinds(rule, size, by_hand):
    fabric, cluster = built(64)
    latencies, share = by_hand
    expected = latencies * 2 * LATENCY + share * size / NETWORK
    taken = seconds(fabric, cluster, [collective(range(64), size)], algorithms=rule)
    assert taken == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("all-reduce@64=tree", "'64' behind @ (must be hosts x members in each, such as 16x1)"),
        ("all-reduce@0x1=tree", "'0x1' behind @"),
        ("all-reduce@4x1=tree;all-reduce@4x1=ring", "all-reduce@4x1 is given twice"),
        ("all-to-all@4x1=pxn", "groups of other shapes have no rings to run it by"),
        ("sum@4x1=tree", "expected COLLECTIVE=ALGORITHM"),
    ],
)
def test_rules_that_are_none_are_refused_in_one_line(text, message):
    with pytest.raises(TopoplanError, match=re.escape(message)):
        _ = CollectiveChoice(text).algorithms


def test_what_a_user_names_stays_what_it_is():
    choice = CollectiveChoice("all-reduce@4x1=tree")
    assert choice.completed("all-reduce=auto;all-gather=auto").text == "all-reduce@4x1=tree;all-gather=auto"
    assert not choice.of(Collective.ALL_REDUCE, CollectiveGroup((2, 2)))
    assert choice.keeps(Collective.ALL_REDUCE, CollectiveGroup((2, 2)))


@pytest.mark.parametrize("simulator", ["fluid", "flexnet"])
@pytest.mark.parametrize("kind", [Collective.ALL_TO_ALL, Collective.BROADCAST])
def test_one_task_takes_as_long_as_its_transfers_between_joins(simulator, kind):
    fabric, cluster = built(4)
    size = 4 * 10**6
    single = graph([collective(range(4), size, kind=kind)], cluster)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j and (i == 0 or kind is Collective.ALL_TO_ALL)]
    each = size // 4 if kind is Collective.ALL_TO_ALL else size
    transfers = graph([transfer(i, j, each) for i, j in pairs], cluster)
    run = HOST.make("simulator", simulator).build()
    timeline = run(single, fabric, cluster)
    assert timeline.makespan == run(transfers, fabric, cluster).makespan
    assert timeline.start.tolist() == [0.0]
    assert timeline.bounds.best <= timeline.makespan * (1 + 1e-9)
    assert run.record(single, fabric, cluster)[0].makespan == timeline.makespan


@pytest.mark.parametrize("name", ["direct", "staggered", "pairwise", "pxn"])
def test_an_all_to_all_by_an_algorithm_is_one_entity(name):
    fabric, cluster = built(8)
    tasks = [collective(range(8), SIZE, kind=Collective.ALL_TO_ALL)]
    latencies = 7 if name == "pairwise" else 1
    expected = 2 * latencies * LATENCY + SIZE * 7 / 8 / NETWORK
    assert seconds(fabric, cluster, tasks, algorithms=f"all-to-all={name}") == pytest.approx(expected, rel=1e-6)


def test_auto_is_never_a_ring_of_an_all_to_all():
    """Rings of several hosts pass few bytes through interfaces, but leave no member what is meant for it."""
    fabric, cluster = built(8, 8)
    tasks = [collective(range(64), SIZE, kind=Collective.ALL_TO_ALL)]
    each = [
        seconds(fabric, cluster, tasks, algorithms=f"all-to-all={name}")
        for name in ("direct", "staggered", "pairwise", "pxn")
    ]
    assert seconds(fabric, cluster, tasks, algorithms="all-to-all=auto") == pytest.approx(min(each))


def test_groups_priced_together_cost_what_each_costs():
    fabric, cluster = built(8, 4, "torus")
    network = Network(fabric, cluster)
    rows = np.arange(32, dtype=np.int32).reshape(4, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]]
    for name, label in (
        ("ring", "all-reduce"),
        ("tree", "all-reduce"),
        ("hierarchical", "all-gather"),
        ("pxn", "all-to-all"),
    ):
        kind, algorithm = next(c for c in Collective if c.label == label), HOST.make(CollectiveAlgorithm, name)
        ((numbers, members, group),) = grouped_rows(rows, cluster.device_host)
        together = priced_groups(network, members, algorithm.rounds(kind, group))
        assert numbers.tolist() == [0, 1, 2, 3]
        for number, price in zip(numbers, together, strict=True):
            listed, alone_group = grouped(rows[number], cluster.device_host)
            alone = priced(network, listed, algorithm.rounds(kind, alone_group))
            assert alone[:4] == pytest.approx(price[:4], rel=1e-12)
            assert np.array_equal(alone.links, price.links)
            assert alone.load == pytest.approx(price.load, rel=1e-12)
