"""How much of a plan its report draws, so that the page stays small however large the plan is.

A page has at most `LARGEST` bytes.  What draws one plan is limited panel by panel, and plans beside each other share
these limits.  A panel that leaves something out says what and how much, and leaves out what matters least.
"""

from __future__ import annotations

import attrs

__all__ = ["LARGEST", "Limits"]

#: Bytes of the largest page; the scripts take 1.2 million of them.
LARGEST = 5_000_000


@attrs.frozen(kw_only=True)
class Limits:
    """What a report draws of one plan at most.

    >>> Limits.of(1).slices, Limits.of(4).slices
    (14000, 3500)

    Attributes:
        slices: of the timeline.
        kinds: of devices that the timeline has rows for.
        names: operators that have their name and can be chosen.
        cells: of the traffic matrix, each for one operator.
        uses: pairs of an operator and a line of the fabric that it uses.
        lines: of the fabric's picture.
        nodes: of the fabric's picture.
        groups: rows of the strategy.
        bars: of memory.
        evaluations: of the search, over all chains.
        facts: rows of the provenance.
    """

    slices: int = 14_000
    kinds: int = 64
    names: int = 4_096
    cells: int = 30_000
    uses: int = 20_000
    lines: int = 4_000
    nodes: int = 8_192
    groups: int = 400
    bars: int = 14
    evaluations: int = 4_000
    facts: int = 200

    @classmethod
    def of(cls, plans: int, halved: int = 0) -> Limits:
        """Return the limits of each of so many plans, halved so many times."""
        return cls(**{field.name: max(field.default // plans >> halved, 1) for field in attrs.fields(cls)})
