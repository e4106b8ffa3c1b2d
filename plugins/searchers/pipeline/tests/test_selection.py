"""Selected plans are those of all plans, though most plans are dropped and simulations stop early."""

from __future__ import annotations

import bisect
import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_models import random_case

from topoplan_searcher_pipeline import DapplePipeline, planning
from topoplan_searcher_pipeline.plans import Pipeline, PipelinePlan
from topoplan_searcher_pipeline.search import PipelineSearch, plan_pipelines
from topoplan_searcher_pipeline.selection import drop_others, reach, select

#: Seconds with many ties, and numbers of stages.
FOUND = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=40)


def by_seconds(plan):
    return plan.seconds


@settings(max_examples=400, deadline=None)
@given(FOUND, st.integers(1, 12))
def test_plans_that_are_dropped_would_not_be_selected(found, number):
    plans, kept = [], []
    for place, (seconds, stages) in enumerate(found):
        pipeline = Pipeline(tuple(range(stages)), ((1,),) * stages)
        plan = PipelinePlan(float(seconds), pipeline, "gpipe", place, (False,) * stages)
        bisect.insort(plans, plan, key=by_seconds)
        if seconds < reach(kept, number, stages):
            bisect.insort(kept, plan, key=by_seconds)
            kept = drop_others(kept, number)
    assert len(kept) <= number
    assert select(kept, number) == select(plans, number)


def test_turns_go_over_the_numbers_of_stages():
    stages = [2, 2, 2, 2, 3, 2, 4]
    plans = [
        PipelinePlan(float(place), Pipeline(tuple(range(count)), ((1,),) * count), "gpipe", 1, ())
        for place, count in enumerate(stages)
    ]
    assert [plan.seconds for plan in select(plans, 6)] == [0, 1, 2, 3, 4, 6]
    assert [plan.seconds for plan in drop_others(plans, 5)] == [0, 1, 2, 4, 6]
    assert [reach(plans, 5, count) for count in (2, 3, 4, 5)] == [2, 4, 6, 6]
    assert reach(plans, 8, 2) == math.inf


@pytest.mark.parametrize("seed", range(6))
def test_simulations_that_stop_early_do_not_change_what_is_selected(seed, monkeypatch):
    problem = random_case(seed, layers=12, hosts=6, devices_per_host=1, batch=32)
    reaches = []

    def heard(*arguments):
        reaches.append(reach(*arguments))
        return reaches[-1]

    monkeypatch.setattr(planning, "reach", heard)
    found = plan_pipelines(DapplePipeline(shortlist=12), problem, stop=False)
    monkeypatch.setattr(planning, "reach", lambda *_: math.inf)
    monkeypatch.setattr(planning, "drop_others", lambda plans, _: plans)
    assert plan_pipelines(DapplePipeline(shortlist=12), problem, stop=False).plans == found.plans
    assert len(found.plans) == 12
    assert min(reaches) < math.inf


def test_what_a_known_plan_beats_by_half_is_not_simulated():
    """The first five are simulated up to 1.5 times the known plan, others to 1.05 times; baselines were cut before."""
    plans = [SimpleNamespace(seconds=seconds) for seconds in (1.0, 1.2, 1.4, 1.6, 1.7, 1.03, 1.2)]
    shortlist = SimpleNamespace(plans=plans, named={"straight": [SimpleNamespace(seconds=1.3)]})
    seconds = [plan.seconds for plan in PipelineSearch._first(shortlist, 1.0)]
    assert seconds == [1.3, 1.0, 1.2, 1.4, 1.03]
    assert len(PipelineSearch._first(shortlist)) == 8
