"""Trees, halving and doubling, and parameter servers send what their formulas say."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import CollectiveGroup
from topoplan.model.taskgraph import Collective
from topoplan_collective_trees import HalvingDoubling, ParameterServer, Tree, parents


@pytest.mark.parametrize("hosts", [3, 4, 7, 16, 1000, 16_384])
def test_both_trees_together_load_members_alike(hosts):
    """A host sends twice the tensor at most: once up, in halves, and to two children in one of the trees."""
    assert (parents(hosts)[1:] >= 0).all()
    rounds = Tree().rounds(Collective.ALL_REDUCE, CollectiveGroup((1,) * hosts))
    sent = np.bincount(rounds.source, rounds.count / rounds.chunks)
    assert sent.max() <= 2.5
    assert np.mean(sent) == pytest.approx(2 * (hosts - 1) / hosts)
    assert rounds.step.max() + 1 <= 2 * np.ceil(np.log2(hosts))


def test_a_tree_of_sixteen_hosts_has_four_levels_and_chains_of_seven_inside():
    rounds = Tree().rounds(Collective.ALL_REDUCE, CollectiveGroup((8,) * 16))
    leaves = rounds.source // 8 != rounds.target // 8
    assert len(np.unique(rounds.step[leaves])) == 2 * 4
    assert len(np.unique(rounds.step[~leaves])) == 2 * 7


@pytest.mark.parametrize("members", [2, 8, 1024, 16_384])
def test_halving_sends_half_then_a_quarter(members):
    rounds = HalvingDoubling().rounds(Collective.ALL_REDUCE, CollectiveGroup((1,) * members))
    sent = np.bincount(rounds.source, rounds.count / rounds.chunks)
    assert sent == pytest.approx(2 * (members - 1) / members)
    assert rounds.step.max() + 1 == 2 * np.log2(members)


@pytest.mark.parametrize("servers", [1, 4])
def test_servers_receive_their_share_of_all(servers):
    rounds = ParameterServer(servers=servers).rounds(Collective.ALL_REDUCE, CollectiveGroup((1,) * 8))
    received = np.bincount(rounds.target, rounds.count / rounds.chunks, minlength=8)
    assert received[0] == pytest.approx(7 / servers + (servers - 1) / servers)
