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
        if job.exists():
            return "again"
        job.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "breaks":
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "nothing")
    if isinstance(job, str):
        time.sleep(0.3 if job == "late" else 0.0)
        raise TopoplanError(f"is {job}")
    time.sleep(job / 100)
    return job * job
