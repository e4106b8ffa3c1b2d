"""The promises that every estimator makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_estimator_profile import Profiled


@parametrize_with_checks(Profiled)
def test_conformance(check):
    check()
