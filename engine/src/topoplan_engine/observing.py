"""Observer hooks, called at batch boundaries; one that raises does not affect others (`topoplan.plugin._observers`)."""

from __future__ import annotations

from typing import Any

from topoplan.plugin.host import Host

__all__ = ["tell"]


def tell(host: Host, hook: str, **arguments: Any) -> None:
    """Call an observer hook of all plugins as pluggy does: the last one first, ``tryfirst`` before, and wrappers."""
    getattr(host.hook, hook)(**arguments)
