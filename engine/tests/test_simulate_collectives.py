"""All-reduces by rounds of messages: what is an algorithm, which bytes are sent, and how long it takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan import Cluster, Collective, Host, TaskKind, TopologyContext, TopoplanError
from topoplan.testing import reference
from topoplan_engine.simulation.collectives import AlgorithmRun, Send, check_all_reduce, with_rounds
from topoplan_samples.tasks import collective, compute, task_graph, transfer

HOST = Host.discover()
SIZE = 12_500_000


def ring(n):
    """Reduce-scatter and all-gather around a ring (Patarasuk, Yuan 2009)."""
    return [
        [Send(i, (i + 1) % n, ((i - step) % n,), add=step < n - 1) for i in range(n)]
        for step in (*range(n - 1), *range(n - 1, 2 * n - 2))
    ]


def tree(n):
    """Up a binary tree to member 0, and down again."""
    steps = [2**level for level in range((n - 1).bit_length())]
    up = [[Send(i + step, i, range(n), add=True) for i in range(0, n - step, 2 * step)] for step in steps]
    return [*up, *([Send(target, source, whole) for source, target, whole, _ in sends] for sends in reversed(up))]


def halving(n):
    """Recursive halving and doubling (Rabenseifner 2004), for powers of two."""
    rounds, step = [], n // 2
    while step:
        kept = {i: [c for c in range(n) if (c ^ i) & ~(2 * step - 1) == 0] for i in range(n)}
        rounds.append([Send(i, i ^ step, [c for c in kept[i] if (c ^ i) & step], add=True) for i in range(n)])
        step //= 2
    back = [[Send(target, source, chunks) for source, target, chunks, _ in sends] for sends in reversed(rounds)]
    return rounds + back


def built(n_hosts, **cluster):
    made = Cluster.uniform(n_hosts=n_hosts, interfaces=1, interface_bandwidth=12.5e9, latency=1e-6, **cluster)
    context = TopologyContext(cluster=made, demand=None, rng=np.random.default_rng(0))
    return HOST.make("topology", "bigswitch").build(context), made


def fluid():
    return HOST.make("simulator", "fluid:level=stepped").build()


@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 13, 16])
def test_algorithms_are_all_reduces(members):
    check_all_reduce(ring, members)
    check_all_reduce(tree, members)
    if members.bit_count() == 1:
        check_all_reduce(halving, members)


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        ([], "at the end, chunk 0 of member 0 lacks the data of member 1"),
        (ring(3)[:-1], "at the end, chunk 2 of member 0 lacks the data of member 1"),
        (
            [*ring(3), [Send(1, 0, [2], add=True)]],
            "round 4: chunk 2 from member 1 to 0: the data of member 2 would be ",
        ),
        ([[Send(0, 3, [0])]], r"round 0: a message from member 0 to 3 \(must be two of 0..2\)"),
        ([[Send(1, 1, [0])]], r"a message from member 1 to 1 \(must be"),
        ([[Send(0, 1, [1, 1])]], r"a message from member 0 has chunks \[1, 1\] \(must be some of 0..2, each once\)"),
        ([[Send(0, 1, [])]], r"has chunks \[\] "),
        ([[Send(0, 1, [3])]], r"has chunks \[3\] "),
        ([[Send(0, 2, [0], add=True), Send(1, 2, [0])]], "chunk 0 from member 1 to 2: another message of the round "),
    ],
)
def test_what_is_no_all_reduce_is_named(rounds, why):
    with pytest.raises(TopoplanError, match=rf"^all-reduce of 3 members.*{why}"):
        check_all_reduce(lambda _: rounds, 3)


def test_rounds_read_what_was_there_before_them():
    swap = [Send(0, 1, (0, 1), add=True), Send(1, 0, (0, 1), add=True)]
    check_all_reduce(lambda _: [swap], 2)


@given(st.integers(2, 9), st.integers(0, 10_000), st.sampled_from([ring, tree]))
def test_every_byte_is_sent_as_often_as_the_algorithm_says(n, size, algorithm):
    graph = task_graph([collective(range(n), size)], n_devices=n)
    rewritten = with_rounds(graph, algorithm)
    rewritten.check()
    assert rewritten.size.sum() == 2 * (n - 1) * size  # n - 1 sums of each byte, and n - 1 copies
    assert (rewritten.kind == TaskKind.TRANSFER).sum() == sum(map(len, algorithm(n)))


@pytest.mark.parametrize(
    ("algorithm", "shares"),
    [(ring, [1 / 8] * 14), (tree, [1.0] * 6), (halving, [1 / 2, 1 / 4, 1 / 8, 1 / 8, 1 / 4, 1 / 2])],
    ids=["ring", "tree", "halving"],
)
def test_time_is_that_of_the_rounds(algorithm, shares):
    """Each round takes as long as one of its messages alone, which is latency and bytes over bandwidth.

    Numbers of rounds and their bytes: Thakur, Rabenseifner, Gropp 2005, section 4.5.
    """
    fabric, cluster = built(8)
    size = 8 * SIZE
    graph = task_graph([compute(0, 2e-3), collective(range(8), size), compute(7, 5e-4)], [(0, 1), (1, 2)], n_devices=8)
    run = AlgorithmRun(fluid(), algorithm)
    timeline = run(graph, fabric, cluster)
    messages = [task_graph([transfer(0, 1, int(share * size))], n_devices=8) for share in shares]
    rounds = sum(fluid().makespan(message, fabric, cluster) for message in messages)
    assert rounds == pytest.approx(sum(shares) * size / 12.5e9, rel=0.02)
    assert timeline.finish - timeline.start == pytest.approx([2e-3, rounds, 5e-4], rel=1e-9)
    assert timeline.start == pytest.approx([0, 2e-3, 2e-3 + rounds], rel=1e-9)
    assert run.makespan(graph, fabric, cluster) == timeline.makespan == timeline.finish[2]


def test_a_ring_by_rounds_takes_as_long_as_the_simulators_ring():
    fabric, cluster = built(6)
    graph = task_graph([collective(range(6), 6 * SIZE)], n_devices=6)
    own = fluid().makespan(graph, fabric, cluster)
    assert AlgorithmRun(fluid(), ring).makespan(graph, fabric, cluster) == pytest.approx(own, rel=1e-6)


def test_messages_inside_a_host_take_no_link():
    fabric, cluster = built(2, devices_per_host=2)
    run = AlgorithmRun(fluid(), tree)
    graph = task_graph([collective([1, 0], SIZE, seconds=1.0)], n_devices=4)
    inside = run(graph, fabric, cluster)
    assert inside.link_bytes.sum() == 0
    assert 0 < inside.makespan < 1e-3
    both = task_graph([collective([0, 1, 2, 3], SIZE)], n_devices=4)
    assert run(both, fabric, cluster).link_bytes.sum() >= 2 * 2 * SIZE  # to the switch and on, up and down


def test_other_collectives_stay():
    graph = task_graph([collective([0, 1], 8, kind=Collective.ALL_GATHER), collective([2], 8)])
    assert with_rounds(graph, tree) == graph


def test_fabrics_that_are_rebuilt_are_refused():
    with pytest.raises(TopoplanError, match="need a fabric that stays"):
        AlgorithmRun(fluid(), tree)(reference.taskgraph(), reference.rebuilt(delay=1.0), reference.cluster())
