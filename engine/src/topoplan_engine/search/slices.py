"""A call that plans for seconds, in slices, between which a search goes on with others.

What may be left in the middle (`topoplan.search.stopping.stop_if_wanted`) may wait there as well.  The call runs in a
thread of its own, but never beside its caller: one of them waits for the other, so that nothing needs a lock.  Where it
prints belongs to the call: what `topoplan.errors.calling` sends to standard error meanwhile is of one of them alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TextIO, TypeVar

from topoplan.search.stopping import must_end

__all__ = ["Slices"]

T = TypeVar("T")


def _never() -> bool:
    return False


class Slices(Generic[T]):
    """A call under way, or done.

    >>> from topoplan.search.stopping import stop_if_wanted
    >>> def plan():
    ...     for step in range(3):
    ...         stop_if_wanted()
    ...     return step
    >>> slices = Slices(plan)
    >>> [slices.go_on(lambda: True) for _ in range(4)], slices.answer()
    ([False, False, False, True], 2)
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self._is_over, self._ends = _never, _never
        self._is_done = False
        #: Its standard output while it waits.
        self._stdout: TextIO | None = None
        self._to_call, self._to_caller = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        """Run until the slice is over, as ``is_over`` says; say whether the call is done.

        `topoplan.search.stopping.stop_if_wanted` leaves it as it would leave the caller.
        """
        self._continue(is_over, must_end.get() or _never)
        return self._is_done

    def leave(self) -> None:
        """Leave the call where it waits."""
        self._continue(_never, lambda: True)

    def _continue(self, is_over: Callable[[], bool], ends: Callable[[], bool]) -> None:
        self._is_over, self._ends = is_over, ends
        stdout, sys.stdout = sys.stdout, self._stdout or sys.stdout
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._to_call.release()
        self._to_caller.acquire()
        self._stdout, sys.stdout = sys.stdout, stdout

    def answer(self) -> T:
        """Return what the call has returned, or raise what it has raised."""
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def _run(self) -> None:
        must_end.set(self._waits)
        try:
            self._answers.append(self._call())
        except BaseException as error:  # `Stopped`, too, is for who asked
            self._error = error
        self._is_done = True
        self._to_caller.release()

    def _waits(self) -> bool:
        """Wait for the next slice if this one is over; say whether the search must end."""
        if self._is_over():
            self._to_caller.release()
            self._to_call.acquire()
        return self._ends()
