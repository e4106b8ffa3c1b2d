"""Observers of a plugin: pluggy calls them, in its order and with its wrappers; what one raises is a warning.

Nothing depends on an observer.  The first exception of a plugin's is reported in one line that names it, and none of
its observers is called again: functions do nothing then, and wrappers pass on what they wrap.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any

from topoplan.errors import TopoplanError, TopoplanWarning, calling
from topoplan.plugin._registering import REGISTRATION

__all__ = ["observing_safely"]


def observing_safely(plugin: object, hooks: Mapping[str, Callable[..., Any]], name: str) -> object:
    """Return what pluggy registers for a plugin: itself, or its hooks with a guard around those that observe.

    Args:
        plugin: a module or an object.
        hooks: its functions, by hook.
        name: of the plugin, for the warning.
    """
    if not hooks.keys() - REGISTRATION.keys():
        return plugin
    guard = _Guard(name)
    functions = {
        hook: function if hook in REGISTRATION else guard.around(hook, function) for hook, function in hooks.items()
    }
    return types.SimpleNamespace(**functions)


class _Guard:
    """Keeps what the observers of one plugin raise from everybody else."""

    def __init__(self, name: str) -> None:
        self._name, self._silent = name, False

    def around(self, hook: str, function: Any) -> Callable[..., Any]:
        """Return a function with the marks of an observer, which calls it."""
        what, marks = f"plugin {self._name!r}: {hook}", function.topoplan_impl

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            return None if self._silent else self._calling(what, lambda: function(*arguments, **named))

        @functools.wraps(function)
        def wrap(*arguments: Any, **named: Any) -> Generator[None, Any, Any]:
            steps: Generator[None, Any, Any] = function(*arguments, **named)  # nothing runs yet
            is_begun = not self._silent and self._calling(what, lambda: (next(steps),)) is not None
            try:
                result = yield
            except BaseException:  # Ctrl-C in what it wraps
                if is_begun:
                    steps.close()
                raise
            ended = self._calling(what, lambda: _end(steps, result)) if is_begun and not self._silent else None
            return result if ended is None else ended[0]

        return wrap if marks["wrapper"] or marks["hookwrapper"] else call

    def _calling(self, what: str, call: Callable[[], Any]) -> Any:
        """Call code of the plugin; None, and a warning, where it raises."""
        try:
            with calling(what):
                return call()
        except TopoplanError as error:
            self._silent = True
            warning = TopoplanWarning(f"{error}; it observes nothing any more")
            warning.__cause__ = error.__cause__
            warnings.warn(warning, stacklevel=2)
            return None


def _end(steps: Generator[None, Any, Any], result: Any) -> tuple[Any]:
    """Give a wrapper the result of what it wraps, and return what it makes of it."""
    try:
        steps.send(result)
    except StopIteration as end:
        return (end.value,)
    finally:
        steps.close()
    raise RuntimeError("yields more than once")
