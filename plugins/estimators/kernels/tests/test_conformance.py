"""The promises that every estimator makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_estimator_kernels import KernelTimes


@parametrize_with_checks(KernelTimes)
def test_conformance(check):
    check()
