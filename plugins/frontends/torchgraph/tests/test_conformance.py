"""The promises that every frontend makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_frontend_torchgraph import Torchgraph


@parametrize_with_checks(Torchgraph)
def test_conformance(check):
    check()
