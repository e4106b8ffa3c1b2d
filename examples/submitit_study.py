"""A study on a Slurm cluster by submitit: every job takes runs from one folder until none is left.

    pip install submitit
    python examples/submitit_study.py            # Slurm, or processes of this machine where there is none
    python examples/submitit_study.py --jobs 20

All jobs are the same function; they share the work through the folder of runs (docs/guides/past_one_machine.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import submitit

from topoplan_studies import compare

STUDY: dict[str, Any] = {
    "budget": 20,
    "seeds": [1, 2],
    "searcher": [{"use": "mcmc"}],
    "cluster": {"servers": 2},
    "model": [{"use": "alexnet", "batch-size": 64}],
    "network": [{"name": "switch", "use": "bigswitch"}, {"name": "cables", "use": "fully-connected"}],
}


def participate() -> list[tuple[str, float]]:
    """Run what no other job runs, wait for the rest, and return the median times."""
    report = compare(STUDY, runs="runs")
    return [(result.network, result.time.median) for result in report.results]


def main(words: Sequence[str] | None = None) -> None:
    """Submit the jobs, and print what the first one reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cluster", default=None, help="slurm or local; unset: Slurm, if there is one")
    arguments = parser.parse_args(words)
    executor = submitit.AutoExecutor(folder="logs", cluster=arguments.cluster)
    executor.update_parameters(timeout_min=60, cpus_per_task=1)
    jobs = [executor.submit(participate) for _ in range(arguments.jobs)]
    reports = [job.result() for job in jobs]
    assert all(report == reports[0] for report in reports)
    for network, seconds in reports[0]:
        print(f"{network}: {seconds * 1e3:.4f} ms")


if __name__ == "__main__":
    main()
