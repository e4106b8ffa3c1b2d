"""Observer hooks, called plugin by plugin, so that one that raises harms nobody else.

Nothing depends on an observer: one that raises is told of once, in a warning, and is not called again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pluggy

from topoplan.errors import TopoplanError, TopoplanWarning
from topoplan.plugin.guard import calling

__all__ = ["Observers"]

_HOOKS = ("topoplan_run_started", "topoplan_evaluated", "topoplan_new_best", "topoplan_run_finished")


class Observers:
    """The hooks of `topoplan.plugin.hookspecs` that observe, by name: ``observers.topoplan_run_started(run=run)``."""

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self._manager = manager
        self._silent: set[str] = set()

    def hear_again(self, plugin: str) -> None:
        """Call the observers of a plugin again."""
        self._silent.discard(plugin)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in _HOOKS:
            raise AttributeError(f"no observer hook {name!r}")
        return lambda **told_of: self._tell(name, told_of)

    def _tell(self, hook: str, told_of: dict[str, Any]) -> None:
        for own in reversed(getattr(self._manager.hook, hook).get_hookimpls()):  # as pluggy: the last one first
            plugin = own.plugin_name
            if plugin in self._silent:
                continue
            try:
                with calling(f"plugin {plugin!r}: {hook}"):
                    own.function(*(told_of[name] for name in own.argnames))
            except TopoplanError as error:
                self._silent.add(plugin)
                warning = TopoplanWarning(f"{error}; it observes nothing any more")
                warning.__cause__ = error.__cause__
                warnings.warn(warning, stacklevel=3)
