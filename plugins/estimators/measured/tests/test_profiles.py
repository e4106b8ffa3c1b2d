"""Times that come with the estimator."""

from __future__ import annotations

import re

import pytest

from topoplan import TopoplanError
from topoplan_estimator_measured import Measured
from topoplan_estimator_measured.cost import build
from topoplan_estimator_measured.profiles import names, profile, rows


def test_a_profile_has_the_figures_that_were_published():
    table = profile("dlrm16")
    assert (table.batch_size, table.ngpus) == (16384, 16)
    entry = table.entries["Dense_1024_1024"][16, 1]
    assert entry.forward == pytest.approx(0.109363e-3)
    assert entry.backward == pytest.approx(0.253542e-3)
    assert entry.memory == 12591104
    assert table.entries["Embed_10000000x256"][1, 1].forward == pytest.approx(1.613e-3)
    assert not table.failed


def test_every_profile_has_rows_and_a_source():
    assert len(names()) == 21
    for name in names():
        assert rows(name)
        assert all(row["degrees"].replace("x", "").isdecimal() for row in rows(name))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            Measured(),
            "profile or file is missing (measured:profile=NAME names times that come with it: alexnet, candle16",
        ),
        (Measured(profile="dlrm61"), "profile: no 'dlrm61'; did you mean 'dlrm16'?"),
        (Measured(profile="dlrm16", file="a.json"), "profile=dlrm16 and file=a.json are both given"),
    ],
)
def test_what_cannot_be_read_is_said(options, told):
    with pytest.raises(TopoplanError, match=re.escape(told)):
        build(options, None, None)
