"""Parts of kernels, whose dispatchers numba makes when a kernel is compiled that calls them.

Commands whose kernels come from files make none of them, and there are three times as many parts as kernels.  Numba
asks each value that it does not know for its type: a `Part` answers with that of its dispatcher.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.core.compiler import CompilerBase

__all__ = ["Part", "part"]


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    """Compiles a part of a kernel: see `topoplan_engine.kernels.parts`, imported when something is compiled."""

    def define_pipelines(self) -> list[Any]:
        """Return the one way to compile a part."""
        from topoplan_engine.kernels.parts import pipeline

        return [pipeline(self.state)]


class Part:
    """A function that kernels alone call.

    Attributes:
        py_func: the function, as numba's dispatchers name it.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._options = options

    @property
    def _numba_type_(self) -> Any:
        """The type for which numba asks a value that it does not know: that of the dispatcher."""
        return self._dispatcher._numba_type_

    @functools.cached_property
    def _dispatcher(self) -> Any:
        # Types of dispatchers refer to them weakly.
        dispatcher = numba.njit(**self._options)(self.py_func)
        template = dispatcher.get_call_template
        dispatcher.get_call_template = lambda args, kws: template(tuple(map(_widened, args)), kws)
        # Calls from Python look for what numba inserts when it adds a version, and compile one if there is none.
        dispatcher.add_overload = lambda version: dispatcher.overloads.__setitem__(version.signature.args, version)
        return dispatcher

    def __call__(self, *_: Any, **__: Any) -> None:
        """Refuse.

        Raises:
            TypeError: Python called it.
        """
        raise TypeError(f"{self.py_func.__qualname__} is a part of kernels: Python cannot call it")


def part(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator for a part of kernels, which is not called from Python: `numba.njit` with options.

    Whole numbers that a part is given become 64 bits wide, so that it is compiled once for all of them.  Called from
    Python, it raises `TypeError`.
    """
    options |= {"pipeline_class": _PartCompiler, "no_cfunc_wrapper": True, "no_cpython_wrapper": True}
    return lambda function: Part(function, options)


def _widened(kind: Any) -> Any:
    """Return the type in which a part takes a value: 64 bits for whole numbers that fit into them."""
    kind = numba.types.unliteral(kind)
    fits = isinstance(kind, numba.types.Integer) and (kind.signed or kind.bitwidth < 64)
    return numba.types.int64 if fits else kind
