"""The promises of every topology."""

from topoplan.testing import parametrize_with_checks
from topoplan_topology_slim_fly import topoplan_topologies


@parametrize_with_checks(topoplan_topologies())
def test_conformance(check):
    check()
