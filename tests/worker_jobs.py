"""Jobs that worker processes of tests import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from topoplan import TopoplanError


def run(host, job):
    """Do what a job says.

    A number is squared after so many hundredths of a second, a word is a way to fail, and a path that is not there yet
    to die once.
    """
    if job == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if isinstance(job, Path):
        die_once(job)
        return "again"
    if job == "breaks":
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "nothing")
    if isinstance(job, str):
        time.sleep(0.3 if job == "late" else 0.0)
        raise TopoplanError(f"is {job}")
    time.sleep(job / 100)
    return job * job


def die_once(path):
    """End this process as a kill does, unless the file is there."""
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def sums(host, stop):
    """Return what adds up the numbers that it is called with, and dies once where it is called with a path."""
    total = 0

    def answer(request):
        nonlocal total
        if isinstance(request, Path):
            die_once(request)
        else:
            total += request
        return total

    return answer
