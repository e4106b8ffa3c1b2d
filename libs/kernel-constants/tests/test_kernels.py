"""Kernels follow what the device does: by hand, by measured values, and at sizes that were not measured."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import numpy as np
import pytest

from topoplan_kernel_constants.families import alignment, product_rows
from topoplan_kernel_constants.kernels import Kernels, modelled
from topoplan_kernel_constants.launches import host_seconds, launches_of, step_host_seconds
from topoplan_kernel_constants.neighbours import Neighbours
from topoplan_kernel_constants.sheets import DEVICES, origin, sheet
from topoplan_kernel_constants.tables import bench, table
from topoplan_kernel_constants.tiles import Products, seconds_of, start

H100 = Kernels.of("h100")


def product(batch, m, n, k):
    """One product of fp32."""
    sizes = [np.array([float(size)]) for size in (batch, m, n, k)]
    return Products(*sizes, np.array([4.0 * batch * (m * n + m * k + n * k)]), np.zeros(1, np.int64))


def test_a_wave_that_is_not_full_takes_as_long_as_a_full_one():
    constants = start(60e12, 3e12, 1)
    constants[4:16] = 9  # all tiles but 128 x 128 are slow
    constants[6] = 0
    seconds = [float(seconds_of(constants, product(1, 128 * tiles, 128, 64), 10)[0]) for tiles in (1, 10, 11, 20, 21)]
    bytes_seconds = 4 * (128 * 128 + 2 * 64 * 128) / (0.75 * 3e12)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.02)  # one wave: bytes beside it differ
    assert seconds[2] - seconds[1] == pytest.approx(2 * 128 * 128 * 164 / (0.7 * 60e12 / 10), rel=0.02)
    assert seconds[3] == pytest.approx(seconds[2], rel=0.02)
    assert seconds[4] > seconds[3]
    assert seconds[0] > bytes_seconds


@pytest.mark.parametrize(
    ("mode", "m", "n", "k", "micros"),
    # torch 2.11 on an H100, experiments/one_gpu/operators.csv: no row of the tables that constants are fitted to
    [
        ("bf16", 8192, 3072, 768, 59.3),  # gpt2/transformer.h.0.mlp.c_fc
        ("bf16", 16384, 768, 768, 32.35),  # bert/...attention.self.query
        ("bf16", 8192, 50257, 768, 6563),  # gpt2/lm_head: rows of 50,257 are not aligned
    ],
)
def test_products_take_what_they_took(mode, m, n, k, micros):
    assert H100.product(mode, "forward", 1, m, n, k) * 1e6 == pytest.approx(micros, rel=0.15)


def test_rows_that_are_not_aligned_are_slow():
    aligned, odd = (H100.product("bf16", "forward", 1, 8192, n, 4096) for n in (50304, 50257))
    assert odd > 4 * aligned
    ones = np.ones(1)
    assert alignment("bf16", "weight", 8 * ones, 8 * ones, 3 * ones)[0] == 8  # the sum is over rows
    assert alignment("bf16", "forward", 8 * ones, 8 * ones, 3 * ones)[0] == 1
    assert alignment("tf32", "forward", 8 * ones, 8 * ones, 2 * ones)[0] == 1
    assert alignment("fp32", "forward", 3 * ones, 3 * ones, 3 * ones)[0] == 1


def test_large_sizes_grow_as_their_work_does():
    small, large = (H100.product("bf16", "forward", 1, rows, 16384, 16384) for rows in (2**16, 2**20))
    assert large == pytest.approx(16 * small, rel=0.05)
    small, large = (H100.moving("fp32", "gelu", "forward", rows, 1024) for rows in (2**20, 2**30))
    assert large == pytest.approx(1024 * small, rel=0.01)
    assert H100.moving("fp32", "gelu", "forward", 1, 1) == pytest.approx(2.9e-6, rel=0.1)
    assert H100.moving("fp32", "add", "backward", 2**20, 1024) == 0  # gradients are handed on


def test_attention_backward_is_two_and_a_half_times_forward():
    sizes = (4, 32, 32, 8192, 8192, 128, 1)
    forward, backward = (H100.attention("bf16", role, *sizes) for role in ("forward", "backward"))
    assert 2.2 < backward / forward < 4
    whole = H100.attention("bf16", "forward", *sizes[:-1], 0)
    assert 1.5 < whole / forward < 2.2
    flops = 4 * 4 * 32 * 8192**2 * 128
    assert 450e12 < flops / whole < 800e12


def test_constants_are_those_of_the_tables():
    """Constants and neighbours reproduce the measured products within a few percent."""
    for name, measured in product_rows("h100"):
        family = H100.families[name]
        base = modelled("h100", family.constants, measured.work)
        errors = np.abs(base * np.exp(family.near.logs(measured.shapes)) / measured.seconds - 1)
        assert np.median(errors) < 0.1, name


def test_far_from_all_neighbours_the_model_stands_alone():
    near = Neighbours(np.zeros((5, 2)), np.full(5, 0.4))
    assert near.logs(np.array([[0.0, 0.0]]))[0] == pytest.approx(0.4 * 5 / 5.5)
    assert near.logs(np.array([[50.0, 0.0]]))[0] == 0


def test_adam_moves_28_bytes_a_parameter_in_fp32():
    nothing, element, _ = H100.steps.seconds["fp32", "adam_fused"]
    assert 2.2e12 < 28 / element < 2.8e12
    assert 1.3 < H100.steps.seconds["bf16", "adam_fused"][1] / element < 1.7  # 40 bytes
    assert 5e-6 < nothing < 1e-4


@pytest.mark.parametrize("device", ["a100-pcie", "b200"])
def test_tables_of_others_are_those_that_were_written_down(device):
    for name, digest in bench(device)["sha256"].items():
        text = files("topoplan_kernel_constants").joinpath(device, f"{name}.csv").read_bytes()
        assert hashlib.sha256(text).hexdigest() == digest


@pytest.mark.parametrize(
    ("device", "rows", "outputs", "inputs", "micros"),
    # rows of the tables, from shares of the peak: 2 m n k / (0.78767 x 312 TFLOP/s)
    [("a100-pcie", 4096, 1536, 5120, 262.15), ("a100-pcie", 4096, 24576, 1536, 1421.8)],
)
def test_products_of_others_take_what_they_took(device, rows, outputs, inputs, micros):
    assert Kernels.of(device).product("bf16", "forward", 1, rows, outputs, inputs) * 1e6 == pytest.approx(
        micros, rel=0.2
    )


def test_devices_are_like_others_at_their_own_rates():
    product = ("bf16", "forward", 1, 8192, 8192, 8192)
    sxm, card = (Kernels.of(name).product(*product) for name in ("a100-80", "a100-pcie"))
    assert card / sxm == pytest.approx(271.2 / 252.9, rel=0.01)  # best products of both
    assert Kernels.of("h800").product(*product) == H100.product(*product)
    bytes_of_copy = [Kernels.of(name).moving("bf16", "copy", "forward", 1, 2**28) for name in ("h100", "h200")]
    assert bytes_of_copy[0] / bytes_of_copy[1] == pytest.approx(4.8 / 3.35, rel=0.02)
    launches = [Kernels.of(name).moving("bf16", "copy", "forward", 1, 1) for name in ("h100", "h200")]
    assert launches[0] == pytest.approx(launches[1], rel=0.02)
    with pytest.raises(KeyError):
        Kernels.of("a100-80").product("fp8", "forward", 1, 64, 64, 64)


@pytest.mark.parametrize("device", DEVICES)
def test_no_product_beats_the_peak(device):
    kernels, of = Kernels.of(device), sheet(device)
    for mode in sorted({"bf16", "fp8"} & set(of.flops)):
        for size in (256, 4096, 65536):
            assert 2 * size**3 / kernels.product(mode, "forward", 1, size, size, size) < of.flops[mode]
    assert origin(device)


def test_launches_of_all_kinds_are_positive():
    for kind in dict.fromkeys(table("h100", "launches")["kind"]):
        assert min(launches_of("h100", "bf16", kind)) >= 0
        assert min(host_seconds("h100", kind)) >= 0
    assert launches_of("h100", "bf16", "no such kind") == (1, 2)
    assert step_host_seconds("h100", "bf16") > step_host_seconds("h100", "fp32") > 0


def test_products_in_fp8_with_scales_of_128_take_longer():
    """DeepGEMM at its first release, on H800: TFLOP/s, and how many times as long an implementation in CUTLASS took."""
    published = [
        (1, 4096, 2112, 7168, 1058, 1.1),
        (1, 4096, 24576, 1536, 990, 1.0),
        (1, 4096, 32768, 512, 590, 1.0),
        (1, 4096, 7168, 16384, 1358, 1.2),
        (1, 4096, 4096, 7168, 1304, 1.1),
        (1, 4096, 7168, 2048, 1025, 1.1),
        (4, 8192, 4096, 7168, 1297, 1.2),
        (4, 8192, 7168, 2048, 1099, 1.2),
        (8, 4096, 4096, 7168, 1288, 1.2),
        (8, 4096, 7168, 2048, 1093, 1.1),
    ]
    kernels = Kernels.of("h800")
    ratios = np.array(
        [
            2 * m * n * k / (tflops * 1e12) / kernels.product("fp8", "forward", 1, m, n, k)
            for _, m, n, k, tflops, _ in published
        ]
    )
    slower = np.array([each for *_, each in published])
    assert 1.08 <= ratios.min() <= ratios.max() <= 1.43
    assert np.exp(np.log(ratios).mean()) == pytest.approx(1.169, rel=0.01)
    assert np.exp(np.log(ratios * slower).mean()) == pytest.approx(1.307, rel=0.01)  # the stack "H800, DeepSeek"
