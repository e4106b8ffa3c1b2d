"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_compare import Compare


@parametrize_with_checks(Compare)
def test_conformance(check):
    check()
