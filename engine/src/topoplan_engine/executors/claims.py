"""Claims: who does which job, where processes of many machines share a folder and nothing else.

Each participant has a file in the folder, which it touches every few seconds.  A claim on a job is a hard link to that
file, ``JOB.1``.  Making a link is atomic, on local disks and on NFS, and fails where the name exists: of several
participants one gets the job.  A claim is stale if its participant is a process of this machine that has ended, or if
its file has not changed while this process has watched it for `EXPIRES` seconds of its own monotonic clock.  So no
clocks of different machines are compared.  Who finds ``JOB.1`` stale claims ``JOB.2``, which again one participant
gets.

The file of a participant that is dead by the same rules is removed when another one begins or ends.  Claims are not,
since nobody but their owner can tell an old ``JOB.1`` from one that was made just now.  Without its file a participant
counts as changed, so that its claims last as long again, and one that lives after all writes the file again.

A participant that was only suspended may so do a job that another one has taken over.  Results must therefore be
written atomically, and be the same whoever writes them.  After `Claims.take`, look whether the result is there: the job
may have been finished just before.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType

import attrs

from topoplan.errors import TopoplanError
from topoplan_engine.files import shown_path, why_not

__all__ = ["EXPIRES", "Claims"]

#: Seconds for which a participant's file stays as it is before its claims are stale, and between two touches.
EXPIRES, HEARTBEAT = 60.0, 5.0
#: What file systems without hard links say.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}
_ALIVE = ".alive"


@attrs.define
class _Watched:
    """When a participant's file was last seen to change, by this process's monotonic clock."""

    touched: int | None
    since: float


class Claims:
    """The claims of this process on jobs; use it as a context, at whose end all of them are released.

    Args:
        folder: that all participants share; made if it is not there.
        expires: seconds after which the claims of a participant that shows no life are stale.
        heartbeat: seconds between two signs of life.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        folder: Path,
        expires: float = EXPIRES,
        heartbeat: float = HEARTBEAT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._expires, self._heartbeat, self._clock = folder, expires, heartbeat, clock
        self._held: dict[str, int] = {}
        self._watched: dict[str, _Watched] = {}
        self._stop = threading.Event()
        host = socket.gethostname().replace("/", "-")[:60]
        self._name = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._record = {"name": self._name, "host": host, "pid": os.getpid(), "machine": _machine()}
        self._own = folder / f"{self._name}{_ALIVE}"
        self._thread = threading.Thread(target=self._keep_alive, name="claims", daemon=True)

    def __enter__(self) -> Claims:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._sign()
        except OSError as error:
            raise TopoplanError(f"{shown_path(self._folder)}: no claims can be written ({why_not(error)})") from None
        self._remove_dead()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        for job in list(self._held):
            self.release(job)
        with contextlib.suppress(OSError):
            self._own.unlink()
        self._remove_dead()

    @property
    def name(self) -> str:
        """The name of this participant, which no other one has."""
        return self._name

    def _sign(self) -> None:
        self._own.write_text(json.dumps(self._record), encoding="utf-8")

    def _keep_alive(self) -> None:
        while not self._stop.wait(self._heartbeat):
            with contextlib.suppress(OSError):  # the file system is away for a moment, perhaps for good
                if self._own.exists():
                    os.utime(self._own)
                else:  # somebody cleaned up
                    self._sign()

    def _remove_dead(self) -> None:
        """Remove the files of dead participants: of those that this process has watched for long enough, too."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"*{_ALIVE}"):
                if path != self._own and self._dead(path):
                    path.unlink(missing_ok=True)

    def others(self) -> set[str]:
        """Return the jobs that others have claimed and are alive to do."""
        return {
            job
            for job, generation in self._latest().items()
            if job not in self._held and not self._stale(job, generation)
        }

    def take(self, job: str) -> bool:
        """Claim a job, which is a name for a file; say whether this process has it now.

        Raises:
            TopoplanError: the folder cannot be written.
        """
        generation = self._latest(job).get(job, 0)
        if generation and not self._stale(job, generation):
            return False
        try:
            self._link(self._folder / f"{job}.{generation + 1}")
        except FileExistsError:
            return False
        except OSError as error:
            raise TopoplanError(f"{shown_path(self._folder)}: {job} cannot be claimed ({why_not(error)})") from None
        self._held[job] = generation + 1
        return True

    def _link(self, claim: Path) -> None:
        try:
            os.link(self._own, claim)
        except FileNotFoundError:  # this process was suspended, and somebody took it for dead
            self._sign()
            self._link(claim)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Exclusive, too, but seen for a moment with nothing in it: a participant that nobody knows.
            with claim.open("x", encoding="utf-8") as stream:
                stream.write(json.dumps(self._record))

    def release(self, job: str) -> None:
        """Give up the claim on a job, after its result is there; stale ones before it go, too."""
        for generation in range(1, self._held.pop(job, 0) + 1):
            with contextlib.suppress(OSError):
                (self._folder / f"{job}.{generation}").unlink()

    def _latest(self, only: str | None = None) -> dict[str, int]:
        """Return the number of the latest claim on each job (or on one)."""
        latest: dict[str, int] = {}
        try:
            names = [entry.name for entry in os.scandir(self._folder)]
        except OSError as error:
            raise TopoplanError(f"{shown_path(self._folder)}: cannot be read ({why_not(error)})") from None
        for name in names:
            job, _, generation = name.rpartition(".")
            if generation.isdecimal() and only in (None, job):
                latest[job] = max(latest.get(job, 0), int(generation))
        return latest

    def _stale(self, job: str, generation: int) -> bool:
        """Say whether nobody is alive to do what a claim says."""
        return self._dead(self._folder / f"{job}.{generation}")

    def _dead(self, path: Path) -> bool:
        """Say whether a participant is not alive, by a claim of it or by its own file."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            name, machine, pid = str(record["name"]), record["machine"], int(record["pid"])
        except FileNotFoundError:  # released just now, and gone at the next look
            return False
        except (OSError, ValueError, KeyError, TypeError):
            name, machine, pid = path.name.removesuffix(_ALIVE), None, 0
        if machine is not None and machine == _machine() and name != self._name and not _alive(pid):
            return True
        touched = self._touched(self._folder / f"{name}{_ALIVE}")
        watched = self._watched.get(name)
        if watched is None or watched.touched != touched:
            watched = self._watched[name] = _Watched(touched, self._clock())
        return self._clock() - watched.since >= self._expires

    @staticmethod
    def _touched(path: Path) -> int | None:
        """Return when a participant's file changed, by whatever clock; opening it asks the server, not a cache."""
        try:
            with path.open("rb") as stream:
                return os.fstat(stream.fileno()).st_mtime_ns
        except OSError:
            return None


@cache
def _machine() -> str | None:
    """Return what tells this start of this machine, and this space of process numbers, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # another system: claims expire, but are not found stale at once
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True
