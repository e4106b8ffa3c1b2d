"""Observer hooks: a plugin that watches a run is told in order, and changes nothing."""

from __future__ import annotations

import types

import topoplan
from topoplan import Host, hookimpl
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize

EXPERIMENT = Experiment(
    model="alexnet",
    cluster=ClusterOptions(servers=4, interface_bandwidth_gbps=10.0),
    run=RunOptions(batch_size=64, budget=20, seed=1),
)


def watcher(seen):
    """Return a plugin that writes down what it is told."""
    plugin = types.SimpleNamespace()

    @hookimpl
    def topoplan_run_started(run):
        seen.append(("started", run.budget, run.seed, run.searchers))

    @hookimpl
    def topoplan_new_best(progress):
        seen.append(("best", progress.best))

    @hookimpl
    def topoplan_evaluated(progress):
        seen.append(("evaluated", progress.evaluations))

    @hookimpl
    def topoplan_run_finished(plans):
        seen.append(("finished", plans))

    for hook in (topoplan_run_started, topoplan_new_best, topoplan_evaluated, topoplan_run_finished):
        setattr(plugin, hook.__name__, hook)
    return plugin


def test_a_watcher_is_told_everything_and_changes_nothing():
    events: list[tuple] = []
    host = Host.discover()
    host.add(watcher(events), name="watcher")
    watched = optimize(EXPERIMENT, host=host)
    alone = optimize(EXPERIMENT, host=Host.discover())
    assert watched.plan.timeline.makespan == alone.plan.timeline.makespan

    assert events[0] == ("started", 20, 1, ("auto", "hybrid", "spmd", "pipeline"))
    assert events[-1][0] == "finished"
    assert events[-1][1][0] is watched.plan
    best = [entry[1] for entry in events if entry[0] == "best"]
    assert best == sorted(best, reverse=True)
    assert best[-1] == watched.result.best_cost
    assert [entry[1] for entry in events if entry[0] == "evaluated"][-1] == watched.result.evaluations
    assert topoplan.__version__ == watched.plan.provenance["topoplan"]
