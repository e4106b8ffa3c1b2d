"""The figures of NVIDIA's machines, and the promises that every machine makes."""

from __future__ import annotations

import pytest

from topoplan.testing import parametrize_with_checks
from topoplan_machine_nvidia import DEVICES, HOSTS, KINDS, MACHINES

BY_NAME = {device.name: device for device in DEVICES}


def conformance(machine):
    @parametrize_with_checks(machine)
    def test(check):
        check()

    return test


for _machine in MACHINES:
    globals()[f"test_conformance_{_machine.name}"] = conformance(_machine)


def test_every_kind_is_there_with_sources():
    assert list(BY_NAME) == ["V100", "A100-40", "A100-80", "H100", "H200", "H800", "B200", "GB200", "B300", "GB300"]
    assert [machine.name for machine in KINDS] == [name.lower() for name in BY_NAME]
    assert all(device.sources for device in DEVICES)


@pytest.mark.parametrize(
    ("name", "precision", "flops", "bandwidth", "memory"),
    [
        ("V100", "fp16", 125e12, 900e9, 16e9),
        ("A100-40", "tf32", 156e12, 1555e9, 40e9),
        ("A100-80", "bf16", 312e12, 2039e9, 80e9),
        ("H100", "bf16", 989.4e12, 3.35e12, 80e9),
        ("H200", "tf32", 494.7e12, 4.8e12, 141e9),
        ("B200", "fp16", 2.25e15, 8e12, 180e9),
        ("GB200", "bf16", 2.5e15, 8e12, 186e9),
    ],
)
def test_data_sheet_figures(name, precision, flops, bandwidth, memory):
    device = BY_NAME[name]
    assert device.peak_flops[precision] == flops
    assert device.memory_bandwidth == bandwidth
    assert device.memory == memory


def test_tensor_cores_double_with_each_halving_of_the_format():
    for device in DEVICES:
        peaks = device.peak_flops
        if "tf32" in peaks:
            assert peaks["bf16"] == 2 * peaks["tf32"]
        assert peaks["fp32"] < peaks["fp16"]


def test_v100_has_no_bf16():
    assert set(BY_NAME["V100"].peak_flops) == {"fp32", "fp16"}


def test_measured_products_are_below_the_peak_and_named():
    for device in DEVICES:
        for precision, share in device.matmul_efficiency.items():
            assert precision in device.peak_flops
            assert 0.5 < share < 0.9
            assert any("stas00/ml-engineering@744d01e18b79" in source for source in device.sources)
    assert not BY_NAME["V100"].matmul_efficiency
    in_fp32 = [device for device in DEVICES if "fp32" in device.matmul_efficiency]
    assert [device.name for device in in_fp32] == ["H100", "H200", "H800"]
    for device in in_fp32:
        assert any("topoplan profile device" in source for source in device.sources)
        assert device.matmul_efficiency["fp32"] < device.matmul_efficiency["tf32"]
        assert device.kernel_overhead < BY_NAME["A100-40"].kernel_overhead, "measured, and not FlexNet's on an A100"


@pytest.mark.parametrize(
    ("name", "device", "count", "nvlink", "nic"),
    [
        ("dgx-a100", "A100-80", 8, 300e9, 25e9),
        ("dgx-h100", "H100", 8, 450e9, 50e9),
        ("dgx-h200", "H200", 8, 450e9, 50e9),
        ("dgx-b200", "B200", 8, 900e9, 50e9),
        ("gb200-nvl72", "GB200", 72, 900e9, 50e9),
    ],
)
def test_hosts_have_a_nic_for_each_gpu_and_one_rate_to_all_others(name, device, count, nvlink, nic):
    (machine,) = [each for each in HOSTS if each.name == name]
    model = machine().build()
    assert (model.device.name, model.n_devices, model.n_nics) == (device, count, count)
    assert model.nic_bandwidth == nic
    assert model.nic_owners == tuple((gpu,) for gpu in range(count))
    switch = model.nodes.index("switch")
    inside = [link for link in model.links if switch in (link.first, link.second)]
    assert [link.bandwidth for link in inside] == [nvlink] * count
    assert all(model.nodes[link.first] == "device" for link in inside)
