"""The figures of Google's machines, and the promises that every machine makes."""

from __future__ import annotations

import pytest

from topoplan.testing import parametrize_with_checks
from topoplan_machine_google import TpuV4, TpuV5p


@parametrize_with_checks(TpuV4)
def test_conformance_of_v4(check):
    check()


@parametrize_with_checks(TpuV5p)
def test_conformance_of_v5p(check):
    check()


@pytest.mark.parametrize(
    ("machine", "flops", "gigabytes_per_s", "gibibytes", "link"),
    [(TpuV4, 275e12, 1200, 32, 50e9), (TpuV5p, 459e12, 2765, 95, 100e9)],
)
def test_published_figures(machine, flops, gigabytes_per_s, gibibytes, link):
    model = machine().build()
    device = model.device
    assert device.peak_flops["bf16"] == flops
    assert device.memory_bandwidth == gigabytes_per_s * 1e9
    assert device.memory == gibibytes * 2**30
    assert (model.n_devices, model.n_nics, model.nic_bandwidth) == (1, 6, link)
