"""The inputs of ASTRA-sim; where TOPOPLAN_ASTRA_SIM names its binary (of either analytical backend), it runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import warnings

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Fabric, Host, Plan, TopologyContext
from topoplan.errors import TopoplanWarning
from topoplan.testing import reference
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.exporting import write_outputs
from topoplan_engine.folders import archive_of, files_of, write_folder
from topoplan_exporter_chakra import AstraSim
from topoplan_exporter_chakra.product import Axis, axes_of
from topoplan_exporter_chakra.ranks import traces
from topoplan_exporter_chakra.replayed import replayed_seconds
from topoplan_exporter_chakra.schema import decode, encode
from topoplan_samples.tasks import collective, compute, task_graph, transfer

BINARY = os.environ.get("TOPOPLAN_ASTRA_SIM", "")
runs_astra_sim = pytest.mark.skipif(not BINARY, reason="TOPOPLAN_ASTRA_SIM names no binary of ASTRA-sim")
HOST = Host.discover()


def built(topology, n_hosts, **options):
    cluster = Cluster.uniform(n_hosts=n_hosts, **options)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return cluster, HOST.make("topology", topology).build(context)


def files(plan):
    return files_of(AstraSim().write(plan), "x")


def network(plan):
    lines = files(plan)["network.yml"].decode().splitlines()
    return {name: values.strip("[ ]").split(", ") for name, values in (line.split(": ") for line in lines)}


def plan_on(topology, n_hosts, **options):
    cluster, fabric = built(topology, n_hosts, **options)
    tasks = task_graph([compute(0), collective(list(range(n_hosts)), 8)], edges=[(0, 1)], n_devices=n_hosts)
    return Plan(cluster=cluster, fabric=fabric, taskgraph=tasks)


def test_units_of_the_network_file():
    """A cycle is a picosecond, and GB/s are 2^30 bytes in 10^9 cycles: 12.5e9 bytes/s are 0.0125 bytes a cycle."""
    told = network(plan_on("bigswitch", 4, interfaces=1, interface_bandwidth=12.5e9, latency=5e-7))
    assert (told["topology"], told["npus_count"]) == (["Switch"], ["4"])
    assert float(told["bandwidth"][0]) * 2**30 / 1e9 == pytest.approx(0.0125, rel=1e-12)
    assert float(told["latency"][0]) == 500_000


def test_inputs_but_the_network():
    plan = plan_on("fully-connected", 4, interfaces=3)
    system = json.loads(files(plan)["system.json"])
    assert system["endpoint-delay"] > 0
    assert system["all-reduce-implementation"] == ["ring"]
    assert json.loads(files(plan)["comm_groups.json"]) == {"1": [0, 1, 2, 3]}
    assert json.loads(files(plan)["memory.json"]) == {"memory-type": "NO_MEMORY_EXPANSION"}


def with_algorithms(text, rows=None, *, moved=True):
    simulator = {"kind": "simulator", "name": "fluid", "options": {"algorithms": text}}
    uses = {} if rows is None else {"algorithms": rows}
    provenance = {"components": [simulator], **({"joint": uses} if rows and moved else uses)}
    return attrs.evolve(plan_on("fully-connected", 4, interfaces=3), provenance=provenance)


def test_algorithms_of_collectives_have_the_names_of_astra_sim():
    system = json.loads(files(with_algorithms("all-reduce=tree;all-gather=auto;all-to-all=direct"))["system.json"])
    assert system["all-reduce-implementation"] == ["doubleBinaryTree"]
    assert system["all-gather-implementation"] == ["ring"]
    assert system["all-to-all-implementation"] == ["direct"]


@pytest.mark.parametrize("moved", [True, False], ids=["by the search", "named"])
def test_what_runs_the_most_bytes_is_written(moved):
    rows = [
        {"collective": "all-reduce", "algorithm": "halving-doubling", "most_bytes": 10**9},
        {"collective": "all-reduce", "algorithm": "tree", "most_bytes": 10**3},
    ]
    system = json.loads(files(with_algorithms("all-reduce=auto", rows, moved=moved))["system.json"])
    assert system["all-reduce-implementation"] == ["halvingDoubling"]


def test_an_algorithm_that_astra_sim_lacks_is_named():
    with pytest.warns(TopoplanWarning, match="all-reduce by nvls, which it does not have, is written as ring"):
        system = json.loads(files(with_algorithms("all-reduce=nvls"))["system.json"])
    assert system["all-reduce-implementation"] == ["ring"]


def grid(sizes, shapes, bandwidth):
    """Return the product of rings and full meshes, made by networkx' own rules."""
    import networkx as nx

    graph = nx.empty_graph(1)
    for size, shape in zip(reversed(sizes), reversed(shapes), strict=True):
        axis = nx.cycle_graph(size) if shape == "Ring" else nx.complete_graph(size)
        graph = nx.cartesian_product(graph, axis)
    ordered = nx.Graph()
    ordered.add_nodes_from(sorted(graph))
    ordered.add_edges_from(graph.edges)
    return Fabric.from_networkx(ordered, bandwidth=bandwidth, latency=1e-6)


@pytest.mark.parametrize(
    ("sizes", "shapes"),
    [
        ((5,), ("Ring",)),
        ((6,), ("FullyConnected",)),
        ((4, 3), ("Ring", "Ring")),
        ((3, 5), ("FullyConnected", "Ring")),
        ((2, 4, 5), ("Ring", "FullyConnected", "Ring")),
    ],
)
def test_products_are_found(sizes, shapes):
    fabric = grid(sizes, shapes, 1e9)
    axes = axes_of(fabric, Cluster.uniform(n_hosts=fabric.n_hosts))
    found = [(axis.size, axis.shape) for axis in axes]
    triangles = {(3, "FullyConnected"): (3, "Ring"), (2, "Ring"): (2, "Ring")}
    assert found == [triangles.get(each, each) for each in zip(sizes, shapes, strict=True)]


def test_devices_of_a_host_are_the_innermost_axis():
    plan = plan_on("bigswitch", 4, interfaces=1)
    cluster = Cluster.uniform(n_hosts=4, devices_per_host=8, interfaces=1, inside_bandwidth=3e11)
    axes = axes_of(plan.fabric, cluster)
    assert [(axis.shape, axis.size, axis.bandwidth) for axis in axes] == [
        ("Switch", 8, 3e11),
        ("Switch", 4, 12.5e9 / 8),
    ]


def test_rates_are_of_a_device():
    """Two hosts of 8 GPUs and 8 interfaces of 400 Gbps: 50 GB/s for each GPU, not 400."""
    cluster, fabric = built(
        "bigswitch", 2, devices_per_host=8, interfaces=8, interface_bandwidth=50e9, inside_bandwidth=450e9
    )
    tasks = task_graph([collective(list(range(16)), 8)], edges=[], n_devices=16)
    told = network(Plan(cluster=cluster, fabric=fabric, taskgraph=tasks))
    assert told["npus_count"] == ["8", "2"]
    rates = [float(rate) * 2**30 / 1e9 * 1e3 for rate in told["bandwidth"]]
    assert rates == pytest.approx([450, 50], rel=1e-12)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"link_src": [0, 1, 2, 3], "link_dst": [1, 2, 3, 0]}, "fabric 'ring' is no product"),
        ({"link_bandwidth": [1e9] * 7 + [2e9]}, "links of fabric 'ring' differ in bandwidth or latency"),
    ],
)
def test_what_is_no_product_is_said_in_one_line(change, why):
    ring = reference.ring()
    rows = len(change.get("link_src", ring.link_src))
    columns = {name: getattr(ring, name)[:rows] for name in ring.__annotations__ if name.startswith("link_")}
    plan = attrs.evolve(reference.plan(), fabric=attrs.evolve(ring, **{**columns, **change}), timeline=None)
    with pytest.warns(UserWarning, match=f"^astra-sim: no network.yml is written: {why} ") as told:
        written = files(plan)
    assert len(told) == 1
    assert "network.yml" not in written
    assert "rank.3.et" in written


def test_a_product_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files(attrs.evolve(reference.plan(), timeline=None))


# ── How long ASTRA-sim takes, by its rules ──────────────────────────────────────────────────────────────

SWITCH8, RING4 = Axis("Switch", 8, 450e9, 0.0), Axis("Ring", 4, 50e9, 1e-6)


def replayed(tasks, edges, n_devices, axes, **options):
    cluster, fabric = built("bigswitch", n_devices, interfaces=1)
    plan = Plan(cluster=cluster, fabric=fabric, taskgraph=task_graph(tasks, edges=edges, n_devices=n_devices))
    written = traces(plan, 1e-9, has_cpu=False)
    return replayed_seconds(written.nodes, written.groups, axes, 1e-9, **options)


@pytest.mark.parametrize(
    ("axes", "seconds"),
    [
        # 2 (n-1)/n S/B, and 2 (n-1) latencies, twice on a switch.
        ((Axis("Ring", 8, 50e9, 1e-6),), 14 / 8 * 2**30 / 50e9 + 14e-6),
        ((Axis("Switch", 8, 50e9, 1e-6),), 14 / 8 * 2**30 / 50e9 + 28e-6),
        # An eighth of the bytes leaves the host: 4.18 ms inside and 4.03 between four hosts.
        ((SWITCH8, RING4), 14 / 8 * 2**30 / 450e9 + 6 / 4 * 2**27 / 50e9 + 6e-6),
    ],
)
def test_an_all_reduce_goes_axis_by_axis(axes, seconds):
    n = int(np.prod([axis.size for axis in axes]))
    assert replayed([collective(list(range(n)), 2**30)], [], n, axes) == pytest.approx(seconds, rel=1e-9)


def test_a_group_of_some_ranks_is_one_ring():
    """Ranks 0, 8 and 16 are on three hosts: the way back from the third leads over two links of the ring."""
    told = replayed([collective([0, 8, 16], 3 * 10**9)], [], 32, (SWITCH8, RING4))
    assert told == pytest.approx(4 * (1e9 / 50e9 + 2e-6), rel=1e-9)


def test_messages_of_a_rank_take_turns():
    axes = (Axis("Switch", 4, 1e9, 0.0),)
    tasks = [transfer(0, 1, 10**6), transfer(0, 2, 10**6), transfer(0, 3, 10**6)]
    assert replayed(tasks, [], 4, axes) == pytest.approx(3e-3, rel=1e-9)
    assert replayed(tasks, [], 4, axes, in_turn=False) == pytest.approx(1e-3, rel=1e-9)


def test_what_differs_from_the_plan_is_said_with_how_much():
    """Two rings of a plan are one there: twice as long."""
    cluster = Cluster.uniform(n_hosts=8, interfaces=2, interface_bandwidth=12.5e9, latency=0.0)
    ends = [(host, (host + step) % 8) for host in range(8) for step in (1, 7)]
    ring = Fabric.from_links(name="ring", n_hosts=8, links=ends, bandwidth=12.5e9, latency=0, rings={8: ((1,), (7,))})
    tasks = task_graph([collective(list(range(8)), 10**9)], edges=[], n_devices=8)
    plan = Plan(cluster=cluster, fabric=ring, taskgraph=tasks)
    simulate = HOST.make("simulator", "fluid").build()
    plan = attrs.evolve(plan, timeline=simulate(tasks, ring, cluster))
    assert plan.timeline.makespan == pytest.approx(0.070, rel=0.01)
    with pytest.warns(
        UserWarning, match=r"takes 140 ms for this plan, \+\d+\.\d% to 7\d(\.\d+)? ms here: its collectives "
    ):
        files(plan)


def ran(folder):
    """Run the script of a folder; return its status, and cycles and exposed cycles of the ranks that finished."""
    result = subprocess.run(["sh", str(folder / "run.sh"), BINARY], capture_output=True, text=True, check=False)
    told = re.findall(r"sys\[\d+\] finished, (\d+) cycles, exposed communication (\d+)", result.stdout)
    return result.returncode, np.array(told, dtype=np.int64).reshape(-1, 2), result.stderr


def exported(plan, folder):
    written = write_outputs(HOST, plan, ((Choice("astra-sim"), str(folder)),))
    assert not written.refused
    return ran(folder)


@runs_astra_sim
def test_one_all_reduce_takes_what_the_formula_says(tmp_path):
    """2(n-1)/n of the bytes over the bandwidth, and a latency for each of 2(n-1) steps (Patarasuk, Yuan 2009)."""
    cluster, fabric = built("fully-connected", 16, interfaces=15, interface_bandwidth=12.5e9, latency=1e-6)
    size = 64 * 2**20
    tasks = [compute(0, seconds=1e-3), collective(list(range(16)), size)]
    plan = Plan(cluster=cluster, fabric=fabric, taskgraph=task_graph(tasks, edges=[(0, 1)], n_devices=16))
    status, told, _ = exported(plan, tmp_path / "one")
    assert (status, len(told)) == (0, 16)
    assert told[:, 0].max() * 1e-12 == pytest.approx(1e-3 + 30 / 16 * size / 12.5e9 + 30e-6, rel=2e-5)


@runs_astra_sim
def test_data_parallel_resnet_on_sixteen_devices(tmp_path):
    outcome = optimize(
        Experiment(
            model="resnet50",
            cluster=ClusterOptions(servers=16, degree=4),
            topology="bigswitch",
            searchers=["baseline:rule=ddp"],
            run=RunOptions(batch_size=512, budget=10),
        )
    )
    status, told, _ = exported(outcome.plan, tmp_path / "resnet")
    assert (status, len(told)) == (0, 16)
    assert told[:, 0].max() * 1e-12 == pytest.approx(outcome.timeline.makespan, rel=0.02)
    busy = (told[:, 0] - told[:, 1]) * 1e-12
    assert np.sort(busy) == pytest.approx(np.sort(outcome.timeline.device_busy), rel=2e-5)


@runs_astra_sim
@pytest.mark.parametrize("searcher", ["mcmc", "pipeline", "spmd"])
def test_no_strategy_blocks_and_each_takes_as_long_as_its_rules_say(tmp_path, searcher):
    outcome = optimize(
        Experiment(
            model="transformer",
            cluster=ClusterOptions(servers=4, degree=1),
            topology="bigswitch",
            searchers=[searcher],
            run=RunOptions(batch_size=64, budget=20),
        )
    )
    status, told, _ = exported(outcome.plan, tmp_path / "plan")
    assert (status, len(told)) == (0, 4)
    written = traces(outcome.plan, 1e-9, has_cpu=False)
    axes = axes_of(outcome.plan.fabric, outcome.plan.cluster)
    expected = replayed_seconds(written.nodes, written.groups, axes, 1e-9)
    if "unaware" in BINARY.lower():
        assert told[:, 0].max() * 1e-12 == pytest.approx(expected, rel=1e-3)


@runs_astra_sim
def test_ranks_that_wait_for_ever_are_told(tmp_path):
    """ASTRA-sim itself ends with status 0."""
    cluster, fabric = built("fully-connected", 3, interfaces=2)
    tasks = task_graph([collective([0, 1], 800), collective([0, 1, 2], 800), transfer(0, 1, 8)], edges=[], n_devices=3)
    written = files(Plan(cluster=cluster, fabric=fabric, taskgraph=tasks))
    trace = decode(written["rank.0.et"], "x")
    first, second, *rest = trace.nodes
    swapped = (attrs.evolve(second, id=0, ctrl_deps=()), attrs.evolve(first, id=1, ctrl_deps=(0,)), *rest)
    write_folder(tmp_path / "right", archive_of(written))
    write_folder(tmp_path / "wrong", archive_of({**written, "rank.0.et": encode(attrs.evolve(trace, nodes=swapped))}))
    assert ran(tmp_path / "right")[0] == 0
    status, told, error = ran(tmp_path / "wrong")
    assert status == 1
    assert len(told) < 3
    assert "ranks have finished" in error
