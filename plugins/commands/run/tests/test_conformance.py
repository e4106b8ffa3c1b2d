"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_run import RUN


@parametrize_with_checks(RUN)
def test_conformance(check):
    check()
