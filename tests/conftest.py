"""Fixtures of the tests that cross packages.

Figures of other programs that tests compare with are tables of our own: ``reference/``, and the profiles of the plugins
``measured`` and ``torchgraph``.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import ``reference``

from reference.measurement_files import write

from topoplan.cli import main
from topoplan_engine import workers


class Here(Executor):
    """Runs what it is given in this process, with what a worker process would have read and would send back."""

    def submit(self, function, /, *given):
        future = Future()
        try:
            call, values = pickle.loads(pickle.dumps((function, given)))
            future.set_result(pickle.loads(pickle.dumps(call(*values))))
        except BaseException as error:
            future.set_exception(pickle.loads(pickle.dumps(error)))
        return future


@pytest.fixture(scope="session", autouse=True)
def one_worker_is_here():
    """Start no process where a command asks for one worker: it takes a second, and loads all kernels again."""

    def pool(jobs, *context, **how):
        return ProcessPoolExecutor(jobs, *context, **how) if jobs > 1 else Here()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "ProcessPoolExecutor", pool)
        yield


@pytest.fixture(scope="session", autouse=True)
def fonts_are_known():
    """Have matplotlib look for fonts, of which it may write on standard error, before a test reads what is there."""
    import_module("matplotlib.font_manager")


@pytest.fixture(scope="session")
def flexnet_file(tmp_path_factory):
    """Return a function that writes the times of a profile into a file as FlexNet writes them."""
    folder = tmp_path_factory.mktemp("measures")

    def flexnet_file(name):
        return write(name, folder)

    return flexnet_file


#: A comparison of two networks: two bandwidths, two seeds, eight runs.
COMPARISON = """
title = "Small"
source = "nobody"
budget = 5
seeds = [1, 2]
[cluster]
servers = 4
[vary]
interface-bandwidth-gbps = [10, 100]
[[model]]
name = "D"
use = "dlrm"
arch-embedding-size = "1000-1000"
batch-size = 64
[[network]]
name = "panel"
use = "topoopt"
[[network]]
name = "tree"
use = "fattree"
costs-as = "panel"
[[claim]]
faster = "panel"
slower = "tree"
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder, with the width of a file; return (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # set where tests run side by side

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, args)])
        out, err = capsys.readouterr()
        # Said once on a machine whose kernels are not compiled yet.
        err = "".join(line for line in err.splitlines(keepends=True) if not line.startswith("compiling kernels"))
        return ended.value.code or 0, out, err

    return run


#: A plugin that leaves a file behind as soon as a search has priced something.  Of several runs, only the first begins
#: at once; the others wait until a second after the interrupt, so that none of them is finished before it.
OBSERVER = """
import time
from pathlib import Path
from topoplan import hookimpl

@hookimpl
def topoplan_run_started(run):
    try:
        Path("first-run").touch(exist_ok=False)
    except FileExistsError:
        while not Path("interrupted").exists():
            time.sleep(0.02)
        time.sleep(1)

@hookimpl
def topoplan_evaluated(progress):
    if progress.evaluations > 1:
        Path("searching").touch()
"""


@pytest.fixture
def interrupted(tmp_path, tmp_path_factory):
    """Run a command in an empty folder until a file is there, then as Ctrl-C in a terminal ends it; return its end."""
    site = tmp_path_factory.mktemp("observer")
    (site / "noticer.py").write_text(OBSERVER)
    folder = site / "noticer-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: noticer\nVersion: 1\nRequires-Dist: topoplan-core\n")
    (folder / "entry_points.txt").write_text("[topoplan]\nnoticer = noticer\n")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))

    def interrupted(*words, once="searching"):
        going = subprocess.Popen(
            [sys.executable, "-c", "from topoplan.cli import main; main()", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            while not list(tmp_path.glob(once)) and going.poll() is None:
                time.sleep(0.02)
            os.killpg(going.pid, signal.SIGINT)
            (tmp_path / "interrupted").touch()
            out, err = going.communicate(timeout=60)
        finally:
            going.kill()
        return going.returncode, out, err

    return interrupted


@pytest.fixture
def comparison(tmp_path):
    """Write the comparison into the empty folder; return its content."""
    (tmp_path / "small.toml").write_text(COMPARISON)
    return tomllib.loads(COMPARISON)


@pytest.fixture(scope="session")
def comparison_runs(tmp_path_factory):
    """All runs of the comparison, finished once."""
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "small.toml").write_text(COMPARISON)
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(folder / "small.toml"), "--runs", str(folder / "runs")])
    assert not ended.value.code
    return folder / "runs"


@pytest.fixture
def finished(comparison, comparison_runs, tmp_path):
    """Put the comparison and all its finished runs into the empty folder; return its content."""
    shutil.copytree(comparison_runs, tmp_path / ".topoplan-runs")
    return comparison


@pytest.fixture
def rows():
    """Read the rows of a comparison's JSON, by network and by what varies."""

    def rows(text):
        return {(row["network"], *row["at"].values()): row for row in json.loads(text)["rows"]}

    return rows
