"""A run with a time limit is repeated as it was, wherever its clock ended something."""

from __future__ import annotations

import importlib
import shutil

import attrs
import pytest
from kept_searches import WIRED, journals, with_run

from topoplan import Host, Search, Searcher, stop_if_wanted
from topoplan_engine import optimize
from topoplan_engine.search.run_folder import RunFolder
from topoplan_searcher_mcmc import Mcmc

#: What a clock that jumps seems to take.
pytestmark = pytest.mark.filterwarnings("ignore:time-limit")

#: Modules of the engine that read the clock.
READERS = ("driver", "evaluator", "islands", "optimize")
#: Seconds of the limit, and what the clock says before and after it has jumped.
LIMIT, BEFORE, AFTER = 10.0, 0.0, 100.0


class JumpingClock:
    """Says that no time has passed when it is read for the first times, and then that the limit is over."""

    def __init__(self, stands: float) -> None:
        self.stands, self.reads = stands, 0

    def __call__(self):
        self.reads += 1
        return BEFORE if self.reads <= self.stands else AFTER

    def read_by(self, patch):
        for name in READERS:
            patch.setattr(importlib.import_module(f"topoplan_engine.search.{name}"), "clock", self)
        return self


class _Pausing(Search):
    """Searches as another does, and may be left in every call."""

    def __init__(self, search):
        self._search = search

    def adopt(self, trial):
        stop_if_wanted()
        self._search.adopt(trial)

    def ask(self):
        stop_if_wanted()
        return self._search.ask()

    def tell(self, trials):
        stop_if_wanted()
        self._search.tell(trials)

    @property
    def reached(self):
        return self._search.reached


@attrs.frozen(kw_only=True)
class Pausing(Searcher):
    """Searches as `mcmc` does, in calls that may be left."""

    name = "pausing"
    axis = "strategy"

    def build(self, problem, rng):
        stop_if_wanted()
        return _Pausing(Mcmc().build(problem, rng))


HOST = Host.discover()
HOST.add(Pausing)
TINY = attrs.evolve(WIRED, model="dlrm:arch-embedding-size=10-10,arch-mlp-bot=8-8,arch-mlp-top=20-1")


def run(experiment, path, stands, monkeypatch):
    """Run an experiment in a folder, under a clock that jumps after some reads; return its outcome and all reads."""
    with monkeypatch.context() as patch, RunFolder(path, experiment) as folder:
        clock = JumpingClock(stands).read_by(patch)
        return optimize(experiment, host=HOST, folder=folder), clock.reads


def found(outcome, path):
    """Return what a run found and wrote, without its seconds."""
    result = outcome.result
    ending = result.ended_by, result.unfinished, result.too_large, result.evaluations
    return ending, outcome.seconds, result.history[:, ::2].tolist(), journals(path), (path / "best.json").read_bytes()


def check_repeated(experiment, tmp_path, monkeypatch, most=1000):
    """Let the clock jump at every read, or at so many of them; return how the runs ended that differ."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    (tmp_path / "whole").mkdir()
    _, reads = run(experiment, tmp_path / "whole", float("inf"), monkeypatch)
    different = []
    for stands in range(0, reads + 1, max(1, reads // most)):
        first, again = tmp_path / f"first{stands}", tmp_path / f"again{stands}"
        first.mkdir()
        outcome, _ = run(experiment, first, stands, monkeypatch)
        expected = found(outcome, first)
        if expected not in different:
            different.append(expected)
            shutil.copytree(first, again)
            repeated, _ = run(experiment, again, float("inf"), monkeypatch)
            assert found(repeated, again) == expected, stands
    return [ending for ending, *_ in different]


@pytest.mark.slow
def test_a_clock_that_jumps_at_any_read_ends_a_search_that_is_repeated(tmp_path, monkeypatch):
    experiment = attrs.evolve(with_run(TINY, time_limit=LIMIT, budget=1), searchers="pausing")
    endings = check_repeated(experiment, tmp_path, monkeypatch)
    assert len(endings) > 7
    left = {unfinished for _, unfinished, *_ in endings}
    assert left >= {"", "pausing was planning", "a candidate of pausing was priced"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("searchers", "options"),
    [
        (("pausing", "relink"), {"budget": 4}),
        (("pausing", "relink"), {"budget": 8, "chains": 2}),
        ("mcmc", {"budget": 20, "patience": 0.2}),  # four candidates that are not better
        ("auto", {"budget": 20}),
    ],
)
def test_a_clock_that_jumps_in_searches_of_many_kinds(tmp_path, monkeypatch, searchers, options):
    experiment = attrs.evolve(with_run(TINY, **{"time_limit": LIMIT, "budget": 5, **options}), searchers=searchers)
    assert len(check_repeated(experiment, tmp_path, monkeypatch, most=40)) > 5
