"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_validate import Validate


@parametrize_with_checks(Validate)
def test_conformance(check):
    check()
