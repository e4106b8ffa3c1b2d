"""The conformance kit: one check for every promise that a component makes.

A plugin's whole test file::

    from topoplan.testing import parametrize_with_checks
    from topoplan_topology_ring import Ring

    @parametrize_with_checks(Ring)
    def test_conformance(check):
        check()

Each check is a function ``check_<promise>(component)`` whose docstring is the promise.  A promise that a component
cannot keep is excused by name and with a reason (``expected_failures``), never skipped.  A topology that suits only
some clusters names one in `Topology.example_cluster`.
"""

from __future__ import annotations

from topoplan.testing._common import build_example
from topoplan.testing._kit import check_component, checks_for, parametrize_with_checks

__all__ = ["build_example", "check_component", "checks_for", "parametrize_with_checks"]
