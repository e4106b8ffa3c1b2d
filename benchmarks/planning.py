"""CPU seconds of planning, beside those of the released HPGO planner.

    .venv/bin/python benchmarks/planning.py FOLDER_WITH_LAYER_PROFILES

Prints for each profile, on two hosts of eight devices (H) and sixteen hosts of one (F): CPU seconds of reading the file
and forming layers, of planning (best of five), those of HPGO 0.9.2 (its wheel on CPython 3.7; for gnmt-16 wall seconds
of one thread), and how many times more that is than both of ours.  Profiles that the folder lacks are left out.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from topoplan import Cluster
from topoplan_estimator_profile import PROFILE
from topoplan_estimator_profile import Options as Prices
from topoplan_frontend_torchgraph import TORCHGRAPH, TorchgraphOptions
from topoplan_searcher_hpgo.layers import layers_of, operator_columns
from topoplan_searcher_hpgo.planning import plan

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


def layers_from(path, batch_size):
    graph = TORCHGRAPH.build(TorchgraphOptions(file=str(path)), batch_size)
    costs = PROFILE.build(Prices(), graph, Cluster.uniform(n_hosts=1))
    return layers_of(graph, operator_columns(graph, costs), limit=4000, simplify=False)


def fastest(run, times=5):
    """Return the CPU seconds of the fastest of some runs, and what it returned."""
    taken = []
    for _ in range(times):
        started = time.process_time()
        result = run()
        taken.append(time.process_time() - started)
    return min(taken), result


def main(folder):
    print(f"{'profile':28}{'machine':>8}{'layers':>8}{'read s':>9}{'plan s':>9}{'HPGO s':>9}{'ratio':>8}  plan")
    for name, batch_size, *seconds in RELEASED:
        path = folder / f"{name}.txt"
        if not path.is_file():
            continue
        reading, layers = fastest(lambda path=path, batch_size=batch_size: layers_from(path, batch_size))
        for machine, released in zip(MACHINES, seconds, strict=True):
            ends = MACHINES[machine]
            planning, found = fastest(lambda a=layers, b=ends, c=batch_size: plan(a, b, c))
            ratio = released / (reading + planning)
            split = found.split if len(found.stages) < 3 else f"{len(found.stages)} stages"
            print(
                f"{name:28}{machine:>8}{layers.count:>8}{reading:>9.4f}{planning:>9.4f}{released:>9.1f}{ratio:>8.0f}"
                f"  {split}, {found.speedup:.4f}"
            )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
