"""The promises that every searcher makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_spmd import Spmd


@parametrize_with_checks(Spmd)
def test_conformance(check):
    check()
