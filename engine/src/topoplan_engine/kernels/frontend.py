"""Steps of numba that take longer than they need, for the kernels of this project: `shorten`.

Two thirds of the time that a kernel takes to compile is Python, in numba.  These are shortened, to the same result:

* Settings of the compiler (`_settings_equal`): numba compares all thirty of them each time that it looks up a function
  in what was compiled before.
* What numba has written in Python, `numpy.empty` or `max`, becomes a part (`topoplan_engine.kernels.parts`) of the
  kernels that call it: intermediate code that is linked into them, where numba would translate each by itself, with an
  entry for callers from C.
* Python looks for garbage in cycles once a kernel is compiled, not while it is (`_WithoutCollection`): most of what the
  compiler makes is cyclic and alive until then, and looking through it again and again is a seventh of the time.

All of it holds for the whole process from the first kernel of the project on that is compiled, so that kernels of
others are compiled in the same way.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

from numba.core import event
from numba.core.compiler import CompilerBase
from numba.core.decorators import jit
from numba.core.targetconfig import TargetConfig
from numba.core.typing.templates import _OverloadFunctionTemplate

from topoplan_engine.kernels.parts import pipeline

__all__ = ["shorten"]

_all_settings_equal = TargetConfig.__eq__
_decorator_of = _OverloadFunctionTemplate._get_jit_decorator


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    """Compiles a function of numba as a part."""

    def define_pipelines(self) -> list[Any]:
        """Return the one way to compile a part."""
        return [pipeline(self.state)]


class _WithoutCollection(event.Listener):  # type: ignore[misc]
    """Turns Python's collection of garbage off from when a function is compiled until the outermost one is."""

    def __init__(self) -> None:
        # How many functions are being compiled, each for the one before: numba lets one thread compile at a time.
        self._depth, self._was_on = 0, False

    def on_start(self, event: object) -> None:
        """Turn collection off."""
        if self._depth == 0:
            self._was_on = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: object) -> None:
        """Turn it on again where it was on; numba calls this after errors, too."""
        if self._depth == 0:  # a function whose compilation had begun before this listened
            return
        self._depth -= 1
        if self._depth == 0 and self._was_on:
            gc.enable()


@functools.cache
def shorten() -> None:
    """Shorten the steps, from now on."""
    event.register("numba:compile", _WithoutCollection())
    TargetConfig.__eq__, TargetConfig.__hash__ = _settings_equal, _settings_hash
    _OverloadFunctionTemplate._get_jit_decorator = _decorator_of_part


def _settings_equal(these: Any, those: Any) -> Any:
    """Compare settings of the compiler as numba does: by those that either has set, the others have their defaults."""
    if type(these) is not type(those):
        return _all_settings_equal(these, those)
    options, values, other_values = these.options, these._values, those._values
    return values == other_values or all(
        values.get(name, options[name].default) == other_values.get(name, options[name].default)
        for name in values.keys() | other_values.keys()
    )


def _settings_hash(settings: Any) -> int:
    """Return what numba's own hash comes to: it depends on the names of the settings alone."""
    return hash(type(settings))


def _decorator_of_part(template: Any) -> Any:
    """Return how numba compiles what it has written in Python: as a part, where it is for this machine's CPU."""
    decorate = _decorator_of(template)
    if decorate is not jit:
        return decorate
    of_part = {"pipeline_class": _PartCompiler, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return lambda **options: decorate(**(options if options.get("parallel") else options | of_part))
