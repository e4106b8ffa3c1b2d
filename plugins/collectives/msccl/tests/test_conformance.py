"""The promises of every algorithm of collectives."""

import pytest

from topoplan.testing import checks_for
from topoplan_collective_msccl import topoplan_collectives

COMPONENTS = topoplan_collectives()
CASES = [
    pytest.param(check, id=f"{cls.name}-{name}")
    for cls in (COMPONENTS if isinstance(COMPONENTS, list) else [COMPONENTS])
    for name, check in checks_for(cls).items()
]


@pytest.mark.parametrize("check", CASES)
def test_conformance(check):
    check()
