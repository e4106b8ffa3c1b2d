"""Whether the order of networks that a study expects is what its runs show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import attrs

from topoplan_studies.rows import Row
from topoplan_studies.study import Hypothesis, Study

__all__ = ["SAME", "Comparison", "Verdict", "verdicts"]

#: Medians within this share of each other count as equal.
SAME = 0.01


@attrs.frozen(kw_only=True)
class Comparison:
    """One place where two networks meet: the row of each, and how much longer the one expected to be slower takes."""

    faster: Row
    slower: Row

    @property
    def ratio(self) -> float:
        """Time of the network expected to be slower over that of the other one."""
        return self.slower.time.median / self.faster.time.median

    @property
    def outcome(self) -> Literal["holds", "equal", "fails"]:
        """What the medians say; equal is within `SAME`.  A plan that fits into memory goes before one that does not."""
        if self.faster.fits is not self.slower.fits:
            return "holds" if self.faster.fits else "fails"
        if abs(math.log(self.ratio)) <= math.log1p(SAME):
            return "equal"
        return "holds" if self.ratio > 1 else "fails"

    @property
    def overlap(self) -> bool:
        """Whether the seeds of the two networks overlap, so that the order may be chance."""
        one, other = self.faster.time, self.slower.time
        return one.least <= other.most and other.least <= one.most

    @property
    def causes(self) -> tuple[str, ...]:
        """Say what speaks for the network expected to be slower: bandwidth of a host, and bytes that hosts forward.

        Both act on the bytes that a host gets rid of in a second; where neither explains the order it lies in how
        bytes meet on links, or in the strategies that were found.
        """
        one, other = self.faster, self.slower
        told = []
        if other.fits and not one.fits:
            told.append(f"the plan of {one.network} does not fit into memory")
        bandwidth = other.used * other.gbps / (one.used * one.gbps)
        if bandwidth > 1 + SAME:
            told.append(f"{other.network} has {bandwidth:.2f} times the bandwidth at each host")
        if one.tax is not None and other.tax is not None and one.tax > (1 + SAME) * other.tax:
            told.append(
                f"hosts of {one.network} send {one.tax:.2f} bytes for each byte asked, as they forward, those of "
                f"{other.network} {other.tax:.2f}"
            )
        if not told:
            told.append("neither bandwidth nor forwarding: bytes meet on links, or the search found another strategy")
        return (*told, "the seeds overlap") if self.overlap else tuple(told)

    @property
    def compute_bound(self) -> bool:
        """Whether compute alone explains both times."""
        return all(row.compute >= (1 - SAME) * row.time.median for row in (self.faster, self.slower))


@attrs.frozen(kw_only=True)
class Verdict:
    """A claim and all the places where it was looked at."""

    claim: Hypothesis
    places: tuple[Comparison, ...]

    def count(self, outcome: str) -> int:
        """Say in how many places the outcome is this one."""
        return sum(place.outcome == outcome for place in self.places)

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return math.exp(sum(math.log(place.ratio) for place in self.places) / len(self.places))

    def __str__(self) -> str:
        """Say in how many places the claim holds, and by how much."""
        extreme = max(self.places, key=lambda where: where.ratio)
        return (
            f"holds in {self.count('holds')} of {len(self.places)} places, equal within {SAME:.0%} in "
            f"{self.count('equal')}, fails in {self.count('fails')}. {self.claim.slower} takes {self.mean:.2f} times "
            f"as long on average (geometric mean), {extreme.ratio:.2f} times at most ({extreme.faster.place})."
        )


def verdicts(study: Study, rows: Sequence[Row]) -> list[Verdict]:
    """Judge every claim of a study by its rows."""
    by_place: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        by_place.setdefault((row.model, *row.at.values()), {})[row.network] = row
    return [
        Verdict(
            claim=claim,
            places=tuple(Comparison(faster=at[claim.faster], slower=at[claim.slower]) for at in by_place.values()),
        )
        for claim in study.claims
    ]
