"""Whether the order of networks that a figure expects is what its runs show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import attrs

from topoplan.comparing.figure import Claim, Figure
from topoplan.comparing.rows import Row

__all__ = ["SAME", "Verdict", "Where", "verdicts"]

#: Medians within this share of each other count as equal.
SAME = 0.01


@attrs.frozen(kw_only=True)
class Where:
    """One place where two networks meet: the row of each, and how much longer the one expected to be slower takes."""

    faster: Row
    slower: Row

    @property
    def ratio(self) -> float:
        """Time of the network expected to be slower over that of the other one."""
        return self.slower.time.median / self.faster.time.median

    @property
    def outcome(self) -> Literal["holds", "equal", "fails"]:
        """What the medians say; equal is within `SAME`."""
        if abs(math.log(self.ratio)) <= math.log1p(SAME):
            return "equal"
        return "holds" if self.ratio > 1 else "fails"

    @property
    def overlap(self) -> bool:
        """Whether the seeds of the two networks overlap, so that the order may be chance."""
        one, other = self.faster.time, self.slower.time
        return one.least <= other.most and other.least <= one.most

    @property
    def compute_bound(self) -> bool:
        """Whether compute alone explains both times."""
        return all(row.compute >= (1 - SAME) * row.time.median for row in (self.faster, self.slower))


@attrs.frozen(kw_only=True)
class Verdict:
    """A claim and all the places where it was looked at."""

    claim: Claim
    places: tuple[Where, ...]

    def count(self, outcome: str) -> int:
        """Say in how many places the outcome is this one."""
        return sum(place.outcome == outcome for place in self.places)

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return math.exp(sum(math.log(place.ratio) for place in self.places) / len(self.places))


def verdicts(figure: Figure, rows: Sequence[Row]) -> list[Verdict]:
    """Judge every claim of a figure by its rows."""
    by_place: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        by_place.setdefault((row.model, *row.at.values()), {})[row.network] = row
    return [
        Verdict(
            claim=claim,
            places=tuple(Where(faster=at[claim.faster], slower=at[claim.slower]) for at in by_place.values()),
        )
        for claim in figure.claims
    ]
