"""All-to-alls, equal and unequal, whose messages are one flow where an iteration has very many of them."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest

from topoplan import Collective, Fabric, TaskKind
from topoplan.errors import FabricError
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation import direct
from topoplan_engine.simulation.coupled_messages import coupled_messages, streams_of
from topoplan_engine.simulation.deferred import simulated_words
from topoplan_engine.simulation.message_paths import drawn_paths, paths_of_messages
from topoplan_samples.plans_drawn import cluster_of, fabric_of
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_simulator_fluid import Fluid, model
from topoplan_simulator_fluid.model import Model

SIZE = 1 << 20
FABRICS = [
    ("torus", {"sides": (4, 4)}),
    ("rail-optimized", {}),
    ("fattree", {"oversubscription": 2.0}),
    ("dragonfly", {}),
    ("bigswitch", {}),
]
BACKWARD = TaskKind.BACKWARD


def tables(hosts, owners, sizes):
    """Tables on some hosts, which send the next operator's parts on all hosts their samples, and get gradients."""
    rows = [compute(owner, 1e-4, op=0) for owner in owners]
    first = len(rows)
    rows += [compute(host, 1e-4, op=1) for host in range(hosts)]
    rows += [compute(host, 1e-4, BACKWARD, op=1) for host in range(hosts)]
    rows += [compute(owner, 1e-4, BACKWARD, op=0) for owner in owners]
    edges = [(first + host, first + hosts + host) for host in range(hosts)]
    for table, (owner, size) in enumerate(zip(owners, sizes, strict=True)):
        for host in range(hosts):
            ends = [(table, first + host), (first + hosts + host, first + 2 * hosts + table)]
            if host == owner:
                edges += ends
                continue
            for (before, after), (src, dst) in zip(ends, [(owner, host), (host, owner)], strict=True):
                edges += [(before, len(rows)), (len(rows), after)]
                rows.append(transfer(src, dst, size, op=1))
    return task_graph(rows, edges, hosts)


@pytest.fixture
def couple(monkeypatch):
    """Couples messages however few there are, on one switch as well."""

    def now():
        monkeypatch.setattr(model, "MOST_MESSAGES", 0)
        monkeypatch.setattr(model, "MOST_FLOWS", 0)
        monkeypatch.setattr(Model, "_couples", lambda self, network: not self.stepped)

    return now


def test_unequal_messages_take_the_fullest_interface_by_hand(couple):
    """Two tables on 8 hosts of one switch, one three times as wide: its owner sends 7 of its messages."""
    couple()
    cluster = cluster_of(8, 1)
    fabric, tasks = fabric_of("bigswitch", cluster, {}), tables(8, [0, 1], [3 * SIZE, SIZE])
    timeline = Fluid().build()(tasks, fabric, cluster)
    latency, bandwidth = fabric.link_latency[0] + fabric.link_latency[-1], fabric.link_bandwidth[0]
    assert timeline.makespan == pytest.approx(4e-4 + 2 * (latency + 7 * 3 * SIZE / bandwidth), rel=1e-9)
    messages = np.flatnonzero(tasks.kind == TaskKind.TRANSFER)
    assert timeline.start[messages].min() == pytest.approx(1e-4)  # when the tables are looked up
    assert timeline.link_bytes.max() == pytest.approx(22 * SIZE, abs=8)  # with the gradient of the other table
    assert "as one flow each" in simulated_words(timeline)


@pytest.mark.parametrize("topology", ["torus", "fattree", "dragonfly", "bigswitch"])
def test_coupled_messages_put_the_same_bytes_on_links_and_take_about_as_long(topology, couple):
    """One by one is the reference: what a table's owner sends early competes there with what is sent to others.

    With drawn paths links carry the same bytes in the mean alone, and it is one draw of many.
    """
    cluster = cluster_of(16, 1)
    fabric, fluid = fabric_of(topology, cluster, {}), Fluid().build()
    tasks = tables(16, [0, 3, 9, 14], [SIZE, SIZE, 2 * SIZE, SIZE])
    whole, draws = fluid(tasks, fabric, cluster), fluid.draws(tasks, fabric, cluster)
    times = fluid.makespans(tasks, fabric, cluster, range(16))
    couple()
    coupled = fluid(tasks, fabric, cluster)
    assert coupled.link_bytes.sum() == pytest.approx(whole.link_bytes.sum(), rel=1e-5)
    if not draws:
        np.testing.assert_allclose(coupled.link_bytes, whole.link_bytes, rtol=1e-5, atol=16.0)
    assert times.min() * 0.94 < coupled.makespan < times.max() * 1.01
    assert coupled.bounds.best <= coupled.makespan * (1 + 1e-9)


@pytest.mark.parametrize(("topology", "fullest", "links"), [("torus", 32, 8), ("fattree", 15, 6), ("bigswitch", 15, 2)])
def test_an_equal_all_to_all_takes_the_fullest_link_by_hand(topology, fullest, links, couple):
    """Of 16 members: a switch's or a full fat-tree's fullest link is a host's, which carries 15 messages.

    A torus of hosts with two links is a ring, in which a message goes 4 links in the mean: 16 x 16 messages cross 32
    links, each as often as any other.  A path that is drawn for each message makes some link fuller, as it does one by
    one: the time of an even spread is out of reach there.
    """
    cluster = cluster_of(16, 1)
    fabric, fluid = fabric_of(topology, cluster, {}), Fluid().build()
    rows = [compute(0, 1e-4), *(collective(range(16), SIZE, kind=Collective.ALL_TO_ALL) for _ in range(2))]
    tasks = task_graph(rows, [(0, 1), (1, 2)], 16)
    drawn = fluid.makespans(tasks, fabric, cluster, range(16))
    couple()
    prepared = Model().prepare(tasks, Network(fabric, cluster))
    assert len(prepared.entities.task) == 2
    one = links * fabric.link_latency[0] + fullest * (SIZE / 16) / fabric.link_bandwidth[0]
    coupled, evenly = fluid(tasks, fabric, cluster).makespan, 1e-4 + 2 * one
    if topology == "bigswitch":
        assert coupled == pytest.approx(evenly, rel=1e-6)
        assert drawn == pytest.approx(evenly, rel=1e-9)
        return
    assert evenly < coupled
    assert drawn.min() * 0.97 < coupled < drawn.max() * 1.03


@pytest.mark.parametrize("skew", [1.0, 4.0])
@pytest.mark.parametrize(("topology", "options"), FABRICS, ids=[name for name, _ in FABRICS])
def test_messages_between_two_operators_take_what_they_take_one_by_one(topology, options, skew, couple):
    """All 16 hosts send to all, the sixth one ``skew`` times as much: by hand, its interface where no core is narrow.

    Nothing is sent back, so that no early gradient competes.  Paths are drawn on the torus and in the tree.
    """
    cluster = cluster_of(16, 1)
    fabric, fluid = fabric_of(topology, cluster, options), Fluid().build()
    rows = [compute(host, 1e-4, op=op) for op in (0, 1) for host in range(16)]
    edges = [(host, 16 + host) for host in range(16)]
    for src, dst in itertools.permutations(range(16), 2):
        edges += [(src, len(rows)), (len(rows), 16 + dst)]
        rows.append(transfer(src, dst, int(SIZE * (skew if src == 5 else 1.0)), op=1))
    tasks = task_graph(rows, edges, 16)
    draws, drawn = fluid.draws(tasks, fabric, cluster), fluid.makespans(tasks, fabric, cluster, range(16))
    couple()
    coupled = fluid(tasks, fabric, cluster).makespan
    assert drawn.min() * 0.97 < coupled < drawn.max() * 1.03
    if topology in ("bigswitch", "rail-optimized"):
        sent = 15 * int(SIZE * skew) / fabric.link_bandwidth[0]
        assert coupled - 2e-4 == pytest.approx(sent + 2 * fabric.link_latency[0], rel=1e-6)
    assert draws == (topology not in ("bigswitch", "rail-optimized"))


def test_draws_of_a_message_do_not_change_with_other_messages(couple):
    """Two groups, of which one gets more messages: candidates of a search differ by what they change alone."""
    network = Network(fabric_of("torus", cluster_of(16, 1), {}), cluster_of(16, 1))
    src, dst = np.nonzero(~np.eye(16, dtype=bool))
    rows = network.rows_between(src.astype(np.int32), dst.astype(np.int32)).astype(np.int64)
    stream = streams_of(src, dst, 16)
    whole, some = drawn_paths(network, rows, stream), drawn_paths(network, rows[::3], stream[::3])
    assert (whole[::3] == some).all()
    paths = network.paths
    assert ((whole >= paths.row_ptr[rows]) & (whole < paths.row_ptr[rows + 1])).all()
    several = np.diff(paths.row_ptr)[rows] > 1
    first = whole[several] == paths.row_ptr[rows[several]]
    assert 0.1 < first.mean() < 0.7  # not all the same way


@pytest.mark.parametrize(("topology", "devices"), [("torus", 1), ("fattree", 2), ("dragonfly", 1), ("bigswitch", 2)])
def test_messages_take_a_path_of_their_row_and_none_is_kept(topology, devices):
    """A row of a large torus has 8 paths of some 32 links: of half a million messages they took 3 GB."""
    cluster = cluster_of(16, devices)
    fabric = fabric_of(topology, cluster, {"sides": (4, 4)} if topology == "torus" else {})
    network, kept = Network(fabric, cluster), Network(fabric, cluster)
    count = cluster.n_devices
    src, dst = (ends.astype(np.int32) for ends in np.nonzero(np.ones((count, count), dtype=bool)))
    stream = streams_of(src, dst, count)
    before = len(network.paths.row_ptr)
    ways = paths_of_messages(network, src, dst, stream)
    assert len(network.paths.row_ptr) == before
    path = drawn_paths(kept, kept.rows_between(src, dst).astype(np.int64), stream)
    paths = kept.paths
    assert (ways.lengths == np.diff(paths.path_ptr)[path]).all()
    assert (ways.links == np.concatenate([paths.links[paths.path_ptr[k] : paths.path_ptr[k + 1]] for k in path])).all()
    assert (ways.delay == paths.delay[path]).all()


def test_messages_without_a_path_are_named():
    one_way = Fabric.from_links(
        name="cut", n_hosts=3, n_switches=0, links=[(0, 1), (1, 0)], bandwidth=1e9, latency=1e-6, max_paths=8
    )
    network = Network(one_way, cluster_of(3, 1))
    src, dst = np.array([0, 0], np.int32), np.array([1, 2], np.int32)
    with pytest.raises(FabricError, match="no path from host 0 to host 2"):
        paths_of_messages(network, src, dst, streams_of(src, dst, 3))


def test_messages_between_joins_are_one_flow_for_each_pair_of_joins():
    """So files have all-to-alls: micro-batches do not matter, as all wait for one join."""
    join = collective([0], 0, kind=Collective.JOIN, op=2)
    rows = [join, join, *(transfer(0, k, k * SIZE, op=2) for k in (1, 2, 3)), join]
    rows += [*(transfer(1, k, SIZE, op=2) for k in (0, 2)), join]
    edges = [(0, 2), (0, 3), (0, 4), (2, 5), (3, 5), (4, 5), (1, 6), (1, 7), (6, 8), (7, 8)]
    coupled = coupled_messages(task_graph(rows, edges), 0)
    assert coupled is not None
    assert coupled.counts.tolist() == [3, 2]
    assert coupled.sender.tolist() == [2, 6]
    assert coupled.size.tolist() == [SIZE, 2 * SIZE, 3 * SIZE, SIZE, SIZE]
    assert (coupled.taskgraph.kind == TaskKind.COLLECTIVE).all()
    assert coupled_messages(task_graph(rows, edges), 5) is None


@pytest.mark.parametrize(("op", "foreign"), [(-1, {}), (0, {"ids": [1]})], ids=["a file of FlexNet", "a trace"])
def test_messages_of_passes_that_may_be_any_are_left_as_they_are(couple, op, foreign):
    """Two messages to and fro, with a pass of 1 ms before each: one flow for both would wait for itself."""
    rows = [compute(0, 1e-3, op=op), transfer(0, 1, SIZE, op=op), compute(1, 1e-3, op=op), transfer(1, 0, SIZE, op=op)]
    tasks = task_graph([*rows, compute(0, 1e-3, op=op)], [(0, 1), (1, 2), (2, 3), (3, 4)], 2)
    tasks = attrs.evolve(tasks, foreign=foreign)
    assert coupled_messages(tasks, 0) is None
    cluster = cluster_of(2, 1)
    fabric = fabric_of("bigswitch", cluster, {})
    couple()
    alone = float(fabric.link_latency[0]) * 2 + SIZE / float(fabric.link_bandwidth[0])
    assert Fluid().build().makespan(tasks, fabric, cluster) == pytest.approx(3e-3 + 2 * alone)


def test_a_recording_has_the_bytes_of_coupled_messages(couple):
    couple()
    cluster = cluster_of(8, 1)
    fabric, fluid, tasks = fabric_of("torus", cluster, {}), Fluid().build(), tables(8, [0, 5], [SIZE, SIZE])
    timeline, recording = fluid.record(tasks, fabric, cluster)
    assert timeline.makespan == fluid(tasks, fabric, cluster).makespan == fluid.makespan(tasks, fabric, cluster)
    carried = np.bincount(recording.links.link, recording.links.nbytes, fabric.n_links)
    np.testing.assert_allclose(carried, timeline.link_bytes, rtol=1e-9)
    assert fluid.makespan(tasks, fabric, cluster, timeline.makespan * 0.9) == np.inf


@pytest.mark.parametrize("factors", [(), (((2.0, 0.0),), ((0.5,), (1.0,), (1.0,), (0.0,)))], ids=["equal", "unequal"])
def test_parts_of_an_all_to_all_are_routed_one_after_the_other(factors, monkeypatch):
    """The loads of a thousand members need no table of a million paths."""
    cluster = cluster_of(32, 1)
    fabric, group = fabric_of("torus", cluster, {}), direct._Group(np.arange(32, dtype=np.int32), factors)
    network = Network(fabric, cluster)
    links, load, latency = direct._loads_of(group, network)
    monkeypatch.setattr(direct, "_KEPT", 0)
    monkeypatch.setattr(direct, "_AT_A_TIME", 100)
    network = Network(fabric, cluster)
    parts = direct._loads_of(group, network)
    assert (parts[0] == links).all()
    assert np.abs(parts[1] - load).max() <= 32  # each part is rounded
    assert parts[2] == latency
    assert len(network.paths.row_ptr) == len(Network(fabric, cluster).paths.row_ptr)  # nothing is kept


def test_flows_do_not_grow_with_the_messages():
    """128 all-to-alls of 64 members have half a million messages; a flow of each took 5 CPU seconds a plan."""
    cluster = cluster_of(64, 1)
    network = Network(fabric_of("torus", cluster, {}), cluster)
    rows = [collective(range(64), SIZE, kind=Collective.ALL_TO_ALL) for _ in range(128)]
    assert len(Model().prepare(task_graph(rows, [], 64), network).entities.task) == 128
    assert len(Model().prepare(task_graph(rows[:2], [], 64), network).entities.task) == 2 * 64 * 63
