"""Pairs of nodes that a file lists twice: two cables, or one cable in both of its directions.

Of a graph without directions, a row from a to b and one from b to a may be either, and the wrong guess changes the
bandwidth by two.  networkx writes all parallel edges of a pair in one order; lists of directions have both.  So rows
in both orders are refused, with what to write, unless the file says ``multigraph: true``.  A file that says
``multigraph: false`` has no pair twice, in networkx too, which would keep the last row alone.

>>> pairs = ListedPairs(is_directed=False, multigraph=None, directions="directed: true")
>>> pairs.add("a", "b", "edges[0]")
>>> pairs.add("a", "b", "edges[1]")
>>> pairs.add("b", "a", "edges[2]")  # doctest: +ELLIPSIS
Traceback (most recent call last):
topoplan.errors.TopoplanError: edges[2]: joins 'b' to 'a', and edges[0] joins 'a' to 'b': one cable both ways, or two...
"""

from __future__ import annotations

from collections.abc import Hashable

from topoplan.errors import TopoplanError, shown

__all__ = ["ListedPairs"]


class ListedPairs:
    """Watches the links of one file as they are read."""

    def __init__(self, *, is_directed: bool, multigraph: bool | None, directions: str) -> None:
        """Begin a file.

        Args:
            is_directed: whether a link leads one way.
            multigraph: whether parallel links are several; None where the file does not say.
            directions: what makes a link lead one way, for messages.
        """
        self._is_directed, self._multigraph, self._directions = is_directed, multigraph, directions
        self._first: dict[tuple[Hashable, Hashable], str] = {}

    def add(self, source: Hashable, target: Hashable, where: str) -> None:
        """Take one link, which stands at ``where``.

        Raises:
            TopoplanError: it is there already, and the file does not say whether that is one cable or two.
        """
        back = self._first.get((target, source))
        if self._multigraph is None and back is not None and not self._is_directed:
            raise TopoplanError(
                f"{where}: joins {shown(source)} to {shown(target)}, and {back} joins {shown(target)} to "
                f"{shown(source)}: one cable both ways, or two cables? (list each cable once, or write "
                f"{self._directions} where a row is one way; of two cables, one with count: 2, or multigraph: true)"
            )
        before = self._first.get((source, target)) or (None if self._is_directed else back)
        if self._multigraph is False and before is not None:
            raise TopoplanError(
                f"{where}: joins {shown(source)} to {shown(target)}, as {before} does, and multigraph is false (list "
                "it once; of parallel cables write one with count, or multigraph: true)"
            )
        self._first.setdefault((source, target), where)
