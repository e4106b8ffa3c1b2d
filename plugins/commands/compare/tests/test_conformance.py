"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_compare import COMPARE


@parametrize_with_checks(COMPARE)
def test_conformance(check):
    check()
