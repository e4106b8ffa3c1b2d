"""Which plugin's code raised, where it is called too often for the host to check every call."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from topoplan.errors import PluginError, TopoplanError, exception_line
from topoplan.plugin.host import Host

__all__ = ["naming_plugins"]


@contextmanager
def naming_plugins(host: Host) -> Iterator[None]:
    """Name the plugin of ``host`` whose code raises meanwhile; what the engine itself raises passes as it is.

    Raises:
        PluginError: for what came out of a plugin's code and is no `TopoplanError`.
    """
    try:
        yield
    except TopoplanError:
        raise
    except Exception as error:
        who = _culprit(error, host.modules)
        if not who:
            raise
        raise PluginError(f"{who} raised {exception_line(error)}") from error


def _culprit(error: BaseException, modules: Mapping[str, object]) -> str:
    """Say which plugin's code raised, e.g. ``plugin 'x': price (cost.py, line 12)``; empty where none did.

    Args:
        error: as it was caught.
        modules: name of a module, or of the package that it is in -> the plugin that it belongs to.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        plugin = modules.get(module) or modules.get(module.partition(".")[0])
        if plugin is not None:
            return f"{plugin}: {frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}, line {line})"
    return ""
