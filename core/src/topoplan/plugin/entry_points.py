"""Entry points of the group ``topoplan``, as installed: who provides what, without loading anything.

`topoplan.plugin.host` loads them; the command line reads from them which words plugins add.
"""

from __future__ import annotations

import importlib.metadata
import os

import attrs

__all__ = ["ALLOW", "DENY", "GROUP", "Provider", "command_words", "enabled", "entry_points", "listed"]

GROUP = "topoplan"
#: Variables of the environment: only these plugins; not these.
ALLOW, DENY = "TOPOPLAN_PLUGINS", "TOPOPLAN_DISABLE_PLUGINS"
_COMMAND = "command-"


@attrs.frozen(kw_only=True)
class Provider:
    """Where a plugin comes from: its entry point and the distribution that declares it."""

    name: str
    dist: str
    version: str

    def __str__(self) -> str:
        return f"{self.dist} {self.version}" if self.dist else f"plugin {self.name!r}"


def entry_points(prefix: str = "") -> list[tuple[Provider, importlib.metadata.EntryPoint]]:
    """Return the entry points of the group whose names begin so, sorted by name and distribution."""
    found = []
    # Asking for a distribution's version reads a file, so only those that are wanted are asked.
    for point in (point for point in importlib.metadata.entry_points(group=GROUP) if point.name.startswith(prefix)):
        dist = point.dist
        name, version = (dist.name, dist.version) if dist is not None else ("", "")
        found.append((Provider(name=point.name, dist=name or "", version=version or ""), point))
    return sorted(found, key=lambda item: (item[0].name, item[0].dist))


def listed(variable: str) -> set[str] | None:
    """Return the names in a variable of the environment, or None where it is not set."""
    text = os.environ.get(variable)
    return None if text is None else {name.strip() for name in text.split(",") if name.strip()}


def enabled(provider: Provider) -> bool:
    """Say whether the environment lets a plugin in."""
    names = {provider.name, provider.dist}
    allowed = listed(ALLOW)
    return (allowed is None or bool(names & allowed)) and not names & (listed(DENY) or set())


def command_words() -> dict[str, str]:
    """Return the words that plugins add to the command line -> what their distributions say of themselves.

    By the naming rule, entry point ``command-x`` brings the word ``x``.
    """
    words: dict[str, str] = {}
    for provider, point in entry_points(_COMMAND):
        if enabled(provider):
            summary = point.dist.metadata["Summary"] if point.dist is not None else None
            words[provider.name.removeprefix(_COMMAND)] = summary or ""
    return words
