"""Processes that measure together: started here, or found already started by torchrun.

Started here they meet in a file, so that no port is taken; what they say on standard error is kept, for a message if
one of them fails.  All are ended before this returns, however it returns.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from topoplan import TopoplanError
from topoplan_command_profile.worker import measure

__all__ = ["check_torch", "measure_here", "measure_joined", "started_by_torchrun"]

#: Seconds between two looks at the processes.
_LOOK = 0.05


def check_torch(word: str) -> None:
    """Raise `TopoplanError` where torch is missing; ``word`` stands behind ``topoplan profile``."""
    if importlib.util.find_spec("torch") is None:
        raise TopoplanError(
            f"profile {word}: measures with PyTorch, which is not installed (pip install torch; "
            "PyTorch's page on installation has a smaller one for CPUs alone)"
        )


def started_by_torchrun() -> bool:
    """Say whether this process is one of several that torchrun, or something like it, started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def measure_joined(
    sizes: Sequence[int], repeats: int, backend: str, on_progress: Callable[[int, str], None]
) -> tuple[dict[str, Any], bool]:
    """Measure with the processes that torchrun started; return the result, and whether this one is the first.

    Raises:
        TopoplanError: the environment is not that of several processes, or they cannot measure.
    """
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not rank.isdecimal() or not world.isdecimal() or not int(rank) < int(world):
        raise TopoplanError(f"profile collectives: RANK={rank} and WORLD_SIZE={world} name no process of several")
    if int(world) < 2:
        raise TopoplanError("profile collectives: WORLD_SIZE=1: collectives need two processes at least")
    try:
        return measure(sizes, repeats, backend, "env://", on_progress), rank == "0"
    except (RuntimeError, ValueError, KeyError) as error:  # torch's words for what it cannot do
        raise TopoplanError(f"profile collectives: {_last(str(error))}") from None


def measure_here(
    processes: int, sizes: Sequence[int], repeats: int, backend: str, on_progress: Callable[[int, str], None]
) -> dict[str, Any]:
    """Start processes on this machine and measure.

    Raises:
        TopoplanError: one of them failed; the message is the last thing that it said.
    """
    with tempfile.TemporaryDirectory(prefix="topoplan-profile-") as name, contextlib.ExitStack() as open_files:
        folder = Path(name)
        job = {"sizes": list(sizes), "repeats": repeats, "backend": backend, "folder": name}
        (folder / "job").write_text(json.dumps(job))
        running = []
        worlds = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
        try:
            for rank in range(processes):
                log = open_files.enter_context((folder / f"log{rank}").open("wb"))
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **worlds}
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "topoplan_command_profile.worker", str(folder / "job")],
                        env={**os.environ, "OMP_NUM_THREADS": "1", **place},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
            while any(process.poll() is None for process in running):
                failed = next((k for k, process in enumerate(running) if process.poll()), None)
                if failed is not None:
                    break
                time.sleep(_LOOK)
                _pass_on(folder / "progress", on_progress)
        finally:
            for process in running:
                process.kill()
                process.wait()
        failed = next((k for k, process in enumerate(running) if process.returncode > 0), None)
        if failed is None and (folder / "result").is_file():
            return dict(json.loads((folder / "result").read_text()))
        output = (folder / f"log{failed or 0}").read_text(errors="replace")
        raise TopoplanError(f"profile collectives: process {failed or 0} of {processes} failed: {_last(output)}")


def _pass_on(path: Path, on_progress: Callable[[int, str], None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        finished, name = path.read_text().split()
        on_progress(int(finished), name)


def _last(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
