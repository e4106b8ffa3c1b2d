"""Compiles kernels of simulators in a second process, while the first one compiles what comes before them.

The first command on a machine compiles a hundred kernels, one after the other: numba has one lock for all threads.
`ahead` starts a process that simulates a task graph of three tasks, with each simulator that the command will call.
What it compiles is kept where the first process looks for it (`topoplan_engine.kernels.caching`), which waits for a
kernel that the other one is at.  Nothing depends on the second process: one that fails or is ended compiles less.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from topoplan import Cluster, Fabric, Host, Simulator, TaskGraph
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.experiment import Choice
from topoplan_engine.guarded import build_simulate
from topoplan_engine.kernels.caching import are_shipped

__all__ = ["ahead", "simulate_small_case", "small_case"]

#: Seconds between two looks whether the first process is still there.
_LOOK = 0.5


@contextlib.contextmanager
def ahead(simulators: Sequence[str]) -> Iterator[None]:
    """Context manager in which a second process compiles the kernels of simulators, e.g. ``fluid:level=stepped``.

    Does nothing on a machine of one core, and where packages bring kernels along: what they leave out takes less time
    than it takes to start a process.  The process is ended with the context, or with this process.
    """
    if not simulators or (os.cpu_count() or 1) < 2 or are_shipped():
        yield
        return
    command = [sys.executable, "-m", "topoplan_engine.reporting.ahead", str(os.getpid()), *simulators]
    quiet = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            yield
        finally:
            process.terminate()
            process.wait()
        return
    yield


def small_case() -> tuple[TaskGraph, Fabric, Cluster]:
    """Return a task graph of a compute task, a transfer after it and an all-reduce, on a ring of four hosts."""
    links = [pair for host in range(4) for pair in ((host, (host + 1) % 4), ((host + 1) % 4, host))]
    fabric = Fabric.from_links(name="ring", n_hosts=4, links=links, bandwidth=1e9, latency=1e-6, max_paths=2)
    cluster = Cluster.uniform(n_hosts=4, interfaces=2, interface_bandwidth=1e9, latency=1e-6)
    taskgraph = TaskGraph(
        kind=[TaskKind.FORWARD, TaskKind.TRANSFER, TaskKind.COLLECTIVE],
        device=[0, -1, -1],
        seconds=[1e-3, 0, 0],
        size=[0, 1 << 20, 1 << 20],
        src=[-1, 0, -1],
        dst=[-1, 2, -1],
        group=[-1, -1, 0],
        group_ptr=[0, 4],
        group_members=[0, 1, 2, 3],
        succ_ptr=[0, 1, 2, 2],
        succ=[1, 2],
        op=[0, 0, 0],
        n_devices=4,
    )
    return taskgraph, fabric, cluster


def simulate_small_case(simulators: Sequence[str]) -> None:
    """Simulate the small case with each simulator that can, e.g. ``fluid:level=stepped``."""
    host, case = Host.discover(), small_case()
    for text in simulators:
        with contextlib.suppress(Exception):
            simulate = build_simulate(Choice.parse(text, "simulator").make(host, Simulator), host)
            simulate.makespans(*case, range(1))
            simulate(*case)


def _main(parent: int, simulators: Sequence[str]) -> None:
    def leave_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(0)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    simulate_small_case(simulators)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
