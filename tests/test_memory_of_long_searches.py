"""A search of 200,000 evaluations needs no more memory than one of 20,000."""

from __future__ import annotations

import subprocess
import sys

import pytest

SEARCH = """
import os
from pathlib import Path
from topoplan_engine import optimize

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

pages = {}

def note(event, progress):
    for count in (20_000, 200_000):
        if progress.evaluations >= count:
            pages.setdefault(count, resident())

outcome = optimize("alexnet", searchers="mcmc", servers=4, batch_size=64, budget=200_001, on_progress=note)
assert outcome.result.evaluations > 200_000
print(pages[20_000], pages[200_000])
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the system for resident pages")
def test_memory_is_flat():
    ended = subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    early, late = map(int, ended.stdout.split())
    assert late - early < 8 << 20, f"{early} bytes after 20,000 evaluations, {late} after 200,000"
