"""How much of two cores a study uses: two worker processes beside one, on the same runs.

    .venv/bin/python benchmarks/executors.py                 # 40 runs each way
    .venv/bin/python benchmarks/executors.py --runs 200

A run is AlexNet on four servers with 300 proposals.  Each worker first does one run that does not count, which loads
kernels.  Efficiency of two workers is the product of two shares, neither of which depends on what other programs take
of the machine:

- *work*: CPU seconds of the runs with one worker over those with two: what it costs that caches and memory are shared;
- *busy*: the share of time, from the first run's begin to the last one's end, in which workers had a run.  A worker
  that waits for the first process, or has nothing left to do, is idle.

*overhead* is CPU seconds of the first process over those of the runs.
"""

from __future__ import annotations

import argparse
import os
import time

from topoplan import Host
from topoplan_engine import ClusterOptions, Experiment, RunOptions
from topoplan_engine.executors import Processes, run_jobs
from topoplan_engine.reporting.tables import markdown_table
from topoplan_studies.measure import measure

#: Process, begin and end by the clock that processes share, and CPU seconds of a run.
Span = tuple[int, float, float, float]


def timed(host: Host, experiment: Experiment) -> Span:
    """Run an experiment in a worker, and return when, and what it took."""
    begin, before = time.monotonic(), time.process_time()
    measure(host, experiment)
    return os.getpid(), begin, time.monotonic(), time.process_time() - before


def experiment(seed: int) -> Experiment:
    """Return one of the runs."""
    return Experiment(
        model="alexnet",
        cluster=ClusterOptions(servers=4),
        searchers="mcmc",
        run=RunOptions(batch_size=64, budget=300, seed=seed),
    )


def measured(host: Host, count: int, workers: int) -> tuple[float, float, float]:
    """Return CPU seconds of ``count`` runs, the busy share of workers, and CPU seconds of this process."""
    spans: list[Span] = []
    jobs = [experiment(seed) for seed in range(count + workers)]
    before = time.process_time()
    names = [f"run {number}" for number in range(len(jobs))]
    run_jobs(host, timed, jobs, names, Processes(workers=workers), lambda number, span: spans.append(span))
    own = time.process_time() - before
    spans.sort(key=lambda span: span[1])
    of_process = {process: [span for span in spans if span[0] == process][1:] for process, *_ in spans}
    counted = [span for of_one in of_process.values() for span in of_one]
    begin = max(of_one[0][1] for of_one in of_process.values())
    end = max(span[2] for span in counted)
    busy = sum(max(0.0, span[2] - max(span[1], begin)) for span in counted) / (workers * (end - begin))
    return sum(span[3] for span in counted), busy, own


def main() -> None:
    """Print a row for one worker and one for two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    count = parser.parse_args().runs
    host = Host.discover()
    one, busy_one, own_one = measured(host, count, 1)
    two, busy_two, own_two = measured(host, count, 2)
    rows = [
        [str(workers), f"{cpu:.2f}", f"{one / cpu:.3f}", f"{busy:.3f}", f"{one / cpu * busy:.3f}", f"{own / cpu:.1%}"]
        for workers, cpu, busy, own in ((1, one, busy_one, own_one), (2, two, busy_two, own_two))
    ]
    print(markdown_table(["workers", f"CPU s of {count} runs", "work", "busy", "efficiency", "overhead"], rows))


if __name__ == "__main__":
    main()
