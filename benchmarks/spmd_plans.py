"""Plans for all devices, simulated: HiDup's, data parallelism, and those of the searcher spmd, beside measured times.

    .venv/bin/python benchmarks/spmd_plans.py
    .venv/bin/python benchmarks/spmd_plans.py --models vit-switch --devices 8,16 --write /tmp/spmd.md

Writes docs/spmd.md: four models on 8, 16, 32 and 64 devices in eight hosts over 10 and 100 Gbps, then the settings of
HiDup's table 4, and what the simulated order and error are beside the times that HiDup's authors measured.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from topoplan import Cluster, Problem, State, TopologyContext, Trial
from topoplan.evaluate import Evaluator
from topoplan.files import write_file
from topoplan.simulate.components import FLUID, FluidOptions
from topoplan.space import Space
from topoplan_estimator_hidup import HIDUP, Options
from topoplan_frontend_bert_sgmoe import BertOptions
from topoplan_frontend_vit_sgmoe import VitOptions
from topoplan_searcher_spmd import SpmdOptions
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_topology_bigswitch import BigSwitchOptions
from topoplan_topology_bigswitch import build as build_switch

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs/spmd.md")
MODELS = ("bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch")
DEVICES = (8, 16, 32, 64)

#: HiDup's rate was fitted to whole iterations; its estimator takes it for the forward pass and adds twice that.
RATE = 3 * Options().device_flops

#: Seconds of an iteration under HiDup, and under the better of DeepSpeed and FastMoE, over about 9.7 Gbps: read off
#: figure 6 of Zhang et al., SoCC 2022, at about a millisecond.
MEASURED = {
    "bert-sgmoe": ((1.112, 1.261, 1.463, 2.091), (1.107, 1.309, 1.706, 2.150)),
    "bert-switch": ((0.868, 0.966, 1.079, 1.427), (0.808, 1.026, 1.268, 1.602)),
    "vit-sgmoe": ((0.344, 0.388, 0.513, 0.796), (0.396, 0.631, 0.828, 1.046)),
    "vit-switch": ((0.265, 0.308, 0.406, 0.557), (0.318, 0.408, 0.558, 0.751)),
}

#: BERT-SGMoE under HiDup: hosts, devices of each, Gbps, seconds of an iteration (table 4).
TABLE_4 = ((1, 8, 100, 0.2972), (2, 4, 100, 0.3985), (2, 4, 30, 0.6657))

HEAD = """# Programs for all devices, simulated

HiDup (Zhang et al., SoCC 2022) plans single programs for all devices; so does the searcher `spmd`, in seconds.  Here
both plans and data parallelism are simulated with all their collectives.  One command writes this page:

    .venv/bin/python benchmarks/spmd_plans.py

- The models are HiDup's with its settings: 32 samples for each device, one expert on each for BERT and two for ViT.
- Eight hosts (V100 of 32 GB, 130 GB/s between two of a host) have one interface each to one ideal switch; a link takes
  10 us.  Compute is priced by the estimator `hidup` with three times its rate, so that a whole iteration takes what
  its rate was fitted to; collectives take what the simulator `fluid` makes of them.
- *hidup*: HiDup's plan under its own prices, which are of one cluster of eight devices, with both micro-batches.
  *data parallel*: every operator cut by samples, gradients summed as soon as they are there.  *spmd*: the best of its
  own plans and these two, which it simulates as well; *by* says whose it is (a mesh, and whether micro-batches overlap
  or the whole batch goes through at once; *ahead*: planned with computation counted for less); *reckoned*: what it
  expected of its own best one.
- *-*: does not fit the memory.  *measured*: HiDup on 8 hosts over about 9.7 Gbps (figure 6), and in brackets the
  better of DeepSpeed and FastMoE.
"""


#: Why the largest rows are so far off.
REMARK = """Where hosts have several devices, simulated times are far above measured ones, and the more so the more
devices share an interface.  The bytes do not admit of less: on 64 devices `vit-switch` exchanges 805 MB among its
experts 16 times in an iteration, which is 1.41 GB out of every host, or 1.13 s at 10 Gbps, twice the whole iteration
that was measured.  So either hosts of the measured cluster could send more than one such interface can, or less was
sent than these models say; which of the two is not known.
"""


def problem_of(model: str, hosts: int, each: int, gbps: float) -> Problem:
    """Return a model on hosts that are joined by one switch."""
    devices = hosts * each
    frontend = importlib.import_module("topoplan_frontend_" + model.replace("-", "_"))
    bert = model.startswith("bert")
    options: Any = BertOptions(world_size=devices, experts=devices) if bert else VitOptions(world_size=devices)
    graph = frontend.build(options, None)
    cluster = Cluster.uniform(
        n_hosts=hosts, devices_per_host=each, device_preset="V100", device_memory=32e9, inside_bandwidth=130e9,
        interfaces=1, interface_bandwidth=gbps * 1e9 / 8, latency=1e-5,
    )  # fmt: skip
    costs = HIDUP.build(Options(device_flops=RATE), graph, cluster)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return Problem(
        graph=graph, cluster=cluster, costs=costs, space=Space(graph, cluster, costs), topology="bigswitch",
        build_fabric=lambda demand, rng: build_switch(BigSwitchOptions(), context), reconfigurable=False,
    )  # fmt: skip


def run(model: str, hosts: int, each: int, gbps: float) -> dict[str, Any]:
    """Plan, simulate and return the searcher's report, with the CPU seconds of everything."""
    started = time.process_time()
    problem = problem_of(model, hosts, each, gbps)
    evaluator = Evaluator(problem, FLUID.build(FluidOptions()), "limit")
    search = SpmdSearch(SpmdOptions(), problem)
    state = State(problem.space.initial(), problem.build_fabric(None, np.random.default_rng(0)))
    search.adopt(Trial(state=state, cost=np.inf, demand=lambda: evaluator.demand(state.strategy)))
    while candidates := search.ask():
        search.tell([evaluator.price(candidate) for candidate in candidates])
    report = dict(search.report())
    report |= {"all": time.process_time() - started}
    simulated = report["simulated_s"]
    best = min(simulated.values())
    assert best <= simulated["hidup"]
    assert best <= simulated["data parallelism"]
    return report | {"best": best}


def row(report: dict[str, Any], *cells: str) -> str:
    """Return a row of a table."""
    simulated = report["simulated_s"]
    shown = [*cells, *(seconds(simulated[name]) for name in ("hidup", "data parallelism"))]
    shown += [f"**{seconds(report['best'])}**", report["chosen"], seconds(report["meshes"][0]["planned_s"])]
    return f"| {' | '.join(shown)} |"


def seconds(value: float) -> str:
    """Show seconds, or that there are none."""
    return f"{value:.3f}" if np.isfinite(value) else "-"


def agreement(pairs: list[tuple[float, float]]) -> str:
    """Say how simulated times are ordered and how far they are off, given (simulated, measured)."""
    couples = list(itertools.combinations(pairs, 2))
    right = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in couples)
    off = [mine / other - 1 for mine, other in pairs]
    return (
        f"{right} of {len(couples)} pairs are in the order that was measured; errors are {np.mean(np.abs(off)):.0%} on "
        f"average, from {min(off):+.0%} to {max(off):+.0%}"
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="of these models")
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)), help="multiples of eight")
    parser.add_argument("--write", type=Path, default=ROOT / PAGE, metavar="PAGE.md", help=f"{PAGE} unless given")
    given = parser.parse_args()
    text, pairs, slowest = [HEAD], [], 0.0
    by_size: dict[int, list[tuple[float, float]]] = {}
    for gbps in (10, 100):
        end = " measured |" if gbps == 10 else ""
        text += [f"## Eight hosts, {gbps} Gbps\n"]
        text += [f"| model | devices | hidup, s | data parallel, s | spmd, s | by | reckoned, s |{end}"]
        text += ["|---|---|---|---|---|---|---|" + ("---|" if end else "")]
        for model in given.models.split(","):
            for devices in map(int, given.devices.split(",")):
                report = run(model, 8, devices // 8, gbps)
                print(gbps, model, devices, report["simulated_s"], f"{report['all']:.1f} s", flush=True)
                slowest = max(slowest, report["all"])
                line = row(report, model, str(devices))
                if end and devices in DEVICES:
                    mine, other = (times[DEVICES.index(devices)] for times in MEASURED[model])
                    line += f" {mine:.3f} ({other:.3f}) |"
                    pairs.append((report["simulated_s"]["hidup"], mine))
                    by_size.setdefault(devices, []).append(pairs[-1])
                text.append(line)
        text.append("")
        if end and pairs:
            text += [f"HiDup's plan, simulated and measured: {agreement(pairs)}.\n"]
            text += [f"- {n} devices: {agreement(those)}." for n, those in by_size.items() if len(those) > 1]
            text += ["", REMARK]
    if "bert-sgmoe" in given.models:
        text += ["## BERT-SGMoE in the settings of table 4\n"]
        text += ["| hosts | devices | Gbps | hidup, s | data parallel, s | spmd, s | by | reckoned, s | measured |"]
        text += ["|---|---|---|---|---|---|---|---|---|"]
        table = []
        for hosts, each, gbps, mine in TABLE_4:
            report = run("bert-sgmoe", hosts, each, gbps)
            text.append(f"{row(report, str(hosts), str(hosts * each), str(gbps))} {mine:.3f} |")
            table.append((report["simulated_s"]["hidup"], mine))
        text += ["", f"{agreement(table)}.".capitalize(), ""]
    text += [f"The slowest row took {slowest:.0f} CPU seconds to plan and simulate."]
    write_file(given.write, ("\n".join(text) + "\n").encode())


if __name__ == "__main__":
    main()
