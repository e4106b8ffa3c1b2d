"""Proposals that are decided before they become candidates: a short cut beside ask and tell.

A chain proposes one change after the other, and most of them cost more than their cutoff.  To make a candidate, a state
and a trial of each takes longer than to see that.  So a searcher that makes one proposal at a time may take a question
along (`Screened`): it asks of each proposal whether that is rejected, and goes to the next if so.
What it then proposes as a candidate is priced as always.

The short cut changes nothing but the time: `topoplan.Search.ask` and ``tell`` of the same searcher visit the same
states, and stay what everybody else calls.  The driver takes it where nothing is written down of each price: many
proposals at a time where a searcher is alone, or shares time with others, and one where it shares turns
(`topoplan_engine.search.driver`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from topoplan.model.placement import Placement
from topoplan.search.protocol import Candidate, State

__all__ = ["MOST", "Rejects", "Screened"]

#: Proposals that are decided at a time, at most: some milliseconds, between two looks for Ctrl-C and the clock.
MOST = 64

#: (state, changes to it, cutoff in seconds) -> whether the changed state certainly costs no less than the cutoff.
Rejects = Callable[[State, Mapping[int, Placement], float], bool]


@runtime_checkable
class Screened(Protocol):
    """What a `topoplan.Search` has that makes one proposal at a time, and asks of each whether it is rejected."""

    def ask_screened(self, rejects: Rejects, most: int) -> tuple[int, Sequence[Candidate]]:
        """Propose up to ``most`` times, and no further once a proposal is not rejected.

        A rejected proposal counts as one that `topoplan.Search.tell` got at an infinite cost.

        Args:
            rejects: to be asked of each proposal, with its cutoff.
            most: at least 1.

        Returns:
            How many were rejected, and the one that was not, with the mapping that ``rejects`` was asked of; empty if
            all were.
        """
