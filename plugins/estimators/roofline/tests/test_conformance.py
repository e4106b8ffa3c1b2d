"""The promises that every estimator makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_estimator_roofline import ROOFLINE


@parametrize_with_checks(ROOFLINE)
def test_conformance(check):
    check()
