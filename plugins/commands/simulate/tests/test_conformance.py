"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_simulate import SIMULATE


@parametrize_with_checks(SIMULATE)
def test_conformance(check):
    check()
