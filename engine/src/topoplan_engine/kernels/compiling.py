"""Compile two kernels at a time, on a machine that has none yet and more than one core.

Numba compiles on one core.  What a command is sure to need later can be compiled by a process of its own, which keeps
it on disk like any other (`topoplan_engine.kernels.jit`), while the command compiles what it needs first.

Data flow: `compile_beside` names a module and starts nothing by itself; the first kernel that has to be compiled
within `topoplan_engine.kernels.jit.on_compilation` starts the process (`start`), which calls the module's
``compile_ahead``; `await_compiled` waits for it where the kernel is needed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import typing
from typing import Any

import numba
import numpy as np
from numba.core import event

__all__ = ["await_compiled", "clock", "compile_beside", "seconds", "start", "stop", "types_of"]

_wanted: list[str] = []
_running: dict[str, subprocess.Popen[bytes]] = {}
_started = False


class _Watch(event.Listener):  # type: ignore[misc]
    """Adds up how long this process has compiled; one kernel's compilation may hold those of others."""

    def __init__(self) -> None:
        self.seconds, self._depth, self._began = 0.0, 0, 0.0

    def on_start(self, event: object) -> None:
        if self._depth == 0:
            self._began = time.monotonic()
        self._depth += 1

    def on_end(self, event: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic() - self._began


_watch = _Watch()
event.register("numba:compile", _watch)


def seconds() -> float:
    """Return the seconds that this process has spent compiling kernels, or waiting for their compilation."""
    return _watch.seconds


def clock() -> float:
    """Return a time in seconds that stands still while kernels are compiled: for rates and times of planning."""
    return time.monotonic() - _watch.seconds


def compile_beside(module: str) -> None:
    """Have ``module.compile_ahead()`` called in another process, should this one have to compile at all."""
    if module not in _wanted:
        _wanted.append(module)
        if _started:
            start()


def start() -> None:
    """Start the processes that are wanted and not there yet; none where there is one core only."""
    global _started
    _started = True
    if _cores() < 2:
        return
    for module in _wanted:
        if module not in _running:
            code = f"import {module} as module; module.compile_ahead()"
            with contextlib.suppress(OSError):  # then it is compiled here
                _running[module] = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )


def _cores() -> int:
    """Return how many cores this process may use, where the system tells; else how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def await_compiled(module: str) -> None:
    """Wait until the process that compiles a module's kernel, if there is one, has ended."""
    if _running and module in _running and _running[module].poll() is None:
        began = time.monotonic()
        _running[module].wait()
        _watch.seconds += time.monotonic() - began


def stop() -> None:
    """End the processes that are left: what they compile is not needed after all."""
    global _started
    _started = False
    for process in _running.values():
        process.terminate()
        process.wait()
    _running.clear()
    _wanted.clear()


def types_of(columns: Any, *writeable: str) -> Any:
    """Return the numba type of a named tuple of one-dimensional arrays.

    Args:
        columns: the class; its annotations say which dtypes.
        writeable: names of the arrays that are not read-only.
    """
    hints = typing.get_type_hints(columns)
    made = []
    for name in columns._fields:
        array = np.zeros(0, typing.get_args(typing.get_args(hints[name])[1])[0])
        array.setflags(write=name in writeable)
        made.append(array)
    return numba.typeof(columns(*made))
