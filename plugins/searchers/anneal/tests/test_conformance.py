"""Conformance of the searcher."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_anneal import Anneal


@parametrize_with_checks(Anneal)
def test_conformance(check):
    check()
