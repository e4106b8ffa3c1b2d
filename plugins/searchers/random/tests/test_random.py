"""Conformance of the searcher."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_random import Random


@parametrize_with_checks(Random)
def test_conformance(check):
    check()
