"""Kernels are compiled once, kept on disk, and announced; and `import topoplan` needs none of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import topoplan
from topoplan_engine.kernels import compiling

COMPILE = """
import sys
from topoplan_engine.kernels.jit import on_compilation
with on_compilation(lambda: print("compiling")):
    from topoplan_engine.network.routing import paths
    from topoplan import Fabric
    star = Fabric.from_links(name="star", n_hosts=2, links=[(0, 1), (1, 0)], bandwidth=1.0, latency=0.0)
    print(paths(star, [0], [1]).links.tolist())
"""


def run(code, **environment):
    words = [sys.executable, "-c", code]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=os.environ | environment).stdout


def test_the_first_process_compiles_and_says_so_and_the_second_does_neither(tmp_path):
    assert run(COMPILE, NUMBA_CACHE_DIR=str(tmp_path)).split("\n")[:2] == ["compiling", "[0]"]
    assert run(COMPILE, NUMBA_CACHE_DIR=str(tmp_path)).split("\n")[0] == "[0]"


@pytest.mark.slow
def test_an_installed_copy_keeps_its_kernels_beside_itself(tmp_path):
    package = tmp_path / "topoplan"
    shutil.copytree(Path(topoplan.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    settings = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    assert run(COMPILE, **settings).split("\n")[0] == "compiling"
    assert list(package.rglob("*.nbc"))
    assert run(COMPILE, **settings).split("\n")[0] == "[0]"


def test_import_topoplan_loads_no_numba():
    code = "import sys, topoplan; print([m for m in ('numba', 'networkx', 'llvmlite') if m in sys.modules])"
    assert run(code) == "[]\n"


BESIDE = """
import sys, time
from topoplan_engine.kernels import compiling
sys.path.insert(0, sys.argv[1])
compiling.compile_beside("ahead")
compiling.start()
compiling.await_compiled("ahead")
compiling.await_compiled("another")
compiling.stop()
"""


def test_what_is_needed_later_is_compiled_by_another_process(tmp_path):
    (tmp_path / "ahead.py").write_text(
        "import os, pathlib\n"
        "def compile_ahead():\n"
        "    pathlib.Path(__file__).with_name('compiled').write_text(str(os.getpid()))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", BESIDE, str(tmp_path)], check=True, env=environment)
    assert (tmp_path / "compiled").exists() == (compiling._cores() > 1)
