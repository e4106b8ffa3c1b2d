"""Time the parts of operators with PyTorch, on a CPU or on a GPU.

Every run makes the forward pass and then the backward pass of one part, and times both.  The first runs are not
counted: memory is allocated then, and libraries choose their algorithms.

On a GPU events in its stream are the clock.  An event alone does not tell kernels from their launches: a stream that
has nothing to do waits for the host between two kernels.  So the stream first gets a kernel that only spins, for so
long that the host has sent all kernels of a run before the first of them begins.  What two events measure with nothing
between them is taken off.  Whole iterations of a model are timed without all this: what the host takes to launch them
is part of them.

torch is imported by name: it is no dependency, for nothing else here needs it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan_command_profile.kernels import INDICES, KERNELS, TABLES
from topoplan_operator_times.parts import PartShape
from topoplan_operator_times.table import Bench

__all__ = ["Runs", "TorchTimer", "check_kinds"]

#: Seconds of a first and of a second call.
_Pair = tuple[float, float]
_Clock = Callable[[Callable[[], Any], Callable[[Any], None]], _Pair]

#: Precision -> torch's name of the type.
_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
#: Share of the free memory that tensors may take.
_MOST = 0.8
#: Clock cycles that the stream spins before a run: at first, and at most (0.5 ms and 0.3 s at 2 GHz).
_SPIN, _LONGEST_SPIN = 1 << 20, 1 << 29
#: Runs of nothing that say what events themselves take.
_EMPTY_RUNS = 9
#: What to multiply in TF32 -> as the name of a bench says it.
_TF32 = {"none": "", "convolutions": "TF32 in convolutions", "all": "TF32"}


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

    def __init__(self, device: str, precision: str, warm_up: int, repeats: int, tf32: str = "convolutions") -> None:
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
        self._warm_up, self._repeats, self._tf32 = warm_up, repeats, tf32
        is_cuda = self._device.type == "cuda"
        arithmetic = _TF32[tf32] if is_cuda and precision == "fp32" else ""
        self.bench = Bench(
            device=torch.cuda.get_device_name(self._device) if is_cuda else cpu_name(),
            torch=", ".join(filter(None, (str(torch.__version__), arithmetic))),
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
            torch.cuda.empty_cache()
            return Runs((), ())
        except (RuntimeError, NotImplementedError) as error:
            if "not enough memory" in str(error):
                return Runs((), ())
            raise TopoplanError(
                f"operator of kind {part.kind!r}, inputs {', '.join(str(x.shape) for x in part.inputs)}: "
                f"torch cannot run it ({_first_line(error)})"
            ) from None

    def free_bytes(self) -> float:
        """Return the bytes that are free on the device, with those that torch has there and does not use."""
        if self._device.type != "cuda":
            return free_memory()
        cuda = self._torch.cuda
        unused = cuda.memory_reserved(self._device) - cuda.memory_allocated(self._device)
        return float(cuda.mem_get_info(self._device)[0] + unused)

    def tensors(self, part: PartShape) -> tuple[list[Any], list[Any]]:
        """Make inputs and weights; those that need gradients say so."""
        return [self.input(part, k) for k in range(len(part.inputs))], self.weights(part)

    def input(self, part: PartShape, k: int) -> Any:
        """Make an input, of random numbers or indices."""
        indices, shape = INDICES.get(part.kind, {}), part.inputs[k].shape
        if k in indices:
            return self._torch.randint(max(indices[k](part), 1), shape, device=self._device)
        return self.random(shape).requires_grad_(part.gradients[k])

    def weights(self, part: PartShape) -> list[Any]:
        """Make the weights; those that are trained need gradients."""
        return [self.random(piece.shape).requires_grad_(part.trains(k)) for k, piece in enumerate(part.weights)]

    def run(self, work: Callable[[], Any]) -> list[float]:
        """Return the seconds of each counted run of ``work``; on a GPU with what the host takes to launch it."""
        clock = self._on_gpu if self.kind == "cuda" else self._on_cpu
        return [first for first, _ in self._timed(clock, work, lambda outcome: None)]

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

        clock = self._queued if self.kind == "cuda" else self._on_cpu
        pairs = self._timed(clock, forward, backward if gradients else lambda outcome: None)
        return Runs([a for a, _ in pairs], [b if gradients else 0.0 for _, b in pairs])

    def _timed(self, clock: _Clock, first: Callable[[], Any], second: Callable[[Any], None]) -> list[_Pair]:
        """Run two calls one after the other, often; return the seconds of both of each counted run."""
        plain = self._on_gpu if self.kind == "cuda" else clock
        with self._arithmetic():
            for _ in range(self._warm_up):
                plain(first, second)
            return [clock(first, second) for _ in range(self._repeats)]

    @contextlib.contextmanager
    def _arithmetic(self) -> Iterator[None]:
        """Let torch multiply in TF32 what the user wants, and as before afterwards."""
        if self.kind != "cuda":
            yield
            return
        switches = self._torch.backends.cuda.matmul, self._torch.backends.cudnn
        before = [switch.allow_tf32 for switch in switches]
        switches[0].allow_tf32, switches[1].allow_tf32 = self._tf32 == "all", self._tf32 != "none"
        try:
            yield
        finally:
            for switch, was_on in zip(switches, before, strict=True):
                switch.allow_tf32 = was_on

    def _on_cpu(self, first: Callable[[], Any], second: Callable[[Any], None]) -> _Pair:
        start = time.perf_counter()
        outcome = first()
        middle = time.perf_counter()
        second(outcome)
        return middle - start, time.perf_counter() - middle

    def _queued(self, first: Callable[[], Any], second: Callable[[Any], None]) -> _Pair:
        """Time kernels alone: double the spin until all are launched before it ends.

        A call that itself waits for the GPU never is; its time has the launches in it.
        """
        cycles = _SPIN
        while True:
            (forward, backward), in_time = self._on_stream(first, second, cycles)
            if in_time or cycles >= _LONGEST_SPIN:
                return max(forward - self._event_seconds, 0.0), max(backward - self._event_seconds, 0.0)
            cycles *= 2

    @functools.cached_property
    def _event_seconds(self) -> float:
        """What two events in a row measure, with nothing between them."""
        pairs = [self._on_stream(lambda: None, lambda outcome: None, _SPIN)[0] for _ in range(_EMPTY_RUNS)]
        return statistics.median(seconds for pair in pairs for seconds in pair)

    def _on_gpu(self, first: Callable[[], Any], second: Callable[[Any], None]) -> _Pair:
        return self._on_stream(first, second, 0)[0]

    def _on_stream(self, first: Callable[[], Any], second: Callable[[Any], None], cycles: int) -> tuple[_Pair, bool]:
        """Return the seconds of both calls behind a spin, and whether all was launched before the spin ended."""
        cuda = self._torch.cuda
        start, middle, end = (cuda.Event(enable_timing=True) for _ in range(3))
        with cuda.device(self._device):
            cuda.synchronize(self._device)
            if cycles:
                cuda._sleep(cycles)
            start.record()
            outcome = first()
            middle.record()
            second(outcome)
            end.record()
            in_time = not start.query()
            cuda.synchronize(self._device)
        return (start.elapsed_time(middle) / 1e3, middle.elapsed_time(end) / 1e3), in_time


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
