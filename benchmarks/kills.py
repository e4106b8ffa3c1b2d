"""Kill runs in all ways and go on: every plan equals that of a run that was not killed, bit for bit.

    nice -n 19 python benchmarks/kills.py --kills 50 --write docs/reliability.md

A run is the command line in a process group of its own, a fork of this process, which has imported everything.
Kinds: SIGKILL of the group, of the first process, or of its workers; SIGTERM; SIGHUP; SIGINT twice.  Each is killed at
a random moment of the time that a whole run takes, and then `topoplan resume` goes on, which may be killed again; a run
that is finished is compared, and a new one is begun.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from topoplan.cli import main as topoplan
from topoplan_engine.reporting.tables import markdown_table

_MARKS = "<!-- begin: kills -->", "<!-- end: kills -->"
_SEARCH = ["optimize", "alexnet", "--servers", "4", "--batch-size", "64", "-s", "mcmc", "--budget", "1500"]
_SEARCH += ["--chains", "2"]
#: Seconds after which a process that was asked to end is given up, without those in which it waits for a processor.
_PATIENCE = 60


def children(process: int) -> list[int]:
    """Return the processes that one started, and those that these started."""
    own: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            own += [child, *children(child)]
    return own


def _twice(process: int) -> None:
    os.killpg(process, signal.SIGINT)
    time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGINT)


def _workers(process: int) -> None:
    for child in children(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _first(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def _with(sign: int) -> Callable[[int], None]:
    return lambda process: os.killpg(process, sign)


#: Each way, and how many processes the search has then.
KINDS: dict[str, tuple[Callable[[int], None], int]] = {
    "SIGKILL of all": (_with(signal.SIGKILL), 1),
    "SIGTERM": (_with(signal.SIGTERM), 1),
    "SIGHUP": (_with(signal.SIGHUP), 1),
    "SIGINT twice": (_twice, 1),
    "SIGKILL of all, with workers": (_with(signal.SIGKILL), 2),
    "SIGKILL of the first process, with workers": (_first, 2),
    "SIGKILL of workers": (_workers, 2),
}
#: Key of the runs that were finished, beside the kinds.
_FINISHED = "finished"
#: Of so many kills, one is of a search with workers: each of their processes imports everything anew.
_RARE = 6


def started(words: list[str], folder: Path) -> int:
    """Start the command line in a group of its own, and return its process."""
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    status = 3
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells ignore in what they start in the background
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        topoplan(words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def waited(process: int, seconds: float = math.inf) -> int | None:
    """Return the exit status of a process, negative if a signal ended it; None if it still runs after so long."""
    until = time.monotonic() + seconds
    while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            return None
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


def ends(processes: list[int]) -> bool:
    """Say whether processes end within `_PATIENCE` seconds of their own: asleep, or on a processor."""
    spent, known, step = 0.0, dict.fromkeys(processes, 0), 0.05
    while stats := [found for one in processes if (found := _stat(one)) is not None]:
        if spent > _PATIENCE:
            return False
        used = {process: ticks for process, _, ticks in stats}
        cpu = max(used[process] - known[process] for process in used) / os.sysconf("SC_CLK_TCK")
        spent += cpu if any(state == "R" for _, state, _ in stats) else step
        known.update(used)
        time.sleep(step)
    return True


def _stat(process: int) -> tuple[int, str, int] | None:
    """Return number, state and ticks of CPU of a process; None if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (process, fields[0], int(fields[11]) + int(fields[12]))


def series(
    given: argparse.Namespace,
    folder: Path,
    workers: int,
    kills: int,
    rng: Random,
    counts: Counter[str],
    failures: list[str],
) -> None:
    """Kill runs with so many processes so often, and compare those that are finished."""
    search = [*_SEARCH, "--workers", str(workers)]
    began = time.monotonic()
    if waited(started([*search, "--run", f"whole-{workers}"], folder)):
        raise SystemExit((folder / "log").read_text())
    longest = time.monotonic() - began
    whole = (folder / f"whole-{workers}" / "best.json").read_bytes()
    kinds = [kind for kind, (_, processes) in KINDS.items() if processes == workers]
    killed, runs = 0, 0
    words = [*search, "--run", f"{workers}-0"]
    while True:
        kind, here = kinds[killed % len(kinds)], folder / f"{workers}-{runs}"
        process = started(words, folder)
        status = waited(process, rng.uniform(0.02, 0.9) * longest if killed < kills else math.inf)
        was_killed = status is None
        if was_killed:
            family = [process, *children(process)]
            KINDS[kind][0](process)
            if not ends(family):
                failures.append(f"{kind}: a process stays")
                os.killpg(process, signal.SIGKILL)
            status = waited(process)
            killed += status != 0
            counts[kind] += status != 0
        log = (folder / "log").read_text()
        refused = status == 2 and not was_killed  # as it would be for ever
        if "Traceback" in log or status == 1 or refused:
            failures.append(f"{kind}: status {status}: {log[-1000:]}")
        if refused:
            return
        (folder / "log").unlink()
        if status == 0 and (here / "result.json").exists():
            if (here / "best.json").read_bytes() != whole:
                failures.append(f"{kind}: another plan")
            runs += 1
            counts[_FINISHED] += 1
            longest *= 0.8  # the first run was the slowest
            if killed >= kills:
                return
            here = folder / f"{workers}-{runs}"
        words = ["resume", here.name] if (here / "run.json").exists() else [*search, "--run", here.name]
        write(given, counts, failures)
        print(dict(counts), runs, failures, flush=True)


def write(given: argparse.Namespace, counts: Counter[str], failures: list[str]) -> str:
    """Return the counts as a section of a page, and put them into the page where one is named."""
    rows = [[kind, str(counts[kind])] for kind in KINDS]
    rows.append(["**all**", str(sum(counts[kind] for kind in KINDS))])
    command = f"`nice -n 19 python benchmarks/kills.py --kills {given.kills} --seed {given.seed}`"
    summary = f"{counts[_FINISHED]} runs were finished and compared; {len(failures)} failures."
    text = "\n".join([command, "", markdown_table(["killed by", "times"], rows, ["times"]), "", summary])
    if given.write:
        page = Path(given.write)
        before, _, rest = page.read_text(encoding="utf-8").partition(_MARKS[0])
        after = rest.partition(_MARKS[1])[2]
        page.write_text(f"{before}{_MARKS[0]}\n\n{text}\n\n{_MARKS[1]}{after}", encoding="utf-8")
    return text


def main() -> int:
    """Run; the exit status says whether a plan differed, or a process stayed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", metavar="PAGE.md")
    given = parser.parse_args()
    given.write = given.write and Path(given.write).absolute()
    rng, counts, failures = Random(given.seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        for workers, kills in ((1, given.kills - given.kills // _RARE), (2, given.kills // _RARE)):
            series(given, Path(name), workers, kills, rng, counts, failures)
    text = write(given, counts, failures)
    print(text, *failures, sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
