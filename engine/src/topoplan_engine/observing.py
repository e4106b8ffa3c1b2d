"""Observer hooks, called plugin by plugin at batch boundaries, so that one that raises harms nobody else."""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakKeyDictionary

from topoplan.errors import TopoplanError, TopoplanWarning, calling
from topoplan.plugin.host import Host

__all__ = ["tell"]

#: Host -> its plugins that raised.
_SILENT: WeakKeyDictionary[Host, list[object]] = WeakKeyDictionary()


def tell(host: Host, hook: str, **arguments: Any) -> None:
    """Call an observer hook of all plugins, the last one first, as pluggy does.

    Nothing depends on an observer: of one that raises a warning tells, once, and it is not called again.
    """
    silent = _SILENT.setdefault(host, [])
    for implementation in reversed(getattr(host.hook, hook).get_hookimpls()):
        if any(implementation.plugin is plugin for plugin in silent):
            continue
        try:
            with calling(f"plugin {implementation.plugin_name!r}: {hook}"):
                implementation.function(*(arguments[name] for name in implementation.argnames))
        except TopoplanError as error:
            silent.append(implementation.plugin)
            warning = TopoplanWarning(f"{error}; it observes nothing any more")
            warning.__cause__ = error.__cause__
            warnings.warn(warning, stacklevel=2)
