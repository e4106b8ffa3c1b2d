"""CPU seconds of the first command on a new machine: with the kernels that packages bring along, and compiling them.

    .venv/bin/python benchmarks/first_use.py [COMMAND ...]

    python tools/kernels.py && .venv/bin/python benchmarks/first_use.py dlrm16

Each command runs in a process with an empty folder for what numba keeps. *Shipped* is a run as users of released
wheels have it: ``python tools/kernels.py`` must have compiled before what packages then bring along, as in the second
line. In *compiled*, as in the first run from a checkout, ``NUMBA_OPT`` is said, at its default, so that shipped
kernels are not used (`KernelCache`), and numba compiles for the CPU of this machine. Both run in turn; a row takes a
minute or two of CPU time. The process then repeats the command with all kernels loaded: the least of `_AGAIN` times
tells whether kernels for any CPU are as fast as those for this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from topoplan_engine.reporting.tables import markdown_row

COMMANDS = {
    "dlrm16": "optimize dlrm -o preset=dlrm16 --budget 100",
    "dlrm128": "optimize dlrm -o preset=dlrm128 -t topoopt --degree 4 --servers 128 --budget 10",
    "flexnet": "optimize alexnet --servers 16 --simulator flexnet --budget 100",
    "pipeline": "optimize torchgraph -o profile=vgg-19 --batch-size 1024 --devices [8,16] -s pipeline",
    "spmd": "optimize bert-sgmoe -o world-size=8 --devices [8] -s spmd --budget 5",
}
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
    if not set(sys.argv[1:]) <= set(COMMANDS):
        sys.exit(f"wanted: [COMMAND ...], of {', '.join(COMMANDS)}")
    main(sys.argv[1:] or list(COMMANDS))
