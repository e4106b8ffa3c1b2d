"""Machines of Google: TPU v4 and v5p.

A chip is a host of its own: the six links to its neighbours are interfaces, and no switch is inside.  64 chips are a
cube, and a torus of cubes is what optical circuit switches join; the topology ``torus`` builds it.
"""

from __future__ import annotations

from topoplan import Device, HostModel, HostNode, Machine, hookimpl

__all__ = ["DEVICES", "MACHINES", "topoplan_machines"]

_ISCA = "Jouppi et al., TPU v4 (ISCA 2023, arXiv 2304.01433): 6 links of 50 GB/s each way in a torus of cubes of 4x4x4"
_DOCS_V5P = "Google Cloud, TPU v5p (cloud.google.com/tpu/docs/v5p): 459 TFLOP/s bf16, 95 GiB at 2765 GB/s"
_KERNEL = "kernel overhead: not measured; TPUs run compiled programs, whose operators have none of a launch"
_FP32 = "fp32: a product takes six of bf16 (XLA, precision HIGHEST)"

DEVICES = (
    Device(
        name="TPU-v4",
        peak_flops={"fp32": 275e12 / 6, "bf16": 275e12},
        memory_bandwidth=1.2e12,
        memory=32 * 2.0**30,
        kernel_overhead=1e-6,
        sources=(
            "Jouppi et al., TPU v4 (ISCA 2023): 275 TFLOP/s bf16, 32 GiB at 1200 GB/s",
            _FP32,
            _KERNEL,
        ),
    ),
    Device(
        name="TPU-v5p",
        peak_flops={"fp32": 459e12 / 6, "bf16": 459e12},
        memory_bandwidth=2.765e12,
        memory=95 * 2.0**30,
        kernel_overhead=1e-6,
        sources=(_DOCS_V5P, _FP32, _KERNEL),
    ),
)


def _chip(device: Device, link: float, sources: tuple[str, ...]) -> HostModel:
    """Return a chip and its six links."""
    nodes = (HostNode.DEVICE, *(HostNode.NIC,) * 6)
    return HostModel(device=device, nodes=nodes, nic_bandwidth=link, nic_owners=((0,),) * 6, sources=sources)


class TpuV4(Machine):
    """Google TPU v4: 32 GiB at 1.2 TB/s, 6 links of 50 GB/s each way."""

    name = "tpu-v4"

    def build(self) -> HostModel:
        """Return a chip."""
        return _chip(DEVICES[0], 50e9, (_ISCA,))


class TpuV5p(Machine):
    """Google TPU v5p: 95 GiB at 2.77 TB/s, 6 links of 100 GB/s each way."""

    name = "tpu-v5p"

    def build(self) -> HostModel:
        """Return a chip."""
        return _chip(DEVICES[1], 100e9, (f"{_DOCS_V5P}; 1200 GB/s of links both ways, six of them",))


MACHINES: list[type[Machine]] = [TpuV4, TpuV5p]


@hookimpl
def topoplan_machines() -> list[type[Machine]]:
    """Return Google's machines."""
    return MACHINES
