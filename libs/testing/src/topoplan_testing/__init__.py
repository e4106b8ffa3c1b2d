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

Checks see a component through what it builds on a small problem: `reference` is a chain of dense operators on four
hosts in a ring, and `landscape` prices its strategies and networks by hand, so that searchers have something to climb.
Tests of plugins may use both.
"""

from __future__ import annotations

from topoplan_testing import landscape, reference
from topoplan_testing._common import build_example
from topoplan_testing._kit import check_component, checks_for, parametrize_with_checks
from topoplan_testing._rounds import check_rounds

__all__ = [
    "build_example",
    "check_component",
    "check_rounds",
    "checks_for",
    "landscape",
    "parametrize_with_checks",
    "reference",
]
