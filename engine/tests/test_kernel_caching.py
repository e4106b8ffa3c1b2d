"""Compiled kernels are taken from their package, then from this machine, and compiled where neither fits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MODULES = {
    "__init__.py": "",
    "parts.py": """
from topoplan_engine.kernels.jit import inline_kernel
OFFSET = 1
@inline_kernel
def moved(value):
    return value + OFFSET
""",
    "sums.py": """
from typing import NamedTuple
from topoplan_little.parts import moved
from topoplan_engine.kernels.jit import kernel
class Pair(NamedTuple):
    left: int
    right: int
@kernel
def difference(pair):
    return moved(pair.left) - pair.right
""",
}
CALL = """
from topoplan_engine.kernels.jit import on_compilation
with on_compilation(lambda: print("compiling", end=" ")):
    from topoplan_little.sums import Pair, difference
    print(difference(Pair(7, 3)))
"""
SHIP = "from topoplan_engine.kernels.caching import shipping\nwith shipping():\n" + "".join(
    f"    {line}\n" for line in CALL.strip().splitlines()
)
#: Needs SciPy's linear algebra.
PRODUCT = """
import numba
import numpy as np
print(numba.njit(lambda a: a @ a)(np.array([[1.0, 1.0], [0.0, 1.0]]))[0, 1])
"""

#: Two processes look into an index of a kernel at the same time, if they can, then each adds another version.
SHIP_TOGETHER = """
import multiprocessing, sys, threading
from numba.core.caching import IndexDataCacheFile
from topoplan_engine.kernels.caching import shipping
from topoplan_little.sums import Pair, difference
context = multiprocessing.get_context("fork")
lock, both, look = context.Lock(), context.Barrier(2), IndexDataCacheFile._load_index
def look_together(self):
    seen = look(self)
    try:
        both.wait(1.0)
    except threading.BrokenBarrierError:
        pass
    return seen
def ship(value):
    IndexDataCacheFile._load_index = look_together
    with shipping(lock):
        difference(Pair(value, value))
processes = [context.Process(target=ship, args=(value,)) for value in (1, 1.5)]
for process in processes:
    process.start()
for process in processes:
    process.join()
print(*(process.exitcode for process in processes))
"""


@pytest.fixture
def folder(tmp_path):
    """A folder for import that holds the package ``topoplan_little``."""
    package = tmp_path / "installed" / "topoplan_little"
    package.mkdir(parents=True)
    for name, text in MODULES.items():
        (package / name).write_text(text)
    return package.parent


def run(folder, code=CALL, **environment):
    """Run code in a process that finds ``topoplan_little`` in a folder; return what it prints."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    kept |= {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder.parent / "kept")} | environment
    words = [sys.executable, "-c", code]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=kept).stdout.strip()


def change(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.fixture
def shipped(folder):
    """The same with compiled kernels, and nothing else that was kept."""
    assert run(folder, SHIP, NUMBA_CPU_NAME="generic") == "compiling 5"
    assert not (folder.parent / "kept").exists()
    return folder


def test_what_this_machine_compiled_is_kept(folder):
    assert run(folder) == "compiling 5"
    assert run(folder) == "5"


def test_a_kernel_is_compiled_again_when_another_module_changes_that_is_compiled_into_it(folder):
    assert run(folder) == "compiling 5"
    change(folder / "topoplan_little/parts.py", "value + OFFSET", "value - OFFSET")
    assert run(folder) == "compiling 3"


def test_a_kernel_is_compiled_again_when_fields_change_their_places(folder):
    change(folder / "topoplan_little/sums.py", "class Pair(NamedTuple):\n    left: int\n    right: int\n", "")
    change(
        folder / "topoplan_little/sums.py", "from typing import NamedTuple", "from topoplan_little.sizes import Pair"
    )
    sizes = folder / "topoplan_little/sizes.py"
    sizes.write_text("from typing import NamedTuple\nclass Pair(NamedTuple):\n    left: int\n    right: int\n")
    assert run(folder) == "compiling 5"
    sizes.write_text("from typing import NamedTuple\nclass Pair(NamedTuple):\n    right: int\n    left: int\n")
    assert run(folder) == "compiling -3"


def test_a_file_that_was_cut_off_is_compiled_again(folder):
    assert run(folder) == "compiling 5"
    for file in (folder.parent / "kept").rglob("*.nb[ci]"):
        file.write_bytes(file.read_bytes()[:20])
    assert run(folder) == "compiling 5"
    assert run(folder) == "5"


@pytest.mark.parametrize("is_shipped", [False, True])
def test_where_nothing_can_be_kept_kernels_run(folder, is_shipped):
    """A file stands where each of numba's folders would be."""
    if is_shipped:
        assert run(folder, SHIP, NUMBA_CPU_NAME="generic") == "compiling 5"
    shutil.rmtree(folder / "topoplan_little/__pycache__", ignore_errors=True)
    file = folder.parent / "file"
    for path in (folder / "topoplan_little/__pycache__", file):
        path.write_text("")
    places = {"NUMBA_CACHE_DIR": str(file), "HOME": str(file), "XDG_CACHE_HOME": str(file)}
    assert run(folder, PYTHONDONTWRITEBYTECODE="1", **places) == ("5" if is_shipped else "compiling 5")


def test_a_package_brings_its_kernels_to_another_folder_with_other_times(shipped, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(shipped, moved, copy_function=shutil.copyfile)
    shutil.rmtree(shipped)
    assert run(moved) == "5"
    assert not (tmp_path / "kept").exists()  # it only reads
    assert run(moved, NUMBA_CPU_NAME="generic") == "5"


def test_processes_that_ship_at_the_same_time_keep_the_versions_of_all(folder):
    assert run(folder, SHIP_TOGETHER, NUMBA_CPU_NAME="generic") == "0 0"
    both = CALL.replace("Pair(7, 3)", "Pair(7, 3)), difference(Pair(7.5, 3.25)")
    assert run(folder, both) == "5 5.25"


def test_what_was_shipped_for_other_sources_is_compiled(shipped):
    change(shipped / "topoplan_little/parts.py", "OFFSET = 1", "OFFSET = 2")
    assert run(shipped) == "compiling 6"
    assert run(shipped) == "6"  # from this machine


def test_what_was_shipped_for_another_numba_or_python_is_compiled(shipped):
    other = "import numba\nnumba.__version__ = '0.1'\n"
    assert run(shipped, other + CALL) == "compiling 5"
    for file in (shipped / "topoplan_little/compiled_kernels").iterdir():
        file.rename(file.with_name(file.name.replace(sys.implementation.cache_tag, "cpython-310")))
    assert run(shipped, NUMBA_CACHE_DIR=str(shipped / "empty")) == "compiling 5"


def test_what_was_shipped_for_another_platform_or_is_broken_is_compiled(shipped):
    other = "from numba.core.codegen import CPUCodegen as C\nold = C.magic_tuple\n"
    other += "C.magic_tuple = lambda self: ('sparc-sun-solaris', *old(self)[1:])\n"
    assert run(shipped, other + CALL) == "compiling 5"
    for file in (shipped / "topoplan_little/compiled_kernels").iterdir():
        file.write_bytes(b"\x80\x04nothing")
    assert run(shipped, NUMBA_CACHE_DIR=str(shipped / "empty")) == "compiling 5"


@pytest.mark.parametrize("setting", [{"NUMBA_OPT": "1"}, {"NUMBA_BOUNDSCHECK": "1"}, {"NUMBA_CPU_NAME": "znver2"}])
def test_whoever_sets_how_numba_compiles_gets_that(shipped, setting):
    assert run(shipped, **setting) == "compiling 5"


def test_kernels_for_one_kind_of_cpu_are_not_shipped(folder):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(folder, SHIP)
    assert "ValueError: NUMBA_CPU_NAME is not generic" in caught.value.stderr
    assert not Path(folder, "topoplan_little/compiled_kernels").exists()


@pytest.mark.parametrize("given", ["", "import scipy.linalg\n"])
def test_kernels_run_without_scipy_and_others_still_find_it(folder, given):
    code = given + CALL + "import sys\nprint('scipy.linalg' in sys.modules, end=' ')\n" + PRODUCT
    assert run(folder, code).split()[-2:] == [str(bool(given)), "2.0"]


def test_two_processes_compile_a_kernel_once(folder):
    with ThreadPoolExecutor(2) as both:
        said = list(both.map(run, [folder] * 2))
    assert sorted(said) == ["5", "compiling 5"]


def test_two_processes_that_ship_compile_a_kernel_once(folder, tmp_path):
    code = "from pathlib import Path\n" + SHIP.replace("shipping()", f"shipping(turns=Path({str(tmp_path)!r}))")
    with ThreadPoolExecutor(2) as both:
        said = list(both.map(lambda _: run(folder, code, NUMBA_CPU_NAME="generic"), range(2)))
    assert sorted(said) == ["5", "compiling 5"]
    assert run(folder) == "5"
