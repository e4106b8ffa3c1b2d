"""What launches take: kernels of each kind of operator, and the host's time for them in eager PyTorch."""

from __future__ import annotations

from functools import cache

from topoplan_kernel_constants.tables import bench, column, names

__all__ = ["host_seconds", "launches_of", "step_host_seconds"]

#: Kernels forward and backward of a kind that was not counted.
_UNKNOWN = (1, 2)
#: What one call of torch.autograd.grad takes beside its nodes, in a table whose rows have one call each.
_CALL = 50e-6


@cache
def _rows(device: str) -> dict[tuple[str, str], tuple[float, ...]]:
    words = ("forward_kernels", "backward_kernels", "forward_host_us", "backward_host_us")
    keys = zip(names(device, "launches", "mode"), names(device, "launches", "kind"), strict=True)
    return dict(
        zip(keys, zip(*(column(device, "launches", word).tolist() for word in words), strict=True), strict=True)
    )


def _row(device: str, mode: str, kind: str) -> tuple[float, ...] | None:
    return _rows(device).get(("bf16" if mode in ("bf16", "fp16") else "fp32", kind))


def launches_of(device: str, mode: str, kind: str) -> tuple[int, int]:
    """Return how many kernels an operator launches, forward and backward.

    >>> launches_of("h100", "fp32", "gelu")
    (1, 1)
    """
    row = _row(device, mode, kind)
    return _UNKNOWN if row is None else (round(row[0]), round(row[1]))


@cache
def host_seconds(device: str, kind: str) -> tuple[float, float]:
    """Return what the host takes to launch an operator in eager PyTorch, forward and backward.

    The host does the same in all precisions; the shorter of its measured times counts.
    """
    rows = [row for mode in ("fp32", "bf16") if (row := _row(device, mode, kind) or _row(device, mode, "gelu"))]
    forward, backward = (min(row[k] for row in rows) for k in (2, 3))
    return forward / 1e6, max(backward / 1e6 - _CALL, 0.0)


def step_host_seconds(device: str, mode: str) -> float:
    """Return what the host takes for one weight in a step of an optimizer (fused), with PyTorch's casts in bf16."""
    return float(bench(device)["step_host_us"]["bf16" if mode in ("bf16", "fp16") else "fp32"] / 1e6)
