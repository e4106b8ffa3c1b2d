"""CPU seconds of HiDup's search, beside those of the released binary, by layers and by devices.

    .venv/bin/python benchmarks/spmd_search.py

Prints, for each case, the states and frontier entries that were searched, CPU seconds of writing the program down and
searching it (best of five; kernels are compiled before the clock starts), how many times that of the first row of its
block it is, and for the models of eight layers what the released binary takes (its CPU seconds on CPython 3.7, on two
cores of 2.5 GHz that were shared with others) over ours.
"""

from __future__ import annotations

import importlib
import time

from topoplan import Cluster, Problem
from topoplan.space import Space
from topoplan_estimator_hidup import HIDUP, Options
from topoplan_frontend_bert_sgmoe import BertOptions
from topoplan_frontend_vit_sgmoe import VitOptions
from topoplan_searcher_hidup.planning import plan
from topoplan_searcher_hidup.prices import Prices
from topoplan_searcher_hidup.program import write_down
from topoplan_searcher_hidup.released import released

#: CPU seconds of the released binary at eight layers: 2 to 3, whatever the number of devices.
RELEASED = 2.0


def problem_of(model, devices, layers):
    frontend = importlib.import_module("topoplan_frontend_" + model.replace("-", "_"))
    options = (BertOptions if model.startswith("bert") else VitOptions)(world_size=devices, layers=layers)
    graph = frontend.build(options, None)
    cluster = Cluster.uniform(n_hosts=1, devices_per_host=devices)
    costs = HIDUP.build(Options(), graph, cluster)
    return Problem(
        graph=graph, cluster=cluster, costs=costs, space=Space(graph, cluster, costs), topology="none",
        build_fabric=lambda demand, rng: None, reconfigurable=False,
    )  # fmt: skip


def search(problem):
    return plan(write_down(problem.graph, released), Prices(problem), max_states=4_000_000, model=problem.graph.name)


def fastest(problem, times=5):
    """Return the CPU seconds of the fastest of some searches, and what it found."""
    taken = []
    for _ in range(times):
        started = time.process_time()
        found = search(problem)
        taken.append(time.process_time() - started)
    return min(taken), found


def block(title, cases):
    """Print one row for each (model, devices, layers)."""
    print(
        f"{title}\n{'model':14}{'devices':>8}{'layers':>8}{'states':>10}{'entries':>10}{'s':>8}{'growth':>8}{'ratio':>7}"
    )
    first = None
    for model, devices, layers in cases:
        seconds, found = fastest(problem_of(model, devices, layers))
        first = first or seconds
        ratio = f"{RELEASED / seconds:>7.1f}" if layers == 8 else ""
        print(
            f"{model:14}{devices:>8}{layers:>8}{found.outcome.states:>10}{found.outcome.entries:>10}{seconds:>8.3f}"
            f"{seconds / first:>8.2f}{ratio}",
            flush=True,
        )


def main():
    search(problem_of("bert-sgmoe", 2, 1))
    models = ("bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch")
    block("models", [(model, 8, 8) for model in models])
    block("layers", [("bert-sgmoe", 8, layers) for layers in (6, 12, 24, 48, 96)])
    block("devices", [("bert-sgmoe", devices, 8) for devices in (8, 64, 512, 4096)])


if __name__ == "__main__":
    main()
