"""Conformance of the searcher."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_auto import Auto


@parametrize_with_checks(Auto)
def test_conformance(check):
    check()
