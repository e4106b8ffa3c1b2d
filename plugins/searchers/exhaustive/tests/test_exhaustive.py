"""Conformance of the searcher."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_exhaustive import Exhaustive


@parametrize_with_checks(Exhaustive)
def test_conformance(check):
    check()
