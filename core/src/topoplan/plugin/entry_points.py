"""Entry points of the group ``topoplan``, as installed: who provides what, without loading anything.

`topoplan.plugin.host` loads them; the command line reads from them which words plugins add.  Of a distribution, its
``entry_points.txt`` is read, and the head of its metadata if it has a plugin that is asked for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import NamedTuple

GROUP = "topoplan"
#: Variables of the environment: only these plugins; not these.  What the names of entry points of commands begin with.
ALLOW, DENY, COMMAND_PREFIX = "TOPOPLAN_PLUGINS", "TOPOPLAN_DISABLE_PLUGINS", "command-"
_points = functools.lru_cache(maxsize=1)(lambda folders_then: importlib.metadata.entry_points(group=GROUP))


class InstalledPlugin(NamedTuple):
    """An entry point, and what the distribution that declares it says of itself.

    Attributes:
        name: of the entry point.
        point: loads the plugin.
        dist, version, summary: of the distribution; empty if it does not say.
        requires: its requirements, as in its metadata.
    """

    name: str
    point: importlib.metadata.EntryPoint
    dist: str
    version: str
    summary: str
    requires: tuple[str, ...]


def installed_plugins(prefix: str = "") -> list[InstalledPlugin]:
    """Return the plugins whose entry points begin so, sorted by name and distribution."""
    plugins = []
    folders = tuple((path, Path(path).stat().st_mtime_ns) for path in sys.path if Path(path).exists())
    for point in (point for point in _points(folders) if point.name.startswith(prefix)):
        text = (point.dist.read_text("METADATA") or point.dist.read_text("PKG-INFO") or "") if point.dist else ""
        rows = [line.partition(":")[::2] for line in text.partition("\n\n")[0].splitlines()]  # the parser is slow
        head = {key.lower(): value.strip() for key, value in reversed(rows)}
        name, version, summary = (head.get(key, "") for key in ("name", "version", "summary"))
        requires = tuple(value.strip() for key, value in rows if key.lower() == "requires-dist")
        plugins.append(InstalledPlugin(point.name, point, name, version, summary, requires))
    return sorted(plugins, key=lambda plugin: (plugin.name, plugin.dist))


def listed(variable: str) -> set[str] | None:
    """Return the names in a variable of the environment, or None where it is not set."""
    text = os.environ.get(variable)
    return None if text is None else {name.strip() for name in text.split(",") if name.strip()}


def enabled(plugin: InstalledPlugin) -> bool:
    """Say whether the environment lets a plugin in."""
    names = {plugin.name, plugin.dist}
    allowed = listed(ALLOW)
    return (allowed is None or bool(names & allowed)) and not names & (listed(DENY) or set())


def command_words() -> dict[str, str]:
    """Return the words that plugins add to the command line -> what their distributions say of themselves.

    By the naming rule, entry point ``command-x`` brings the word ``x``.
    """
    plugins = filter(enabled, installed_plugins(COMMAND_PREFIX))
    return {plugin.name.removeprefix(COMMAND_PREFIX): plugin.summary for plugin in plugins}
