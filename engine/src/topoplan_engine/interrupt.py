"""Ctrl-C as a question that a loop asks, instead of an exception out of nowhere.

A KeyboardInterrupt that arrives while compiled code returns is turned into a SystemError by the
interpreter, and one that arrives between pricing and telling would lose a result.  So a loop that must keep
what it has asks `Stop` once per step; `topoplan.search.stopping` is for what it calls.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from topoplan.search.stopping import Stop

__all__ = ["Stop", "interruptible"]


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
