"""Ctrl-C as a question that a loop asks, instead of an exception out of nowhere.

A KeyboardInterrupt that arrives while compiled code returns is turned into a SystemError by the
interpreter, and one that arrives between pricing and telling would lose a result.  So a loop that must keep
what it has asks `Stop` once per step.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stop", "end_with_parent", "interruptible"]


class Stop:
    """Whether the user has asked to stop."""

    wanted = False


@contextmanager
def interruptible() -> Iterator[Stop]:
    """Let the first Ctrl-C set ``wanted``; a second one raises `KeyboardInterrupt` as ever.

    Signals belong to the main thread: elsewhere nothing changes.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.wanted:
            raise KeyboardInterrupt
        stop.wanted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def end_with_parent() -> None:
    """End this worker process as soon as the one that started it is gone, however it went.

    A worker that waits for work at a queue does not notice that nobody is left to give it any.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
