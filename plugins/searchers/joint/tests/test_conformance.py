"""The promises of every searcher."""

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_joint import topoplan_searchers


@parametrize_with_checks(topoplan_searchers())
def test_conformance(check):
    check()
