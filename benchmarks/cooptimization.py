"""How much better than TotientPerms alone a search over the fabric's links is, on the published configurations.

    .venv/bin/python benchmarks/cooptimization.py [--write docs/cooptimization.md]

The models of `experiments/dedicated-d4.toml` on 128 servers, four and eight interfaces, two bandwidths.  For each,
`mcmc` and `totientperm` search; then the same two go on for as many proposals again, once by themselves and once with
`relink`, from the state that was reached.  Times are means over draws of equal paths, by which the last bests are
chosen, as `topoplan optimize` does it; the state that was reached is one of those that the full search chooses from.
Finished cases are kept in ``--runs`` and not run again.  Operators have the times that FlexNet's authors measured.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from topoplan import Host
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions
from topoplan_engine.interrupt import Stop
from topoplan_engine.network.bounds import fabric_lower_bound
from topoplan_engine.search.draws import judge
from topoplan_engine.search.driver import SearchRun
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.search.starting import first_state
from topoplan_engine.tomlfiles import read_toml

ROOT = Path(__file__).resolve().parents[1]
DEGREES = (4, 8)
GBPS = (10, 100)
HALF = 60
#: Twice the standard error, about, of the difference of two means over draws.
CHANCE = 0.007


def experiment_of(model, degree, gbps, seed):
    options = {key: value for key, value in model.items() if key not in ("name", "use", "measured")}
    return Experiment(
        model=Choice(model["use"], options),
        cluster=ClusterOptions(
            servers=128,
            degree=degree,
            gpus_per_device=4,
            inter_gpu_bandwidth_gbps=200.0,
            interface_bandwidth_gbps=float(gbps),
        ),
        topology="topoopt",
        estimator=Choice("measured", {"profile": model["measured"]["profile"]}),
        simulator="fluid:memory=ignore",
        searchers=["mcmc", "totientperm", "relink"],
        run=RunOptions(budget=HALF, seed=seed),
    )


def judged(evaluator, search_run, start):
    """Choose among the last best states of a search run and ``start`` by their means over draws of paths."""
    shortlist, _ = search_run.shortlist()
    return judge(evaluator, shortlist, start, None, constructed=False, stop=Stop())


def case(host, experiment):
    """Return seconds per iteration: initial, after half of the proposals, and after all of them in both ways."""
    made = set_up_search(host, experiment)
    evaluator = made.evaluator
    rng, (mcmc, totientperm, relink) = made.searches()
    search_run = SearchRun(evaluator, first_state(evaluator, made.strategy, rng), [mcmc, totientperm])
    search_run.advance(HALF, Stop())
    alone = judged(evaluator, search_run, search_run.shortlist_entry(search_run.initial))
    search_run.advance(HALF, Stop())
    longer = judged(evaluator, search_run, alone.plan.entry)
    _, (mcmc, totientperm, relink) = made.searches(1)
    further = SearchRun(evaluator, alone.plan.entry.state, [mcmc, totientperm, relink])
    further.advance(HALF, Stop())
    full = judged(evaluator, further, further.shortlist_entry(further.initial))
    assert full.plan.cost <= full.initial.cost  # which is what TotientPerms reached, under as many draws
    state = full.plan.entry.state
    plan = evaluator.plan(state, {})
    bound = fabric_lower_bound(evaluator.demand(state.strategy), made.problem.cluster)
    return {
        "initial": alone.initial.cost,
        "alone": full.initial.cost,
        "longer": longer.plan.cost,
        "full": full.plan.cost,
        "bound": max(bound, plan.timeline.bounds.device),
        "draws": len(full.plan.draws.seeds),
        "error": max(one.draws.error / one.draws.mean for one in (full.initial, full.plan, longer.plan)),
    }


def page(rows):
    """Return the table as Markdown."""
    gain = np.array([1 - row["full"] / row["alone"] for row in rows])
    beside = np.array([1 - row["full"] / row["longer"] for row in rows])
    above = np.array([row["full"] / row["bound"] - 1 for row in rows])
    chance = sum(row["draws"] > 0 and 1e-3 <= one < CHANCE for row, one in zip(rows, gain, strict=True))
    lines = [
        "# Co-optimization: TotientPerms, and a local search after it",
        "",
        "This page shows how much a local search over the links of the fabric improves the result of TopoOpt's "
        f"TotientPerms. Settings: {', '.join(dict.fromkeys(row['model'] for row in rows))} on 128 servers of four "
        "GPUs, measured operators, simulator `fluid`, seed 1. Times are milliseconds per iteration.",
        "",
        f"- *TotientPerms*: `-s mcmc -s totientperm`, {HALF} proposals.",
        f"- *longer*: the same searchers, {2 * HALF} proposals.",
        f"- *with relink*: {HALF} further proposals from the result of TotientPerms, with `-s relink` as third "
        "searcher.",
        "- *gain*: *with relink* compared with *TotientPerms*.",
        "- *above bound*: *with relink* compared with the lower bound on the time of its strategy over all wirings of "
        "the interfaces.",
        "",
        "Each message draws one of its equally short paths. Every time is therefore a mean over draws that no search "
        f"has used: at least {min((row['draws'] for row in rows if row['draws']), default=0)}, and enough that the "
        f"standard error is {max(row['error'] for row in rows):.2%} at most. A difference of {CHANCE:.1%} between two "
        f"such means may be chance. In {sum(not row['draws'] for row in rows)} cases no message has several paths, and "
        "every draw gives the same time.",
        "Each search returns the state with the best mean among its last best states and its initial state. No result "
        "is therefore slower than the initial state by more than the error of the means.",
        "",
        f"There are {len(rows)} cases. The full search is better than TotientPerms by 0.1 % or more in "
        f"{(gain >= 1e-3).sum()} of them (in {chance} of these the difference may be chance), and worse in "
        f"{(gain < 0).sum()}. The mean gain is {gain.mean():.1%}, the largest {gain.max():.1%}. Compared with "
        f"TotientPerms with equally many proposals, it is better by 0.1 % or more in {(beside >= 1e-3).sum()} cases "
        f"and worse in {(beside < 0).sum()}. The mean gain is {beside.mean():.1%}. The median distance from the bound "
        f"is {np.median(above):.0%}.",
        "",
        "If all-reduces over all servers dominate (BERT, CANDLE, VGG16), there is nothing to find: on the wire, rings "
        "of all offsets carry the same bytes. With FlexNetPacket's transport, whose messages consist of whole packets, "
        "fewer rings of parallel links were up to 18 % faster for BERT. If there are transfers (DLRM), the search "
        "finds other ring offsets, which shorten the paths of the transfers. ResNet50 is bound by computation.",
        "",
        "Made by `benchmarks/cooptimization.py`.",
        "",
        "| model | interfaces | Gb/s | initial | TotientPerms | longer | with relink | gain | above bound |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        times = " | ".join(f"{row[key] * 1e3:.4g}" for key in ("initial", "alone", "longer", "full"))
        lines.append(
            f"| {row['model']} | {row['degree']} | {row['gbps']} | {times} "
            f"| {1 - row['full'] / row['alone']:.1%} | {row['full'] / row['bound'] - 1:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path)
    parser.add_argument("--runs", type=Path, default=Path(".topoplan-cooptimization.jsonl"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", help="of these models")
    parser.add_argument("--degrees", default=",".join(map(str, DEGREES)))
    parser.add_argument("--gbps", default=",".join(map(str, GBPS)))
    given = parser.parse_args()
    host = Host.discover()
    done = [json.loads(line) for line in given.runs.read_text().splitlines()] if given.runs.exists() else []
    models = read_toml(ROOT / "experiments/dedicated-d4.toml")["model"]
    names = given.models.split(",") if given.models else [model["name"] for model in models]
    rows = []
    for model in (model for model in models if model["name"] in names):
        for degree in map(int, given.degrees.split(",")):
            for gbps in map(int, given.gbps.split(",")):
                key = {
                    "model": model["name"],
                    "degree": degree,
                    "gbps": gbps,
                    "seed": given.seed,
                    "half": HALF,
                }
                row = next((old for old in done if key.items() <= old.items() and "draws" in old), None)
                if row is None:
                    begin = time.process_time()
                    row = {**key, **case(host, experiment_of(model, degree, gbps, given.seed))}
                    row["seconds"] = time.process_time() - begin
                    with given.runs.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                rows.append(row)
                print(
                    f"{row['model']:9s} d={degree} {gbps:3d} Gb/s  alone {row['alone'] * 1e3:9.3f} ms  "
                    f"longer {row['longer'] * 1e3:9.3f}  full {row['full'] * 1e3:9.3f}  "
                    f"gain {1 - row['full'] / row['alone']:6.1%}  in {row['seconds']:.1f} CPU s",
                    flush=True,
                )
    if given.write:
        given.write.write_text(page(rows))


if __name__ == "__main__":
    main()
