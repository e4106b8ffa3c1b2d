"""CPU seconds of the first command on a new machine: with the kernels that packages bring along, and compiling them.

    .venv/bin/python benchmarks/first_use.py [COMMAND ...]
    .venv/bin/python benchmarks/first_use.py --each [ROW ...]
    .venv/bin/python benchmarks/first_use.py --installed [ROW ...]
    .venv/bin/python benchmarks/first_use.py --uv [ROW ...]

    python tools/kernels.py && .venv/bin/python benchmarks/first_use.py dlrm16

Each command runs in a process with an empty folder for what numba keeps. *Shipped* is a run as users of released
wheels have it: ``python tools/kernels.py`` must have compiled before what packages then bring along, as in the second
line. In *compiled*, as in the first run from a checkout, ``NUMBA_OPT`` is said, at its default, so that shipped
kernels are not used (`KernelCache`), and numba compiles for the CPU of this machine. Both run in turn; a row takes a
minute or two of CPU time. The process then repeats the command with all kernels loaded: the least of `_AGAIN` times
tells whether kernels for any CPU are as fast as those for this one.

``--each`` tells of every command that runs kernels what compiling them takes, in all processes that it starts: the
first run with an empty folder less the second one, where no package brings kernels along. It takes some five minutes
of CPU time. ``--installed`` tells the same of the commands after ``pip install .`` in a new environment, which compiles
most kernels (tools/kernels.py): no row should be above `MOST` seconds.  ``--uv`` tells it of the commands after ``uv
sync`` in a fresh clone of the commit, with an empty store of kernels (tools/kernel_store.py), and what ``uv sync``
takes there, in a second clone, and after a change of a kernel; uv finds the packages of others in its cache.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from topoplan_engine.reporting.tables import markdown_row

COMMANDS = {
    "dlrm16": "optimize dlrm -o preset=dlrm16 --budget 100",
    "dlrm128": "optimize dlrm -o preset=dlrm128 -t topoopt --degree 4 --servers 128 --budget 10",
    "flexnet": "optimize alexnet --servers 16 --simulator flexnet --budget 100",
    "pipeline": "optimize torchgraph -o profile=vgg-19 --batch-size 1024 --devices [8,16] -s pipeline",
    "spmd": "optimize bert-sgmoe -o world-size=8 --devices [8] -s spmd --budget 5",
}
#: Commands that compile, by what they are called in the table; ``plan.json`` and ``plan.fbuf`` are plans of `PLAN`.
EACH = {
    "optimize --budget 0": "optimize alexnet --servers 16 --budget 0",
    "optimize, of 16 servers": "optimize dlrm -o preset=dlrm16",
    "simulate, of a task graph": "simulate plan.fbuf",
    "simulate, of a plan": "simulate plan.json",
    "show": "show plan.json",
    "report": "report plan.json",
    "sensitivity": "sensitivity plan.json --budget 20",
    "compare": "compare alexnet --servers 16 -n bigswitch,fattree --budget 20",
    "compare, of a study": "compare study.toml",
    "sweep": "sweep torchgraph -o profile=vgg-19 --batch-sizes 1024 --devices [8,16] -s pipeline",
}
PLAN = "optimize alexnet --servers 16 --budget 0 -x json=plan.json -x flatbuffer=plan.fbuf"
STUDY = """title = "Two networks"
budget = 20

[cluster]
servers = 16

[[model]]
use = "alexnet"

[[network]]
use = "bigswitch"

[[network]]
use = "fattree"
"""
#: CPU seconds that a command should not spend in the compiler.
MOST = 8.0
ROOT = Path(__file__).resolve().parents[1]
SIDES = {"shipped": {}, "compiled": {"NUMBA_OPT": "3"}}
_AGAIN = 5
PROGRAM = """
import contextlib, io, json, sys, time
from topoplan.cli import main
sys.argv = ["topoplan", *sys.argv[1].split()]
def run():
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
run()
first = time.process_time()
from numba.core.dispatcher import Dispatcher
import gc
kernels = [one for one in gc.get_objects() if isinstance(one, Dispatcher)]
compiled = sum(sum(one.stats.cache_misses.values()) for one in kernels if one.py_func.__module__.startswith("topoplan"))
again = []
for _ in range(int(sys.stdin.read())):
    begin = time.process_time()
    run()
    again.append(time.process_time() - begin)
print(json.dumps([first, compiled, min(again)]))
"""


def measure(words, settings):
    """Return the CPU seconds of a command in a new process, how many kernels it compiled, and its seconds repeated."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
        environment = kept | {"NUMBA_CACHE_DIR": folder} | settings
        run = [sys.executable, "-c", PROGRAM, words]
        ended = subprocess.run(run, input=str(_AGAIN), check=True, capture_output=True, text=True, env=environment)
    return json.loads(ended.stdout.splitlines()[-1])


def run_once(words, files, settings, python=sys.executable):
    """Return the CPU seconds of a command and of all processes that it starts, and its seconds of wall time.

    It runs in a folder of its own, with files by name, so that it finds no finished runs.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "PYTHONDONTWRITE"))}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    run = [python, "-m", "topoplan", *words.split()]
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        ended = subprocess.run(run, capture_output=True, text=True, env=kept | settings, cwd=folder)
    if ended.returncode:
        sys.exit(f"topoplan {words}: {ended.stderr}")
    return spent(before), time.monotonic() - began


def spent(before):
    """Return the CPU seconds of processes that have ended since these were counted."""
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def written_files(python=sys.executable):
    """Return the content of the files that commands read, by name."""
    with tempfile.TemporaryDirectory() as folder:
        run = [python, "-m", "topoplan", *PLAN.split()]
        subprocess.run(run, check=True, capture_output=True, cwd=folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()} | {"study.toml": STUDY.encode()}


def each_installed(names):
    """Install the checkout in a new environment, and print the table of commands there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        pip = [python, "-m", "pip"]
        cache = subprocess.run([*pip, "cache", "dir"], check=True, capture_output=True, text=True).stdout.strip()
        environment = os.environ | {"PIP_CACHE_DIR": cache, "XDG_CACHE_HOME": f"{folder}/cache"}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        # pip compiles all modules, so that what a first run spends more than the second is for kernels
        subprocess.run([*pip, "install", "-q", str(ROOT)], check=True, env=environment)
        row = ("`pip install .` and all its bytecode", (spent(before), time.monotonic() - began))
        each(names, {}, python)
        print_steps([row])


def each_with_uv(names):
    """Clone the checkout and let uv install it, twice; print the table of commands, and what uv took."""
    with tempfile.TemporaryDirectory() as folder:
        cache = subprocess.run(["uv", "cache", "dir"], check=True, capture_output=True, text=True).stdout.strip()
        environment = os.environ | {"UV_CACHE_DIR": cache, "XDG_CACHE_HOME": f"{folder}/cache"}
        environment.pop("VIRTUAL_ENV", None)
        rows = []
        for clone in ("first", "second"):
            subprocess.run(["git", "clone", "-q", str(ROOT), f"{folder}/{clone}"], check=True)
            rows.append((f"`uv sync` in the {clone} clone", synced(Path(folder, clone), environment)))
            print(rows[-1], file=sys.stderr, flush=True)
        kernel = Path(folder, "first/plugins/simulators/fluid/src/topoplan_simulator_fluid/kernel.py")
        kernel.write_text(kernel.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
        rows.append(("`uv sync` after a change of a kernel", synced(Path(folder, "first"), environment)))
        python = f"{folder}/second/.venv/bin/python"
        # uv compiles no modules, so that what a first run spends more than the second is for kernels
        subprocess.run([python, "-m", "compileall", "-q", f"{folder}/second"], check=False)
        each(names, {}, python)
        print_steps(rows)


def print_steps(rows):
    """Print the table of what installs: what it is, its seconds of CPU and of wall time."""
    titles = ["step", "CPU s", "wall s"]
    print("", markdown_row(titles), markdown_row(["---"] * len(titles)), sep="\n")
    for title, (seconds, wall) in rows:
        print(markdown_row([title, f"{seconds:.1f}", f"{wall:.1f}"]))


def synced(clone, environment):
    """Let uv install a clone; return its CPU seconds, with those of all processes that it starts, and of wall time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(["uv", "sync", "-q", "--python", sys.executable], check=True, cwd=clone, env=environment)
    return spent(before), time.monotonic() - began


def each(names, setting, python=sys.executable):
    """Print the table of commands, with a setting of numba in the environment."""
    titles = ["command", "first, CPU s", "first, wall s", "again, CPU s", "compiler, CPU s", f"at most {MOST:g}"]
    print(markdown_row(titles), markdown_row(["---"] * len(titles)), sep="\n", flush=True)
    files = written_files(python)
    for name in names:
        words = EACH[name]
        with tempfile.TemporaryDirectory() as cache:
            settings = {"NUMBA_CACHE_DIR": cache} | setting
            (first, wall), (again, _) = (run_once(words, files, settings, python) for _ in range(2))
        is_short = "yes" if first - again <= MOST else "no"
        cells = [name, f"{first:.1f}", f"{wall:.1f}", f"{again:.1f}", f"{first - again:.1f}", is_short]
        print(markdown_row(cells), flush=True)


def main(names):
    titles = ["command", "first, shipped, s", "compiled", "first, compiled, s", "compiled", "ratio", "repeated, ratio"]
    print(markdown_row(titles), markdown_row(["---"] * len(titles)), sep="\n", flush=True)
    for name in names:
        (first, few, again), (cold, many, native) = (measure(COMMANDS[name], side) for side in SIDES.values())
        if few >= many:
            sys.exit("packages bring no kernels along that fit (python tools/kernels.py compiles them)")
        cells = [name, f"{first:.2f}", str(few), f"{cold:.2f}", str(many), f"{cold / first:.1f}"]
        print(markdown_row([*cells, f"{again / native:.2f}"]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] in (["--each"], ["--installed"], ["--uv"]):
        if not set(sys.argv[2:]) <= set(EACH):
            sys.exit(f"wanted: {sys.argv[1]} [ROW ...], of {'; '.join(EACH)}")
        rows = sys.argv[2:] or list(EACH)
        if sys.argv[1] == "--each":
            each(rows, SIDES["compiled"])
        else:
            (each_with_uv if sys.argv[1] == "--uv" else each_installed)(rows)
        sys.exit()
    if not set(sys.argv[1:]) <= set(COMMANDS):
        sys.exit(f"wanted: [COMMAND ...], of {', '.join(COMMANDS)}")
    main(sys.argv[1:] or list(COMMANDS))
