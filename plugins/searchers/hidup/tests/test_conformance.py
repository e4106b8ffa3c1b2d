"""The promises that every searcher makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_hidup import Hidup


@parametrize_with_checks(Hidup)
def test_conformance(check):
    check()
