"""Collectives inside a host wait for NCCL's latencies, beside calculations by hand in microseconds."""

from __future__ import annotations

import attrs
import pytest

from topoplan import Fabric, Host
from topoplan.model.taskgraph import Collective
from topoplan_engine.experiment import build_cluster
from topoplan_engine.options import ClusterOptions
from topoplan_engine.simulation.columns import columns
from topoplan_engine.simulation.inside_waits import with_inside_waits
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_fluid import Fluid

US, GIB = 1e6, 1 << 30


@pytest.fixture(scope="module")
def clusters():
    host, made = Host.discover(), {}

    def of(machine, servers=1):
        if (machine, servers) not in made:
            made[machine, servers] = build_cluster(ClusterOptions(machine=machine, servers=servers), host)
        return made[machine, servers]

    return of


def microseconds(cluster, tasks, edges=(), **options):
    """Return the time of a task graph with the waits, less the time without."""
    pairs = [(h, cluster.n_hosts) for h in range(cluster.n_hosts)]
    links = [*pairs, *((b, a) for a, b in pairs)]
    fabric = Fabric.from_links(
        name="one", n_hosts=cluster.n_hosts, n_switches=1, links=links, bandwidth=50e9, latency=1e-6
    )
    graph = task_graph(tasks, edges, n_devices=cluster.n_devices)
    timeline, without = (
        Fluid(**{**options, "protocol": word}).build()(graph, fabric, cluster) for word in ("inside", "none")
    )
    assert timeline.bounds.best <= timeline.makespan * (1 + 1e-9)
    return (timeline.makespan - without.makespan) * US


@pytest.mark.parametrize(
    ("machine", "kind", "members", "size", "wait"),
    [
        ("dgx-a100", Collective.ALL_REDUCE, 8, 8, 6.6 + 14 * 0.6),
        ("dgx-a100", Collective.ALL_REDUCE, 8, GIB, 8.4 + 14 * 3.4),
        ("dgx-a100", Collective.ALL_GATHER, 2, 8, 6.6 + 0.6),
        ("dgx-a100", Collective.REDUCE_SCATTER, 8, GIB, 8.4 + 7 * 3.4),
        ("dgx-h100", Collective.ALL_GATHER, 8, 8, 6.6 + 7 * 0.6),
        ("dgx-h100", Collective.ALL_TO_ALL, 8, 8, 6.6 + 0.6),
        ("dgx-h100", Collective.ALL_TO_ALL, 8, GIB, 8.4 + 3.4),
        ("gb200-nvl72", Collective.ALL_GATHER, 72, 8, 25.0),
        ("tpu-v4", Collective.ALL_REDUCE, 4, 8, 0.0),
        ("mi300x", Collective.ALL_REDUCE, 8, 8, 0.0),
    ],
)
def test_waits_are_those_of_the_tuner(machine, kind, members, size, wait, clusters):
    cluster = clusters(machine, 4 if machine == "tpu-v4" else 1)
    assert microseconds(cluster, [collective(range(members), size, kind=kind)]) == pytest.approx(wait, abs=2e-3)


def test_a_tensor_between_waits_for_what_a_protocol_sends_more(clusters):
    """LL sends as many bytes again: 2 x 7/8 x 1 MB, at 300 GB/s half and 87.7 GB/s at most; Simple would take 56 us."""
    sent = 2 * 7 / 8 * 1e5
    wait = 15.0 + (sent / 87.7e9 - sent / 300e9) * US
    tasks = [collective(range(8), 100_000)]
    assert microseconds(clusters("dgx-a100"), tasks) == pytest.approx(wait, abs=2e-3)
    assert microseconds(clusters("dgx-a100"), tasks, level="stepped") == pytest.approx(wait, abs=2e-3)


def test_groups_across_hosts_messages_and_hosts_without_insides_do_not_wait(clusters):
    two = clusters("dgx-h100", 2)
    assert microseconds(two, [collective(range(4, 12), 1000)]) == 0
    assert microseconds(two, [transfer(0, 1, 1000)]) == 0
    assert microseconds(attrs.evolve(two, host=None), [collective(range(8), 1000)]) == 0
    links = tuple(attrs.evolve(link, latency=1e-6) for link in two.host.links)
    slow = attrs.evolve(two, host=attrs.evolve(two.host, links=links))
    assert microseconds(slow, [collective(range(8), 1000)]) == pytest.approx(0, abs=1e-9)


def test_one_that_follows_another_waits_too(clusters):
    both = [collective(range(8), 8), collective(range(8), 8)]
    assert microseconds(clusters("dgx-h100"), both, [(0, 1)]) == pytest.approx(2 * 15.0, abs=2e-3)


def test_columns_that_wait_are_of_the_kind_that_kernels_are_compiled_for(clusters):
    """A column that may be written has another type for numba, which compiles the simulator anew: 20 seconds."""
    graph = task_graph([collective([0, 1], GIB)], n_devices=8)
    before = columns(graph)
    waiting = with_inside_waits(before, graph, clusters("dgx-h100"))
    assert waiting.seconds.tolist() > before.seconds.tolist()
    assert [column.flags.writeable for column in waiting] == [column.flags.writeable for column in before]
