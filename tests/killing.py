"""Kills processes that search, at random, until the search is finished: `python killing.py FOLDER SEARCH KILLS SEED`.

Each process is a fork of this one, which has imported everything, so that a kill takes as long as the search that it
ends.  Prints a JSON object: how many processes were killed, and how many runs there were.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from kept_searches import SEARCHES

from topoplan import Host
from topoplan_engine import optimize
from topoplan_engine.search.runs import begun, resumed

HOST = Host.discover()


def finish(path):
    with resumed(path, HOST) as folder:
        optimize(folder.experiment, host=HOST, folder=folder)


def killed(path, seconds):
    """Go on with a run, and kill that after so many seconds; say whether it was killed, and not finished."""
    child = os.fork()
    if child == 0:
        try:
            finish(path)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
        os._exit(0)
    until = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
        time.sleep(0.002)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(ended[1])
    if status not in (0, -signal.SIGKILL):
        raise SystemExit(f"status {status}")
    return status != 0


def main(path, name, kills, seed):
    rng, count = random.Random(seed), 0
    experiment = SEARCHES[name]
    began = time.monotonic()
    with begun(path / "whole", HOST, experiment) as folder:
        optimize(experiment, host=HOST, folder=folder)
    longest = 0.7 * (time.monotonic() - began)
    number = 0
    begun(path / "0", HOST, experiment).close()
    while count < kills:
        if killed(path / str(number), rng.uniform(0.0, longest)):
            count += 1
        else:  # it is finished: another one, and sooner, since the first search was slower, and the machine may be busy
            longest *= 0.7
            number += 1
            begun(path / str(number), HOST, experiment).close()
    finish(path / str(number))
    print(json.dumps({"kills": count, "runs": number + 1}))


if __name__ == "__main__":
    folder, search, count, seed = sys.argv[1:]
    main(Path(folder), search, int(count), int(seed))
