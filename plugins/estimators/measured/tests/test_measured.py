"""Matching a graph with a file: what is priced, what is refused, and what is said."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import attrs
import numpy as np
import pytest

from topoplan import Cluster, TopoplanError
from topoplan.model.graph import OperatorGraph, Slices
from topoplan_estimator_measured import Measured
from topoplan_samples.graphs import linear_operator

CLUSTER = Cluster.uniform(n_hosts=16)


def linear(name, batch, inside, outside, structure=None):
    tags = {"flexnet": f"Dense_{inside}_{outside}" if structure is None else structure}
    return linear_operator(name, batch, inside, outside, tags=tags)


def graph(*operators, dialect="standard", batch=48):
    edges = np.zeros((0, 4), dtype=np.int32)
    return OperatorGraph(name="test", operators=operators, edges=edges, batch_size=batch, tags={"dialect": dialect})


@pytest.fixture
def file(tmp_path):
    def write(rows, batch_size=48, ngpus=16):
        keys = ("name", "pc_str", "fw_time", "bw_time", "mem_req")
        path = tmp_path / "times.json"
        path.write_text(
            json.dumps(
                {
                    "batch_size": batch_size,
                    "ngpus": ngpus,
                    "measurements": [dict(zip(keys, row, strict=True)) for row in rows],
                }
            )
        )
        return path

    return write


def costs(path, model, cluster=CLUSTER, **options):
    return Measured(file=str(path), **options).build(model, cluster)


def price(function, op, degrees):
    return function.price(op, degrees, np.arange(int(np.prod(degrees)), dtype=np.int32))


ROWS = [
    ("Dense_8_4", "2-1-1", 4.0, 8.0, 5000),
    ("Dense_8_4", "2-1-4", 1.0, 4.0, 2000),
    ("Dense_8_4", "2-2-1", 3.0, 3.0, 9),
]


def test_measured_cuts_have_the_numbers_of_the_file(file):
    function = costs(file(ROWS), graph(linear("a", 48, 8, 4)), missing="refuse")
    prices = price(function, 0, (4, 1, 1))
    np.testing.assert_array_equal(prices.forward, np.full(4, 0.001))
    np.testing.assert_array_equal(prices.backward, np.full(4, 0.004))
    np.testing.assert_array_equal(prices.memory, np.full(4, 2000.0))
    # Innermost axis first: 2-2-1 cuts the output channels.
    np.testing.assert_array_equal(price(function, 0, (1, 2, 1)).forward, np.full(2, 0.003))
    assert not function.supports(0, (2, 1, 1))
    with pytest.raises(TopoplanError, match=re.escape("2-1-2 was not measured (measured: 2-1-1, 2-2-1, 2-1-4)")):
        price(function, 0, (2, 1, 1))


def test_cuts_of_the_samples_are_interpolated(file):
    function = costs(file(ROWS), graph(linear("a", 48, 8, 4)))
    prices = price(function, 0, (2, 1, 1))
    np.testing.assert_allclose(prices.forward, 0.002)  # proportional to the samples
    np.testing.assert_allclose(prices.backward, 0.008 / 2**0.5)
    np.testing.assert_allclose(prices.memory, 3000)  # 1000 + 4000 * 24/48
    np.testing.assert_allclose(price(function, 0, (16, 1, 1)).forward, 0.00025)
    assert function.supports(0, (3, 1, 1))


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ((5, 1, 1), "dimension 's' of size 48 is not divisible by 5"),
        ((1, 4, 1), "Dense_8_4:2-4-1 was not measured (measured: 2-1-1, 2-2-1, 2-1-4); only cuts of the samples"),
        ((2, 2, 1), "only cuts of the samples are interpolated"),
        ((1, 1, 2), "a cut of dimension 'i', which is no axis of the output, was not measured"),
        ((1, 1), "2 degrees for 3 dimensions"),
        ((Slices((40, 8)), 1, 1), "dimension 's' is cut into slices of 40 + 8 (equal parts were measured)"),
    ],
)
def test_other_cuts_are_refused_and_never_guessed(file, degrees, told):
    path = file(ROWS)
    function = costs(path, graph(linear("a", 48, 8, 4)))
    assert not function.supports(0, degrees)
    with pytest.raises(TopoplanError, match=re.escape(f"{path}: operator 'a': ") + ".*" + re.escape(told)):
        price(function, 0, degrees)


def test_one_point_is_only_that_point(file):
    function = costs(file(ROWS[:1]), graph(linear("a", 48, 8, 4)))
    assert function.supports(0, (1, 1, 1))
    with pytest.raises(TopoplanError, match="interpolation needs two measured cuts"):
        price(function, 0, (2, 1, 1))


def test_minus_one_is_never_a_time(file):
    rows = [*ROWS, ("Dense_8_4", "2-1-2", -1, -1, 0), ("Dense_8_4", "2-1-8", 0.5, 2.0, 1500)]
    function = costs(file(rows), graph(linear("a", 48, 8, 4)))
    with pytest.raises(TopoplanError, match=re.escape("2-1-2 was measured as -1 (did not fit the workspace)")):
        price(function, 0, (2, 1, 1))
    rows = [row for row in rows if row[1] != "2-1-1"]
    function = costs(file(rows), graph(linear("a", 48, 8, 4)))
    with pytest.raises(TopoplanError, match=re.escape("the smaller part 2-1-2 was measured as -1")):
        price(function, 0, (1, 1, 1))
    assert function.supports(0, (16, 1, 1))
    with pytest.raises(TopoplanError, match=re.escape("every Dense_8_4 was measured as -1")):
        costs(file([("Dense_8_4", "2-1-1", -1, -1, 0)]), graph(linear("a", 48, 8, 4)))


def two_layers(dialect="standard"):
    """The second layer has the name of the first, but twice the inputs."""
    return graph(linear("a", 48, 8, 4), linear("b", 48, 16, 4, "Dense_8_4"), linear("c", 48, 8, 4), dialect=dialect)


@pytest.mark.parametrize(
    ("shapes", "dialect", "ratio"),
    [("auto", "standard", 2), ("auto", "flexnet", 1), ("scale", "flexnet", 2), ("share", "standard", 1)],
)
def test_layers_of_one_name_and_other_shapes(file, shapes, dialect, ratio):
    function = costs(file(ROWS), two_layers(dialect), shapes=shapes)
    a, b, c = (price(function, op, (4, 1, 1)) for op in range(3))
    np.testing.assert_allclose(b.forward, ratio * a.forward)
    np.testing.assert_allclose(b.backward, ratio * a.backward)
    # bytes of x/4, w and y/4: 384 + 128 + 192 against 768 + 256 + 192
    np.testing.assert_allclose(b.memory, a.memory * (1216 / 704 if ratio == 2 else 1))
    np.testing.assert_array_equal(c.forward, a.forward)


def test_layers_of_other_shapes_can_be_refused(file):
    path = file(ROWS)
    with pytest.raises(
        TopoplanError,
        match=re.escape(
            "operator 'b': Dense_8_4 was measured for 'a', whose shapes differ ((48, 8) there, (48, 16) here"
        ),
    ):
        costs(path, two_layers(), shapes="refuse")
    costs(path, graph(linear("a", 48, 8, 4), linear("c", 48, 8, 4)), shapes="refuse")


def test_operators_that_only_move_data_scale_by_bytes(file):
    small = attrs.evolve(linear("a", 48, 8, 4), work=(), tags={"flexnet": "Flat"})
    large = attrs.evolve(linear("b", 48, 8, 8), work=(), tags={"flexnet": "Flat"})
    function = costs(file([("Flat", "2-1-1", 1.0, 1.0, 100)]), graph(small, large))
    ratio = (48 * 8 + 8 * 8 + 48 * 8) / (48 * 8 + 8 * 4 + 48 * 4)
    np.testing.assert_allclose(price(function, 1, (1, 1, 1)).forward, 0.001 * ratio)


def test_slow_devices_take_longer(file):
    cluster = attrs.evolve(CLUSTER, device_speed=[0.5, *[1.0] * 14, 2.0])
    function = costs(file(ROWS), graph(linear("a", 48, 8, 4)), cluster)
    prices = function.price(0, (4, 1, 1), np.array([15, 3, 0, 4], dtype=np.int32))
    np.testing.assert_allclose(prices.forward, [0.0005, 0.001, 0.002, 0.001])
    np.testing.assert_allclose(prices.memory, 2000)


def test_results_cannot_be_changed(file):
    function = costs(file(ROWS), graph(linear("a", 48, 8, 4)))
    with pytest.raises(ValueError, match="read-only"):
        price(function, 0, (1, 1, 1)).forward[0] = 0


@pytest.mark.parametrize("options", [{}, {"nodes": "same"}])
def test_a_file_for_another_number_of_devices_is_refused(file, options):
    path = file(ROWS, ngpus=128)
    told = f"{path}: ngpus 128 is not the number of devices of the cluster, 16 (use --servers 128"
    with pytest.raises(TopoplanError, match=re.escape(told)):
        costs(path, graph(linear("a", 48, 8, 4)), **options)


def test_a_file_for_another_number_of_devices_is_taken_if_that_is_said(file):
    assert costs(file(ROWS, ngpus=128), graph(linear("a", 48, 8, 4)), nodes="any").supports(0, (4, 1, 1))


@pytest.mark.parametrize(
    ("rows", "batch", "operator", "told"),
    [
        (ROWS, 96, linear("a", 48, 8, 4), "batch_size 96 is not that of model 'test', 48 (use --batch-size 96"),
        (ROWS, 48, linear("a", 48, 8, 5), "operator 'a': Dense_8_5 was not measured; did you mean 'Dense_8_4'?"),
        (ROWS, 48, linear("a", 48, 8, 4, ""), "operator 'a' (linear) has no name that FlexNet measures under"),
    ],
)
def test_files_of_another_model_are_refused(file, rows, batch, operator, told):
    path = file(rows, batch_size=batch)
    with pytest.raises(TopoplanError, match=re.escape(told)) as error:
        costs(path, graph(operator))
    assert str(path) in str(error.value)


def test_the_file_is_asked_for():
    with pytest.raises(TopoplanError, match="file is missing"):
        costs("", graph(linear("a", 48, 8, 4)))


def test_the_plugin_itself_is_light():
    code = """
import sys, topoplan_estimator_measured
sys.exit("topoplan_estimator_measured.cost" in sys.modules or "numba" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
