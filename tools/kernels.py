"""Compiles the kernels of this checkout for any CPU, into the packages that they belong to.

    python tools/kernels.py

runs a small case of every command that calls kernels (`COMMANDS`), in two processes where there are two cores.  What
numba compiles for them lies then in a folder ``compiled_kernels`` of each package that has kernels, where
`topoplan_engine.kernels.caching` looks for it and wheels take it from.  This is for wheels that are released, once with
each Python; from a checkout, the first run compiles the kernels that it calls.  The packages need not be installed,
only what they require from others.

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

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = "compiled_kernels"
#: Numba compiles for any CPU of this platform, and calls no library that another machine may not have.
SETTINGS = {"NUMBA_CPU_NAME": "generic", "NUMBA_DISABLE_INTEL_SVML": "1"}
#: Together they call all kernels with the kinds of arguments that commands give them.
#:
#: Processes take one after the other.  Their order is by what they share: two that run at the same time should not need
#: the same kernels at that time, since each process compiles what no other one has compiled before.
COMMANDS = """
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
    if words not in ([], ["--all"]):
        sys.exit("usage: python tools/kernels.py")
    if words == ["--all"]:
        _compile()
    elif fits():
        print("kernels are compiled already")
    else:
        return 0 if compile_kernels() else 1
    return 0


def fits() -> bool:
    """Whether this Python's kernels were compiled from the present sources."""
    with contextlib.suppress(FileNotFoundError):
        return _record().read_text(encoding="utf-8") == _checksum()
    return False


def compile_kernels() -> bool:
    """Compile in a process of its own what is missing; say how it went, and return whether it went well."""
    started = time.monotonic()
    _record().unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        paths = [str(folder / "src") for folder in folders()]
        if not _is_installed():
            _write_metadata(Path(name))
            paths.append(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")} | SETTINGS
        environment["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
        words = [sys.executable, str(Path(__file__).resolve()), "--all"]
        ended = subprocess.run(words, env=environment, cwd=name, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"status {ended.returncode}"]
        print(f"kernels are not compiled, so that first runs do it: {lines[-1]}", file=sys.stderr)
        return False
    _record().parent.mkdir(exist_ok=True, parents=True)
    _record().write_text(_checksum(), encoding="utf-8")
    print(f"kernels compiled in {time.monotonic() - started:.0f} s")
    return True


@cache
def folders() -> list[Path]:
    """Return the folders of all packages of this checkout."""
    return list(_backend().selection(ROOT, []))


def _record() -> Path:
    """Return the file that says what this Python's kernels were compiled from."""
    return ROOT / "build" / SHIPPED / sys.implementation.cache_tag


def _checksum() -> str:
    """Return a checksum of all modules that a kernel may be compiled from, and of this one."""
    sum_ = hashlib.sha256(Path(__file__).read_bytes())
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
    sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module("workspace_backend")


def _write_metadata(target: Path) -> None:
    """Write the metadata from which plugins are found, as if all packages were installed in a folder."""
    for folder in folders():
        for name, content in _backend().members(folder, editable=True):
            (target / name).parent.mkdir(exist_ok=True, parents=True)
            (target / name).write_bytes(content)


def _compile() -> None:
    """Run the commands in the working directory, and keep their kernels; remove files of kernels that are no more.

    A kernel that only other kernels call is not called where these are read from their files; its own file stays.

    Raises:
        SystemExit: a command failed, with the last line that it said.
    """
    context = multiprocessing.get_context("spawn")
    turns, lock = context.Value("i", 0), context.Lock()
    count = min(PROCESSES, _cores())
    with ProcessPoolExecutor(count, context, _share, (turns, lock)) as pool:
        runs = [pool.submit(_take_turns) for _ in range(count)]
        used = set[str]().union(*(run.result() for run in runs))
    for folder in folders():
        for path in folder.glob(f"src/*/{SHIPPED}/*.{sys.implementation.cache_tag}*"):
            name = path.name.partition(f".{sys.implementation.cache_tag}")[0]
            if name not in used and not _has_kernel(folder / "src", name):
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


def _take_turns() -> set[str]:
    """Run commands, each that no process has taken yet; return the names of their kernels' files."""
    from topoplan_engine.kernels.caching import shipping

    gc.set_threshold(RARELY)
    lines = COMMANDS.strip().splitlines()
    with shipping(_lock) as used:
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
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as end:
            if end.code:
                lines = said.getvalue().strip().splitlines() or [f"status {end.code}"]
                sys.exit(lines[-1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
