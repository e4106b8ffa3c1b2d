"""Accelerators of NVIDIA: V100 to GB300.

All arithmetic peaks are *dense*: NVIDIA's tables give tensor-core peaks with 2:4 sparsity since Ampere, which is twice
as much and which training does not reach.  ``fp32`` runs on the CUDA cores, the others on the tensor cores.
"""

from __future__ import annotations

from collections.abc import Mapping

from topoplan import Device, HostModel, Machine

__all__ = ["BY_NAME", "DEVICES", "KINDS"]

#: The shortest kernels among FlexNet's published A100 measurements (softmax over ten classes, CUDA events)
#: take 3.8 to 4.6 us.  No data sheet gives such a figure, so it stands for devices that were not measured, too.
_SMALLEST_KERNEL = 4e-6
#: Each of a hundred kernels of one element that wait in a stream, as experiments/one_gpu_torch.py measures it.
_H100_KERNEL, _H200_KERNEL = 2.1e-6, 1.6e-6
_HOPPER_KERNEL_SOURCE = "kernel overhead: experiments/one_gpu_torch.py, torch 2.11"
_KERNEL_SOURCE = "kernel overhead: shortest kernels in FlexNet's (TopoOpt, NSDI'23) A100 measurements"
_AMPERE = {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
_HOPPER = {"fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1978.9e12}
_HOPPER_SOURCE = "peaks: NVIDIA H100 Tensor Core GPU Architecture white paper, table of the SXM5 board, dense columns"
_MATMUL_SOURCE = (
    "best matrix product, bf16, of many shapes: stas00/ml-engineering@744d01e18b79, compute/accelerator/README.md; "
    "fp16 has the same units and peak"
)


_HOPPER_MATMUL_SOURCE = (
    "best matrix product, fp32 and tf32, of 4096 and 8192 rows: topoplan profile device, with --tf32 all for tf32, "
    "torch 2.11"
)


def _best_matmul(measured: float, data_sheet: float) -> Mapping[str, float]:
    """Return the share of the peak that was measured in bf16, which is fp16's, too; both in TFLOP/s."""
    return {"bf16": measured / data_sheet, "fp16": measured / data_sheet}


def _hopper_matmul(fp32: float, tf32: float) -> Mapping[str, float]:
    """Return shares of the peaks, of the TFLOP/s that were measured; bf16 is that of H100-SXM, 2048 x 2048 x 13312."""
    return {"fp32": fp32 / 66.9, "tf32": tf32 / 494.7, **_best_matmul(794.5, 989)}


_AMPERE_MATMUL = _best_matmul(271.2, 312)  # A100-SXM, 1024 x 10240 x 5120

#: What is known of each kind of device, oldest first.
DEVICES = (
    Device(
        name="V100",
        peak_flops={"fp32": 15.7e12, "fp16": 125e12},
        memory_bandwidth=900e9,
        memory=16e9,
        kernel_overhead=_SMALLEST_KERNEL,
        sources=(
            "NVIDIA V100 Tensor Core GPU data sheet, SXM2 column (the board was sold with 16 and 32 GB)",
            _KERNEL_SOURCE,
        ),
    ),
    Device(
        name="A100-40",
        peak_flops=_AMPERE,
        memory_bandwidth=1555e9,
        memory=40e9,
        kernel_overhead=_SMALLEST_KERNEL,
        matmul_efficiency=_AMPERE_MATMUL,
        sources=(
            "NVIDIA A100 Tensor Core GPU data sheet, A100 40GB SXM, without sparsity",
            _MATMUL_SOURCE,
            _KERNEL_SOURCE,
        ),
    ),
    Device(
        name="A100-80",
        peak_flops=_AMPERE,
        memory_bandwidth=2039e9,
        memory=80e9,
        kernel_overhead=_SMALLEST_KERNEL,
        matmul_efficiency=_AMPERE_MATMUL,
        sources=(
            "NVIDIA A100 Tensor Core GPU data sheet, A100 80GB SXM, without sparsity",
            _MATMUL_SOURCE,
            _KERNEL_SOURCE,
        ),
    ),
    Device(
        name="H100",
        peak_flops=_HOPPER,
        memory_bandwidth=3.35e12,
        memory=80e9,
        kernel_overhead=_H100_KERNEL,
        matmul_efficiency=_hopper_matmul(51.51, 399.7),
        sources=(
            _HOPPER_SOURCE,
            "memory: NVIDIA H100 Tensor Core GPU data sheet, H100 SXM",
            _MATMUL_SOURCE,
            _HOPPER_MATMUL_SOURCE,
            _HOPPER_KERNEL_SOURCE,
        ),
    ),
    Device(
        name="H200",
        peak_flops=_HOPPER,
        memory_bandwidth=4.8e12,
        memory=141e9,
        kernel_overhead=_H200_KERNEL,
        matmul_efficiency=_hopper_matmul(51.18, 424.7),
        sources=(
            _HOPPER_SOURCE,
            "memory: NVIDIA H200 Tensor Core GPU data sheet, H200 SXM (same chip as H100)",
            _MATMUL_SOURCE,
            _HOPPER_MATMUL_SOURCE,
            _HOPPER_KERNEL_SOURCE,
        ),
    ),
    Device(
        name="H800",
        peak_flops=_HOPPER,
        memory_bandwidth=3.35e12,
        memory=80e9,
        kernel_overhead=_H100_KERNEL,
        matmul_efficiency=_hopper_matmul(51.51, 399.7),
        sources=(
            _HOPPER_SOURCE,
            "assumption: an H100 but for its NVLinks, as DeepSeek-V3's report (arXiv 2412.19437) uses it",
            _MATMUL_SOURCE,
            _HOPPER_MATMUL_SOURCE,
            _HOPPER_KERNEL_SOURCE,
        ),
    ),
    Device(
        name="B200",
        peak_flops={"fp32": 75e12, "tf32": 1.125e15, "bf16": 2.25e15, "fp16": 2.25e15, "fp8": 4.5e15},
        memory_bandwidth=8e12,
        memory=180e9,
        kernel_overhead=_SMALLEST_KERNEL,
        matmul_efficiency=_best_matmul(1745, 2250),  # B200-SXM, 1792 x 16128 x 3072
        sources=(
            "peaks: NVIDIA HGX B200 specifications, an eighth of the board, half of the figures with sparsity",
            "memory: NVIDIA DGX B200 data sheet, an eighth of 1440 GB and 64 TB/s",
            _MATMUL_SOURCE,
            _KERNEL_SOURCE,
        ),
    ),
    Device(
        name="GB200",
        peak_flops={"fp32": 80e12, "tf32": 1.25e15, "bf16": 2.5e15, "fp16": 2.5e15, "fp8": 5e15},
        memory_bandwidth=8e12,
        memory=186e9,
        kernel_overhead=_SMALLEST_KERNEL,
        sources=(
            "NVIDIA GB200 NVL72 data sheet, a 72nd of the rack, half of the figures with sparsity; fp32, memory and "
            "its bandwidth (13.4 TB, 576 TB/s) alike",
            _KERNEL_SOURCE,
        ),
    ),
    Device(
        name="B300",
        peak_flops={"fp32": 75e12, "tf32": 1.125e15, "bf16": 2.25e15, "fp16": 2.25e15, "fp8": 4.5e15},
        memory_bandwidth=8e12,
        memory=270e9,
        kernel_overhead=_SMALLEST_KERNEL,
        matmul_efficiency=_best_matmul(1769, 2250),  # B300-SXM, 12288 x 18432 x 1024
        sources=(
            "NVIDIA HGX B300 specifications, an eighth of the board, half of the figures with sparsity; fp32 as B200",
            "memory: NVIDIA DGX B300 data sheet, 2.1 TB of the board and less what is kept: 270 GB a GPU as it reports",
            _MATMUL_SOURCE,
            _KERNEL_SOURCE,
        ),
    ),
    Device(
        name="GB300",
        peak_flops={"fp32": 80e12, "tf32": 1.25e15, "bf16": 2.5e15, "fp16": 2.5e15, "fp8": 5e15},
        memory_bandwidth=8e12,
        memory=279e9,
        kernel_overhead=_SMALLEST_KERNEL,
        sources=(
            "NVIDIA GB300 NVL72 data sheet, a 72nd of the rack, half of the figures with sparsity; fp32 that of GB200; "
            "memory 20.1 TB, 576 TB/s",
            _KERNEL_SOURCE,
        ),
    ),
)


BY_NAME = {device.name.lower(): device for device in DEVICES}


class _Accelerator(Machine):
    """An accelerator, without a host."""

    def build(self) -> HostModel:
        """Return the machine of the device of this name."""
        return HostModel(device=BY_NAME[self.name])


class V100(_Accelerator):
    """NVIDIA V100: 16 GB at 0.9 TB/s."""

    name = "v100"


class A100With40(_Accelerator):
    """NVIDIA A100-40: 40 GB at 1.56 TB/s."""

    name = "a100-40"


class A100With80(_Accelerator):
    """NVIDIA A100-80: 80 GB at 2.04 TB/s."""

    name = "a100-80"


class H100(_Accelerator):
    """NVIDIA H100: 80 GB at 3.35 TB/s."""

    name = "h100"


class H200(_Accelerator):
    """NVIDIA H200: 141 GB at 4.8 TB/s."""

    name = "h200"


class B200(_Accelerator):
    """NVIDIA B200: 180 GB at 8 TB/s."""

    name = "b200"


class H800(_Accelerator):
    """NVIDIA H800: an H100 whose NVLinks have 200 GB/s each way."""

    name = "h800"


class B300(_Accelerator):
    """NVIDIA B300: 270 GB at 8 TB/s."""

    name = "b300"


class GB300(_Accelerator):
    """NVIDIA GB300, one of the two GPUs of a superchip: 279 GB at 8 TB/s."""

    name = "gb300"


class GB200(_Accelerator):
    """NVIDIA GB200, one of the two GPUs of a superchip: 186 GB at 8 TB/s."""

    name = "gb200"


KINDS: list[type[Machine]] = [V100, A100With40, A100With80, H100, H200, H800, B200, GB200, B300, GB300]
