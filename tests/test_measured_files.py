"""FlexNet's published operator times: all of them load, and price the models that they were made for."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, Host, TopoplanError
from topoplan.options import structure
from topoplan_estimator_measured import Measured, profiles
from topoplan_estimator_measured.curves import interpolate
from topoplan_estimator_measured.reading import read

HOST = Host.discover()

#: Profile -> entries, global batch, devices (counted in the published files by hand).
PROFILES = {
    "alexnet": (60, 1024, 32),
    "candle16": (40, 16384, 16),
    "candle32": (48, 32768, 32),
    "candle128": (59, 131072, 128),
    "dlrm128": (41, 65536, 128),
    "dlrm16": (26, 16384, 16),
    "dlrm32": (31, 32768, 32),
    "ncf128": (50, 65536, 128),
    "resnet128": (84, 65536, 128),
    "transformer128": (29, 8192, 128),
    "transformer16": (18, 1024, 16),
    "transformer32": (21, 2048, 32),
    "vgg128": (55, 32768, 128),
    "vgg16": (40, 4096, 16),
    "vgg32": (45, 8192, 32),
    "dlrm128-batch-32768": (41, 32768, 128),
    "dlrm128-batch-65536": (41, 65536, 128),
    "dlrm128-batch-131072": (41, 131072, 128),
    "dlrm128-batch-262144": (41, 262144, 128),
    "dlrm128-batch-524288": (39, 524288, 128),
    "dlrm128-batch-1048576": (36, 1048576, 128),
}

#: Profile -> frontend and its options.
MODELS = {
    "alexnet": ("alexnet", {"preset": "alexnet"}),
    "candle16": ("candle-uno", {"preset": "candle16"}),
    "candle32": ("candle-uno", {"preset": "candle32"}),
    "candle128": ("candle-uno", {"preset": "candle128"}),
    "dlrm16": ("dlrm", {"preset": "dlrm16"}),
    "dlrm32": ("dlrm", {"preset": "dlrm32"}),
    "dlrm128": ("dlrm", {"preset": "dlrm128"}),
    "ncf128": ("ncf", {"preset": "ncf128"}),
    "resnet128": ("resnet50", {"preset": "resnet128"}),
    "transformer16": ("transformer", {"preset": "transformer16"}),
    "transformer32": ("transformer", {"preset": "transformer32"}),
    "transformer128": ("transformer", {"preset": "transformer128"}),
    "vgg16": ("vgg16", {"preset": "vgg16"}),
    "vgg32": ("vgg16", {"preset": "vgg32"}),
    "vgg128": ("vgg16", {"preset": "vgg128"}),
    "dlrm128-batch-65536": (
        "dlrm",
        {"preset": "dlrm128", "arch-embedding-size": "-".join(["10000000"] * 128)},
    ),
}

#: Profiles of networks that differ from the published ones in more than image size (pools, classifier): only
#: the flexnet dialect builds them.
FLEXNET_ONLY = {"resnet128", "vgg16", "vgg32", "vgg128"}


def graph_of(name: str, dialect: str, batch: int):
    frontend_name, options = MODELS[name]
    return HOST.make("frontend", frontend_name, {**options, "dialect": dialect}).build(batch)


def costs_of(name: str, graph, cluster: Cluster, **options: str):
    return structure(Measured, {"profile": name, **options}, "test").build(graph, cluster)


def samples_cut(op, parts: int) -> tuple[int, ...]:
    return tuple(parts if index == op.sample_dim else 1 for index in range(len(op.dims)))


def test_no_profile_is_forgotten():
    assert set(profiles.names()) == set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_profile_loads_and_is_what_a_file_of_flexnet_gives(flexnet_file, name):
    table = profiles.profile(name)
    from_file = read(flexnet_file(name))
    assert (table.entries, table.batch_size, table.ngpus) == (from_file.entries, from_file.batch_size, from_file.ngpus)
    assert (sum(map(len, table.entries.values())), table.batch_size, table.ngpus) == PROFILES[name]
    assert not table.failed


@pytest.mark.by_day(8)
@pytest.mark.parametrize("dialect", ["standard", "flexnet"])
@pytest.mark.parametrize("name", MODELS)
def test_model_is_priced(name, dialect):
    _, batch, n = PROFILES[name]
    graph = graph_of(name, dialect, batch)
    cluster = Cluster.uniform(n_hosts=n, gpus_per_device=4)
    if dialect == "standard" and name in FLEXNET_ONLY:
        with pytest.raises(TopoplanError, match=r"was not measured.*dialect=flexnet"):
            costs_of(name, graph, cluster)
        return
    costs = costs_of(name, graph, cluster)
    for index, op in enumerate(graph.operators):
        parts = 1 if op.kind == "embedding" else n
        prices = costs.price(index, samples_cut(op, parts), np.arange(parts, dtype=np.int32))
        for column in (prices.forward, prices.backward, prices.memory):
            assert column.shape == (parts,)
            assert (np.isfinite(column) & (column > 0)).all()


@pytest.mark.parametrize("name", ["dlrm16", "vgg16", "transformer32"])
def test_flexnet_dialect_has_the_numbers_of_the_table(name):
    _, batch, n = PROFILES[name]
    graph = graph_of(name, "flexnet", batch)
    costs = costs_of(name, graph, Cluster.uniform(n_hosts=n), missing="refuse")
    rows = {(row["operator"], row["degrees"]): row for row in profiles.rows(name)}
    structures = set()
    for index, op in enumerate(graph.operators):
        axes = len(op.outputs[0].axes)
        for parts in (2**k for k in range(8)):
            key = (op.tags["flexnet"], "x".join(map(str, [parts, *[1] * (axes - 1)])))
            degrees = samples_cut(op, parts)
            assert costs.supports(index, degrees) == (key in rows)
            if key in rows:
                prices = costs.price(index, degrees, np.zeros(parts, dtype=np.int32))
                assert prices.forward[0] == float(np.float32(rows[key]["forward_ms"])) / 1000
                assert prices.backward[0] == float(np.float32(rows[key]["backward_ms"])) / 1000
                assert prices.memory[0] == float(rows[key]["memory_bytes"])
                structures.add(key)
    assert structures == set(rows)


def test_later_layers_of_a_name_can_be_scaled():
    """The second 3x3 convolution to 64 channels reads 64 channels instead of 3."""
    name = "vgg16"
    graph = graph_of(name, "flexnet", 4096)
    costs = costs_of(name, graph, Cluster.uniform(n_hosts=16), shapes="scale")
    first, second = [i for i, op in enumerate(graph.operators) if op.tags["flexnet"] == "Conv2D_3_3_64"]
    devices = np.arange(16, dtype=np.int32)
    prices = [costs.price(i, samples_cut(graph.operators[i], 16), devices).forward[0] for i in (first, second)]
    # padding 2 makes the outputs 231 and 233 wide; bias and activation are one FLOP each per output
    flops = 231**2 * (2 * 9 * 3 + 2), 233**2 * (2 * 9 * 64 + 2)
    assert prices[1] / prices[0] == pytest.approx(flops[1] / flops[0])


def test_a_cut_that_was_not_measured_lies_between_its_neighbours():
    """What leaving out an entry gives back, within the scatter of the measurements."""
    errors = []
    for name in PROFILES:
        table = profiles.profile(name)
        for kind, entries in table.entries.items():
            if len(entries) < 4 or not kind.startswith(("Dense", "Conv2D")):
                continue
            points = {table.batch_size / cut[0]: entry for cut, entry in entries.items()}
            for samples in sorted(points)[1:-1]:
                rest = {n: entry for n, entry in points.items() if n != samples}
                errors.append(abs(np.log(interpolate(rest, samples).forward / points[samples].forward)))
    assert len(errors) > 100
    assert np.median(errors) < 0.1
