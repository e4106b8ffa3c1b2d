"""How another process gets the plugins of this one: those that are installed it finds itself, the others are sent."""

from __future__ import annotations

import importlib.util
import pickle
import sys
import warnings

from topoplan.errors import TopoplanError, TopoplanWarning, exception_line
from topoplan.plugin.host import Host

__all__ = ["INSTALLED", "packed", "sendable", "unpacked"]

#: What `unpacked` makes a host of the installed plugins of.
INSTALLED = pickle.dumps((True, []))

_INSTEAD = "(use one worker, or put it into a module that can be imported)"


def packed(host: Host) -> bytes:
    """Return what `unpacked` makes an equal host of, in another process.

    Raises:
        TopoplanError: a plugin that was added cannot be sent.
    """
    added = host.added
    if not added:
        return pickle.dumps((host.discovered, []))
    import cloudpickle  # takes along what another process cannot import: functions of a notebook, for example

    for name in host.modules:
        module = sys.modules.get(name)
        if module is not None and name != "__main__" and not _importable(name):
            cloudpickle.register_pickle_by_value(module)
    sent = []
    for plugin in added:
        try:
            sent.append((cloudpickle.dumps(plugin.plugin), plugin.name, plugin.replace))
        except Exception as error:  # whatever its values do when they are pickled
            raise TopoplanError(
                f"plugin {plugin.name!r} cannot be sent to a worker process: {exception_line(error)} {_INSTEAD}"
            ) from error
    return pickle.dumps((host.discovered, sent))


def unpacked(data: bytes) -> Host:
    """Return a host with the plugins of the one that was `packed`.

    Raises:
        TopoplanError: a plugin that was sent cannot be used here.
    """
    discovered, sent = pickle.loads(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)  # the process that sent it has shown what there is to warn of
        host = Host.discover() if discovered else Host()
    for plugin, name, replace in sent:
        try:
            host.add(pickle.loads(plugin), name=name, replace=replace)
        except Exception as error:
            raise TopoplanError(
                f"plugin {name!r} cannot be used in a worker process: {exception_line(error)} {_INSTEAD}"
            ) from error
    return host


def sendable(error: Exception) -> Exception:
    """Return an exception that another process can read, whatever its class."""
    try:
        whole = str(pickle.loads(pickle.dumps(error))) == str(error)
    except Exception:  # of a plugin, perhaps
        whole = False
    return error if whole else TopoplanError(f"a worker process: {exception_line(error)}")


def _importable(name: str) -> bool:
    """Say whether another process could import a module by its name."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
