"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_report import Report


@parametrize_with_checks(Report)
def test_conformance(check):
    check()
