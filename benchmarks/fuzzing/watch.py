"""Runs inputs in a process that may crash, hang or fill the memory, and counts what becomes of them.

A child takes one input after the other and notes in shared memory which one; its parent sees when it stands still or
is gone, notes the failure, and starts another one behind it.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import resource
import signal
import struct
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs

from topoplan import TopoplanError

__all__ = ["Failure", "Reader", "Tally", "attempt", "input_of", "watched"]

#: Seconds of CPU for one input, and for one that does not come back; bytes beyond those of the start.
CPU, LOST, MEMORY = 10, 30, 2 << 30
#: Seconds between two looks at a child: it writes some hundred bytes in this time, of 65,536 that a pipe holds.
_POLL = 0.02
#: Characters of the longest message.
LONGEST = 1000


@attrs.frozen
class Reader:
    """What reads: ``make`` draws an input, ``take`` reads it, raises what it raises, and complains of nonsense."""

    name: str
    what: str
    share: float
    make: Callable[[Random], Any]
    take: Callable[[Any], None]


@attrs.frozen
class Failure:
    """An input that was neither taken nor refused properly: its number, the kind of failure and where it comes from."""

    reader: str
    number: int
    kind: str
    details: str = attrs.field(default="", repr=False)


@attrs.define
class Tally:
    """Counts of one reader."""

    inputs: int = 0
    ok: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: list[Failure] = attrs.field(factory=list)


class SlowError(BaseException):
    """The CPU time of an input is spent."""


def input_of(reader: Reader, seed: int, number: int) -> Any:
    """Return one input; the same for the same numbers."""
    return reader.make(Random(f"{seed}/{reader.name}/{number}"))


def attempt(reader: Reader, data: Any) -> tuple[str, str]:
    """Read an input: ``ok``, ``refused``, or the kind of failure, and its details."""
    try:
        reader.take(data)
    except TopoplanError as error:
        message = str(error)
        if "\n" in message:
            return "message of several lines", message
        if len(message) > LONGEST:
            return "message too long", message
        return "refused", message
    except (SlowError, KeyboardInterrupt):  # kernels end with the second one
        return "slow", "".join(traceback.format_exc())
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((f for f in reversed(frames) if "topoplan" in f.filename), frames[-1])
        where = f"{Path(place.filename).name}:{place.lineno}"
        return f"{type(error).__name__} at {where}", traceback.format_exc()
    return "ok", ""


def watched(reader: Reader, seed: int, count: int, first: int = 0) -> Tally:
    """Read so many inputs, beginning with number ``first``, and count."""
    tally, number, started = Tally(), first, _cpu()
    while number < first + count:
        number = _run(reader, seed, number, first + count, tally)
    tally.inputs, tally.seconds = count, _cpu() - started
    return tally


def _run(reader: Reader, seed: int, number: int, end: int, tally: Tally) -> int:
    """Let a child read inputs until it is done or lost; return the number to go on with."""
    shared = mmap.mmap(-1, 16)
    pipe, far = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(pipe)
        _child(reader, seed, range(number, end), shared, far)
    os.close(far)
    os.set_blocking(pipe, False)
    said, at, since, hangs, status = b"", -1, _cpu_of(child), False, None
    while status is None:
        gone, code = os.waitpid(child, os.WNOHANG)
        said += _drain(pipe)
        here = struct.unpack("<q", shared[:8])[0]
        if gone:
            status = code
            break
        if here != at:
            at, since = here, _cpu_of(child)
        elif _cpu_of(child) - since > LOST:
            hangs = True
            os.kill(child, signal.SIGKILL)
        time.sleep(_POLL)
    said += _drain(pipe)
    os.close(pipe)
    counts = Counter(said.decode().split("\n"))
    for line, times in counts.items():
        match line.split("\t"):
            case ["ok", how_many]:
                tally.ok += int(how_many) * times
            case ["refused", how_many]:
                tally.refused += int(how_many) * times
            case ["failure", which, kind, details]:
                tally.failures.append(Failure(reader.name, int(which), kind, bytes.fromhex(details).decode()))
    here = struct.unpack("<q", shared[:8])[0]
    if status == 0:
        return end
    why = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
    tally.failures.append(Failure(reader.name, here, "hang" if hangs else why))
    return int(here) + 1


def _child(reader: Reader, seed: int, numbers: range, shared: mmap.mmap, pipe: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE if Path("/proc/self").exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    faulthandler.disable()  # a crash is counted, and told by its number: no dump of it into the terminal of the parent

    def slow(number: int, frame: object) -> None:
        raise SlowError

    signal.signal(signal.SIGPROF, slow)
    try:
        for number in numbers:
            shared[:8] = struct.pack("<q", number)
            signal.setitimer(signal.ITIMER_PROF, CPU)
            outcome, details = attempt(reader, input_of(reader, seed, number))
            signal.setitimer(signal.ITIMER_PROF, 0)
            if outcome in ("ok", "refused"):
                line = f"{outcome}\t1\n"
            else:
                line = f"failure\t{number}\t{outcome}\t{details[-4000:].encode('utf-8', 'replace').hex()}\n"
            os.write(pipe, line.encode())
    except BaseException:  # of what draws: the child must not go on as a second parent, and clear its folder
        os._exit(1)
    os._exit(0)


def _drain(pipe: int) -> bytes:
    found = b""
    try:
        while part := os.read(pipe, 1 << 16):
            found += part
    except BlockingIOError:
        pass
    return found


def _cpu_of(process: int) -> float:
    """Return the seconds of CPU that a child has had; of the clock where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cpu() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
