"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_share import Share


@parametrize_with_checks(Share)
def test_conformance(check):
    check()
