"""Whether the order of networks that a file expects is what its jobs show, at every load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from topoplan_command_share.rows import Row
from topoplan_studies.claims import SAME
from topoplan_studies.study import Hypothesis

__all__ = ["Verdict", "verdicts"]


@attrs.frozen(kw_only=True)
class Verdict:
    """A claim and what the loads say.

    Attributes:
        claim: two networks, of which one is expected to be faster.
        ratios: load -> mean and 99th percentile of the network expected to be slower over those of the other one.
    """

    claim: Hypothesis
    ratios: dict[int, tuple[float, float]]

    def fails(self) -> dict[int, tuple[float, float]]:
        """Return the loads at which the mean or the tail of the network expected to be slower is shorter."""
        return {load: pair for load, pair in self.ratios.items() if min(pair) < 1 / (1 + SAME)}

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        loads = [{"load": load, "mean_ratio": mean, "p99_ratio": tail} for load, (mean, tail) in self.ratios.items()]
        return {"claim": self.claim.says, "faster": self.claim.faster, "slower": self.claim.slower, "loads": loads}

    def __str__(self) -> str:
        """Say at how many loads it holds, by how much, and where it does not."""
        fails = self.fails()
        (least, first), (most, last) = min(self.ratios.items()), max(self.ratios.items())
        text = (
            f"in the mean and at the 99th percentile holds or is equal within {SAME:.0%} at "
            f"{len(self.ratios) - len(fails)} of {len(self.ratios)} loads. {self.claim.slower} takes {first[0]:.2f} "
            f"(p99: {first[1]:.2f}) times as long at {least} % and {last[0]:.2f} (p99: {last[1]:.2f}) at {most} %."
        )
        where = ", ".join(f"{load} % (mean {mean:.2f}, p99 {tail:.2f})" for load, (mean, tail) in fails.items())
        return f"{text} Fails at {where}." if where else text


def verdicts(claims: Sequence[Hypothesis], rows: Sequence[Row]) -> list[Verdict]:
    """Judge claims by the rows of all networks and loads."""
    found = {(row.network, row.load): row for row in rows}
    loads = dict.fromkeys(row.load for row in rows)

    def ratios(claim: Hypothesis, load: int) -> tuple[float, float]:
        one, other = found[claim.faster, load], found[claim.slower, load]
        return other.mean / one.mean, other.p99 / one.p99

    return [Verdict(claim=claim, ratios={load: ratios(claim, load) for load in loads}) for claim in claims]
