"""The promises that every estimator makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_estimator_roofline import Roofline


@parametrize_with_checks(Roofline)
def test_conformance(check):
    check()
