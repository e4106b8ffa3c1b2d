"""The simulator keeps the promises of its kind."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_simulator_flexnet import Flexnet


@parametrize_with_checks(Flexnet)
def test_conformance(check):
    check()
