"""The fastest pipelines of several tasks are those of the tasks one by one, though little of each is looked at."""

from __future__ import annotations

import heapq
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_models import random_case

from topoplan_searcher_pipeline import DapplePipeline, fastest
from topoplan_searcher_pipeline.fastest import pipelines
from topoplan_searcher_pipeline.search import plan_pipelines

ALL = 10**6


def one_by_one(tasks, best, most_stages, number):
    """Return the same pipelines: each task has no limit but that of the best one known before it."""
    found = []
    for task in tasks:
        mine = pipelines([task], best, most_stages, ALL)
        best = min([best, *(estimate.seconds for _, estimate in mine)])
        found += mine
    return heapq.nsmallest(number, found, key=lambda item: item[1].seconds)


def keys(found):
    return sorted((estimate, task.micro_batches, task.order) for task, estimate in found)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 500),
    st.sampled_from([(1, 4), (4, 1), (2, 3), (6, 1)]),
    st.integers(1, 80),
    st.sampled_from([0.7, 1.0, 1.3, math.inf]),
    st.booleans(),
)
def test_pipelines_are_those_of_the_tasks_one_by_one(seed, machine, number, factor, turned):
    problem = random_case(seed, 10, *machine, batch=16)
    shortlist = plan_pipelines(DapplePipeline(), problem, stop=False)
    named = (plan.seconds for plans in shortlist.named.values() for plan in plans)
    best, tasks = factor * min(named), shortlist.planner.tasks()
    if turned:
        tasks.reverse()  # so that the best pipelines come late in the search
    stages = min(shortlist.planner.machine.n_devices, 9)
    assert keys(pipelines(tasks, best, stages, number)) == keys(one_by_one(tasks, best, stages, number))


def test_a_task_is_searched_again_where_too_little_of_it_was_looked_at(monkeypatch):
    planner = plan_pipelines(DapplePipeline(), random_case(3, 10, 6, 1, batch=16), stop=False).planner
    tasks = planner.tasks()
    ends_of, limits = fastest.ends_of, []

    def heard(task, limit, *numbers):
        limits.append(limit)
        return ends_of(task, limit, *numbers)

    monkeypatch.setattr(fastest, "ends_of", heard)
    few, many = pipelines(tasks, math.inf, 6, 4), pipelines(tasks, math.inf, 6, ALL)
    assert keys(few) == keys(many[:4])
    assert len(limits) > 2 * len(tasks)
    assert keys(many) == keys(one_by_one(tasks, math.inf, 6, ALL))
