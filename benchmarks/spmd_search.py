"""CPU seconds of HiDup's search, beside those of the released binary, by layers and by devices.

    .venv/bin/python benchmarks/spmd_search.py

Prints, for each case, the states and frontier entries that were searched, CPU seconds of writing the program down and
searching it (best of seven; kernels are compiled before the clock starts), how many times that of the first row of its
block it is, and for the models of eight layers what the released binary takes (its CPU seconds on CPython 3.7, on two
cores of 2.5 GHz that were shared with others) over ours.  The last block is the searcher spmd on hosts of eight
devices: meshes there are, those that were given up, and CPU seconds of planning on all of them.
"""

from __future__ import annotations

import gc
import importlib
import time

import numpy as np

from topoplan import Cluster, Problem, State, TopologyContext, Trial
from topoplan.space import Space
from topoplan_estimator_hidup import HIDUP, Options
from topoplan_frontend_bert_sgmoe import BertOptions
from topoplan_frontend_vit_sgmoe import VitOptions
from topoplan_searcher_hidup.planning import plan
from topoplan_searcher_hidup.prices import Prices
from topoplan_searcher_hidup.program import write_down
from topoplan_searcher_hidup.released import released
from topoplan_searcher_spmd import SpmdOptions
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_topology_bigswitch import BigSwitchOptions
from topoplan_topology_bigswitch import build as build_switch

#: CPU seconds of the released binary at eight layers: 2 to 3, whatever the number of devices.
RELEASED = 2.0


def problem_of(model, devices, layers, hosts=1):
    frontend = importlib.import_module("topoplan_frontend_" + model.replace("-", "_"))
    options = (BertOptions if model.startswith("bert") else VitOptions)(world_size=devices, layers=layers)
    graph = frontend.build(options, None)
    cluster = Cluster.uniform(n_hosts=hosts, devices_per_host=devices // hosts)
    costs = HIDUP.build(Options(), graph, cluster)
    return Problem(
        graph=graph, cluster=cluster, costs=costs, space=Space(graph, cluster, costs), topology="none",
        build_fabric=lambda demand, rng: None, reconfigurable=False,
    )  # fmt: skip


def search(problem):
    return plan(write_down(problem.graph, released), Prices(problem), max_states=4_000_000, model=problem.graph.name)


def fastest(problems, rounds=7):
    """Return, for each problem, the CPU seconds of the fastest search and what it found.

    Rounds go through all problems, so that a machine that is slow for a while is slow for all of them; the collector
    of garbage does not look at problems that others are timed beside.
    """
    gc.collect()
    gc.freeze()
    taken = [(float("inf"), None)] * len(problems)
    for _ in range(rounds):
        for number, problem in enumerate(problems):
            started = time.process_time()
            found = search(problem)
            taken[number] = min(taken[number][0], time.process_time() - started), found
    return taken


def block(title, cases):
    """Print one row for each (model, devices, layers)."""
    print(
        f"{title}\n{'model':14}{'devices':>8}{'layers':>8}{'states':>10}{'entries':>10}{'s':>8}{'growth':>8}{'ratio':>7}"
    )
    rows = fastest([problem_of(*case) for case in cases])
    for (model, devices, layers), (seconds, found) in zip(cases, rows, strict=True):
        ratio = f"{RELEASED / seconds:>7.1f}" if layers == 8 else ""
        print(
            f"{model:14}{devices:>8}{layers:>8}{found.outcome.states:>10}{found.outcome.entries:>10}{seconds:>8.3f}"
            f"{seconds / rows[0][0]:>8.2f}{ratio}",
            flush=True,
        )


def meshes(cases):
    """Print one row for each (model, devices, layers): what spmd takes to plan on every mesh."""
    print(f"every mesh\n{'model':14}{'devices':>8}{'layers':>8}{'meshes':>8}{'given up':>10}{'s':>8}{'s each':>8}")
    for model, devices, layers in cases:
        problem = problem_of(model, devices, layers, hosts=max(1, devices // 8))
        context = TopologyContext(cluster=problem.cluster, demand=None, rng=np.random.default_rng(0))
        state = State(problem.space.initial(), build_switch(BigSwitchOptions(), context))
        trial = Trial(state=state, cost=1.0, demand=lambda: None)
        started = time.process_time()
        search = SpmdSearch(SpmdOptions(), problem)
        search.adopt(trial)
        while asked := search.ask():
            search.tell([trial] * len(asked))  # nothing is simulated
        taken, report = time.process_time() - started, search.report()
        given_up = report["meshes_outdone"]
        count = len(report["meshes"]) + given_up
        print(
            f"{model:14}{devices:>8}{layers:>8}{count:>8}{given_up:>10}{taken:>8.2f}{taken / count:>8.2f}", flush=True
        )


def main():
    search(problem_of("bert-sgmoe", 2, 1))
    models = ("bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch")
    block("models", [(model, 8, 8) for model in models])
    block("layers", [("bert-sgmoe", 8, layers) for layers in (6, 12, 24, 48, 96)])
    block("devices", [("bert-sgmoe", devices, 8) for devices in (8, 64, 512, 4096)])
    meshes([*(("bert-sgmoe", devices, 8) for devices in (8, 64, 512, 4096)), ("bert-sgmoe", 64, 24)])


if __name__ == "__main__":
    main()
