"""The conformance kit: one check for every promise that a component makes.

A plugin's whole test file::

    from topoplan.testing import parametrize_with_checks
    from topoplan_topology_ring import RING

    @parametrize_with_checks(RING)
    def test_conformance(check):
        check()

Each check is a function ``check_<promise>(component)`` whose docstring is the promise.  A promise that a
component cannot keep is excused by name and with a reason (``expected_failures``), never skipped.  A topology that
suits only some clusters names one: ``Topology(..., example_cluster=Cluster.uniform(n_hosts=27, interfaces=6))``.
"""

from __future__ import annotations

from topoplan.testing.kit import check_component, checks_for, parametrize_with_checks

__all__ = ["check_component", "checks_for", "parametrize_with_checks"]
