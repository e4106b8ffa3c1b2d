"""What each process does: take part in collectives, and time them.

    python -m topoplan_command_profile.worker JOB

``JOB`` is a JSON file; the process's place among the others is in the environment (``RANK``, ``WORLD_SIZE``), as
torchrun puts it there.  Sizes are bytes of the *whole* tensor: of what every device has at the end of an all-gather or
an all-reduce, and of all devices' slices together in an all-to-all.  A time is that of the slowest process.

torch is imported by name: it is no dependency, for nothing else here needs it.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["COLLECTIVES", "measure"]

#: As `topoplan.model.taskgraph.Collective` names them.
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
#: Runs of a collective before it is timed: connections are made, and memory is touched.
_WARM = 2
_ITEM = 4


def measure(
    sizes: Sequence[int],
    repeats: int,
    backend: str,
    meet: str,
    on_progress: Callable[[int, str], None] = lambda finished, name: None,
) -> dict[str, Any]:
    """Time all collectives among the processes of this run.

    Args:
        sizes: bytes of the whole tensor; rounded up to equal slices of 4-byte numbers.
        repeats: the time of a collective is the median of so many.
        backend: of torch.distributed; empty for nccl where each process of a machine has a GPU, gloo elsewhere.
        meet: where processes meet, as ``init_process_group`` takes it.
        on_progress: called after each collective and size.

    Returns:
        JSON values, the same in every process: samples (bytes, seconds) by collective, and what they were taken on.
    """
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    count = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    backend = backend or ("nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= count else "gloo")
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    distributed.init_process_group(backend, init_method=meet, rank=rank, world_size=world)
    try:
        samples: dict[str, list[tuple[int, float]]] = {name: [] for name in COLLECTIVES}
        for name in COLLECTIVES:
            for size in sizes:
                each = -(-size // (_ITEM * world * world)) * world
                run = _collective(torch, distributed, name, each, world, device)
                seconds = _seconds(torch, distributed, run, repeats, device)
                samples[name].append((each * world * _ITEM, seconds))
                on_progress(sum(map(len, samples.values())), name)
    finally:
        distributed.destroy_process_group()
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    version = str(torch.__version__)
    return {"samples": samples, "backend": backend, "device": kind, "world_size": world, "torch": version}


def _collective(torch: Any, distributed: Any, name: str, each: int, world: int, device: Any) -> Callable[[], None]:
    """Return a call of a collective whose slices have ``each`` elements."""
    part, target = (torch.ones(each, device=device) for _ in range(2))
    whole = torch.zeros(each * world, device=device)
    match name:
        case "all_gather":
            return lambda: distributed.all_gather_into_tensor(whole, part)
        case "reduce_scatter":
            return lambda: distributed.reduce_scatter_tensor(part, whole)
        case "all_reduce":
            return lambda: distributed.all_reduce(whole)
        case _:
            return lambda: distributed.all_to_all_single(target, part)


def _seconds(torch: Any, distributed: Any, run: Callable[[], None], repeats: int, device: Any) -> float:
    """Return the median over repeats of what the slowest process takes."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(_WARM):
        run()
    durations = torch.zeros(repeats, dtype=torch.float64, device=device)
    for repeat in range(repeats):
        distributed.barrier()
        wait()
        start = time.perf_counter()
        run()
        wait()
        durations[repeat] = time.perf_counter() - start
    distributed.all_reduce(durations, op=distributed.ReduceOp.MAX)
    return float(statistics.median(durations.tolist()))


def main() -> None:
    """Do a job; the first process writes the result, whole or not at all."""
    job = json.loads(Path(sys.argv[1]).read_text())
    first = os.environ["RANK"] == "0"
    folder = Path(job["folder"])

    def report(finished: int, name: str) -> None:
        if first:
            (folder / "progress").write_text(f"{finished} {name}")

    result = measure(job["sizes"], job["repeats"], job["backend"], f"file://{folder / 'store'}", report)
    if first:
        (folder / "result.tmp").write_text(json.dumps(result))
        (folder / "result.tmp").rename(folder / "result")


if __name__ == "__main__":
    main()
