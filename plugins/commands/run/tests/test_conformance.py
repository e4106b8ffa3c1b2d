"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_run import Run


@parametrize_with_checks(Run)
def test_conformance(check):
    check()
