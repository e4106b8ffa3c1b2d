"""Schedules on staged strategies: simulated bubbles and the peak of memory are those of published formulas."""

import functools
import sys
from pathlib import Path

import pytest

from topoplan import Host

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from strategies import FORMULAS, simulated

host = functools.cache(Host.discover)
EQUAL, UNEQUAL = (1.0, 1.0, 1.0), (4.0, 5.0, 3.0)


@pytest.mark.parametrize("schedule", FORMULAS)
@pytest.mark.parametrize("seconds", [EQUAL, UNEQUAL])
def test_bubbles_and_activations(schedule, seconds):
    if FORMULAS[schedule].bubble(4, *seconds) is None:
        pytest.skip("published for equal passes")
    row = simulated(schedule, 4, 8, seconds, host())
    if row.about:  # shares of 1F1B for many ranks
        assert row.simulated <= row.formula + 1e-9
        assert row.kept <= row.formula_kept + 1.5
        return
    assert row.simulated == pytest.approx(row.formula, abs=1e-9)
    assert row.kept == pytest.approx(row.formula_kept, rel=1e-6)


@pytest.mark.parametrize(("schedule", "makespan"), [("1f1b", 33), ("zb-h1", 27), ("interleaved:chunks=2", 28.5)])
def test_iterations_of_equal_passes(schedule, makespan):
    """p = 4, m = 8, F = B = W = 1: 24 seconds of work, and bubbles of 9, 3 and 4.5 seconds."""
    assert simulated(schedule, 4, 8, EQUAL, host()).makespan == pytest.approx(makespan)
