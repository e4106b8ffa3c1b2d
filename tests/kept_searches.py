"""Searches of every kind, which tests keep in folders, end, and resume."""

from __future__ import annotations

import attrs

from topoplan_engine import ClusterOptions, Experiment, RunOptions
from topoplan_engine.search.journal import parsed

CLUSTER = ClusterOptions(servers=4, degree=2, interface_bandwidth_gbps=10.0)
SMALL = Experiment(model="alexnet", cluster=CLUSTER, run=RunOptions(batch_size=64, budget=60, seed=3))
WIRED = attrs.evolve(SMALL, topology="topoopt")


def journals(path):
    """Return the entries of all journals in the folder of a run, without their seconds."""
    return {
        journal.name: [entry._replace(seconds=0.0) for entry in parsed(journal.read_bytes(), journal)]
        for journal in sorted(path.glob("*.csv"))
    }


def without_clock(value):
    """Return a JSON value without what a clock measured: seconds of searches, and checksums over them."""
    if isinstance(value, dict):
        value = {key: each for key, each in value.items() if key not in ("search_s", "digest")}
        history = [[evaluations, cost] for evaluations, _, cost in value.get("history", ())]
        return {key: history if key == "history" else without_clock(each) for key, each in value.items()}
    return [without_clock(each) for each in value] if isinstance(value, list) else value


def with_run(experiment, **run):
    return attrs.evolve(experiment, run=attrs.evolve(experiment.run, **run))


#: Every searcher that is shipped, and what else a search can have.
SEARCHES = {
    "mcmc": SMALL,
    "anneal": attrs.evolve(SMALL, searchers="anneal"),
    "cem": attrs.evolve(SMALL, searchers="cem"),
    "auto": attrs.evolve(with_run(WIRED, budget=100), searchers="auto"),  # with planners and searchers of the network
    "random": attrs.evolve(SMALL, searchers="random"),
    "exhaustive": attrs.evolve(SMALL, model="dlrm:arch-embedding-size=1000,arch-mlp-bot=8-8", searchers="exhaustive"),
    "network": attrs.evolve(WIRED, searchers=("mcmc", "totientperm", "relink", "rewire")),
    "spmd": attrs.evolve(SMALL, searchers="spmd"),
    "pipeline": attrs.evolve(SMALL, searchers="pipeline"),
    "hpgo": attrs.evolve(SMALL, cluster=attrs.evolve(CLUSTER, gpus_per_server=2), searchers="hpgo"),
    "hidup": attrs.evolve(SMALL, model="vit-switch:world-size=8,layers=1", searchers="hidup:signatures=derived"),
    "baseline": attrs.evolve(SMALL, searchers="baseline:rule=ddp"),
    "draws": attrs.evolve(with_run(SMALL, draws=2), topology="fattree"),
    "chains": with_run(attrs.evolve(WIRED, searchers=("mcmc", "relink")), chains=3, budget=100),
    "restarts": with_run(SMALL, restarts=3, patience=0.5),
    "penalty": attrs.evolve(SMALL, simulator="fluid:memory=penalty", cluster=attrs.evolve(CLUSTER, memory_gb=1.0)),
    "flexnet": attrs.evolve(SMALL, simulator="flexnet"),
    "machine": attrs.evolve(SMALL, cluster=ClusterOptions(machine="dgx-h100", servers=2)),  # which says what hosts have
    "defaults": attrs.evolve(SMALL, run=RunOptions(batch_size=64), searchers="auto"),  # which end by patience
}
