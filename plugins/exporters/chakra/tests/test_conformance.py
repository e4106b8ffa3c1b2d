"""The promises of every exporter."""

import pytest

from topoplan.testing import parametrize_with_checks
from topoplan_exporter_chakra import AstraSim, Chakra


@parametrize_with_checks(Chakra)
def test_chakra(check):
    check()


@parametrize_with_checks(AstraSim)
@pytest.mark.filterwarnings("ignore:astra-sim:UserWarning")
def test_astra_sim(check):
    check()
