"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_sweep import SWEEP


@parametrize_with_checks(SWEEP)
def test_conformance(check):
    check()
