"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_simulate import Simulate


@parametrize_with_checks(Simulate)
def test_conformance(check):
    check()
