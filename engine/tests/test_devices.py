"""The figures of the device presets and how they are looked up."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from topoplan.errors import TopoplanError
from topoplan_engine.devices import DEVICE_PRESETS, device_preset


def test_every_named_kind_is_there_with_sources():
    assert set(DEVICE_PRESETS) == {"V100", "A100-40", "A100-80", "H100", "H200", "B200"}
    for name, preset in DEVICE_PRESETS.items():
        assert preset.name == name
        assert preset.sources
        assert preset.memory_bandwidth > 0
        assert preset.memory > 0
        assert preset.kernel_overhead > 0


@pytest.mark.parametrize(
    ("name", "precision", "flops", "bandwidth", "memory"),
    [
        ("V100", "fp16", 125e12, 900e9, 16e9),
        ("A100-40", "tf32", 156e12, 1555e9, 40e9),
        ("A100-80", "bf16", 312e12, 2039e9, 80e9),
        ("H100", "bf16", 989.4e12, 3.35e12, 80e9),
        ("H200", "tf32", 494.7e12, 4.8e12, 141e9),
        ("B200", "fp16", 2.25e15, 8e12, 180e9),
    ],
)
def test_data_sheet_figures(name, precision, flops, bandwidth, memory):
    preset = device_preset(name)
    assert preset.peak_flops[precision] == flops
    assert preset.memory_bandwidth == bandwidth
    assert preset.memory == memory


def test_tensor_cores_double_with_each_halving_of_the_format():
    for preset in DEVICE_PRESETS.values():
        peaks = preset.peak_flops
        if "tf32" in peaks:
            assert peaks["bf16"] == 2 * peaks["tf32"]
        assert peaks["fp32"] < peaks["fp16"]


def test_v100_has_no_bf16():
    assert set(device_preset("V100").peak_flops) == {"fp32", "fp16"}


def test_case_does_not_matter():
    assert device_preset("a100-80") is device_preset("A100-80")


@pytest.mark.parametrize(
    ("name", "told"), [("A100-4", "did you mean 'A100-40'"), ("h10", "did you mean 'H100'"), ("tpu", "have: A100-40")]
)
def test_unknown_name_is_told_the_nearest(name, told):
    with pytest.raises(TopoplanError, match=re.escape(told)):
        device_preset(name)


def test_presets_cannot_be_changed():
    with pytest.raises(TypeError):
        device_preset("V100").peak_flops["fp32"] = 1.0  # type: ignore[index]


def test_loads_without_numpy():
    code = "import sys, topoplan_engine.devices; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
