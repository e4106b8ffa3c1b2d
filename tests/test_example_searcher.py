"""The searcher under examples/ is about forty lines, and its own tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "annealing"
MODULE = FOLDER / "src" / "topoplan_searcher_annealing" / "__init__.py"


def test_it_is_short():
    lines = [line for line in MODULE.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 45


@pytest.mark.slow
def test_its_own_tests_pass():
    tested = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            str(FOLDER / "tests"),
        ],
        cwd=FOLDER,
        env={**os.environ, "PYTHONPATH": str(FOLDER / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
