"""Steps number themselves, and rings go round both ways."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import CollectiveGroup
from topoplan.model.taskgraph import Collective
from topoplan.testing import check_rounds
from topoplan_collective_rounds import Ring, Steps


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("members", [2, 3, 7])
def test_a_ring_reduces_either_way(members, backward):
    steps, ring = Steps(members), Ring(np.arange(members)[None], backward=backward)
    steps.scatter(ring)
    steps.gather(ring)
    check_rounds(steps.rounds(), Collective.ALL_REDUCE, CollectiveGroup((1,) * members))


def test_messages_sent_together_are_of_one_step():
    steps = Steps(2)
    steps.send(0, 1, 0)
    steps.send(1, 0, 1, together=True, repeats=2)
    steps.send([0, 1], [1, 0], 0, count=2)
    rounds = steps.rounds()
    assert rounds.step.tolist() == [0, 0, 1, 1]
    assert rounds.repeats.tolist() == [1, 2, 1, 1]
    assert rounds.count.tolist() == [1, 1, 2, 2]
