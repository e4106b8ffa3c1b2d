"""The promises of every schedule."""

import pytest

from topoplan.testing import checks_for
from topoplan_schedule_dualpipe import topoplan_schedules

COMPONENTS = topoplan_schedules()
CASES = [
    pytest.param(check, id=f"{cls.name}-{name}")
    for cls in (COMPONENTS if isinstance(COMPONENTS, list) else [COMPONENTS])
    for name, check in checks_for(cls).items()
]


@pytest.mark.parametrize("check", CASES)
def test_conformance(check):
    check()
