"""Placements in DTensor's words: what cuts mean for tensors, meshes that operators share, and a real module."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan import Cluster, DeviceMesh, PlacedStrategy, Placement, StagedStrategy, TopoplanError
from topoplan.model.graph import Slices
from topoplan.model.sharding import PENDING_GRADIENT
from topoplan.model.spmd import SpmdProgram
from topoplan.testing import reference
from topoplan_engine.partition import part_bounds
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.signatures import signatures
from topoplan_exporter_dtensor import DTensor
from topoplan_exporter_dtensor.layouts import lay_out
from topoplan_operators import GraphBuilder
from topoplan_operators.losses import total

WRITE = DTensor().write
ALL = np.arange(4)


def mlp():
    """Two linear layers, and the sum of all outputs."""
    b = GraphBuilder("mlp", batch_size=8)
    x = b.relu(b.linear(b.input((16,)), 32, name="up"), name="relu")
    x = b.linear(x, 8, name="down")
    b.append(total(x), [x], "loss")
    return b.build()


def exported(graph, strategy, devices=4):
    """The document of a strategy."""
    plan = attrs.evolve(reference.plan(), graph=graph, strategy=strategy, cluster=Cluster.uniform(n_hosts=devices))
    return json.loads(WRITE(plan))


def placed(*cuts):
    """A strategy of operators by (degrees, devices)."""
    return PlacedStrategy(tuple(Placement(degrees, devices) for degrees, devices in cuts))


#: Samples in two, and channels in two: out of the first layer, into the second one.
MEGATRON = placed(((2, 2, 1), ALL), ((2, 2), ALL), ((2, 1, 2), ALL), ((2, 2), ALL))
SAMPLES = placed(((4, 1, 1), ALL), ((4, 1), ALL), ((4, 1, 1), ALL), ((4, 1), ALL))
#: The second layer on the mesh of the first one, all of it by channels.
MIXED = placed(((2, 2, 1), ALL), ((4, 1), ALL), ((1, 4, 1), ALL), ((1, 4), ALL))
#: No strides: a mesh in an order of its own.
ODD = placed(*((degrees, [2, 0, 3, 1]) for degrees in ((2, 2, 1), (2, 2), (2, 1, 2), (2, 2))))


def words(document, operator, part, index=0):
    """The placements of one tensor."""
    (found,) = (op for op in document["operators"] if op["name"] == operator)
    return found[part][index]["placements"]


def test_cuts_become_placements():
    document = exported(mlp(), MEGATRON)
    assert document["meshes"] == {"mesh0": {"dim_names": ["d0", "d1"], "devices": [[0, 1], [2, 3]]}}
    assert {op["mesh"] for op in document["operators"]} == {"mesh0"}
    assert words(document, "up", "inputs") == ["Shard(0)", "Replicate()"]
    assert words(document, "up", "weights", 0) == ["Replicate()", "Shard(0)"]
    assert words(document, "up", "weights", 1) == ["Replicate()", "Shard(0)"]
    assert words(document, "up", "outputs") == ["Shard(0)", "Shard(1)"]
    assert words(document, "down", "weights", 0) == ["Replicate()", "Shard(1)"]
    assert words(document, "down", "weights", 1) == ["Replicate()", "Replicate()"]
    assert words(document, "down", "outputs") == ["Shard(0)", "Partial()"]
    assert words(document, "loss", "outputs") == ["Partial()", "Partial()"]
    assert (document["world_size"], document["batch_size"], document["model"]) == (4, 8, "mlp")
    assert document["edges"] == [[0, 0, 1, 0], [1, 0, 2, 0], [2, 0, 3, 0]]


def test_cuts_of_different_depth_share_a_mesh():
    document = exported(mlp(), MIXED)
    assert len(document["meshes"]) == 1
    assert words(document, "relu", "outputs") == ["Shard(0)", "Shard(0)"]
    assert words(document, "down", "weights", 0) == ["Shard(0)", "Shard(0)"]


def test_other_devices_have_meshes_of_their_own():
    strategy = placed(((2, 1, 1), [0, 1]), ((2, 1), [2, 3]), ((1, 1, 1), [3]), ((2, 2), [3, 1, 0, 2]))
    document = exported(mlp(), strategy)
    meshes = [document["meshes"][op["mesh"]]["devices"] for op in document["operators"]]
    assert meshes == [[0, 1], [2, 3], [3], [[3, 1], [0, 2]]]
    assert words(document, "down", "outputs") == ["Replicate()"]


@given(st.data())
def test_every_device_has_what_the_mesh_says(data):
    """Slices by placements on the mesh are those of the parts, whatever divides the devices and in whatever order."""
    n = 24
    placements = []
    for _ in range(data.draw(st.integers(1, 4))):
        degrees, left = [], n
        for _ in range(3):
            degrees.append(data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
            left //= degrees[-1]
        parts = int(np.prod(degrees))
        grid = np.arange(parts).reshape(degrees).transpose(data.draw(st.permutations(range(3))))
        devices = grid.ravel() if data.draw(st.booleans()) else data.draw(st.permutations(range(parts)))
        start = data.draw(st.integers(0, n - parts))
        placements.append(Placement(grid.shape, np.asarray(devices) + start))
    meshes, laid = lay_out(tuple(placements))
    for placement, where in zip(placements, laid, strict=True):
        mesh = meshes[where.mesh].devices
        assert sorted(mesh.ravel().tolist()) == sorted(placement.devices.tolist())
        for part, device in enumerate(placement.devices):
            index = np.unravel_index(part, placement.degrees)
            at = np.argwhere(mesh == device)[0]
            for dim, degree in enumerate(placement.degrees):
                mine = 0  # slices of slices, from left to right
                for axis, cut in enumerate(where.dims):
                    mine = mine * mesh.shape[axis] + int(at[axis]) if cut == dim else mine
                assert mine == index[dim]
                assert part_bounds(n, degree)[0][mine] == n // degree * mine


def test_two_parts_on_one_device_are_refused():
    strategy = placed(((4, 1, 1), [0, 1, 1, 2]), *((p.degrees, p.devices) for p in SAMPLES.placements[1:]))
    with pytest.raises(TopoplanError, match="dtensor: operator 'up' has 2 parts on device 1"):
        exported(mlp(), strategy)


def test_slices_of_unequal_sizes_are_refused():
    cut = (Slices((5, 1, 1, 1)), 1, 1)
    strategy = placed((cut, ALL), *((p.degrees, p.devices) for p in SAMPLES.placements[1:]))
    with pytest.raises(
        TopoplanError, match=r"^dtensor: operator 'up' is cut along 's' into slices of 5 \+ 1 \+ 1 \+ 1, "
    ):
        exported(mlp(), strategy)


def test_windows_read_the_whole_input():
    b = GraphBuilder("c", batch_size=4)
    b.conv2d(b.input((3, 8, 8)), 4, 3, padding=1, name="conv")
    graph = b.build()
    names = [dim.name for dim in graph.operators[0].dims]
    degrees = [2 if name in ("n", "h") else 1 for name in names]
    document = exported(graph, placed((degrees, ALL)))
    assert words(document, "conv", "inputs") == ["Shard(0)", "Replicate()"]
    assert words(document, "conv", "outputs") == ["Shard(0)", "Shard(2)"]


def test_a_schedule_names_the_stages():
    plan = reference.pipelined()
    document = json.loads(WRITE(plan))
    assert document["schedule"] == {"kind": "1f1b", "micro_batches": 4, "stages": [0, 1, 1]}


def test_pipelines_of_unequal_stages_are_none_that_torch_runs():
    """Its pipelines have replicas, each with one device of every stage (`pipelines.devices_of_stages`)."""
    plan, torch_runs = reference.pipelined(), DTensor().restriction()
    assert not torch_runs.refusal(plan.graph, plan.cluster, plan.strategy)
    placements = [Placement((2, 1, 1), (0, 1)), *[Placement((1, 1, 1), (2,))] * 2]
    unequal = StagedStrategy.placed(placements, [0, 1, 1], plan.strategy.order)
    assert "stage 1 has 1 devices, but stage 0 has 2" in torch_runs.refusal(plan.graph, plan.cluster, unequal)


def program(graph, mesh=(4,), dims=(0,)):
    """A program that cuts one dimension of every operator along each axis of a mesh; parameters are stored whole."""
    rules = tuple(tuple(next(r for r in signatures(op) if r.dim == dim) for dim in dims) for op in graph.operators)
    given = {(v, into) for _, _, v, into in graph.edges.tolist()}
    stored = tuple(
        tuple(
            ()
            if (index, k) in given
            else tuple(rule.inputs[k] if k < len(op.inputs) else PENDING_GRADIENT for rule in rules[index])
            for k in range(len(op.inputs) + len(op.weights))
        )
        for index, op in enumerate(graph.operators)
    )
    strategy = program_strategy(SpmdProgram(mesh=mesh, rules=rules, stored=stored), graph)
    assert why_invalid(strategy, graph, int(np.prod(mesh))) is None
    return strategy


def test_a_program_says_its_own_forms():
    graph = mlp()
    document = exported(graph, program(graph))
    assert document["meshes"]["mesh0"]["devices"] == [0, 1, 2, 3]
    assert words(document, "up", "inputs") == ["Shard(0)"]
    assert words(document, "up", "weights") == ["Replicate()"]
    assert words(document, "loss", "outputs") == ["Partial()"]


def test_a_program_on_a_mesh_says_forms_along_every_axis():
    graph = mlp()
    document = exported(graph, program(graph, (2, 2, 2), (0, 1, 0)), devices=8)
    assert document["meshes"]["mesh0"]["devices"] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert words(document, "up", "inputs") == ["Shard(0)", "Replicate()", "Shard(0)"]
    assert words(document, "up", "outputs") == ["Shard(0)", "Shard(1)", "Shard(0)"]
    assert words(document, "down", "inputs") == ["Shard(0)", "Replicate()", "Shard(0)"]
    assert words(document, "down", "weights") == ["Replicate()", "Shard(0)", "Replicate()"]
    assert words(document, "loss", "outputs") == ["Partial()"] * 3


def test_the_mesh_of_a_program_has_the_devices_of_the_plan():
    graph = mlp()
    strategy = program(graph, (2, 2), (0, 1))
    mesh = DeviceMesh(axes=("dp", "tp"), sizes=(2, 2), devices=[3, 1, 0, 2])
    stages = [attrs.evolve(stage, mesh=mesh) for stage in strategy.stages]
    moved = StagedStrategy.of(graph, stages, strategy.order, 1, False, False, True)
    assert exported(graph, moved)["meshes"] == {"mesh0": {"dim_names": ["dp", "tp"], "devices": [[3, 1], [0, 2]]}}
    assert exported(graph, moved)["operators"] == exported(graph, strategy)["operators"]


def test_a_task_graph_alone_is_refused():
    with pytest.raises(TopoplanError, match="holds only a task graph"):
        WRITE(attrs.evolve(reference.plan(), graph=None, strategy=None))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_module_computes_the_same_as_the_file_says(tmp_path):
    """Four processes of torch.distributed (gloo): loss and gradients are those of the module by itself."""
    graph = mlp()
    files = []
    spmd = (program(graph), program(graph, (2, 2), (0, 1)), program(graph, (2, 2), (1, 1)))
    for index, strategy in enumerate((MEGATRON, SAMPLES, MIXED, ODD, *spmd)):
        files.append(tmp_path / f"{index}.dtensor")
        files[-1].write_text(json.dumps(exported(graph, strategy)))
    script = Path(__file__).with_name("apply_dtensor.py")
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), "4", str(tmp_path), *map(str, files)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    told = [process.communicate(timeout=240)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, "\n".join(told)
    found = json.loads((tmp_path / "result.json").read_text())
    for result in found:
        assert result["loss"] < 1e-5
        assert result["gradients"] < 1e-5
        assert result["told_right"] == result["operators"], "DTensor makes outputs of another placement"
    assert found[0]["local"] == {"up.0": [16, 16], "up.1": [16], "down.0": [8, 16], "down.1": [8]}
    assert found[2]["local"]["down.0"] == [2, 32]
