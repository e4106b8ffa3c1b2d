"""What a person waits for before anything happens, and the seconds of CPU that it takes.

    .venv/bin/python -m pytest benchmarks/test_startup.py --benchmark-only
    .venv/bin/python benchmarks/test_startup.py

The second prints seconds of CPU, user and system, the least of five rounds: a machine that others use tells them
better.  Each command runs in a process of its own, in turn with all others, after a round that compiles and caches.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from topoplan_engine.reporting.tables import markdown_table

MODEL = ["optimize", "alexnet", "--budget", "0"]
COMMANDS = {
    "python alone": ["-c", "pass"],
    "import typer": ["-c", "import typer"],
    "import topoplan": ["-c", "import topoplan"],
    "import numba": ["-c", "import numba"],
    "topoplan --help": ["-m", "topoplan", "--help"],
    "topoplan plugins": ["-m", "topoplan", "plugins"],
    "topoplan simulate alexnet.fbuf": ["-m", "topoplan", "simulate", "alexnet.fbuf"],
    "topoplan optimize alexnet --budget 0": ["-m", "topoplan", *MODEL],
    "topoplan optimize alexnet": ["-m", "topoplan", "optimize", "alexnet"],
    "topoplan optimize dlrm -o preset=dlrm16": ["-m", "topoplan", "optimize", "dlrm", "-o", "preset=dlrm16"],
}
#: Seconds of CPU that a person should not have to wait longer than.
TARGETS = {
    "topoplan --help": 0.15,
    "topoplan simulate alexnet.fbuf": 0.6,
    "topoplan optimize alexnet --budget 0": 0.6,
    "topoplan optimize alexnet": 2.0,
    "topoplan optimize dlrm -o preset=dlrm16": 8.0,
}
_ROUNDS = 5


def run(words: list[str], folder: Path) -> float:
    """Run Python with words in a folder; return the seconds of CPU that it took."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True, env=environment, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_taskgraph(folder: Path) -> None:
    """Write what ``simulate`` reads."""
    run(["-m", "topoplan", *MODEL, "-x", "flatbuffer=alexnet.fbuf"], folder)


@pytest.mark.parametrize("command", COMMANDS)
def test_start(benchmark, tmp_path, command):
    write_taskgraph(tmp_path)
    benchmark.pedantic(run, args=(COMMANDS[command], tmp_path), rounds=5, warmup_rounds=1)


def main() -> None:
    """Print the least seconds of CPU of each command, over those of `import numba`, and its target."""
    least = dict.fromkeys(COMMANDS, float("inf"))
    with tempfile.TemporaryDirectory() as name:
        write_taskgraph(Path(name))
        for number in range(1 + _ROUNDS):
            for command, words in COMMANDS.items():
                seconds = run(words, Path(name))
                if number:
                    least[command] = min(least[command], seconds)
    numba = least["import numba"]
    rows = [
        [f"`{command}`", f"{seconds:.3f}", f"{seconds / numba:.2f}", str(TARGETS.get(command, ""))]
        for command, seconds in least.items()
    ]
    titles = ["command", "CPU s", "over `import numba`", "at most, s"]
    print(markdown_table(titles, rows, numbers=titles[1:]))


if __name__ == "__main__":
    main()
