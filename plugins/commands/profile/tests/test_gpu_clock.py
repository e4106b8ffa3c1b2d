"""How parts are timed on a GPU: behind a spin, in the arithmetic that was asked for; on a pretended GPU."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest

from topoplan_command_profile import worker
from topoplan_command_profile.torch_timer import TorchTimer

MEGABYTE = 1e6
#: Seconds that an event takes in a stream.
EVENT = 1e-6


class Gpu:
    """A GPU and its host: a clock in seconds, a stream that is busy until some time, and 2 GHz."""

    OutOfMemoryError = MemoryError

    def __init__(self, launch: float, kernel: float):
        self.launch, self.kernel = launch, kernel
        self.now = self.busy_until = 0.0
        self.spins: list[int] = []
        self.free, self.reserved, self.allocated = 10 * MEGABYTE, 50 * MEGABYTE, 20 * MEGABYTE

    def run_kernel(self, seconds=None):
        """The host launches a kernel, which begins when the stream is free."""
        self.now += self.launch
        self.busy_until = max(self.busy_until, self.now) + (self.kernel if seconds is None else seconds)

    def _sleep(self, cycles):
        self.spins.append(cycles)
        self.run_kernel(cycles / 2e9)

    def synchronize(self, device):
        self.now = max(self.now, self.busy_until)

    def device(self, device):
        return contextlib.nullcontext()

    def Event(self, *, enable_timing):  # noqa: N802
        return Event(self)

    def is_available(self):
        return True

    def get_device_name(self, device):
        return "pretended"

    def mem_get_info(self, device):
        return self.free, 0

    def memory_reserved(self, device):
        return self.reserved

    def memory_allocated(self, device):
        return self.allocated


class Event:
    def __init__(self, gpu):
        self.gpu, self.time = gpu, 0.0

    def record(self):
        self.time = self.gpu.busy_until = max(self.gpu.now, self.gpu.busy_until) + EVENT

    def query(self):
        return self.gpu.now >= self.time

    def elapsed_time(self, later):
        return (later.time - self.time) * 1e3


def timer_on(monkeypatch, gpu, **options):
    switches = SimpleNamespace(allow_tf32=False), SimpleNamespace(allow_tf32=True)
    torch = SimpleNamespace(
        __version__="2.11",
        float32=None,
        bfloat16=None,
        cuda=gpu,
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=switches[0]), cudnn=switches[1]),
        device=lambda name: SimpleNamespace(type="cuda"),
        empty=lambda *shape, device: None,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return TorchTimer("cuda", options.pop("precision", "fp32"), 1, 3, **options), switches


def timed(timer, gpu, first, second):
    def kernels(count):
        return lambda *outcome: [gpu.run_kernel() for _ in range(count)]

    return timer._timed(timer._queued, kernels(first), kernels(second))


def test_kernels_shorter_than_their_launches_have_their_own_time(monkeypatch):
    gpu = Gpu(launch=20e-6, kernel=2e-6)
    timer, _ = timer_on(monkeypatch, gpu)
    for forward, backward in timed(timer, gpu, 3, 5):
        assert (forward, backward) == pytest.approx((3 * 2e-6, 5 * 2e-6))
    whole = timer.run(lambda: [gpu.run_kernel() for _ in range(8)])
    assert min(whole) > 7 * 20e-6, "iterations have the launches in them"


def test_the_spin_grows_until_all_kernels_wait_behind_it(monkeypatch):
    gpu = Gpu(launch=100e-6, kernel=5e-6)
    timer, _ = timer_on(monkeypatch, gpu)
    assert timed(timer, gpu, 10, 10) == [pytest.approx((50e-6, 50e-6))] * 3
    spins = [1 << 20, 1 << 21, 1 << 22]
    assert gpu.spins == spins + [1 << 20] * 9 + spins * 2, "0.5, 1 and 2.1 ms for 20 launches, and runs of nothing"


def test_what_waits_for_the_gpu_has_its_launches_in_its_time(monkeypatch):
    gpu = Gpu(launch=10e-6, kernel=5e-6)
    timer, _ = timer_on(monkeypatch, gpu)

    def work(*outcome):
        gpu.run_kernel()
        gpu.synchronize(None)
        gpu.run_kernel()

    ((forward, _), *_) = timer._timed(timer._queued, work, lambda outcome: None)
    assert max(gpu.spins) == 1 << 29
    assert forward == pytest.approx(20e-6)


def test_free_memory_has_what_torch_reserved_and_does_not_use(monkeypatch):
    gpu = Gpu(1e-6, 1e-6)
    assert timer_on(monkeypatch, gpu)[0].free_bytes() == 40 * MEGABYTE


@pytest.mark.parametrize(
    ("tf32", "during", "name"),
    [
        ("none", (False, False), "2.11"),
        ("convolutions", (False, True), "2.11, TF32 in convolutions"),
        ("all", (True, True), "2.11, TF32"),
    ],
)
def test_arithmetic_is_what_was_asked_for_while_parts_are_timed(monkeypatch, tf32, during, name):
    gpu = Gpu(1e-6, 1e-6)
    timer, switches = timer_on(monkeypatch, gpu, tf32=tf32)
    seen = set()
    timer.run(lambda: seen.add(tuple(switch.allow_tf32 for switch in switches)))
    assert seen == {during}
    assert [switch.allow_tf32 for switch in switches] == [False, True], "as before"
    assert timer.bench.torch == name
    assert timer_on(monkeypatch, gpu, tf32=tf32, precision="bf16")[0].bench.torch == "2.11"


@pytest.mark.parametrize(
    ("gpus", "world", "local", "backend"), [(1, 2, None, "gloo"), (2, 2, None, "nccl"), (8, 16, 8, "nccl")]
)
def test_processes_that_have_a_gpu_each_talk_through_nccl(monkeypatch, gpus, world, local, backend):
    for name, value in (("RANK", 0), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", local)):
        monkeypatch.setenv(name, str(value)) if value is not None else monkeypatch.delenv(name, raising=False)
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: gpus, set_device=lambda device: None, get_device_name=str
    )
    torch = SimpleNamespace(cuda=cuda, device=lambda *words: SimpleNamespace(type=words[0]), __version__="2.11")
    started = []
    distributed = SimpleNamespace(
        init_process_group=lambda name, **where: started.append(name), destroy_process_group=lambda: None
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert worker.measure([], 1, "", "file:///nowhere")["backend"] == backend
    assert started == [backend]
