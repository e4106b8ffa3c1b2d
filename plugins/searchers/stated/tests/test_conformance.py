"""The promises that every searcher makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_stated import Hybrid, Stated


@parametrize_with_checks(Stated, expected_failures={"check_beats_chance": "it prices what is stated, without a search"})
def test_conformance(check):
    check()


@parametrize_with_checks(Hybrid)
def test_conformance_of_hybrid(check):
    check()
