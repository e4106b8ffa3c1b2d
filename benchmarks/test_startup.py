"""What a person waits for before anything happens, and the seconds of CPU that it takes.

    .venv/bin/python -m pytest benchmarks/test_startup.py --benchmark-only
    .venv/bin/python benchmarks/test_startup.py

The second prints seconds of CPU, user and system, the least of five runs: a machine that others use tells them better.
To beat: `topoplan --help` in 0.15 s, a warm `topoplan optimize alexnet --budget 0` in 0.6 s.  Each command runs in a
process of its own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

MAIN = "from topoplan.cli import main; main({})"
COMMANDS = {
    "python alone": ["-c", "pass"],
    "import typer": ["-c", "import typer"],
    "import topoplan": ["-c", "import topoplan"],
    "import numba": ["-c", "import numba"],
    "topoplan --help": ["-c", MAIN.format(["--help"])],
    "topoplan plugins": ["-c", MAIN.format(["plugins"])],
    "topoplan optimize alexnet --budget 0": ["-c", MAIN.format(["optimize", "alexnet", "--budget", "0"])],
}
_RUNS = 5


@pytest.mark.parametrize("command", COMMANDS)
def test_start(benchmark, command):
    words = [sys.executable, *COMMANDS[command]]
    benchmark.pedantic(lambda: subprocess.run(words, check=True, capture_output=True), rounds=5, warmup_rounds=1)


def cpu_seconds(words: list[str]) -> float:
    """Return the least CPU time of some runs, after one that fills caches."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(1 + _RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, capture_output=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times[1:])


if __name__ == "__main__":
    for name, arguments in COMMANDS.items():
        print(f"{cpu_seconds([sys.executable, *arguments]):6.3f} s  {name}", flush=True)
