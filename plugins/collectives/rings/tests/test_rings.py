"""Bytes and rounds of rings are those of their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import CollectiveGroup, TopoplanError
from topoplan.model.taskgraph import Collective
from topoplan.testing import check_rounds
from topoplan_collective_rings import MultiRing, RingAlgorithm, Torus


@pytest.mark.parametrize("members", [2, 8, 64, 16_384])
def test_a_ring_passes_twice_all_but_one_piece(members):
    rounds = RingAlgorithm().rounds(Collective.ALL_REDUCE, CollectiveGroup((1,) * members))
    sent = np.bincount(rounds.source, rounds.count * rounds.repeats / rounds.chunks)
    assert sent == pytest.approx(2 * (members - 1) / members)
    assert len(rounds.source) == 2 * members


def test_rings_enter_each_host_at_another_device():
    rounds = MultiRing().rounds(Collective.ALL_REDUCE, CollectiveGroup((8,) * 4))
    leaves = rounds.source // 8 != rounds.target // 8
    assert sorted(rounds.source[leaves].tolist()) == sorted([*range(32)] * 2)
    assert set(rounds.between.tolist()) == {3}


@pytest.mark.parametrize("axes", ["2x3x2", "12", "4x3", "3x2x2x1"])
def test_members_of_a_torus_lie_on_a_grid(axes):
    for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        group = CollectiveGroup((1,) * 12)
        check_rounds(Torus(axes=axes).rounds(collective, group), collective, group)


def test_all_links_of_a_cube_carry_as_much():
    """Each of six directions has a sixth of what a ring of all members would pass."""
    rounds = Torus(axes="4x4x4").rounds(Collective.ALL_REDUCE, CollectiveGroup((1,) * 64))
    link = rounds.source.astype(np.int64) * 64 + rounds.target
    sent = np.bincount(link, rounds.count * rounds.repeats / rounds.chunks)
    assert sent[sent > 0] == pytest.approx(2 * (63 / 64) / 6)
    assert (sent > 0).sum() == 64 * 6


@pytest.mark.parametrize(
    ("axes", "why"), [("4x4", "axes 4x4 have 16 places for 12 members"), ("a", "axes 'a' .expected"), ("0x12", "0 pl")]
)
def test_bad_grids_are_refused(axes, why):
    with pytest.raises(TopoplanError, match=why):
        Torus(axes=axes).rounds(Collective.ALL_REDUCE, CollectiveGroup((1,) * 12))
