"""The promises that every command makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_command_explain import Explain


@parametrize_with_checks(Explain)
def test_conformance(check):
    check()
