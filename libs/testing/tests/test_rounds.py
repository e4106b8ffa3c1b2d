"""Rounds that are no collective are named: the round, the message and what is missing."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import CollectiveGroup, CollectiveRounds, Host, TopoplanError
from topoplan.model.taskgraph import Collective
from topoplan.plugin.components import CollectiveAlgorithm
from topoplan.testing import check_rounds

HOST = Host.discover()
THREE = CollectiveGroup((1, 1, 1))


def ring(**columns):
    rounds = HOST.make(CollectiveAlgorithm, "ring").rounds(Collective.ALL_REDUCE, THREE)
    return attrs.evolve(rounds, **columns)


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        (ring(repeats=1), "at the end, chunk 0 of member 0 lacks the data of member 1"),
        (ring(add=0), "at the end, chunk 0 of member 0 lacks"),
        (ring(add=1), "round 2: .* the data of member . would be added twice"),
        (ring(target=[1, 2, 3] * 2), "at the end, chunk 0 of member 0 lacks"),
        (ring(target=[1, 2, 4] * 2), r"a message from member 2 to 4 \(must be two of 0..2\)"),
        (ring(target=[0, 2, 0] * 2), r"a message from member 0 to 0 \(must be"),
        (ring(chunk=3, shift=0), r"member 0 sends chunks \[3\] \(must be of 0..2\)"),
        (
            CollectiveRounds(chunks=1, source=[0, 1], target=2, chunk=0, add=[1, 0]),
            "chunk 0 from member 1 to 2: another message of the round replaces it",
        ),
    ],
)
def test_what_is_no_all_reduce_is_named(rounds, why):
    with pytest.raises(TopoplanError, match=why):
        check_rounds(rounds, Collective.ALL_REDUCE, THREE)


def test_a_member_cannot_send_what_it_does_not_have():
    rounds = CollectiveRounds(chunks=1, source=[1, 0], target=[2, 1], chunk=0, step=[0, 1])
    with pytest.raises(TopoplanError, match="broadcast of 3 members, round 0: chunk 0 from member 1, which does not"):
        check_rounds(rounds, Collective.BROADCAST, THREE)


@pytest.mark.parametrize("name", [cls.name for cls in HOST.components(CollectiveAlgorithm) if cls.name != "msccl"])
def test_a_message_less_is_noticed(name):
    """No algorithm sends a message that no member needs."""
    algorithm = HOST.make(CollectiveAlgorithm, name)
    group = CollectiveGroup((4,)) if name == "nvls" else CollectiveGroup((2, 2))
    for label in type(algorithm).collectives:
        collective = next(each for each in Collective if each.label == label)
        rounds = algorithm.rounds(collective, group)
        for row in np.flatnonzero(rounds.target < group.n_members).tolist():
            keep = np.arange(len(rounds.source)) != row
            columns = {
                field.name: getattr(rounds, field.name)[keep]
                for field in attrs.fields(CollectiveRounds)
                if isinstance(getattr(rounds, field.name), np.ndarray) and field.name != "owner"
            }
            with pytest.raises(TopoplanError):
                check_rounds(attrs.evolve(rounds, **columns), collective, group)
