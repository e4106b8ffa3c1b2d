"""Searchers side by side on the standard benchmark problems: where they end, and how soon they are where `mcmc` ends.

    .venv/bin/python benchmarks/searchers.py --runs runs.jsonl
    .venv/bin/python benchmarks/searchers.py --problems alexnet-switch,vgg-19-pipeline --budget 100 --seeds 2

Every search is one call of `optimize`, with the budget in evaluations and a seed; the first table has medians over the
seeds of what it returns: the mean iteration time of its plan, over draws of equal paths that it has not seen, and in
the last column who is the best.  The second one has the evaluations after which half of the seeds are there: the best
cost that a search knows, one draw each, is at most the median of what `mcmc` knows at its end; ``-`` where most seeds
never are.  Searches that are in the file of ``--runs`` are read from it, so that an interrupted benchmark goes on; a
search that refuses a problem is in no median.

``topoplan compare --problems`` has the statistics of the same searches: spread, significance, ranks.  This benchmark
runs what draws nothing with one seed, leaves out problems marked large, and keeps the CPU seconds of each search.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path

import beside
from topoplan import Host, TopoplanError
from topoplan_engine import optimize
from topoplan_engine.reporting.tables import markdown_row
from topoplan_studies.problems import named_problems, standard_problems

SEARCHERS = ("mcmc", "anneal", "cem", "random", "spmd", "pipeline", "auto")
#: Searchers that draw nothing, so that one seed tells all.
CERTAIN = ("spmd", "pipeline", "hpgo", "hidup")
BASE = "mcmc"


def searched(host, problem, searcher, budget, seed):
    """Search; return one JSON row."""
    row = {"problem": problem.name, "searcher": searcher, "budget": budget, "seed": seed}
    begun = time.process_time()
    try:
        with warnings.catch_warnings(action="ignore"):
            outcome = optimize(problem.experiment(searcher.split("+"), budget=budget, seed=seed), host=host)
    except TopoplanError as error:
        return {**row, "refused": str(error)}
    history = [[entry[0], entry[-1]] for entry in outcome.result.history.tolist()]
    taken = time.process_time() - begun
    return {**row, "initial_s": outcome.initial_seconds, "final_s": outcome.seconds, "history": history, "cpu_s": taken}


def all_rows(problems, searchers, budget, seeds, path):
    """Return the rows of all searches, those in the file first; new ones are added to it."""
    host, rows = Host.discover(), {}
    for line in path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []:
        row = json.loads(line)
        rows[row["problem"], row["searcher"], row["budget"], row["seed"]] = row
    chosen = []
    for seed in seeds:
        for problem in problems:
            for searcher in searchers:
                if seed and searcher in CERTAIN:
                    continue
                key = (problem.name, searcher, budget, seed)
                if key not in rows:
                    rows[key] = searched(host, problem, searcher, budget, seed)
                    if path:
                        with path.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(rows[key]) + "\n")
                chosen.append(rows[key])
    return chosen


def evaluations_until(row, cost):
    """Return how many evaluations a search needed to know a state of at most this cost; infinite if it never did."""
    return next((count for count, known in row["history"] if known <= cost * (1 + 1e-9)), float("inf"))


def known_at_end(rows):
    """Return the median of the best costs that searches know at their ends."""
    return statistics.median(row["history"][-1][1] for row in rows)


def tables(rows, problems, searchers):
    """Return the lines of both tables."""
    finals = [beside.table(["problem", "start", *searchers, "best"], [])]
    counts = [beside.table(["problem", *searchers, f"{BASE} / auto"], [])]
    for problem in problems:
        of_problem = [row for row in rows if row["problem"] == problem.name and "refused" not in row]
        by_searcher = {name: [row for row in of_problem if row["searcher"] == name] for name in searchers}
        by_searcher = {name: found for name, found in by_searcher.items() if found}
        if not by_searcher:
            continue
        medians = {name: statistics.median(row["final_s"] for row in found) for name, found in by_searcher.items()}
        least = min(medians.values())
        best = ", ".join(name for name, seconds in medians.items() if seconds <= least * (1 + 1e-9))
        cells = [f"{medians[name] * 1e3:.4g}" if name in medians else "-" for name in searchers]
        finals.append(markdown_row([problem.name, f"{of_problem[0]['initial_s'] * 1e3:.4g}", *cells, best]))
        if BASE in by_searcher:
            target = known_at_end(by_searcher[BASE])
            until = {n: statistics.median_low(evaluations_until(r, target) for r in f) for n, f in by_searcher.items()}
            cells = [f"{until[n]:.0f}" if until.get(n, float("inf")) < float("inf") else "-" for n in searchers]
            ratio = f"{until[BASE] / until['auto']:.1f}" if until.get("auto", float("inf")) < float("inf") else "-"
            counts.append(markdown_row([problem.name, *cells, ratio]))
    return ["Median iteration time, ms", "", *finals, "", f"Evaluations to the median end of {BASE}", "", *counts]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", default="standard", help="names, kinds, or standard; those marked large left out")
    parser.add_argument(
        "--searchers", default=",".join(SEARCHERS), help="with a plus sign between those that take turns"
    )
    parser.add_argument("--budget", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 0 on")
    parser.add_argument("--runs", type=Path, help="file of searches that are done, one JSON row a line")
    given = parser.parse_args()
    large = {problem.name for problem in standard_problems() if problem.large}
    names = given.problems.split(",")
    problems = [p for p in named_problems(names) if p.name in names or p.name not in large]
    searchers = given.searchers.split(",")
    rows = all_rows(problems, searchers, given.budget, range(given.seeds), given.runs)
    print(f"{given.budget} evaluations, {given.seeds} seeds.\n")
    print("\n".join(tables(rows, problems, searchers)))


if __name__ == "__main__":
    main()
