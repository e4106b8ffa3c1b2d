"""All-reduces of placed gradients against a loop over groups, on devices drawn with and without repetitions."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest

from topoplan import Cluster
from topoplan_engine.lowering.gradient_groups import gradient_groups, placed_groups
from topoplan_engine.partition import replica_groups, slice_elements
from topoplan_operators import GraphBuilder


def operators():
    b = GraphBuilder("two", 8)
    b.linear(b.embedding(b.input((4,), itemsize=8), 100, 6), 5)
    return [op for op in b.build().operators if op.weights]


def slow_groups(operator, degrees, devices, cluster, per_part):
    """Parts, devices, bytes and seconds of each all-reduce."""
    inside = cluster.gpus_per_device > 1 and operator.kind != "embedding"
    rows = []
    for weight in operator.weights:
        elements = slice_elements(operator, weight, degrees)
        for group in replica_groups(operator, weight, degrees).tolist():
            members = [int(devices[part]) for part in group]
            if not per_part and any(b <= a for a, b in itertools.pairwise(members)):
                members = sorted(set(members))
            if not per_part and len(members) == 1 and not inside:
                continue
            nbytes = int(elements[group[0]]) * weight.itemsize
            slowest = min(cluster.inside_bandwidth[cluster.device_host[device]] for device in members)
            gpus = cluster.gpus_per_device
            sent = 2 * nbytes // gpus if per_part else 2.0 * nbytes * (gpus - 1) / gpus
            rows.append((group, members, nbytes, sent / slowest if inside else 0.0))
    return rows


@pytest.mark.parametrize("per_part", [False, True], ids=["each device once", "each part once"])
@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("operator", operators(), ids=lambda op: op.kind)
def test_equals_the_loop(operator, gpus, per_part):
    cluster = Cluster.uniform(n_hosts=4, devices_per_host=2, gpus_per_device=gpus)
    cluster = attrs.evolve(cluster, inside_bandwidth=np.array([3e9, 1e9, 4e9, 2e9]))
    rng, lengths, alone = np.random.default_rng(0), set(), False
    for _ in range(60):
        degrees = tuple(int(rng.choice([1, 2, 4])) if dim.role else 1 for dim in operator.dims)
        parts = int(np.prod(degrees))
        devices = rng.choice(8, parts, replace=parts > 8 or bool(rng.integers(2))).astype(np.int32)
        placed = placed_groups(gradient_groups(operator, degrees, gpus), devices, cluster, per_part)
        expected = slow_groups(operator, degrees, devices, cluster, per_part)
        columns = list(zip(*expected, strict=True)) or [(), (), (), ()]
        assert placed.part_counts.tolist() == [len(row) for row in columns[0]]
        assert placed.parts.tolist() == [part for row in columns[0] for part in row]
        assert placed.device_counts.tolist() == [len(row) for row in columns[1]]
        assert placed.devices.tolist() == [device for row in columns[1] for device in row]
        assert placed.nbytes.tolist() == list(columns[2])
        assert placed.seconds.tolist() == list(columns[3])
        lengths |= {*placed.device_counts.tolist()}
        alone |= not expected
    assert {2, 4} <= lengths
    assert alone == (gpus == 1 and not per_part) or operator.kind == "embedding"
