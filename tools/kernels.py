"""Compiles the kernels of this checkout for any CPU, into the packages that they belong to.

    python tools/kernels.py                   # those of all commands, into the checkout: before a release
    python tools/kernels.py --few [FOLDER]    # those that an installation brings along; into packages in a folder

runs a small case of commands that call kernels (`ALL`, `FEW`), in two processes where there are two cores.  What numba
compiles for them lies then in a folder ``compiled_kernels`` of each package that has kernels, where
`topoplan_engine.kernels.caching` looks for it and wheels take it from.  All are for wheels that are released, once with
each Python.  An installation from a checkout compiles the few, with which no command compiles for long at its first use
(tools/workspace_backend.py).  The packages need not be installed, only what they require from others.

Nothing is done if no source has changed since the last time.  Kernels whose sources have not changed are kept.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import io
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernel_store

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = "compiled_kernels"
#: Numba compiles for any CPU of this platform, and calls no library that another machine may not have.
#: Processes that compile are copies of one that has imported all, which has no threads then.
SETTINGS = {"NUMBA_CPU_NAME": "generic", "NUMBA_DISABLE_INTEL_SVML": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Together they call all kernels with the kinds of arguments that commands give them.
#:
#: Processes take one after the other.  Their order is by what they share: two that run at the same time should not need
#: the same kernels at that time, since each process compiles what no other one has compiled before.
ALL = """
optimize torchgraph -o profile=vgg-19 --batch-size 64 --devices [2,4] -s pipeline
optimize alexnet --servers 4 --budget 5 --simulator flexnet --record
optimize dlrm -o preset=dlrm16 -s auto:pipelines=false --budget 100
optimize bert-sgmoe -o world-size=2 -o layers=2 --devices [2] -e hidup -s hidup
optimize dlrm -o preset=dlrm16 -s mcmc --budget 600
optimize alexnet --servers 4 --degree 3 -t topoopt -s mcmc -s totientperm -s relink --budget 40 -x json=plan.json
optimize alexnet --servers 4 --budget 5 --simulator fluid:level=stepped --record -x flatbuffer=p.fbuf && simulate p.fbuf
optimize alexnet --servers 4 --chains 2 --budget 40
optimize alexnet --servers 4 --budget 20 --simulator flexnet
optimize alexnet --batch-size 64 --servers 4 -s pipeline --budget 20
optimize bert-sgmoe -o world-size=2 -o layers=2 --devices [2] -s spmd --budget 5
optimize alexnet --servers 72 -s mcmc --budget 5 --simulator fluid:transport=flexnetpacket
"""
#: Together they call nearly all kernels of searches, simulations, recordings and pipelines.  What they leave out,
#: commands compile in some seconds; all would take longer than an installation may.  The first line begins with the
#: small case that is no command (`topoplan_engine.reporting.ahead`): one process compiles the simulator, and after it
#: what shares parts with that, while the other one compiles the search.
FEW = """
small case fluid && optimize alexnet --servers 4 --budget 0 -x json=p.json -x flatbuffer=p.fbuf && show p.json
optimize alexnet --servers 4 --budget 5
optimize bert-sgmoe -o world-size=2 -o layers=2 --devices [2] -s spmd --budget 5
optimize torchgraph -o profile=vgg-19 --batch-size 64 --devices [2,4] -s pipeline
"""
#: Processes that compile, at most.  A third one saves little time, and costs more: much is then compiled twice.
PROCESSES = 2
#: Objects after which Python looks for garbage, as in `topoplan` itself: a compiler makes many that stay.
RARELY = 100_000
#: What processes that compile share: how many commands they have taken, and a lock for files of kernels.
_turns: Any = None
_lock: Any = None


def main(words: list[str]) -> int:
    """Compile what is missing; return the exit status."""
    if words[:1] == ["--run"]:
        _compile(words[1], [Path(word) for word in words[2:]])
        return 0
    which, places = ("few", words[1:]) if words[:1] == ["--few"] else ("all", words)
    if len(places) > (which == "few"):
        sys.exit("usage: python tools/kernels.py [--few [FOLDER]]")
    if not places and fits(which):
        print("kernels are compiled already")
        return 0
    return 0 if compile_kernels(which, [Path(place) for place in places]) else 1


def fits(which: str) -> bool:
    """Whether this Python's kernels in the checkout were compiled from the present sources."""
    with contextlib.suppress(FileNotFoundError):
        return _record(which).read_text(encoding="utf-8") == _checksum(which)
    return False


def compile_kernels(which: str, places: list[Path]) -> bool:
    """Compile in a process of its own what is missing; say how it went, and return whether it went well.

    Args:
        which: ``all`` or ``few``.
        places: a folder that holds all packages with their metadata; those of the checkout without one.
    """
    started = time.monotonic()
    sources = places or [folder / "src" for folder in folders()]
    entry = kernel_store.key(_checksum(which))
    if which == "few" and kernel_store.take(entry, sources):
        _note(which, places)
        print("kernels are those of another checkout of the same sources")
        return True
    with tempfile.TemporaryDirectory() as name:
        paths = [str(source) for source in sources]
        if not places:
            _record(which).unlink(missing_ok=True)
            if not _is_installed():
                _backend().write_members(folders(), Path(name), editable=True)
                paths.append(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")} | SETTINGS
        environment["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
        words = [sys.executable, str(Path(__file__).resolve()), "--run", which, *map(str, sources)]
        ended = subprocess.run(words, env=environment, cwd=name, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"status {ended.returncode}"]
        print(f"kernels are not compiled, so that first runs do it: {lines[-1]}", file=sys.stderr)
        return False
    _note(which, places)
    if which == "few":
        kernel_store.keep(entry, sources)
    print(f"kernels compiled in {time.monotonic() - started:.0f} s")
    return True


def _note(which: str, places: list[Path]) -> None:
    """Write down what the kernels in the checkout were compiled from."""
    if not places:
        _record(which).parent.mkdir(exist_ok=True, parents=True)
        _record(which).write_text(_checksum(which), encoding="utf-8")


@cache
def folders() -> list[Path]:
    """Return the folders of all packages of this checkout."""
    return list(_backend().selection(ROOT, []))


def _record(which: str) -> Path:
    """Return the file that says what this Python's kernels in the checkout were compiled from."""
    return ROOT / "build" / SHIPPED / f"{sys.implementation.cache_tag}-{which}"


def _checksum(which: str) -> str:
    """Return a checksum of all modules that a kernel may be compiled from, and of this one."""
    sum_ = hashlib.sha256(which.encode() + Path(__file__).read_bytes())
    for folder in folders():
        texts = [path.read_bytes() for path in sorted((folder / "src").rglob("*.py"))]
        if folder.name == "core" or any(b"topoplan_engine.kernels" in text for text in texts):
            for text in texts:
                sum_.update(hashlib.sha256(text).digest())
    return sum_.hexdigest()


def _is_installed() -> bool:
    with contextlib.suppress(PackageNotFoundError):
        return bool(distribution("topoplan-engine"))
    return False


def _backend() -> Any:
    return importlib.import_module("workspace_backend")


def _compile(which: str, sources: list[Path]) -> None:
    """Run the commands in the working directory, and keep their kernels; remove files of kernels that are no more.

    A kernel that only other kernels call is not called where these are read from their files; its own file stays.

    Args:
        which: ``all`` or ``few``.
        sources: folders that hold packages.

    Raises:
        SystemExit: a command failed, with the last line that it said.
    """
    lines = {"all": ALL, "few": FEW}[which].strip().splitlines()
    for module in ("topoplan.cli", "topoplan_engine.reporting.ahead"):
        importlib.import_module(module)
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    turns, lock = context.Value("i", 0), context.Lock()
    count = min(PROCESSES, _cores())
    with ProcessPoolExecutor(count, context, _share, (turns, lock)) as pool:
        runs = [pool.submit(_take_turns, lines) for _ in range(count)]
        used = set[str]().union(*(run.result() for run in runs))
    for source in sources:
        for path in source.glob(f"*/{SHIPPED}/*.{sys.implementation.cache_tag}*"):
            name = path.name.partition(f".{sys.implementation.cache_tag}")[0]
            if name not in used and not _has_kernel(source, name):
                path.unlink()


def _has_kernel(source: Path, name: str) -> bool:
    """Say whether the sources have the function of a file of kernels, which is named ``MODULE.FUNCTION-LINE``."""
    function, _, line = name.rpartition("-")
    *modules, last = function.split(".")
    files = [source.joinpath(*modules[:length]).with_suffix(".py") for length in range(1, len(modules) + 1)]
    lines = [text for path in files if path.is_file() for text in path.read_text(encoding="utf-8").splitlines()]
    decorators_and_head = lines[int(line) - 1 : int(line) + 4]
    return any(text.lstrip().startswith(f"def {last}(") for text in decorators_and_head)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _share(turns: Any, lock: Any) -> None:
    """Note in a new process what all of them share."""
    global _turns, _lock
    _turns, _lock = turns, lock


def _take_turns(lines: list[str]) -> set[str]:
    """Run commands, each that no process has taken yet; return the names of their kernels' files."""
    from topoplan_engine.kernels.caching import shipping

    gc.set_threshold(RARELY)
    with shipping(_lock, Path.cwd()) as used:
        while (number := _next()) < len(lines):
            try:
                for words in lines[number].split("&&"):
                    _run(words)
            except BaseException:
                _turns.value = len(lines)  # no process need go on
                raise
    return used


def _next() -> int:
    with _turns.get_lock():
        _turns.value += 1
        return int(_turns.value) - 1


def _run(words: str) -> None:
    """Run a command; one that fails raises `SystemExit` with the last line that it said."""
    from topoplan.cli import main

    sys.argv = ["topoplan", *shlex.split(words)]
    if sys.argv[1:3] == ["small", "case"]:
        from topoplan_engine.reporting.ahead import simulate_small_case

        simulate_small_case(sys.argv[3:])
        return
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as end:
            if end.code:
                lines = said.getvalue().strip().splitlines() or [f"status {end.code}"]
                sys.exit(lines[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
