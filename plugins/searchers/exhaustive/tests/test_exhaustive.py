"""Conformance of the searcher."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_exhaustive import EXHAUSTIVE


@parametrize_with_checks(EXHAUSTIVE)
def test_conformance(check):
    check()
