"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_problems import Problems


@parametrize_with_checks(Problems)
def test_conformance(check):
    check()
