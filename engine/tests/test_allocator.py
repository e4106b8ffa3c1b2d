"""Memory that a simulation frees is there for the next one: the system clears no page twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from topoplan_engine.kernels.allocator import keep_freed_memory

FAULTS = """
import resource
import numpy as np
from topoplan_engine.kernels.allocator import keep_freed_memory
keep_freed_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(SIZE // 8) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(*[faults() for _ in range(3)])
"""


@pytest.mark.skipif(sys.platform == "win32" or not keep_freed_memory(), reason="the C library is not glibc")
@pytest.mark.parametrize("mebibytes", [1, 64])  # the second is above the largest threshold that glibc takes
def test_no_page_is_cleared_twice(mebibytes):
    code = FAULTS.replace("SIZE", f"({mebibytes} << 20)")
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    first, *later = map(int, ended.stdout.split())
    assert first >= 3  # huge pages, or one for each 4 KiB
    assert max(later) <= first // 20
