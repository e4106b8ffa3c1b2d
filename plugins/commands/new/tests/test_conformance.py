"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_new import New


@parametrize_with_checks(New)
def test_conformance(check):
    check()
