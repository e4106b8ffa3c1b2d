"""The simulator keeps the promises of its kind."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_simulator_fluid import Fluid


@parametrize_with_checks(Fluid)
def test_conformance(check):
    check()
