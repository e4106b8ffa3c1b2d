"""Tests of hypotheses: whether the expected order of two networks holds for the jobs, at each load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from topoplan_command_share.results import LoadResult
from topoplan_studies.hypotheses import SAME
from topoplan_studies.study import Hypothesis

__all__ = ["LoadTest", "load_tests"]


@attrs.frozen(kw_only=True)
class LoadTest:
    """A hypothesis, and the ratios of its two networks at each load.

    Attributes:
        hypothesis: two networks, of which one is expected to be faster.
        ratios: load -> mean and 99th percentile of the network expected to be slower over those of the other one.
    """

    hypothesis: Hypothesis
    ratios: dict[int, tuple[float, float]]

    def fails(self) -> dict[int, tuple[float, float]]:
        """Return the loads at which the mean or the tail of the network expected to be slower is shorter."""
        return {load: pair for load, pair in self.ratios.items() if min(pair) < 1 / (1 + SAME)}

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        loads = [{"load": load, "mean_ratio": mean, "p99_ratio": tail} for load, (mean, tail) in self.ratios.items()]
        return {
            "claim": self.hypothesis.says,
            "faster": self.hypothesis.faster,
            "slower": self.hypothesis.slower,
            "loads": loads,
        }

    def __str__(self) -> str:
        """Say at how many loads it holds, by how much, and where it does not."""
        fails = self.fails()
        (low, first), (high, last) = min(self.ratios.items()), max(self.ratios.items())
        text = (
            f"in the mean and at the 99th percentile holds or is equal within {SAME:.0%} at "
            f"{len(self.ratios) - len(fails)} of {len(self.ratios)} loads. {self.hypothesis.slower} takes "
            f"{first[0]:.2f} (p99: {first[1]:.2f}) times as long at {low} % and {last[0]:.2f} "
            f"(p99: {last[1]:.2f}) at {high} %."
        )
        where = ", ".join(f"{load} % (mean {mean:.2f}, p99 {tail:.2f})" for load, (mean, tail) in fails.items())
        return f"{text} Fails at {where}." if where else text


def load_tests(hypotheses: Sequence[Hypothesis], results: Sequence[LoadResult]) -> list[LoadTest]:
    """Test hypotheses by the results of all networks and loads."""
    by_place = {(result.network, result.load): result for result in results}
    loads = dict.fromkeys(result.load for result in results)

    def ratios(hypothesis: Hypothesis, load: int) -> tuple[float, float]:
        faster, slower = by_place[hypothesis.faster, load], by_place[hypothesis.slower, load]
        return slower.mean / faster.mean, slower.p99 / faster.p99

    return [
        LoadTest(hypothesis=hypothesis, ratios={load: ratios(hypothesis, load) for load in loads})
        for hypothesis in hypotheses
    ]
