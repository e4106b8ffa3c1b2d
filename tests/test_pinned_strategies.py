"""Task graphs, memory and times of 46 strategies of all kinds, pinned: lowering may be written anew, not change.

A row is what stands in `PINNED`: a hash of the columns of the task graph, the most bytes that a device holds, and the
simulated milliseconds.  Models are small, cuts and devices differ, and what a kind of strategy can say is said by some
row: tied weights, frozen parts, checkpoints, recomputation, meshes of one to three axes, overlap of two micro-batches,
sharded state, parameters that are gathered again, buckets of gradients.

A row that changes on purpose is written anew by ``python tests/test_pinned_strategies.py``, and the reason stands in
the commit.
"""

from __future__ import annotations

import functools
import hashlib

import attrs
import numpy as np
import pytest

from topoplan import Cluster, PlacedStrategy, Placement
from topoplan.model.machine import HostModel
from topoplan_engine.lowering import Lowering
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_engine.program_strategies import overlapped_strategy, with_program
from topoplan_estimator_roofline import Roofline
from topoplan_machine_nvidia import DEVICES
from topoplan_samples.fabrics import star
from topoplan_samples.layered import (
    checkpointed,
    data_parallel,
    half_frozen,
    layered,
    megatron,
    pipeline,
    program,
    samples,
    stages_of,
    tied,
)
from topoplan_samples.pipelines import branching
from topoplan_simulator_fluid import Fluid

BANDWIDTH, LATENCY = 12.5e9, 1e-6


def experts_last(op):
    """Cut rows of the table of words, and what each device makes of the rest by samples."""
    return "r" if op.name == "tok_embeddings" else samples(op)


def drawn(graph, devices, seed):
    """Return placements with cuts and devices by chance."""
    rng = np.random.default_rng(seed)
    placements = []
    for op in graph.operators:
        cuts = [d for d, dim in enumerate(op.dims) if dim.role is not None and dim.size >= 4]
        degrees = [1] * len(op.dims)
        degrees[int(rng.choice(cuts))] = int(rng.integers(1, 5))
        placements.append(Placement(degrees, rng.integers(0, devices, int(np.prod(degrees)))))
    return graph, PlacedStrategy(tuple(placements))


def staged(graph, kind, devices, micro_batches=4, recompute=(), layers_of=(0, 0, 1, 1)):
    """Return a pipeline of the layers."""
    stages = stages_of(graph, layers_of)
    return graph, pipeline(graph, stages, devices, kind, micro_batches, recompute)


def interleaved(recompute=()):
    """Return four chunks on two devices each, which two groups of devices have in turn."""
    return staged(
        layered(), "interleaved", [[0, 1], [2, 3], [0, 1], [2, 3]], recompute=recompute, layers_of=(0, 1, 2, 3)
    )


def crossing(kind):
    """Return a graph with a branch and an edge over two stages, cut along other dimensions in each."""
    graph = branching(12)
    stage = np.minimum(np.arange(len(graph.operators)) // 3, 2)
    placements = []
    for op, of in zip(graph.operators, stage.tolist(), strict=True):
        degrees = [1] * len(op.dims)
        degrees[op.sample_dim if of < 2 else 1] = 2
        placements.append(Placement(degrees, [2 * of, 2 * of + 1]))
    return graph, pipeline_strategy(placements, stage, kind, 3)


def spmd(graph, mesh, cuts, schedule=None, **options):
    """Return a program; options of `SpmdProgram` among ``options`` are set, a schedule of stages of layers overlaps."""
    changes = {key: options.pop(key) for key in ("gathers_again", "gradient_bucket_bytes") if key in options}
    strategy = program(graph, mesh, cuts, **options)
    strategy = with_program(strategy, attrs.evolve(strategy.program, **changes), graph)
    if schedule:
        stage = np.arange(len(graph.operators)) // schedule
        strategy = overlapped_strategy(strategy.program, graph, stage, 2)
    return graph, strategy


PAIRS = [[0, 1], [2, 3]]
CASES = {
    "data-parallel": lambda: (layered(), data_parallel(layered(), [0, 1, 2, 3])),
    "data-parallel, three": lambda: (layered(batch=18), data_parallel(layered(batch=18), [0, 2, 5])),
    "data-parallel, tied": lambda: (tied(), data_parallel(tied(), [0, 1, 2, 3])),
    "data-parallel, frozen": lambda: (half_frozen(), data_parallel(half_frozen(), [0, 1, 2, 3])),
    "data-parallel, checkpoints": lambda: (checkpointed(), data_parallel(checkpointed(), [0, 1])),
    **{f"drawn, {seed}": functools.partial(drawn, branching(12), 6, seed) for seed in range(5)},
    "drawn, layers": lambda: drawn(layered(), 8, 5),
    "drawn, frozen": lambda: drawn(half_frozen(), 8, 6),
    **{
        f"{kind}": functools.partial(staged, layered(), kind, PAIRS)
        for kind in ("gpipe", "1f1b", "1f1b-deep", "zero-bubble")
    },
    **{
        f"{kind}, recompute": functools.partial(staged, layered(), kind, PAIRS, recompute=(True, False))
        for kind in ("gpipe", "1f1b", "zero-bubble")
    },
    **{f"{kind}, tied": functools.partial(staged, tied(), kind, PAIRS) for kind in ("gpipe", "1f1b", "zero-bubble")},
    **{f"{kind}, frozen": functools.partial(staged, half_frozen(), kind, PAIRS) for kind in ("1f1b", "zero-bubble")},
    "1f1b, four stages of one device": lambda: staged(
        layered(), "1f1b", [[0], [1], [2], [3]], 8, layers_of=(0, 1, 2, 3)
    ),
    "1f1b, uneven groups": lambda: staged(layered(batch=12), "1f1b", [[0, 1, 2], [3]], 2),
    "interleaved": interleaved,
    "interleaved, recompute": lambda: interleaved((True, True, False, False)),
    **{f"{kind}, crossing": functools.partial(crossing, kind) for kind in ("gpipe", "1f1b", "zero-bubble")},
    "program, samples": lambda: spmd(layered(), (4,), [samples]),
    "program, matrices": lambda: spmd(layered(), (4,), [megatron]),
    "program, 2 x 2": lambda: spmd(layered(), (2, 2), [samples, megatron]),
    "program, 2 x 2 x 2": lambda: spmd(layered(), (2, 2, 2), [samples, experts_last, megatron]),
    "program, tied": lambda: spmd(tied(), (4,), [samples]),
    "program, frozen": lambda: spmd(half_frozen(), (2, 2), [samples, megatron]),
    "program, checkpoints": lambda: spmd(checkpointed(), (2, 2), [samples, megatron]),
    "program, sharded state": lambda: spmd(layered(), (2, 2), [samples, megatron], sharded_state=True),
    "program, slices": lambda: spmd(layered(), (4,), [samples], stored={0: 0}),
    "program, slices gathered again": lambda: spmd(layered(), (4,), [samples], stored={0: 0}, gathers_again=True),
    "program, buckets": lambda: spmd(layered(), (4,), [samples], gradient_bucket_bytes=5000),
    "program, one bucket": lambda: spmd(layered(), (2, 2), [samples, megatron], gradient_bucket_bytes=2**40),
    "program, overlap": lambda: spmd(layered(), (4,), [samples], schedule=3),
    "program, overlap of words": lambda: spmd(layered(), (2, 2), [samples, experts_last], schedule=1),
    "program, overlap, gathered again": lambda: spmd(
        layered(), (4,), [samples], schedule=3, stored={0: 0}, gathers_again=True
    ),
}

#: Name -> hash of the task graph, bytes on the fullest device, milliseconds.
PINNED: dict[str, tuple[str, int, float]] = {
    "data-parallel": ("dad6c2109075", 116736, 0.200597417),
    "data-parallel, three": ("3cd454c09c35", 134144, 0.196722229),
    "data-parallel, tied": ("829fa2258269", 108544, 0.200597417),
    "data-parallel, frozen": ("868bd2f47cb5", 73728, 0.144481298),
    "data-parallel, checkpoints": ("64e5261a86aa", 126976, 0.192819734),
    "drawn, 0": ("3e0872e95615", 2288, 0.164330612),
    "drawn, 1": ("ba0e0af2cccb", 2928, 0.13831705),
    "drawn, 2": ("3d40dca5a6f7", 2560, 0.188326471),
    "drawn, 3": ("73c25d6527a5", 4208, 0.182305405),
    "drawn, 4": ("91760ca81b96", 3960, 0.158417099),
    "drawn, layers": ("4349e01ff76a", 76544, 0.315174937),
    "drawn, frozen": ("3a65a8da5862", 55808, 0.244144134),
    "gpipe": ("7694104c0579", 73728, 0.496845963),
    "1f1b": ("c5eaf2cd492d", 59392, 0.496845963),
    "1f1b-deep": ("88bc4fb99fd5", 66560, 0.496845963),
    "zero-bubble": ("fc543066ec92", 62464, 0.456802062),
    "gpipe, recompute": ("968f09fa0519", 69632, 0.580915098),
    "1f1b, recompute": ("3258ca40ab44", 52224, 0.532870528),
    "zero-bubble, recompute": ("5501e600b126", 62464, 0.512848577),
    "gpipe, tied": ("36e5de0031dd", 73728, 0.500926018),
    "1f1b, tied": ("bbe6c7059f40", 59392, 0.500926018),
    "zero-bubble, tied": ("047eabb8dca2", 60416, 0.470891829),
    "1f1b, frozen": ("f6b15d2a809c", 51200, 0.426684911),
    "zero-bubble, frozen": ("4ffbaa935004", 62464, 0.426684911),
    "1f1b, four stages of one device": ("c95937133c8f", 45056, 0.62112134),
    "1f1b, uneven groups": ("4f14b3db4e59", 71680, 0.301335362),
    "interleaved": ("e95248f53a08", 64512, 0.465128864),
    "interleaved, recompute": ("6b92090b9250", 55296, 0.537030327),
    "gpipe, crossing": ("4c0b533fc9c6", 2352, 0.216071983),
    "1f1b, crossing": ("c7bf8284a00a", 2352, 0.216071983),
    "zero-bubble, crossing": ("b844162cdd20", 2352, 0.192067031),
    "program, samples": ("a13b4721d9ff", 116736, 0.210594799),
    "program, matrices": ("289e130c6d45", 90112, 0.318490245),
    "program, 2 x 2": ("2b41cf65149e", 86016, 0.240126562),
    "program, 2 x 2 x 2": ("f5a6d9f052b3", 63488, 0.283244671),
    "program, tied": ("b83a82eae25f", 108544, 0.210373623),
    "program, frozen": ("6e9ceee495aa", 54272, 0.166792838),
    "program, checkpoints": ("5b0181eb1ede", 73728, 0.273521573),
    "program, sharded state": ("2b41cf65149e", 70656, 0.240126562),
    "program, slices": ("afda48909abd", 75776, 0.204835714),
    "program, slices gathered again": ("883856487298", 63488, 0.204835714),
    "program, buckets": ("6a5c2c18c790", 116736, 0.209330965),
    "program, one bucket": ("6e787ba77402", 86016, 0.236538533),
    "program, overlap": ("8d75075f52c5", 114688, 0.396888732),
    "program, overlap of words": ("138b693f378c", 112640, 0.390809775),
    "program, overlap, gathered again": ("64fd88b1654b", 62464, 0.392886866),
}


def row(case):
    """Return what is pinned of a case."""
    graph, strategy = case()
    devices = 1 + max(int(placement.devices.max()) for placement in strategy.placements)
    devices = max(devices, 1 if strategy.program is None else strategy.program.n_devices)
    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    cluster = Cluster.uniform(n_hosts=devices, latency=LATENCY, interface_bandwidth=BANDWIDTH, interfaces=1)
    cluster = attrs.evolve(cluster, machines=machines)
    strategy.check(graph, devices)
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    tasks = lowering.lower(strategy)
    tasks.check()
    digest = hashlib.blake2b(digest_size=6)
    for name in ("kind", "device", "size", "src", "dst", "group", "group_ptr", "group_members", "succ_ptr", "succ"):
        digest.update(np.ascontiguousarray(getattr(tasks, name)).tobytes())
    for column in (tasks.op, tasks.collective, *([] if tasks.micro_batch is None else [tasks.micro_batch])):
        digest.update(column.tobytes())
    digest.update(" ".join(f"{value:.9g}" for value in tasks.seconds.tolist()).encode())
    use = lowering.memory_use(strategy)
    seconds = Fluid().build().makespan(tasks, star(devices, BANDWIDTH, LATENCY), cluster, np.inf)
    return digest.hexdigest(), int(use.total.max()), float(f"{seconds * 1e3:.9g}")


@pytest.mark.parametrize("name", CASES)
def test_a_strategy_is_lowered_as_before(name):
    assert row(CASES[name]) == PINNED[name]


def test_no_two_rows_are_equal():
    assert len(CASES) >= 40
    assert len(set(PINNED.values())) == len(PINNED) == len(CASES)


if __name__ == "__main__":
    for case_name, made in CASES.items():
        print(f'    "{case_name}": {row(made)},'.replace("'", '"'))
