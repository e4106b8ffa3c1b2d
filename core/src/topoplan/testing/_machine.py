"""Promises of machines: ``build() -> HostModel``."""

from __future__ import annotations

import math

from topoplan import Machine
from topoplan.testing._common import example


def check_device_is_called_as_its_machine(component: type[Machine]) -> None:
    """Plans write the device's name, and read it as the machine's: both are the same but for their case."""
    name = example(component).build().device.name
    assert name.lower() == component.name, f"the device is called {name!r}, and its machine {component.name!r}"


def check_figures_can_be_true(component: type[Machine]) -> None:
    """Figures are positive and finite, peaks are known in fp32, and shares of a peak are those of a known one."""
    device = example(component).build().device
    figures = {
        **{field: getattr(device, field) for field in ("memory_bandwidth", "memory", "kernel_overhead")},
        **{f"peak_flops[{precision}]": peak for precision, peak in device.peak_flops.items()},
    }
    for field, value in figures.items():
        assert 0 < value < math.inf, f"{field} is {value}"
    assert "fp32" in device.peak_flops, "no peak in fp32, which models are in unless users say otherwise"
    for precision, share in device.matmul_efficiency.items():
        assert precision in device.peak_flops, f"a share of the peak in {precision}, which is not known"
        assert 0 < share <= 1, f"{share} of the peak in {precision}"


def check_same_machine_twice(component: type[Machine]) -> None:
    """The same options give the same machine."""
    assert example(component).build() == example(component).build()
