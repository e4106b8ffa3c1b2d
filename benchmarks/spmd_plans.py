"""Simulated SPMD programs: HiDup's, data parallelism, and those of the searcher spmd, compared with measured times.

    .venv/bin/python benchmarks/spmd_plans.py
    .venv/bin/python benchmarks/spmd_plans.py --models vit-switch --devices 8,16 --write /tmp/spmd.md

Writes docs/spmd.md: four models on 8, 16, 32 and 64 devices in eight hosts over 10 and 100 Gbps, the settings of
HiDup's table 4, what the simulated order and error are beside the times that HiDup's authors measured, and what the
axes of a mesh are worth.  The section of docs/results.md with measured times is written, too.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np

from topoplan import Cluster, Problem, State, Trial
from topoplan_engine import problem_on
from topoplan_engine.files import read_file, write_file
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_row
from topoplan_engine.search.evaluator import Evaluator
from topoplan_estimator_hidup import Hidup
from topoplan_frontend_hidup import BertSgmoe, BertSwitch, VitSgmoe, VitSwitch
from topoplan_searcher_spmd import Spmd
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_simulator_fluid import Fluid
from topoplan_topology_bigswitch import BigSwitch

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs/spmd.md")
RESULTS = Path("docs/results.md")
MODELS = ("bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch")
DEVICES = (8, 16, 32, 64)

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

#: BERT-SGMoE whose meshes are all simulated: hosts, devices of each, Gbps, experts.
LARGE = ((8, 8, 10, 64), (8, 8, 10, 8))

AXES = """## Comparison of mesh axes

BERT-SGMoE with one expert on each device, and with eight experts. Every mesh is planned to the end and simulated. Each
column shows the best mesh of its kind.

| hosts x devices | Gbps | experts | flat, s | data x model, s | expert and model, s | all three, s |
|---|---|---|---|---|---|---|"""

SECTION = """## SPMD programs, compared with measured times

    .venv/bin/python benchmarks/spmd_plans.py

Repeats: HiDup (Zhang et al., SoCC 2022), figure 6 and table 4: plans of one SPMD program, measured by the
authors on V100s.  The table shows simulated times of HiDup's plan and of the plan of the searcher `spmd`. [The page on
SPMD programs](spmd.md) has the assumptions, further comparisons, and why large clusters are slower than measured.

| setting | measured (HiDup), s | hidup, simulated, s | error | spmd, simulated, s |
|---|---|---|---|---|"""

HEAD = """# SPMD programs, simulated

HiDup (Zhang et al., SoCC 2022) plans SPMD programs. The searcher `spmd` also plans SPMD programs, within seconds. This
page compares simulated iteration times of both plans and of data parallelism. The simulations include all collectives.
One command writes the page:

    .venv/bin/python benchmarks/spmd_plans.py

- **Models.** HiDup's models with its settings: 32 samples for each device, one expert on each device for BERT and two
  for ViT.
- **Cluster.** Eight hosts with V100 of 32 GB, 130 GB/s between two devices of a host. Each host has one interface to
  one ideal switch. A link has a latency of 10 us.
- **Prices.** The estimator `hidup` with its defaults prices compute so that a whole iteration takes the time that HiDup
  measured. The simulator `fluid` times the collectives.
- *hidup*: HiDup's plan with both micro-batches, planned by its own objective with bandwidths of this cluster.
- *data parallel*: every operator is cut by samples, and gradients are summed as soon as they are ready.
- *spmd*: the fastest of the searcher's own plans and the two above, which it also simulates (`--keep fastest`).
- *by*: the origin of that plan. It names the mesh, outermost axis first. *two-microbatch* means that two micro-batches
  overlap, *whole batch* that the batch is not divided. *ahead* means that the search counted compute time for less.
- *estimated*: the searcher's estimate for its own best plan, before the simulation.
- *-*: the plan does not fit into memory. Adam stores two moments of each weight.
- *measured*: HiDup's measurement on 8 hosts over about 9.7 Gbps (figure 6), with the better of DeepSpeed and FastMoE in
  brackets.
"""


#: Why the largest rows have large errors.
REMARK = """If hosts have several devices, simulated times are far above measured times. The gap grows with the number
of devices that share an interface. The number of bytes explains it: on 64 devices `vit-switch` exchanges 805 MB among
its experts 16 times in an iteration. Every host sends 1.41 GB, which takes 1.13 s at 10 Gbps, twice the measured
iteration. So either hosts of the measured cluster had more bandwidth than one such interface, or the measured
programs sent less than these models do. Which of the two is true is not known.
"""


#: Why programs that gather parameters again are slower over slow links than those that keep them; {} takes seconds.
KEPT = """The plan of the last row gathers parameters again for the backward pass. By hand: the first gradients are
ready after 0.149 s (0.098 s of forward pass, 0.051 s of the head's backward pass), each host sends 960 MB of them,
which takes 0.256 s at 30 Gbps, and 95 sums wait 40 us each for latencies. That is 0.409 s, if the link is never idle.
It is idle for 0.071 s: a program has one stream of collectives ([0031](decisions/0031-two-streams.md)), in which sums
between hosts wait for gathers and exchanges inside hosts, and these for computation. Programs that keep what they
gather (`-s spmd:gathered=kept`, which takes more memory) leave it idle for 0.005 s, and take {} s.
"""


def problem_of(model: str, hosts: int, each: int, gbps: float, experts: int | None = None) -> Problem:
    """Return a model on hosts that are joined by one switch."""
    devices = hosts * each
    (frontend,) = (f for f in (BertSgmoe, BertSwitch, VitSgmoe, VitSwitch) if f.name == model)
    bert = model.startswith("bert")
    more: Any = {"experts": experts or devices} if bert else {}
    graph = frontend(world_size=devices, **more).build(None)
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=each,
        device_preset="V100",
        device_memory=32e9,
        inside_bandwidth=130e9,
        interfaces=1,
        interface_bandwidth=gbps * 1e9 / 8,
        latency=1e-5,
    )
    costs = Hidup().build(graph, cluster)
    return problem_on(graph, cluster, costs, BigSwitch())


def run(
    model: str,
    hosts: int,
    each: int,
    gbps: float,
    *,
    experts: int | None = None,
    shortlist: int = 3,
    gathered: Literal["again", "kept"] = "again",
) -> dict[str, Any]:
    """Plan, simulate and return the searcher's report, with the CPU seconds of everything."""
    started = time.process_time()
    problem = problem_of(model, hosts, each, gbps, experts)
    evaluator = Evaluator(problem, Fluid().build(), "limit")
    search = SpmdSearch(Spmd(shortlist=shortlist, gathered=gathered), problem)
    state = State(problem.space.initial(), problem.build_fabric(None, np.random.default_rng(0)))
    search.adopt(Trial(state=state, cost=np.inf, demand=lambda: evaluator.demand(state.strategy)))
    while candidates := search.ask():
        search.tell([evaluator.price(attrs.evolve(candidate, cutoff_seconds=np.inf)) for candidate in candidates])
    report = dict(search.report(None))
    report |= {"all": time.process_time() - started}
    # What a searcher compares with and what does not fit has no time in its report.
    report["simulated_s"] = simulated = {"hidup": np.inf, "data parallelism": np.inf} | report["simulated_s"]
    best = min(simulated.values())
    assert best <= simulated["hidup"]
    assert best <= simulated["data parallelism"]
    return report | {"best": best}


def row(report: dict[str, Any], *cells: str) -> str:
    """Return a row of a table."""
    simulated = report["simulated_s"]
    shown = [*cells, *(seconds(simulated[name]) for name in ("hidup", "data parallelism"))]
    shown += [f"**{seconds(report['best'])}**", report["chosen"], seconds(report["meshes"][0]["planned_s"])]
    return markdown_row(shown)


def by_axes(simulated: Mapping[str, float]) -> list[float]:
    """Return the least seconds of plans on flat meshes, on (data, model), on two axes with experts, and on three."""
    kinds: dict[tuple[int, bool], list[float]] = {}
    for name, value in simulated.items():
        if name not in ("initial strategy", "hidup", "data parallelism"):
            kinds.setdefault((name.count(" x "), "expert" in name), []).append(value)
    return [min(kinds.get(kind, [np.inf])) for kind in ((0, False), (1, False), (1, True), (2, True))]


def seconds(value: float) -> str:
    """Show seconds, or that there are none."""
    return f"{value:.3f}" if np.isfinite(value) else "-"


def measured_row(setting: str, hidup: float, measured: float, best: float) -> str:
    """Return a row that has simulated seconds beside measured ones."""
    return markdown_row([setting, f"{measured:.3f}", f"{hidup:.3f}", f"{hidup / measured - 1:+.0%}", f"{best:.3f}"])


def agreement(pairs: list[tuple[float, float]]) -> str:
    """Say how simulated times are ordered and how far they are off, given (simulated, measured)."""
    couples = list(itertools.combinations(pairs, 2))
    right = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in couples)
    off = [mine / other - 1 for mine, other in pairs]
    return (
        f"{right} of {len(couples)} pairs are in the measured order; errors are {np.mean(np.abs(off)):.0%} on "
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
    beside: list[tuple[str, float, float, float]] = []
    by_size: dict[int, list[tuple[float, float]]] = {}
    for gbps in (10, 100):
        end = " measured |" if gbps == 10 else ""
        text += [f"## Eight hosts, {gbps} Gbps\n"]
        text += [f"| model | devices | hidup, s | data parallel, s | spmd, s | by | estimated, s |{end}"]
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
                    beside.append((f"{model}, {devices} devices in 8 hosts, 10 Gbps", *pairs[-1], report["best"]))
                    by_size.setdefault(devices, []).append(pairs[-1])
                text.append(line)
        text.append("")
        if end and pairs:
            text += [f"HiDup's plan, simulated and measured: {agreement(pairs)}.\n"]
            text += [f"- {n} devices: {agreement(those)}." for n, those in by_size.items() if len(those) > 1]
            text += ["", REMARK]
    table: list[tuple[float, float]] = []
    if "bert-sgmoe" in given.models:
        text += ["## BERT-SGMoE in the settings of table 4\n"]
        text += ["| hosts | devices | Gbps | hidup, s | data parallel, s | spmd, s | by | estimated, s | measured |"]
        text += ["|---|---|---|---|---|---|---|---|---|"]
        for hosts, each, gbps, mine in TABLE_4:
            report = run("bert-sgmoe", hosts, each, gbps)
            text.append(f"{row(report, str(hosts), str(hosts * each), str(gbps))} {mine:.3f} |")
            table.append((report["simulated_s"]["hidup"], mine))
            beside.append((f"bert-sgmoe, 8 devices in {hosts} hosts, {gbps} Gbps", *table[-1], report["best"]))
        kept = run("bert-sgmoe", *TABLE_4[-1][:3], gathered="kept")
        text += ["", f"{agreement(table)}.".capitalize(), "", KEPT.format(seconds(kept["best"]))]
    if "bert-sgmoe" in given.models:
        text += [AXES]
        for hosts, each, gbps, experts in LARGE:
            report = run("bert-sgmoe", hosts, each, gbps, experts=experts, shortlist=1000)
            least = by_axes(report["simulated_s"])
            shown = [f"**{seconds(one)}**" if one == min(least) else seconds(one) for one in least]
            text.append(markdown_row([f"{hosts} x {each}", str(gbps), str(experts), *shown]))
            print(hosts, each, gbps, experts, least, flush=True)
        text.append("")
    text += [f"The slowest row of the tables of eight hosts took {slowest:.0f} CPU seconds to plan and simulate."]
    text += ["", "[What one device or one host for all saves](speed.md#spmd-programs-one-task-for-all-that-are-equal)."]
    write_file(given.write, ("\n".join(text) + "\n").encode())
    if given.write == ROOT / PAGE and len(pairs) == len(MODELS) * len(DEVICES):
        told = [f"Figure 6: {agreement(pairs)}.  Up to 16 devices: {agreement(by_size[8] + by_size[16])}.\n"]
        told += [f"Table 4: {agreement(table)}.\n"]
        body = "\n".join([SECTION, *(measured_row(*row) for row in beside), "", *told])
        page = read_file(ROOT / RESULTS).decode()
        write_file(ROOT / RESULTS, replace_section(page, "spmd", body, str(RESULTS)).encode())


if __name__ == "__main__":
    main()
