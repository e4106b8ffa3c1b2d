"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_optimize import OPTIMIZE


@parametrize_with_checks(OPTIMIZE)
def test_conformance(check):
    check()
