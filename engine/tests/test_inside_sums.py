"""GPUs of a device sum the gradients of programs as those of placements, by hand: (n-1)/n of S twice over each link."""

from __future__ import annotations

from collections import Counter

import attrs
import numpy as np
import pytest

from topoplan import Cluster, DeviceMesh, Zero
from topoplan.model.machine import HostModel
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_estimator_roofline import Roofline
from topoplan_machine_nvidia import DEVICES
from topoplan_operators import GraphBuilder
from topoplan_samples.fabrics import star
from topoplan_samples.layered import data_parallel, half_frozen, layered, megatron, program, samples, stages_of, tied
from topoplan_samples.staged import as_stages, of_program, order_of
from topoplan_simulator_fluid import Fluid

#: Bytes/s of a GPU's link; GPUs of a device, and what of a weight passes over each link to scatter or gather it.
RATE, GPUS = 450e9, 8
PART = (GPUS - 1) / GPUS / RATE
#: Bytes of each matrix of `layered`, of which it has ten with that of its words.
MATRIX, MATRICES = 16 * 32 * 4, 10


def lowered(graph, strategy, hosts=4, gpus=GPUS):
    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    cluster = Cluster.uniform(n_hosts=hosts, gpus_per_device=gpus, inside_bandwidth=RATE)
    cluster = attrs.evolve(cluster, machines=machines)
    strategy.check(graph, hosts)
    tasks = Lowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
    tasks.check()
    return tasks, cluster


def simulated(graph, strategy, hosts, gpus=GPUS):
    """The timeline, and how long it goes on once everything is computed."""
    tasks, cluster = lowered(graph, strategy, hosts, gpus)
    timeline = Fluid().build()(tasks, star(hosts), cluster)
    return timeline, timeline.makespan - timeline.finish[tasks.kind != TaskKind.COLLECTIVE].max()


def inside(tasks, *kinds):
    """Members and seconds of the collectives of some kinds that have seconds, each with how often it is there."""
    rows = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.seconds > 0))
    rows = rows[np.isin(tasks.collective[rows], [int(each) for each in kinds])]
    return Counter((len(tasks.members(row)), round(float(tasks.seconds[row]) / PART, 3)) for row in rows)


def mesh(graph, size, cut, zero=None, stages=1):
    """A program along one axis as a stage, or several ones of a model of four layers."""
    stage_of = [0] * len(graph.operators) if stages == 1 else stages_of(graph, [0, 0, 1, 1])
    meshes = [DeviceMesh(axes=["a"], sizes=[size], devices=k * size + np.arange(size)) for k in range(stages)]
    return as_stages(graph, stage_of, meshes, order_of("1f1b", stages, 2 * stages), [cut], zero=zero)


@pytest.mark.parametrize("hosts", [1, 4])
def test_programs_sum_inside_of_devices_what_placements_sum(hosts):
    """Each of ten matrices is summed once: 2 (7/8) 2,048 B over each link."""
    graph = layered()
    placed = data_parallel(graph, np.arange(hosts))
    made = program(graph, (hosts,), [samples])
    several = placed, made, mesh(graph, hosts, samples)
    for strategy in several:
        tasks, _ = lowered(graph, strategy, hosts)
        assert inside(tasks, Collective.ALL_REDUCE) == {(hosts, 2 * MATRIX): MATRICES}
        assert not inside(tasks, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
        alone, _ = lowered(graph, strategy, hosts, gpus=1)
        assert not alone.seconds[alone.kind == TaskKind.COLLECTIVE].any()


@pytest.mark.parametrize("hosts", [1, 2])
def test_one_matrix_takes_the_same_time_as_a_program_and_placed(hosts):
    """1 GiB: the GPUs of each device take 4.176 ms, and so do lower bounds."""
    builder = GraphBuilder("one", 16)
    builder.linear(builder.input((16384,)), 16384, bias=False)
    graph = builder.build()
    placed = data_parallel(graph, np.arange(hosts))
    made = program(graph, (hosts,), [samples])
    strategies = placed, made, of_program(graph, made.program)
    for strategy in strategies:
        timeline, summed = simulated(graph, strategy, hosts)
        _, alone = simulated(graph, strategy, hosts, gpus=1)
        assert summed - alone == pytest.approx(2 * 7 / 8 * 2**30 / 450e9, rel=1e-9)
        assert timeline.bounds.chain <= timeline.makespan * (1 + 1e-12)
    spans = {simulated(graph, each, hosts)[0].makespan for each in strategies}
    assert max(spans) == pytest.approx(min(spans), rel=1e-9)


def test_slices_of_matrices_are_summed_where_no_device_has_the_same():
    """Tensor parallelism: each of four devices has a quarter of each matrix, and its GPUs have it, too."""
    graph = layered()
    for strategy in (program(graph, (4,), [megatron]), mesh(graph, 4, megatron)):
        tasks, _ = lowered(graph, strategy)
        assert inside(tasks, Collective.ALL_REDUCE) == {(1, 2 * MATRIX / 4): 4 * MATRICES}


def test_frozen_matrices_are_not_summed():
    """The words and two layers of four are frozen, of two matrices each."""
    graph = half_frozen()
    for hosts in (1, 4):
        tasks, _ = lowered(graph, program(graph, (hosts,), [samples]), hosts)
        assert inside(tasks, Collective.ALL_REDUCE) == {(hosts, 2 * MATRIX): MATRICES - 5}


def test_buckets_are_summed_but_for_tables_that_live_on_one_gpu():
    """One bucket has the gradients of a table of 1,000 x 16 rows, and of two matrices."""
    builder = GraphBuilder("looked up", 16)
    found = builder.embedding(builder.input((1,), itemsize=8), 1000, 16)
    builder.linear(builder.linear(found, 32, bias=False), 16, bias=False)
    graph = builder.build()
    strategy = program(graph, (4,), [samples])
    made = attrs.evolve(strategy.program, gradient_bucket_bytes=1 << 20)
    for each, summed in ((strategy, {(4, 2 * MATRIX): 2}), (of_program(graph, made), {(4, 4 * MATRIX): 1})):
        tasks, _ = lowered(graph, each)
        assert inside(tasks, Collective.ALL_REDUCE) == summed
        assert tasks.size[tasks.kind == TaskKind.COLLECTIVE].sum() == 2 * MATRIX + 64_000


@pytest.mark.parametrize("level", [1, 2])
def test_shares_of_zero_are_scattered_and_gathered_inside(level):
    """GPUs scatter S, and gather the quarter that devices leave; they gather S of what devices have updated."""
    graph = layered()
    tasks, _ = lowered(graph, mesh(graph, 4, samples, Zero(level=level, axes=(0,))))
    scattered = {(4, MATRIX): MATRICES} if level == 2 else {}
    assert inside(tasks, Collective.REDUCE_SCATTER) == scattered | {(4, 1.25 * MATRIX): MATRICES}
    assert inside(tasks, Collective.ALL_GATHER) == {(4, MATRIX): MATRICES}
    assert not inside(tasks, Collective.ALL_REDUCE)


def test_slices_of_weights_are_gathered_inside():
    """Stored in quarters: devices gather S and so do their GPUs, which scatter gradients and gather a quarter."""
    graph = layered()
    tasks, _ = lowered(graph, program(graph, (4,), [samples], stored={0: 0}))
    assert inside(tasks, Collective.REDUCE_SCATTER) == {(4, 1.25 * MATRIX): MATRICES}
    assert inside(tasks, Collective.ALL_GATHER) == {(4, MATRIX): MATRICES}


def test_stages_sum_once_behind_all_micro_batches():
    """Two stages of two devices, four micro-batches; the head reads the table, and sums it inside before both do."""
    for graph, matrices in ((layered(), MATRICES), (tied(), MATRICES)):
        strategy = mesh(graph, 2, samples, stages=2)
        tasks, _ = lowered(graph, strategy)
        assert strategy.micro_batches == 4
        assert inside(tasks, Collective.ALL_REDUCE) == {(2, 2 * MATRIX): matrices}
    tasks, _ = lowered(graph, mesh(graph, 2, megatron, stages=2))
    assert inside(tasks, Collective.ALL_REDUCE) == {(1, 2 * MATRIX / 2): 2 * MATRICES}
