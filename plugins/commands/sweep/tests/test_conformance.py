"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_sweep import Sweep


@parametrize_with_checks(Sweep)
def test_conformance(check):
    check()
