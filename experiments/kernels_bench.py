"""The clock of `kernels_torch.py`: kernels behind a spin, and tables that rows are written into."""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import statistics
import time

import numpy as np
import torch
from kernels_shapes import BUFFER

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
#: Seconds that the spin lasts at least, and the clock it counts on.
SPIN, HERTZ = 1e-3, 1.9e9


class Bench:
    """A device and its clock; writes rows into tables as they come."""

    def __init__(self, out, on, deadline, scale):
        self.out, self.on, self.deadline, self.scale = out, on, deadline, scale
        self.is_cuda = on.startswith("cuda")
        self.start = time.monotonic()
        self.files = {}
        self.buffers = {}
        self.nothing = statistics.median(self._queued([lambda: None] * 9)[0]) if self.is_cuda else 0.0

    def late(self):
        """Whether no time is left."""
        return time.monotonic() - self.start > self.deadline

    def row(self, table, values):
        """Write a row."""
        if table not in self.files:
            file = (self.out / f"{table}.csv").open("w", newline="")
            self.files[table] = file, csv.writer(file, lineterminator="\n")
            self.files[table][1].writerow(HEADS[table].split())
        self.files[table][1].writerow(values)

    def flush(self):
        """Write all that there is."""
        for file, _ in self.files.values():
            file.flush()

    def matrix(self, *shape, mode="fp32"):
        """Return a tensor of random numbers; tensors share memory."""
        kind, count = TYPES[mode], math.prod(shape)
        if kind not in self.buffers or self.buffers[kind].numel() < count:
            size = BUFFER if self.is_cuda else 1 << 22
            self.buffers[kind] = torch.randn(max(size, count), dtype=kind, device=self.on)
        return self.buffers[kind][:count].view(shape)

    def random(self, *shape, mode="fp32", gradient=False):
        """Return a tensor of its own."""
        return torch.randn(*shape, dtype=TYPES[mode], device=self.on).requires_grad_(gradient)

    def seconds(self, *calls):
        """Return the median seconds of each of some calls, which run one after the other, and repeatedly.

        A call gets what the call before it returned.
        """
        if not self.is_cuda:
            value = None
            times = []
            for call in calls:
                begin = time.perf_counter()
                value = call(value) if call.__code__.co_argcount else call()
                times.append(time.perf_counter() - begin)
            return times
        self._queued(calls)
        first = sum(self._queued(calls)[0])
        repeats = int(min(max(0.02 / max(first, 1e-6), 3), 11))
        rows = self._queued(list(calls) * repeats)[0]
        columns = np.array(rows).reshape(repeats, len(calls))
        return np.maximum(np.median(columns, axis=0) - self.nothing, 0).tolist()

    def _queued(self, calls):
        """Return the seconds of each call, all of which are launched before the first begins if that can be."""
        spin = SPIN
        while True:
            torch.cuda.synchronize()
            torch.cuda._sleep(int(spin * HERTZ))
            events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
            events[0].record()
            value = None
            for call, event in zip(calls, events[1:], strict=True):
                value = call(value) if call.__code__.co_argcount else call()
                event.record()
            value = None
            in_time = not events[0].query()
            torch.cuda.synchronize()
            if in_time or spin > 0.1:
                break
            spin *= 4
        return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)], in_time

    def workspace(self, call):
        """Return the most bytes that a call allocates, with its results."""
        if not self.is_cuda:
            return 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        value = call()
        torch.cuda.synchronize()
        del value
        return torch.cuda.max_memory_allocated() - before


HEADS = {
    "products": "mode role batch m n k us",
    "convolutions": "mode role samples channels height width filters kernel_h kernel_w stride padding groups us "
    "workspace",
    "attention": "mode samples heads kv_heads queries keys channels causal forward_us backward_us workspace",
    "passes": "mode kind rows row forward_us backward_us workspace",
    "steps": "mode kind elements tensors us",
    "launches": "mode kind forward_us backward_us",
}


@contextlib.contextmanager
def arithmetic(mode):
    """Multiply in TF32 or not, as a mode says."""
    for switch in (torch.backends.cuda.matmul, torch.backends.cudnn):
        switch.allow_tf32 = mode == "tf32"
    yield


def guarded(work, bench):
    """Run ``work``; say what did not run, and go on."""
    try:
        work()
    except Exception as error:
        print("left out:", str(error).splitlines()[:1], flush=True)
        if bench.is_cuda and "out of memory" in str(error):
            torch.cuda.empty_cache()


def us(seconds):
    """Return microseconds with five digits."""
    return f"{seconds * 1e6:.5g}"
