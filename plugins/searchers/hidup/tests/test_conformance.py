"""The promises that every searcher makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_hidup import HIDUP


@parametrize_with_checks(HIDUP)
def test_conformance(check):
    check()
