"""Ours and a peer side by side: in turn, in one run, in CPU seconds.

A ratio of seconds says something only if both were taken on one machine at one time.  So a benchmark starts its peer
itself, where an environment variable says where that is, and goes from one side to the other round by round; without
the peer there are our seconds and no ratio.  Seconds are user and system time of the process, so that other programs
on the machine count as little as they can; of several rounds the least counts, on both sides.

Every side is a *worker*: a process that reads requests from its standard input, one JSON object a line, and answers
each with one JSON object in one line of its standard output, which has ``cpu_s``, the CPU seconds of the call alone,
beside whatever was found.  A worker ends when its input ends.  From workers follow

- *first*: the first call of a process.  Modules are imported and compiled kernels are on disk, but not loaded;
- *warm*: calls after it, in the same process; the least of them;
- *whole*: all that a command takes from its start to its end, interpreter and imports included.

    sides ─► rounds of (fresh worker: first call, warm calls; whole command), in turn ─► `Seconds` of each side
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

#: Warm calls in a round: at most so many, and no further one after so many CPU seconds.
CALLS, ENOUGH_S = 5, 1.0
#: Rounds: at most so many, and no further one once a side has used so many CPU seconds.
ROUNDS, PATIENCE_S = 3, 60.0
KINDS = ("warm", "first", "whole")


class Seconds(NamedTuple):
    """The least CPU seconds of some rounds, and the last answer."""

    warm: float
    first: float
    whole: float
    answer: dict[str, Any]


class Worker:
    """A process that answers requests; see the module."""

    def __init__(self, words: Sequence[str], paths: Sequence[Path] = ()) -> None:
        """Start it; ``paths`` are where its Python looks for modules as well."""
        env = _environment()
        if paths:
            env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        self._words = words
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            SystemExit: the worker ended, or answered something else; it has said why on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            answer = json.loads(line)
            return {**answer, "cpu_s": float(answer["cpu_s"])}
        except (BrokenPipeError, ValueError, KeyError, TypeError) as error:
            said = f"answered {line.strip()[:200]!r}" if line else "ended without an answer"
            refuse(f"{' '.join(self._words)} {said} (wanted: a line of JSON with cpu_s)", error)

    def end(self) -> float:
        """Wait until the process has ended; return all its CPU seconds.

        Raises:
            SystemExit: it failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.read()
        self._process.stdout.close()
        return _seconds_of(self._process)


class Side(NamedTuple):
    """One of those that are compared.

    Attributes:
        start: starts a worker.
        request: what it is asked.
        command: runs the whole command, and returns its CPU seconds; None where there is none to compare.
    """

    start: Callable[[], Worker]
    request: Mapping[str, Any]
    command: Callable[[], float] | None = None


def refuse(message: str, cause: BaseException | None = None) -> Any:
    """End with a message and exit code 2."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(2) from cause


def path_in(variable: str, what: str, default: str = "") -> Path | None:
    """Return the path, or the program, in an environment variable; None where there is neither that nor a default.

    ``what`` says what it should be.

    Raises:
        SystemExit: nothing is there.
    """
    given = os.environ.get(variable, default)
    if not given:
        return None
    found = shutil.which(given) or given
    if not Path(found).exists():
        refuse(f"{variable}={given}: nothing is there (wanted: {what})")
    return Path(found).absolute()


def command_seconds(words: Sequence[str], cwd: Path | None = None) -> float:
    """Run a command to its end, what it says aside; return its CPU seconds.

    Raises:
        SystemExit: it failed; its last words are told.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        streams = {"stdout": subprocess.DEVNULL, "stderr": said}
        try:
            return _seconds_of(subprocess.Popen(words, env=_environment(), cwd=cwd, **streams))
        except SystemExit:
            said.seek(0)
            print(*said.readlines()[-10:], sep="", file=sys.stderr)
            raise


def one_request(start: Callable[[], Worker], request: Mapping[str, Any]) -> float:
    """Start a worker for one request; return the CPU seconds of all of it."""
    with start() as worker:
        worker.ask(request)
        return worker.end()


def measure(sides: Mapping[str, Side]) -> dict[str, Seconds]:
    """Measure some sides in turn."""
    taken = {name: Seconds(float("inf"), float("inf"), float("inf"), {}) for name in sides}
    used = dict.fromkeys(sides, 0.0)
    for _ in range(ROUNDS):
        for name, side in sides.items():
            found, spent = _round(side)
            least = (min(a, b) for a, b in zip(found[:3], taken[name][:3], strict=True))
            taken[name] = Seconds(*least, found.answer)
            used[name] += spent
        if max(used.values()) > PATIENCE_S:
            break
    return taken


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Be a worker: answer requests until there are none; ``answer`` may give ``cpu_s`` of a part of it itself."""
    for line in sys.stdin:
        request = json.loads(line)
        begun = time.process_time()
        found = answer(request)
        print(json.dumps({"cpu_s": time.process_time() - begun, **found}), flush=True)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text."""
    from topoplan_engine.reporting.tables import markdown_table  # workers of other programs do without

    return markdown_table(titles, list(rows), numbers=titles[1:])


def shown(seconds: float) -> str:
    """Show seconds with three digits."""
    return f"{seconds:#.3g}".rstrip(".")


def spread(ratios: Sequence[float]) -> str:
    """Show the least and the greatest of some ratios."""
    low, high = (f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}" for ratio in (min(ratios), max(ratios)))
    return low if low == high else f"{low}–{high}"


def _round(side: Side) -> tuple[Seconds, float]:
    """Return the seconds of one round, and all that was used."""
    with side.start() as worker:
        first = worker.ask(side.request)
        warm = [worker.ask(side.request)]
        while len(warm) < CALLS and sum(answer["cpu_s"] for answer in warm) < ENOUGH_S:
            warm.append(worker.ask(side.request))
        used = worker.end()
    whole = side.command() if side.command is not None else 0.0
    return Seconds(min(answer["cpu_s"] for answer in warm), first["cpu_s"], whole, warm[-1]), used + whole


def _environment() -> dict[str, str]:
    """Return this environment, but that byte code is kept on disk, as it is for users."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _seconds_of(process: subprocess.Popen[Any]) -> float:
    """Wait for a process; return its CPU seconds, those of its own children included."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        refuse(f"{process.args} ended with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime
