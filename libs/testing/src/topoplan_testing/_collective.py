"""Promises of algorithms of collectives: ``rounds(collective, group) -> CollectiveRounds``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topoplan import CollectiveAlgorithm, CollectiveGroup, CollectiveRounds, TopoplanError
from topoplan.model.taskgraph import Collective
from topoplan_testing._common import example, global_randomness_untouched
from topoplan_testing._rounds import check_rounds

#: Members in each host.
_GROUPS = (
    *((1,) * n for n in (2, 3, 4, 5, 6, 8, 16)),
    *((n,) for n in (2, 3, 4, 8)),
    *((2,) * n for n in (2, 3, 4, 8)),
    (4, 4),
    (3, 3, 3),
    (1, 2),
)


def check_every_member_ends_with_the_right_data(component: type[CollectiveAlgorithm]) -> None:
    """Each chunk is followed symbolically: sums count every member once; some groups may be refused, not all."""
    count, refusals = 0, []
    for collective in _collectives(component):
        for group, rounds in _rounds(component, collective):
            if isinstance(rounds, TopoplanError):
                refusals.append(f"{collective.label} of {group.in_hosts}: {rounds}")
                continue
            count += 1
            assert isinstance(rounds, CollectiveRounds), f"rounds returned {type(rounds).__name__}"
            try:
                check_rounds(rounds, collective, group)
            except TopoplanError as error:
                raise AssertionError(f"members in hosts {group.in_hosts}: {error}") from None
    assert count, f"no rounds for any group ({refusals[0]})"


def check_the_same_group_has_the_same_rounds(component: type[CollectiveAlgorithm]) -> None:
    """The same group gives the same rounds; numpy's own generator is not used."""
    for collective in _collectives(component):
        with global_randomness_untouched():
            twice = zip(_rounds(component, collective), _rounds(component, collective), strict=True)
            for (group, first), (_, second) in twice:
                same = first == second if isinstance(first, CollectiveRounds) else str(first) == str(second)
                assert same, f"{collective.label}: two rounds of {group.in_hosts} differ"


def check_steps_ascend(component: type[CollectiveAlgorithm]) -> None:
    """Messages are listed step by step, each is sent once at least, and latencies are no more than repeats."""
    for collective in _collectives(component):
        for group, rounds in _rounds(component, collective):
            if isinstance(rounds, CollectiveRounds):
                where = f"{collective.label} of {group.in_hosts}"
                assert (np.diff(rounds.step) >= 0).all(), f"{where}: steps do not ascend"
                assert (rounds.repeats >= 1).all(), f"{where}: repeats is {rounds.repeats.min()}"
                latencies = np.where(rounds.latencies < 0, rounds.repeats, rounds.latencies)
                assert (latencies <= rounds.repeats).all(), f"{where}: more latencies than repeats"
                assert (rounds.between <= latencies).all(), f"{where}: more latencies between hosts than there are"


def _collectives(component: type[CollectiveAlgorithm]) -> list[Collective]:
    labels = {each.label: each for each in Collective if each is not Collective.JOIN}
    assert component.collectives, "collectives is empty"
    for label in component.collectives:
        assert label in labels, f"collectives has {label!r} (must be of {', '.join(labels)})"
    return [labels[label] for label in component.collectives]


def _rounds(
    component: type[CollectiveAlgorithm], collective: Collective
) -> Iterator[tuple[CollectiveGroup, CollectiveRounds | TopoplanError]]:
    """Yield groups and their rounds, or why there are none."""
    algorithm = example(component)
    for in_hosts in _GROUPS:
        group = CollectiveGroup(in_hosts)
        try:
            rounds = algorithm.rounds(collective, group)
        except TopoplanError as error:
            yield group, error
        else:
            yield group, rounds
