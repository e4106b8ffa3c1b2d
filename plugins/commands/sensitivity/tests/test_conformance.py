"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_sensitivity import Sensitivity


@parametrize_with_checks(Sensitivity)
def test_conformance(check):
    check()
