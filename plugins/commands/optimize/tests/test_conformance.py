"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_optimize import Optimize


@parametrize_with_checks(Optimize)
def test_conformance(check):
    check()
