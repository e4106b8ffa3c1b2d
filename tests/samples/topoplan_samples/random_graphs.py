"""Small random fabrics and task graphs, with everything that simulators tell apart."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from topoplan import Cluster, Collective, Fabric, TaskKind
from topoplan_engine.network.tables import Network
from topoplan_samples.tasks import collective, compute, task_graph, transfer

__all__ = ["networks", "slowed_taskgraphs", "taskgraphs"]

SECONDS = [0.0, 1e-6, 5e-5, 2e-4, 1.7e-3]
BYTES = [0, 1, 8936, 40_000, 300_000, 5_000_000]
RINGS = [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]


@st.composite
def networks(draw):
    hosts = draw(st.integers(2, 5))
    per_host = draw(st.integers(1, 2))
    shape = draw(st.sampled_from(["star", "spines", "circle", "mesh"]))
    rings = {}
    if shape == "star":
        links = [(h, hosts) for h in range(hosts)]
        switches = 1
    elif shape == "spines":  # two leaves, two spines: two paths between most hosts
        links = [(h, hosts + h % 2) for h in range(hosts)]
        links += [(hosts + leaf, hosts + 2 + spine) for leaf in range(2) for spine in range(2)]
        switches = 4
    elif shape == "mesh":
        links = [(a, b) for b in range(hosts) for a in range(b)]
        switches = 0
    else:
        links = [(h, (h + 1) % hosts) for h in range(hosts) if hosts > 2 or h == 0]
        switches = 0
        rings = {hosts: ((1,), (hosts - 1,)) if draw(st.booleans()) else ((1, hosts - 1, 1),)}
    links += [(b, a) for a, b in links]
    bandwidth = draw(st.lists(st.sampled_from([1e9, 1.25e9, 4e9]), min_size=len(links), max_size=len(links)))
    fabric = Fabric.from_links(
        name=shape,
        n_hosts=hosts,
        n_switches=switches,
        links=links,
        bandwidth=bandwidth,
        latency=draw(st.sampled_from([0.0, 1e-6, 3e-5])),
        max_paths=4,
        rings=rings,
    )
    return Network(fabric, Cluster.uniform(n_hosts=hosts, devices_per_host=per_host, inside_bandwidth=2e10))


@st.composite
def taskgraphs(draw, devices):
    device, tasks, edges = st.integers(0, devices - 1), [], []
    for t in range(draw(st.integers(1, 24))):
        kind = TaskKind(draw(st.sampled_from([0, 1, 1, 2, 4, 4, 5, 5])))
        if kind == TaskKind.TRANSFER:
            tasks.append(transfer(draw(device), draw(device), draw(st.sampled_from(BYTES))))
        elif kind == TaskKind.COLLECTIVE:
            members = draw(st.sampled_from([range(devices), range(0, devices, 2)]) | st.sets(device, min_size=1))
            members = draw(st.permutations(list(members))) if draw(st.booleans()) else sorted(members)
            size, seconds = draw(st.sampled_from(BYTES)), draw(st.sampled_from(SECONDS))
            tasks.append(collective(members, size, seconds, draw(st.sampled_from(RINGS))))
        else:
            tasks.append(compute(draw(device), draw(st.sampled_from(SECONDS)), kind))
        edges += [(s, t) for s in draw(st.lists(st.integers(0, t - 1), max_size=3))] if t else []
    return task_graph(tasks, edges, devices)


@st.composite
def slowed_taskgraphs(draw, devices):
    """Return a task graph whose devices compute slower beside messages, some of them."""
    shares = st.lists(st.sampled_from([0.0, 0.15, 1.0]), min_size=devices, max_size=devices)
    return attrs.evolve(draw(taskgraphs(devices)), slowdown=draw(shares))
