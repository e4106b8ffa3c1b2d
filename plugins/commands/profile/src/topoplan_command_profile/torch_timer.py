"""Time the parts of operators with PyTorch, on a CPU or on a GPU.

Every run makes the forward pass and then the backward pass of one part, and times both.  On a GPU events in its stream
are the clock, and each run waits for the stream, so that what is timed is kernels and not their launches.  The first
runs are not counted: memory is allocated then, and libraries choose their algorithms.

torch is imported by name: it is no dependency, for nothing else here needs it.
"""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan_command_profile.kernels import INDICES, KERNELS, TABLES
from topoplan_operator_times.parts import PartShape
from topoplan_operator_times.table import Bench

__all__ = ["Runs", "TorchTimer", "check_kinds"]

#: Precision -> torch's name of the type.
_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
#: Share of the free memory that tensors may take.
_MOST = 0.8


@attrs.frozen
class Runs:
    """Seconds of each counted run, forward and backward; none where the part does not fit into memory."""

    forward: Sequence[float]
    backward: Sequence[float]


def check_kinds(kinds: Sequence[tuple[str, str]]) -> None:
    """Raise `TopoplanError` where torch has no kernel for a kind of operator; ``kinds`` are (operator, kind)."""
    for operator, kind in kinds:
        if kind not in KERNELS:
            raise TopoplanError(
                f"operator {operator!r}: kind {kind!r} cannot be timed with torch (it can time {', '.join(KERNELS)})"
            )


class TorchTimer:
    """Times parts on one device.

    Attributes:
        bench: what it times on.
    """

    def __init__(self, device: str, precision: str, warm_up: int, repeats: int) -> None:
        torch = self._torch = importlib.import_module("torch")
        name = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self._device = torch.device(name)
            torch.empty(1, device=self._device)
        except (RuntimeError, AssertionError) as error:  # torch's words for what is not there
            raise TopoplanError(f"--on: {name}: torch cannot use it ({_first_line(error)})") from None
        if self._device.type not in ("cpu", "cuda"):
            raise TopoplanError(f"--on: {name}: cpu or cuda can be timed")
        self._type = getattr(torch, _TYPES[precision])
        self._warm_up, self._repeats = warm_up, repeats
        is_cuda = self._device.type == "cuda"
        self.bench = Bench(
            device=torch.cuda.get_device_name(self._device) if is_cuda else cpu_name(),
            torch=str(torch.__version__),
            threads=0 if is_cuda else torch.get_num_threads(),
            precision=precision,
        )

    def __call__(self, part: PartShape) -> Runs:
        """Time one part.

        Raises:
            TopoplanError: torch refuses it; the message has torch's reason.
        """
        if _needed(part) > _MOST * self.free_bytes():
            return Runs((), ())
        torch = self._torch
        try:
            inputs, weights = self.tensors(part)
            return self._runs(lambda: KERNELS[part.kind](torch, part, inputs, weights), [*inputs, *weights])
        except torch.cuda.OutOfMemoryError:
            return Runs((), ())
        except (RuntimeError, NotImplementedError) as error:
            if "not enough memory" in str(error):
                return Runs((), ())
            raise TopoplanError(
                f"operator of kind {part.kind!r}, inputs {', '.join(str(x.shape) for x in part.inputs)}: "
                f"torch cannot run it ({_first_line(error)})"
            ) from None

    def free_bytes(self) -> float:
        """Return the bytes that are free on the device."""
        if self._device.type == "cuda":
            return float(self._torch.cuda.mem_get_info(self._device)[0])
        return free_memory()

    def tensors(self, part: PartShape) -> tuple[list[Any], list[Any]]:
        """Make inputs and weights; those that need gradients say so."""
        indices = INDICES.get(part.kind, {})
        inputs = []
        for k, piece in enumerate(part.inputs):
            if k in indices:
                high = max(indices[k](part), 1)
                inputs.append(self._torch.randint(high, piece.shape, device=self._device))
            else:
                inputs.append(self.random(piece.shape).requires_grad_(part.gradients[k]))
        return inputs, [self.random(piece.shape).requires_grad_() for piece in part.weights]

    def run(self, work: Callable[[], Any]) -> list[float]:
        """Return the seconds of each counted run of ``work``."""
        return [first for first, _ in self._timed(work, lambda outcome: None)]

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return str(self._device.type)

    def random(self, shape: tuple[int, ...]) -> Any:
        """Return small numbers; a table of gigabytes is zeros, of which only touched rows take memory."""
        torch = self._torch
        if len(shape) == 2 and shape[0] > 1 << 20:
            return torch.zeros(shape, dtype=self._type, device=self._device)
        return torch.rand(shape, dtype=self._type, device=self._device) * 0.1

    def _runs(self, forward: Callable[[], Any], tensors: Sequence[Any]) -> Runs:
        torch = self._torch
        leaves = [tensor for tensor in tensors if tensor.requires_grad]

        def trained(outcome: Any) -> list[Any]:
            """Return the outputs through which gradients flow."""
            return [y for y in (outcome if isinstance(outcome, tuple) else (outcome,)) if y.requires_grad]

        gradients = [torch.ones_like(y) for y in trained(forward())]

        def backward(outcome: Any) -> None:
            torch.autograd.grad(trained(outcome), leaves, gradients, allow_unused=True)

        pairs = self._timed(forward, backward if gradients else lambda outcome: None)
        return Runs([a for a, _ in pairs], [b if gradients else 0.0 for _, b in pairs])

    def _timed(self, first: Callable[[], Any], second: Callable[[Any], None]) -> list[tuple[float, float]]:
        """Run two calls one after the other, often; return the seconds of both of each counted run."""
        clock = self._on_gpu if self._device.type == "cuda" else self._on_cpu
        for _ in range(self._warm_up):
            clock(first, second)
        return [clock(first, second) for _ in range(self._repeats)]

    def _on_cpu(self, first: Callable[[], Any], second: Callable[[Any], None]) -> tuple[float, float]:
        start = time.perf_counter()
        outcome = first()
        middle = time.perf_counter()
        second(outcome)
        return middle - start, time.perf_counter() - middle

    def _on_gpu(self, first: Callable[[], Any], second: Callable[[Any], None]) -> tuple[float, float]:
        cuda = self._torch.cuda
        start, middle, end = (cuda.Event(enable_timing=True) for _ in range(3))
        with cuda.device(self._device):
            start.record()
            outcome = first()
            middle.record()
            second(outcome)
            end.record()
            cuda.synchronize(self._device)
        return start.elapsed_time(middle) / 1e3, middle.elapsed_time(end) / 1e3


def _needed(part: PartShape) -> int:
    """Return the bytes of a part's tensors and their gradients; no table has a dense gradient."""
    tables = sum(piece.nbytes for piece in part.weights) if part.kind in TABLES else 0
    return part.nbytes - tables


def cpu_name() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or "cpu"


def free_memory() -> float:
    """Return the bytes of main memory that can be allocated; as many as there are at all where nobody says."""
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return float(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
