"""Steps of numba that take longer than they need, for the kernels of this project: `shorten`.

Two thirds of the time that a kernel takes to compile is Python, in numba.  These are shortened, to the same result:

* Settings of the compiler (`_settings_equal`): numba compares all thirty of them each time that it looks up a function
  in what was compiled before.
* What numba has written in Python, `numpy.empty` or `max`, becomes a part (`topoplan_engine.kernels.parts`) of the
  kernels that call it: intermediate code that is linked into them, where numba would translate each by itself, with an
  entry for callers from C.

All of it holds for the whole process from the first kernel of the project on that is compiled, so that kernels of
others are compiled in the same way.
"""

from __future__ import annotations

import functools
from typing import Any

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


@functools.cache
def shorten() -> None:
    """Shorten the steps, from now on."""
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
