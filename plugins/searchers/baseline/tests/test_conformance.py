"""The promises that every searcher makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_baseline import Baseline


@parametrize_with_checks(
    Baseline, expected_failures={"check_beats_chance": "it does what a system does, without a search"}
)
def test_conformance(check):
    check()
