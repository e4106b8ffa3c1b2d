"""Kernels are compiled once, kept on disk, and announced; and `import topoplan` needs none of it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numba
import numpy as np
import pytest

import topoplan_engine
from topoplan_engine.kernels.caching import SHIPPED
from topoplan_engine.kernels.frontend import shorten
from topoplan_engine.kernels.jit import part
from topoplan_engine.kernels.loading import _type_of_array

ROOT = Path(__file__).resolve().parents[2]
COMPILE = """
import sys
from topoplan_engine.kernels.jit import on_compilation
with on_compilation(lambda: print("compiling")):
    import numpy as np
    from topoplan_engine.network.walks import cross
    row, links, crossed = np.zeros(1, np.int32), np.arange(2, dtype=np.int32), np.zeros(3, bool)
    cross(row, np.zeros(1, bool), np.array([0, 1]), np.array([0, 2]), links, crossed)
    print(crossed.tolist())
"""
CROSSED = "[True, True, False]"


def run(code, **environment):
    """Run code without the kernels that packages brought along, since numba's settings are said."""
    words, environment = [sys.executable, "-c", code], {"NUMBA_OPT": "3"} | environment
    return subprocess.run(words, check=True, capture_output=True, text=True, env=os.environ | environment).stdout


def test_the_first_process_compiles_and_says_so_and_the_second_does_neither(tmp_path):
    """Nor does the second one load the compiler's functions or masked arrays, or compile numba's runtime."""
    assert run(COMPILE, NUMBA_CACHE_DIR=str(tmp_path)).split("\n")[:2] == ["compiling", CROSSED]
    loaded = "{'numba.np.arraymath', 'scipy.linalg', 'numpy.ma'} & {*sys.modules} or 'none'"
    code = f"{COMPILE}\nfrom numba.core.runtime import rtsys\nprint({loaded}, rtsys._init)"
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path)).split("\n")[:2] == [CROSSED, "none False"]


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.zeros((2, 3), "i4", "F"), np.zeros(6)[::2], np.frombuffer(b"ab", np.uint8), np.array(1)]
)
def test_arrays_have_the_types_that_numba_gives_them(array):
    assert numba.typeof(array) == _type_of_array(array, None)


def test_masked_arrays_and_long_doubles_are_refused_as_by_numba():
    for array, message in (
        (np.ma.array([1, 2]), "MaskedArray"),
        (np.zeros(2, np.longdouble), "Unsupported array dtype"),
    ):
        with pytest.raises(numba.errors.NumbaError, match=message):
            numba.typeof(array)


def test_a_kernel_that_raises_for_numba_is_read_without_numbas_functions_of_arrays():
    """Its file names the module of a function with constants, which imports SciPy's linear algebra."""
    name, constants = "NumbaEnv_of_a_test", ["zero-size array"]
    code = (
        "import pickle, sys\nfrom topoplan_engine.kernels import loading\n"
        "from numba.core import environment\n"
        "made = environment.Environment({'__name__': 'numba.np.arraymath'})\n"
        f"made.consts[:], made.env_name = {constants}, {name!r}\n"
        "read = pickle.loads(pickle.dumps(made))\n"
        "print(read.consts, read.env_name, {'numba.np.arraymath', 'scipy.linalg'} & {*sys.modules} or 'none')"
    )
    assert run(code).strip() == f"{constants} {name} none"


WORKERS = """
import sys
from topoplan import Host
from topoplan_engine.executors.processes import Processes
from topoplan_engine.reporting.notice import compilation_announced
from topoplan_engine.workers import takes_turn

@compilation_announced(is_first=takes_turn)
def job(host, number):
    KERNEL

if __name__ == "__main__":
    pool = Processes(workers=2).pool(Host(), 4)
    for number in range(2):
        pool.start(number, job, "job", number)
    done = []
    while len(done) < 2:
        done += [error for _, _, error in pool.wait(10)]
    pool.close(at_once=False)
    print(done)
"""


def test_one_of_several_workers_says_that_it_compiles(tmp_path):
    kernel = COMPILE.partition("jit import on_compilation\n")[2].partition(":\n")[2]
    # One write a line: the second worker reads what the first one has kept, and both write at the same time.
    kernel = kernel.replace("print(crossed.tolist())", "sys.stdout.write(f'{crossed.tolist()}\\n')")
    script = tmp_path / "workers.py"
    script.write_text(WORKERS.replace("    KERNEL\n", kernel))
    environment = os.environ | {"NUMBA_OPT": "3", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert ended.stdout.splitlines() == [CROSSED, CROSSED, "[None, None]"], ended.stderr
    assert ended.stderr.count("compiling kernels that this machine has not run before") == 1


@pytest.mark.slow
def test_an_installed_copy_keeps_its_kernels_beside_itself(tmp_path):
    package = tmp_path / "topoplan_engine"
    shutil.copytree(
        Path(topoplan_engine.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", SHIPPED)
    )
    settings = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    assert run(COMPILE, **settings).split("\n")[0] == "compiling"
    assert list(package.rglob("*.nbc"))
    assert run(COMPILE, **settings).split("\n")[0] == CROSSED


def test_every_kernel_is_compiled_by_the_one_decorator():
    """`numba.njit` itself would not look for the kernels that packages bring along."""
    sources = [path for folder in ("engine", "libs", "plugins") for path in (ROOT / folder).rglob("src/**/*.py")]
    assert len(sources) > 100
    places = [path.name for path in sources if "numba.njit(" in path.read_text(encoding="utf-8")]
    assert sorted(places) == ["deferred.py", "jit.py"]


def test_a_part_is_compiled_once_for_whole_numbers_and_refuses_python():
    @part()
    def following(number):
        return number + 1

    @numba.njit
    def following_both(small, number):
        return following(small) + following(number)

    with pytest.raises(TypeError, match="following is a part of kernels"):
        following(1)
    assert following_both(np.int8(127), 2) == 131
    assert numba.typeof(following).dispatcher.nopython_signatures == [numba.int64(numba.int64)]
    with pytest.raises(TypeError, match="following is a part of kernels"):
        following(1)


def test_import_topoplan_loads_no_numba():
    code = "import sys, topoplan; print([m for m in ('numba', 'networkx', 'llvmlite') if m in sys.modules])"
    assert run(code) == "[]\n"


@pytest.mark.slow
def test_numba_is_loaded_without_coverage():
    pytest.importorskip("coverage")
    code = "import sys, topoplan_engine.kernels.jit\nprint({'numba', 'coverage'} & {*sys.modules})\nimport coverage"
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "{'numba'}\n"


LIBRARY = """
import numba, numpy as np
from topoplan_engine.kernels.frontend import shorten
if {shortened}:
    shorten()

@numba.njit(cache=True)
def several(values):
    order = np.argsort(values, kind="mergesort")
    values[1:3] = values[order][:2]
    return order, np.searchsorted(values, 2.0), max(values[0], 1.5)

print(several(np.array([3.0, 1.0, 2.0, 1.0])))
"""


@pytest.mark.slow
def test_kernels_of_others_give_the_same_with_shortened_steps(tmp_path):
    """Numba's functions of arrays are parts then, also in kernels that numba keeps on disk."""
    script = tmp_path / "library.py"
    said = []
    for shortened in (False, True, True):
        script.write_text(LIBRARY.format(shortened=shortened))
        said.append(subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout)
    assert said[0].startswith("(array([1, 3, 2, 0])")
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("compiles", [True, False])
def test_python_looks_for_no_garbage_while_a_kernel_is_compiled(compiles):
    seen = []
    shorten()

    def looked():
        """Stands for what a kernel calls."""

    @numba.extending.overload(looked)
    def _looked():
        seen.append(gc.isenabled())
        if not compiles:
            raise numba.TypingError("as it is to be")
        return lambda: 1

    @numba.njit
    def calling():
        return looked()

    assert gc.isenabled()
    with nullcontext() if compiles else pytest.raises(numba.TypingError):
        assert calling() == 1
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_settings_are_equal_where_numba_says_so():
    from numba.core.compiler import Flags

    from topoplan_engine.kernels.frontend import _settings_equal

    plain, same, other = Flags(), Flags(), Flags()
    same.nrt = Flags.options["nrt"].default
    other.nrt = not same.nrt
    assert _settings_equal(plain, same)
    assert not _settings_equal(plain, other)
    assert not _settings_equal(other, same)
