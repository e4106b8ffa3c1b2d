"""A cache of bounded size that forgets what was not used for the longest."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

__all__ = ["LruCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(dict[K, V]):
    """A mapping of at most ``size`` values, which keeps at least the half of them that was used last.

    There are two generations.  The mapping itself is the young one, so that looking up a value in it, ``cache[key]``,
    is as fast as in a dictionary.  When it is full, it becomes the old one, whose values are dropped unless they are
    used again before the young one is full once more.  A value that is in neither is a `KeyError`.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._half = max(1, size // 2)
        self._old: dict[K, V] = {}

    def __missing__(self, key: K) -> V:
        return self.put(key, self._old.pop(key))

    def find(self, key: K) -> V | None:
        """Return the value of ``key``, or None if there is none or it was dropped."""
        value = self.get(key)
        if value is not None:
            return value
        if key in self._old:
            return self.put(key, self._old.pop(key))
        return None

    def put(self, key: K, value: V) -> V:
        """Keep ``value`` and return it."""
        if len(self) >= self._half:
            self._old = dict(self)
            self.clear()
        self[key] = value
        return value
