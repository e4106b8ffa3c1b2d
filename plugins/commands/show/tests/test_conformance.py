"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_show import Show


@parametrize_with_checks(Show)
def test_conformance(check):
    check()
