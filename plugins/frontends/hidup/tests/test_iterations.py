"""HiDup's options that count iterations say that one is simulated."""

from __future__ import annotations

import warnings

import pytest

from topoplan.errors import TopoplanWarning
from topoplan_frontend_hidup import BertSgmoe, BertSwitch, VitSgmoe, VitSwitch

SMALL = {"world_size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2}


@pytest.mark.parametrize("frontend", [BertSgmoe, BertSwitch, VitSgmoe, VitSwitch])
def test_iterations_are_not_counted(frontend):
    with pytest.warns(
        TopoplanWarning, match=f"{frontend.name}: run-iter, avg-iter: one iteration .*nothing is trained"
    ):
        counted = frontend(**SMALL, run_iter=50, avg_iter=20).build(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counted == frontend(**SMALL).build(None)
    with pytest.warns(TopoplanWarning, match="avg-iter: one") as raised:
        frontend(**SMALL, avg_iter=20).build(None)
    assert "run-iter" not in str(raised[0].message)
