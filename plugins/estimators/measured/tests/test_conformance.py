"""The promises that every estimator makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_estimator_measured import Measured


@parametrize_with_checks(Measured)
def test_conformance(check):
    check()
