"""A search that does nothing, for tests of what happens around a search."""

from __future__ import annotations

from topoplan import Search


class IdleSearch(Search):
    """A search that asks for nothing."""

    def ask(self):
        return []
