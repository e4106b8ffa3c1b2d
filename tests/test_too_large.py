"""Candidates whose iterations need more memory than there is: left out, counted, and said wherever results are."""

from __future__ import annotations

import json

import pytest

from topoplan import PlacedStrategy, TopoplanError, optimize
from topoplan_engine import available
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.plans_drawn import write
from topoplan_searcher_stated import Hybrid, Stated
from topoplan_studies import command as comparison
from topoplan_studies.measure import measure
from topoplan_studies.runner import StudyRuns

HOSTS = {"servers": 2, "gpus_per_server": 4, "batch_size": 16, "device": "h100"}


@pytest.fixture
def little_memory(monkeypatch):
    """Leave a process less than a task takes, which is more than 100 bytes."""
    monkeypatch.setattr(available, "_BASE", 0)
    monkeypatch.setattr(available, "available_bytes", lambda: 100)


@pytest.mark.parametrize("limit", [{}, {"time_limit": 30.0}], ids=["no limit", "limit"])
def test_a_search_leaves_out_what_needs_more_memory_than_there_is(limit, tmp_path, little_memory):
    model = HuggingFace(config=write(tmp_path), sequence_length=32)
    searcher = Hybrid(planners=False, divided=False, placed=False)
    outcome = optimize(model, searchers=[searcher], budget=4, **HOSTS, **limit)
    assert outcome.result.too_large > 0
    assert isinstance(outcome.plan.strategy, PlacedStrategy)
    assert outcome.seconds == outcome.initial_seconds


def test_a_stated_plan_that_needs_more_memory_is_refused_with_both_numbers(tmp_path, little_memory):
    model = HuggingFace(config=write(tmp_path), sequence_length=32)
    with pytest.raises(TopoplanError, match=r"^plan: [\d,]+ tasks that differ take some .* this process may have 0\.0"):
        optimize(model, searchers=[Stated(tp=2, dp=4)], **HOSTS)


def test_with_enough_memory_nothing_is_left_out(tmp_path):
    model = HuggingFace(config=write(tmp_path), sequence_length=32)
    outcome = optimize(model, searchers=[Hybrid(planners=False, divided=False, placed=False)], budget=4, **HOSTS)
    assert outcome.result.too_large == 0


@pytest.mark.parametrize("command", ["compare", "compare --searchers", "optimize"])
def test_commands_say_how_many(command, run, tmp_path, monkeypatch, little_memory):
    def run_all(cells, host, store, executor, report, *, measured, wait):
        results = tuple(measure(host, cell.experiment) for cell in cells)
        return StudyRuns(results=results, stored=0, interrupted=False)

    monkeypatch.setattr(comparison, "run_all", run_all)
    hybrid = "hybrid:planners=false,divided=false,placed=false"
    words = ["huggingface", "-o", f"config={write(tmp_path)}", "-o", "sequence-length=32", "--servers", "2"]
    words += ["--gpus-per-server", "4", "--batch-size", "16", "--device", "h100", "--budget", "4"]
    if command == "compare":
        words += ["-n", "bigswitch", "-n", "fattree", "-s", hybrid]
    else:
        words += ["--searchers", hybrid] if "searchers" in command else ["-s", hybrid]
    status, out, err = run(command.split()[0], *words, "--json")
    assert status == 0, err
    found = json.loads(out)
    if command == "compare":
        counts = [run["too_large"] for row in found["rows"] for run in row["runs"]]
        assert min(counts) > 0
        assert [note for note in found["notes"] if "too large" in note] == [
            f"{network}: {count:,} candidates were too large to price"
            for network, count in zip(("bigswitch", "fattree"), counts, strict=True)
        ]
        assert run("compare", *words)[1].count("too large to price") == 2
    elif command == "optimize":
        assert found["too_large"] > 0
    else:
        assert any("candidates of hybrid" in note and "too large to price" in note for note in found["notes"])
