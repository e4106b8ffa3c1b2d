"""The local search of `pipeline`: plans that are known by hand are no faster than what it ends with."""

from __future__ import annotations

import pytest

from topoplan import Candidate, Host
from topoplan_engine import ClusterOptions, Experiment, RunOptions
from topoplan_engine.experiment import Choice
from topoplan_engine.search.optimize import optimize
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.search.starting import first_state
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.plans import Pipeline, strategy_of
from topoplan_searcher_pipeline.search import planning_steps

#: Sixteen hosts of one V100 each, as DAPPLE's configuration B has them.
FLAT = ClusterOptions(device="V100", memory_gb=16.0, interface_bandwidth_gbps=25.0, degree=1, servers=16)


@pytest.mark.parametrize(
    ("profile", "batch", "cuts", "devices", "kind", "micro_batches"),
    [("amoeba-6-simplified", 128, (0, 7, 9, 10), (6, 5, 3, 2), "1f1b-deep", 16)],
)
def test_what_slows_a_plan_down_may_be_what_its_neighbours_mend(profile, batch, cuts, devices, kind, micro_batches):
    host = Host.discover()
    experiment = Experiment(
        model=Choice("torchgraph", {"profile": profile}),
        cluster=FLAT,
        simulator="fluid:memory=limit",
        searchers=["pipeline"],
        run=RunOptions(batch_size=batch, optimizer="momentum"),
    )
    found = optimize(experiment, host=host).seconds
    setup = set_up_search(host, experiment)
    planner = next(planning_steps(DapplePipeline(), setup.problem)).planner
    ends = [sum(devices[: stage + 1]) for stage in range(len(devices))]
    counts = tuple(
        tuple(int(end - size <= device < end) for device in range(ends[-1]))
        for end, size in zip(ends, devices, strict=True)
    )
    plan = planner.plan(Pipeline(cuts, counts), kind, micro_batches)
    strategy = strategy_of(plan, setup.problem.graph, planner.columns, planner.machine)
    known = setup.evaluator.price(Candidate(base=first_state(setup.evaluator, strategy, setup.rng()))).cost
    assert found <= known * (1 + 1e-9)
