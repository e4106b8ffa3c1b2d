"""The promises of every searcher."""

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_relink import topoplan_searchers


@parametrize_with_checks(topoplan_searchers()[0])
def test_conformance(check):
    check()
