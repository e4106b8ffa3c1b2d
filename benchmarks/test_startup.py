"""What a person waits for before anything happens.

    .venv/bin/python -m pytest benchmarks/test_startup.py --benchmark-only

To beat: `topoplan --help` in 0.4 s.  Each command runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = {
    "python alone": ["-c", "pass"],
    "import topoplan": ["-c", "import topoplan"],
    "topoplan --help": ["-c", "from topoplan.cli import main; main(['--help'])"],
    "topoplan plugins": ["-c", "from topoplan.cli import main; main(['plugins'])"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_start(benchmark, command):
    words = [sys.executable, *COMMANDS[command]]
    benchmark.pedantic(lambda: subprocess.run(words, check=True, capture_output=True), rounds=5, warmup_rounds=1)
