"""How kernels are compiled, and a notice when that happens.

Packages bring along kernels that are compiled; others are compiled on their first call and cached on disk (`caching`).
`on_compilation` announces it, since it takes seconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
from llvmlite import binding
from numba.core import event

from topoplan.errors import TopoplanError
from topoplan.search.stopping import must_end, stop_if_wanted
from topoplan_engine.kernels.caching import KernelCache
from topoplan_engine.kernels.deferred import part

__all__ = ["inline_kernel", "interrupted", "kernel", "njit", "on_compilation", "part", "raise_interrupt"]

if numba.config.DISABLE_JIT:
    raise TopoplanError("NUMBA_DISABLE_JIT is set, but simulators run compiled kernels alone (unset it)")


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator: `numba.njit` with options, whose compiled functions are kept on disk (`KernelCache`).

    Kernels are called from Python and from kernels: there is no way to call them from C, which takes time to compile.
    """
    decorate = numba.njit(no_cfunc_wrapper=True, **options)

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = decorate(function)
        dispatcher._cache = KernelCache(function)
        return dispatcher

    return compiled


#: Decorates a function over arrays that it is given; it makes no array and returns none.
#:
#: Numba counts the references to an array wherever a loop reads it out of a tuple or hands it to another
#: function, and cannot leave that away across branches: half of the time of an event loop.  A function that
#: neither makes nor keeps arrays has no use for the counts (numba does the same for its own sorting).
kernel: Any = njit(_nrt=False)


_check_signals = numba.types.ExternalFunction("PyErr_CheckSignals", numba.types.int32())
_forget_error = numba.types.ExternalFunction("PyErr_Clear", numba.types.void())


@ctypes.PYFUNCTYPE(ctypes.c_int)
def _search_must_end() -> int:
    """Say whether the search that a kernel runs in must end (`topoplan.search.stopping`), or Ctrl-C came meanwhile."""
    try:
        ends = must_end.get()
        return int(ends is not None and ends())
    except KeyboardInterrupt:  # compiled code would continue without it
        return 1


# Kernels that are kept on disk know it by this name alone: its address is another one in every process.
binding.add_symbol("topoplan_search_must_end", ctypes.cast(_search_must_end, ctypes.c_void_p).value)
_must_end = numba.types.ExternalFunction("topoplan_search_must_end", numba.types.int32())


#: Decorates a part that makes no array, as `kernel` does.  It is inlined: a call hands over every field of every tuple
#: of arrays, which takes longer than most parts.
inline_kernel: Any = part(_nrt=False, forceinline=True)


@inline_kernel
def interrupted() -> bool:
    """Let Python's signal handlers run; whether one of them raised, as that of Ctrl-C does, or the search must end.

    A loop that may take seconds asks now and then.  What was raised is forgotten, for compiled code cannot return
    with it: the kernel must end, and who called it `raise_interrupt`.
    """
    if _check_signals() != 0:
        _forget_error()
        return True
    return bool(_must_end() != 0)


def raise_interrupt() -> None:
    """Raise what interrupted a kernel.

    Raises:
        Stopped: the search must end.
        KeyboardInterrupt: the user wants it, and no search is asked.
    """
    stop_if_wanted()
    raise KeyboardInterrupt


@contextmanager
def on_compilation(say: Callable[[], None]) -> Iterator[None]:
    """Context manager that calls ``say`` once, before the first kernel of topoplan that is compiled inside it."""
    listener = _Listener(say)
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)


class _Listener(event.Listener):  # type: ignore[misc]
    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._announced = False

    def on_start(self, event: Any) -> None:
        is_ours = event.data["dispatcher"].py_func.__module__.startswith("topoplan")  # not one of numba's own
        if is_ours and not self._announced:
            self._announced = True
            self._say()

    def on_end(self, event: object) -> None:
        """Nothing to say."""
