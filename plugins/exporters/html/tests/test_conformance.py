"""The promises that every exporter makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_exporter_html import Html


@parametrize_with_checks(Html)
def test_conformance(check):
    check()
