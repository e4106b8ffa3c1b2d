"""Conformance of the searcher."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_cem import CrossEntropy


@parametrize_with_checks(CrossEntropy)
def test_conformance(check):
    check()
