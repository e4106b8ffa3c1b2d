"""The promises that every frontend makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_frontend_vit_sgmoe import topoplan_frontends

(FRONTEND,) = topoplan_frontends()


@parametrize_with_checks(FRONTEND)
def test_conformance(check):
    check()
