"""How kernels are compiled, and who hears of it.

Kernels are compiled on their first call and kept on disk, beside their sources or, where that place cannot be
written, in the user's cache.  `on_compilation` says when this happens, since it takes seconds, and lets a second
process compile what can be compiled beside (`topoplan_engine.kernels.compiling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core import event

from topoplan.errors import TopoplanError
from topoplan_engine.kernels import compiling

__all__ = ["inline_kernel", "interrupted", "kernel", "on_compilation"]

if numba.config.DISABLE_JIT:
    raise TopoplanError("NUMBA_DISABLE_JIT is set, but simulators run compiled kernels alone (unset it)")

#: Decorates a function over arrays that it is given; it makes no array and returns none.
#:
#: Numba counts the references to an array wherever a loop reads it out of a tuple or hands it to another
#: function, and cannot leave that away across branches: half of the time of an event loop.  A function that
#: neither makes nor keeps arrays has no use for the counts (numba does the same for its own sorting).
kernel: Any = numba.njit(cache=True, _nrt=False, no_cfunc_wrapper=True)

#: Likewise, for a part of a kernel that is not called from Python.
inline_kernel: Any = numba.njit(cache=True, _nrt=False, no_cfunc_wrapper=True, no_cpython_wrapper=True)

_check_signals = numba.types.ExternalFunction("PyErr_CheckSignals", numba.types.int32())
_forget_error = numba.types.ExternalFunction("PyErr_Clear", numba.types.void())


@inline_kernel
def interrupted() -> bool:
    """Let Python's signal handlers run; whether one of them raised, as that of Ctrl-C does.

    A loop that may take seconds asks now and then.  What was raised is forgotten, for compiled code cannot return
    with it: the kernel must end, and who called it raise `KeyboardInterrupt`.
    """
    if _check_signals() != 0:
        _forget_error()
        return True
    return False


@contextmanager
def on_compilation(say: Callable[[], None]) -> Iterator[None]:
    """Call ``say`` once, before the first kernel of topoplan that has to be compiled while the context lasts."""
    listener = _Listener(say)
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)
        compiling.stop()


class _Listener(event.Listener):  # type: ignore[misc]
    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._heard = False

    def on_start(self, event: Any) -> None:
        own = event.data["dispatcher"].py_func.__module__.startswith("topoplan")  # not one of numba's own
        if own and not self._heard:
            self._heard = True
            self._say()
            compiling.start()

    def on_end(self, event: object) -> None:
        """Nothing to say."""
