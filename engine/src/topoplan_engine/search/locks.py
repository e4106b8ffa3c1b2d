"""Locks on files of a run: one process works on it at a time.

The system releases a lock when the process that holds it ends, however it ends, so that no lock is left behind.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from topoplan.errors import TopoplanError, shown
from topoplan_engine.files import shown_path

try:
    import fcntl
except ImportError:  # pragma: no cover - no such system
    fcntl = None  # type: ignore[assignment]

__all__ = ["lock_folder", "locked"]

_POLL = 0.05


def locked(file: int, path: Path, wait: float = 0.0) -> None:
    """Lock an open file for this process; a process that is just ending gets ``wait`` seconds.

    Raises:
        TopoplanError: another process has locked it.
    """
    if fcntl is None:  # pragma: no cover - no such system
        return
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_POLL)
                continue
            raise TopoplanError(f"{shown_path(path)}: another process writes to it") from None
        except OSError:  # a file system without locks
            return
        return


def lock_folder(folder: Path) -> int:
    """Lock a run; return the open file that holds the lock, which says who has it.

    Raises:
        TopoplanError: another process works on the run, or the folder cannot be written.
    """
    path = folder / "lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise TopoplanError(f"{shown_path(folder)}: cannot be written ({error.strerror})") from None
    try:
        locked(file, path)
    except TopoplanError:
        holder = os.read(file, 200).decode(errors="replace").strip()
        os.close(file)
        who = shown(holder) if holder else "another process"
        raise TopoplanError(f"{shown_path(folder)}: {who} works on this run (wait until it ends)") from None
    with contextlib.suppress(OSError):
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return file
