"""FlexNet's published measurement files: all of them load, and price the models that they were made for."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from topoplan import Cluster, TopoplanError
from topoplan.options import structure

pytest.importorskip("topoplan_estimator_measured")

SWEEP = "batch_sweep_128_tables"

#: File -> entries, global batch, devices (counted in the files by hand).
FILES = {
    "alexnet.json": (60, 1024, 32),
    "candle16.json": (40, 16384, 16),
    "candle32.json": (48, 32768, 32),
    "candle_128.json": (59, 131072, 128),
    "dlrm128.json": (41, 65536, 128),
    "dlrm16.json": (26, 16384, 16),
    "dlrm32.json": (31, 32768, 32),
    "ncf128.json": (50, 65536, 128),
    "resnet128.json": (84, 65536, 128),
    "transformer128.json": (29, 8192, 128),
    "transformer16.json": (18, 1024, 16),
    "transformer32.json": (21, 2048, 32),
    "vgg128.json": (55, 32768, 128),
    "vgg16.json": (40, 4096, 16),
    "vgg32.json": (45, 8192, 32),
    f"{SWEEP}/measure_32768_128.json": (41, 32768, 128),
    f"{SWEEP}/measure_65536_128.json": (41, 65536, 128),
    f"{SWEEP}/measure_131072_128.json": (41, 131072, 128),
    f"{SWEEP}/measure_262144_128.json": (41, 262144, 128),
    f"{SWEEP}/measure_524288_128.json": (39, 524288, 128),
    f"{SWEEP}/measure_1048576_128.json": (36, 1048576, 128),
}

#: File -> frontend and its options.
MODELS = {
    "alexnet.json": ("alexnet", {"preset": "alexnet"}),
    "candle16.json": ("candle-uno", {"preset": "candle16"}),
    "candle32.json": ("candle-uno", {"preset": "candle32"}),
    "candle_128.json": ("candle-uno", {"preset": "candle128"}),
    "dlrm16.json": ("dlrm", {"preset": "dlrm16"}),
    "dlrm32.json": ("dlrm", {"preset": "dlrm32"}),
    "dlrm128.json": ("dlrm", {"preset": "dlrm128"}),
    "ncf128.json": ("ncf", {"preset": "ncf128"}),
    "resnet128.json": ("resnet50", {"preset": "resnet128"}),
    "transformer16.json": ("transformer", {"preset": "transformer16"}),
    "transformer32.json": ("transformer", {"preset": "transformer32"}),
    "transformer128.json": ("transformer", {"preset": "transformer128"}),
    "vgg16.json": ("vgg16", {"preset": "vgg16"}),
    "vgg32.json": ("vgg16", {"preset": "vgg32"}),
    "vgg128.json": ("vgg16", {"preset": "vgg128"}),
    f"{SWEEP}/measure_65536_128.json": (
        "dlrm",
        {"preset": "dlrm128", "arch-embedding-size": "-".join(["10000000"] * 128)},
    ),
}

#: Files of networks that differ from the published ones in more than image size (pools, classifier): only
#: the flexnet dialect builds them.
FLEXNET_ONLY = {"resnet128.json", "vgg16.json", "vgg32.json", "vgg128.json"}


def graph_of(name: str, dialect: str, batch: int):
    frontend_name, options = MODELS[name]
    module = pytest.importorskip(f"topoplan_frontend_{frontend_name.replace('-', '_')}")
    (frontend,) = module.topoplan_frontends()
    return frontend.build(structure(frontend.options, {**options, "dialect": dialect}, "test"), batch)


def costs_of(path: Path, graph, cluster: Cluster, **options: str):
    (estimator,) = importlib.import_module("topoplan_estimator_measured").topoplan_estimators()
    return estimator.build(structure(estimator.options, {"file": str(path), **options}, "test"), graph, cluster)


def samples_cut(op, parts: int) -> tuple[int, ...]:
    return tuple(parts if index == op.sample_dim else 1 for index in range(len(op.dims)))


def test_no_file_is_forgotten(reference_data):
    folder = reference_data / "measures"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.json")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_file_loads(reference_data, name):
    from topoplan_estimator_measured.reading import read

    table = read(reference_data / "measures" / name)
    assert (sum(map(len, table.entries.values())), table.batch_size, table.ngpus) == FILES[name]
    assert not table.failed


@pytest.mark.parametrize("dialect", ["standard", "flexnet"])
@pytest.mark.parametrize("name", MODELS)
def test_model_is_priced(reference_data, name, dialect):
    _, batch, n = FILES[name]
    graph = graph_of(name, dialect, batch)
    path, cluster = reference_data / "measures" / name, Cluster.uniform(n_hosts=n, big_gpu=4)
    if dialect == "standard" and name in FLEXNET_ONLY:
        with pytest.raises(TopoplanError, match=r"was not measured.*dialect=flexnet"):
            costs_of(path, graph, cluster)
        return
    costs = costs_of(path, graph, cluster)
    for index, op in enumerate(graph.operators):
        parts = 1 if op.kind == "embedding" else n
        got = costs.price(index, samples_cut(op, parts), np.arange(parts, dtype=np.int32))
        for column in (got.forward, got.backward, got.memory):
            assert column.shape == (parts,)
            assert (np.isfinite(column) & (column > 0)).all()


@pytest.mark.parametrize("name", ["dlrm16.json", "vgg16.json", "transformer32.json"])
def test_flexnet_dialect_has_the_numbers_of_the_file(reference_data, name):
    path = reference_data / "measures" / name
    _, batch, n = FILES[name]
    graph = graph_of(name, "flexnet", batch)
    costs = costs_of(path, graph, Cluster.uniform(n_hosts=n), missing="refuse")
    rows = {(row["name"], row["pc_str"]): row for row in json.loads(path.read_bytes())["measurements"]}
    seen = set()
    for index, op in enumerate(graph.operators):
        axes = len(op.outputs[0].axes)
        for parts in (2**k for k in range(8)):
            key = (op.structure, "-".join(map(str, [axes, *[1] * (axes - 1), parts])))
            degrees = samples_cut(op, parts)
            assert costs.supports(index, degrees) == (key in rows)
            if key in rows:
                got = costs.price(index, degrees, np.zeros(parts, dtype=np.int32))
                assert got.forward[0] == float(np.float32(rows[key]["fw_time"])) / 1000
                assert got.backward[0] == float(np.float32(rows[key]["bw_time"])) / 1000
                assert got.memory[0] == rows[key]["mem_req"]
                seen.add(key)
    assert seen == set(rows)


def test_later_layers_of_a_name_can_be_scaled(reference_data):
    """The second 3x3 convolution to 64 channels reads 64 channels instead of 3."""
    name = "vgg16.json"
    graph = graph_of(name, "flexnet", 4096)
    costs = costs_of(reference_data / "measures" / name, graph, Cluster.uniform(n_hosts=16), shapes="scale")
    first, second = [i for i, op in enumerate(graph.operators) if op.structure == "Conv2D_3_3_64"]
    devices = np.arange(16, dtype=np.int32)
    prices = [costs.price(i, samples_cut(graph.operators[i], 16), devices).forward[0] for i in (first, second)]
    # padding 2 makes the outputs 231 and 233 wide; bias and activation are one FLOP each per output
    flops = 231**2 * (2 * 9 * 3 + 2), 233**2 * (2 * 9 * 64 + 2)
    assert prices[1] / prices[0] == pytest.approx(flops[1] / flops[0])


def test_a_cut_that_was_not_measured_lies_between_its_neighbours(reference_data):
    """What leaving out an entry gives back, within the scatter of the measurements."""
    from topoplan_estimator_measured.curves import interpolate
    from topoplan_estimator_measured.reading import read

    errors = []
    for name in FILES:
        table = read(reference_data / "measures" / name)
        for kind, entries in table.entries.items():
            if len(entries) < 4 or not kind.startswith(("Dense", "Conv2D")):
                continue
            points = {table.batch_size / cut[0]: entry for cut, entry in entries.items()}
            for samples in sorted(points)[1:-1]:
                rest = {n: entry for n, entry in points.items() if n != samples}
                errors.append(abs(np.log(interpolate(rest, samples).forward / points[samples].forward)))
    assert len(errors) > 100
    assert np.median(errors) < 0.1
