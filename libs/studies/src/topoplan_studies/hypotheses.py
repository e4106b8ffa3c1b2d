"""Tests of hypotheses: whether the expected order of two networks or planners holds at each setting of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import attrs

from topoplan_studies.results import NetworkResult, by_setting
from topoplan_studies.study import Hypothesis, Study

__all__ = ["SAME", "Comparison", "HypothesisTest", "hypothesis_tests"]

#: Medians within this share of each other count as equal.
SAME = 0.01


@attrs.frozen(kw_only=True)
class Comparison:
    """Two networks at one setting, of which ``faster`` is the one that is expected to be faster."""

    faster: NetworkResult
    slower: NetworkResult

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
        faster, slower = self.faster.time, self.slower.time
        return faster.least <= slower.most and slower.least <= faster.most

    @property
    def causes(self) -> tuple[str, ...]:
        """Possible causes for the network expected to be slower being faster: bandwidth, and bytes that hosts forward.

        Both change how many bytes of its own a host sends in a second.  If neither explains the order, the cause is
        contention on links, or the strategies that the searches found.
        """
        faster, slower = self.faster, self.slower
        causes = []
        if slower.fits and not faster.fits:
            causes.append(f"the plan of {faster.label} does not fit into memory")
        bandwidth = slower.used * slower.gbps / (faster.used * faster.gbps)
        if bandwidth > 1 + SAME:
            causes.append(f"{slower.label} has {bandwidth:.2f} times the bandwidth at each host")
        if faster.tax is not None and slower.tax is not None and faster.tax > (1 + SAME) * slower.tax:
            causes.append(
                f"hosts of {faster.label} send {faster.tax:.2f} bytes for each byte asked, as they forward, those of "
                f"{slower.label} {slower.tax:.2f}"
            )
        if not causes:
            causes.append("neither bandwidth nor forwarding: bytes meet on links, or the search found another strategy")
        return (*causes, "the seeds overlap") if self.overlap else tuple(causes)

    @property
    def compute_bound(self) -> bool:
        """Whether compute alone explains both times."""
        return all(result.compute >= (1 - SAME) * result.time.median for result in (self.faster, self.slower))


@attrs.frozen(kw_only=True)
class HypothesisTest:
    """A hypothesis, and the comparisons at all settings of a study."""

    hypothesis: Hypothesis
    comparisons: tuple[Comparison, ...]

    def count(self, outcome: str) -> int:
        """Say at how many settings the outcome is this one."""
        return sum(comparison.outcome == outcome for comparison in self.comparisons)

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return math.exp(sum(math.log(comparison.ratio) for comparison in self.comparisons) / len(self.comparisons))

    def __str__(self) -> str:
        """Say at how many settings the hypothesis holds, and by how much."""
        extreme = max(self.comparisons, key=lambda comparison: comparison.ratio)
        return (
            f"holds in {self.count('holds')} of {len(self.comparisons)} places, equal within {SAME:.0%} in "
            f"{self.count('equal')}, fails in {self.count('fails')}. {self.hypothesis.slower} takes {self.mean:.2f} "
            f"times as long on average (geometric mean), {extreme.ratio:.2f} times at most ({extreme.faster.setting})."
        )


def hypothesis_tests(study: Study, results: Sequence[NetworkResult]) -> list[HypothesisTest]:
    """Test every hypothesis of a study by its results."""
    return [
        HypothesisTest(
            hypothesis=hypothesis,
            comparisons=tuple(
                Comparison(faster=compared[hypothesis.faster], slower=compared[hypothesis.slower])
                for compared in by_setting(results)
            ),
        )
        for hypothesis in study.hypotheses
    ]
