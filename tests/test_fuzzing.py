"""A slice of the fuzzing that `docs/reliability.md` reports: the same inputs every time, in this process."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path

import pytest

from topoplan_samples.long_tail import at_night

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
#: Inputs of each reader; those that simulate or plan are slower.
COUNT, FEW = 60, 3
SLOW = (
    "torchgraph",
    "fbuf-values",
    "fbuf-simulated",
    "plan-values",
    "plan-strategy",
    "fbuf-strategy",
    "flexnet",
    "result",
    "journal-values",
    "plan-shown",
    "study-shown",
    "zip",
    "tar",
    "yaml",
    "option-sets",
)


@pytest.fixture(scope="module")
def fuzzing():
    """Import the package of the command."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from fuzzing import readers, watch
    finally:
        sys.path.remove(str(BENCHMARKS))
    return readers, watch


@pytest.mark.parametrize("share", at_night([1, 3], 3), ids=["all", "a third"])
def test_no_reader_fails(fuzzing, share):
    readers, watch = fuzzing
    failures, outcomes = [], {}
    for reader in readers.readers():
        for number in range((FEW if reader.name in SLOW else COUNT) // share):
            outcome, details = watch.attempt(reader, watch.input_of(reader, 0, number))
            outcomes.setdefault(reader.name, set()).add(outcome)
            if outcome not in ("ok", "refused"):
                failures.append((reader.name, number, outcome, details))
    assert failures == []
    assert all("ok" in counts for name, counts in outcomes.items() if name not in SLOW), outcomes


def test_a_child_that_crashes_or_hangs_is_counted_and_the_others_go_on(fuzzing, monkeypatch):
    _, watch = fuzzing
    monkeypatch.setattr(watch, "CPU", 0.2)

    def take(number):
        if number == 3:
            assert not faulthandler.is_enabled()  # else what was counted is dumped into the terminal, too
            os.abort()
        if number == 5:
            while True:
                pass
        if number == 7:
            raise KeyError("seven")

    reader = watch.Reader("made-up", "numbers", 1, lambda rng: next(numbers), take)
    numbers = iter(range(100))
    monkeypatch.setattr(watch, "input_of", lambda reader, seed, number: number)
    tally = watch.watched(reader, 0, 10)
    assert (tally.inputs, tally.ok, tally.refused) == (10, 7, 0)
    assert [(failure.number, failure.kind.partition(" at")[0]) for failure in tally.failures] == [
        (3, "signal 6"),
        (5, "slow"),
        (7, "KeyError"),
    ]
