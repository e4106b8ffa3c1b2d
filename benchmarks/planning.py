"""CPU seconds of planning, beside those of the released HPGO planner.

    .venv/bin/python benchmarks/planning.py FOLDER_WITH_LAYER_PROFILES

Prints for each profile, on two hosts of eight devices (H) and sixteen hosts of one (F): CPU seconds of reading the file
and forming layers, of planning as HPGO does (`hpgo`) and as DAPPLE's paper says (`pipeline`, layers formed anew), each
the best of some runs; those of HPGO 0.9.2 (its wheel on CPython 3.7; for gnmt-16 wall seconds of one thread); and how
many times more that is than ours.  Nothing is simulated task by task.  Profiles that the folder lacks are left out.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from topoplan import Cluster, Problem
from topoplan.experiment import ClusterOptions, build_cluster
from topoplan.space import Space
from topoplan_estimator_profile import PROFILE
from topoplan_estimator_profile import Options as Prices
from topoplan_frontend_torchgraph import TORCHGRAPH, TorchgraphOptions
from topoplan_searcher_hpgo.layers import layers_of, operator_columns
from topoplan_searcher_hpgo.planning import plan
from topoplan_searcher_pipeline import PipelineOptions
from topoplan_searcher_pipeline.search import plan_pipelines

#: Profile, batch size, seconds of HPGO on H and on F; import included, which counts for gnmt-16 alone.
RELEASED = (
    ("vgg-19-pbs-32", 2048, 1.7, 0.5),
    ("xlnet-36-pbs-1", 128, 4.3, 1.1),
    ("amoeba-36-pbs-1", 128, 4.7, 1.2),
    ("bert-48-pbs-2", 64, 7.5, 2.0),
    ("gnmt-32-pbs-64-simplified", 1024, 9.2, 2.1),
    ("gnmt-16-pbs-64", 1024, 2762.0 + 50.0, 1374.0 + 50.0),
)
MACHINES = {"H": [8, 16], "F": list(range(1, 17))}


def graph_from(path, batch_size):
    return TORCHGRAPH.build(TorchgraphOptions(file=str(path)), batch_size)


def layers_from(path, batch_size):
    graph = graph_from(path, batch_size)
    costs = PROFILE.build(Prices(), graph, Cluster.uniform(n_hosts=1))
    return layers_of(graph, operator_columns(graph, costs), limit=4000, simplify=False)


def problem_from(graph, ends):
    """Return the problem of planning for V100 with NVLink and 25 Gb/s between hosts."""
    cluster = build_cluster(
        ClusterOptions(
            devices=tuple(ends), device="V100", memory_gb=16.0, inter_gpu_bandwidth_gbps=200.0,
            interface_bandwidth_gbps=25.0, degree=1,
        )
    )  # fmt: skip
    costs = PROFILE.build(Prices(), graph, cluster)
    return Problem(
        graph=graph, cluster=cluster, costs=costs, space=Space(graph, cluster, costs), topology="bigswitch",
        build_fabric=lambda demand, rng: None, reconfigurable=False,
    )  # fmt: skip


def fastest(run, times=5):
    """Return the CPU seconds of the fastest of some runs, and what it returned."""
    taken = []
    for _ in range(times):
        started = time.process_time()
        result = run()
        taken.append(time.process_time() - started)
    return min(taken), result


def main(folder):
    print(
        f"{'profile':28}{'machine':>8}{'layers':>8}{'read s':>9}{'hpgo s':>9}{'pipeline s':>12}"
        f"{'HPGO s':>9}{'ratios':>14}  plan of hpgo"
    )
    for name, batch_size, *seconds in RELEASED:
        path = folder / f"{name}.txt"
        if not path.is_file():
            continue
        reading, layers = fastest(lambda path=path, batch_size=batch_size: layers_from(path, batch_size))
        graph = graph_from(path, batch_size)
        for machine, released in zip(MACHINES, seconds, strict=True):
            ends = MACHINES[machine]
            planning, found = fastest(lambda a=layers, b=ends, c=batch_size: plan(a, b, c))
            # A new problem each time, so that no price is remembered; the first run may compile.
            problems = iter([problem_from(graph, ends) for _ in range(6)])
            runs = 2 if layers.count > 1000 else 6
            better, _ = fastest(lambda p=problems: plan_pipelines(PipelineOptions(), next(p)), runs)
            split = found.split if len(found.stages) < 3 else f"{len(found.stages)} stages"
            ratios = f"{released / (reading + planning):.0f}, {released / better:.0f}"
            print(
                f"{name:28}{machine:>8}{layers.count:>8}{reading:>9.4f}{planning:>9.4f}{better:>12.4f}{released:>9.1f}"
                f"{ratios:>14}  {split}, {found.speedup:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
