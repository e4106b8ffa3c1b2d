"""How much better than TotientPerms alone a search over the fabric's links is, on the published configurations.

    .venv/bin/python benchmarks/cooptimization.py [--write docs/cooptimization.md]

Six models on 128 servers (`experiments/dedicated-d4.toml`), four and eight interfaces, five bandwidths.  For each,
`mcmc` and `totientperm` search; then the same two go on for as many proposals again, once by themselves and once with
`relink`, from the state that was reached.  So the full search is never slower than its first half.  Finished
cases are kept in ``--runs`` and not run again.  Operators have the times that FlexNet's authors measured.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from topoplan import Choice, ClusterOptions, Experiment, Host, RunOptions
from topoplan.assembly import assemble
from topoplan.interrupt import Stop
from topoplan.network_bounds import fabric_lower_bound
from topoplan.run import Run, Walk, drive, first_state
from topoplan.tomlfiles import read_toml

ROOT = Path(__file__).resolve().parents[1]
DEGREES = (4, 8)
GBPS = (10, 25, 40, 100, 200)
HALF = 60


def experiment_of(model, degree, gbps, seed):
    options = {key: value for key, value in model.items() if key not in ("name", "use", "measured")}
    return Experiment(
        model=Choice(model["use"], options),
        cluster=ClusterOptions(
            servers=128, degree=degree, big_gpu=4, inter_gpu_bandwidth_gbps=200.0, interface_bandwidth_gbps=float(gbps)
        ),
        topology="topoopt",
        estimator=Choice("measured", {"profile": model["measured"]["profile"]}),
        simulator="fluid:memory=ignore",
        searchers=["mcmc", "totientperm", "relink"],
        run=RunOptions(budget=HALF, seed=seed),
    )


def case(host, experiment):
    """Return seconds per iteration: initial, after half of the proposals, and after all of them in both ways."""
    made = assemble(host, experiment)
    rng, (mcmc, totientperm, relink) = made.searches()
    first = first_state(made.evaluator, made.strategy, rng)
    walk, stop = Walk(made.evaluator, first, [mcmc, totientperm]), Stop()
    walk.advance(HALF, stop)
    alone, reached = walk.best.cost, walk.best.state
    walk.advance(HALF, stop)
    _, (mcmc, totientperm, relink) = made.searches(1)
    run = Run(problem=made.problem, budget=HALF, seed=experiment.run.seed, searchers=())
    full = drive(run, made.evaluator, reached, [mcmc, totientperm, relink], np.random.default_rng(0))
    assert full.best_cost <= alone
    plan = made.evaluator.plan(full.best, {})
    bound = fabric_lower_bound(made.evaluator.demand(full.best.strategy), made.problem.cluster)
    return {
        "initial": walk.initial.cost,
        "alone": alone,
        "longer": walk.best.cost,
        "full": full.best_cost,
        "bound": max(bound, plan.timeline.bounds.device),
    }


def page(rows):
    """Return the table as Markdown."""
    gain = np.array([1 - row["full"] / row["alone"] for row in rows])
    beside = np.array([1 - row["full"] / row["longer"] for row in rows])
    above = np.array([row["full"] / row["bound"] - 1 for row in rows])
    lines = [
        "# Co-optimization: TotientPerms, and a local search after it",
        "",
        "Six models on 128 servers of four GPUs, measured operators, "
        "simulator `fluid`, seed 1; milliseconds per iteration.",
        f"*TotientPerms*: `-s mcmc -s totientperm`, {HALF} proposals. *Longer*: the same, {2 * HALF} proposals. "
        f"*With relink*: from where TotientPerms ended, {HALF} proposals with `-s relink` as third searcher. "
        "*Gain*: of *with relink* over *TotientPerms*. *Above bound*: over the time that no wiring of the "
        "interfaces gets below, for the strategy found.",
        "",
        f"Of {len(rows)} cases, the full search is better than TotientPerms by 0.1 % or more in "
        f"{(gain >= 1e-3).sum()}, and worse in {(gain < 0).sum()}; mean gain {gain.mean():.1%}, largest "
        f"{gain.max():.1%}. Against TotientPerms with as many proposals, it is better by as much in "
        f"{(beside >= 1e-3).sum()} and worse in {(beside < 0).sum()}; mean {beside.mean():.1%}. It is "
        f"{np.median(above):.0%} above the bound in the median.",
        "",
        "Where all-reduces over all servers are nearly everything (BERT, CANDLE, VGG16), what is found are fewer rings "
        "of parallel links: a message is whole packets of 8936 bytes in this simulator, as in FlexNetPacket, and "
        "BERT's small ones, cut into eight, fill theirs badly. With transfers (DLRM, NCF) it is other steps of rings, "
        "which shorten the ways of everything else. ResNet50 computes all the time.",
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
    given = parser.parse_args()
    host = Host.discover()
    done = [json.loads(line) for line in given.runs.read_text().splitlines()] if given.runs.exists() else []
    models = read_toml(ROOT / "experiments/dedicated-d4.toml")["model"]
    rows = []
    for model in models:
        for degree in DEGREES:
            for gbps in GBPS:
                key = {
                    "model": model["name"], "degree": degree, "gbps": gbps, "seed": given.seed, "half": HALF,
                }  # fmt: skip
                row = next((old for old in done if key.items() <= old.items()), None)
                if row is None:
                    begin = time.perf_counter()
                    row = {**key, **case(host, experiment_of(model, degree, gbps, given.seed))}
                    row["seconds"] = time.perf_counter() - begin
                    with given.runs.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                rows.append(row)
                print(
                    f"{row['model']:9s} d={degree} {gbps:3d} Gb/s  alone {row['alone'] * 1e3:9.3f} ms  "
                    f"longer {row['longer'] * 1e3:9.3f}  full {row['full'] * 1e3:9.3f}  "
                    f"gain {1 - row['full'] / row['alone']:6.1%}  in {row['seconds']:.1f} s",
                    flush=True,
                )
    if given.write:
        given.write.write_text(page(rows))


if __name__ == "__main__":
    main()
