"""A worker around HPGO 0.9.2, the released planner of DAPPLE; runs on the CPython 3.7 that its wheel is for.

A request has ``file`` (a layer profile), ``profile_batch``, ``batch`` and ``devices`` (where hosts end); the answer
``speedup`` and ``stages``.  `beside` says what a worker is.
"""

from __future__ import annotations

import json
import os
import sys
import time

import HPGO


def main():
    """Answer requests.  HPGO talks on the standard output, past Python: that goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        request = json.loads(line)
        begun = time.process_time()
        conductor = HPGO.conductor_from_torch_graph_and_seps(
            request["file"], request["profile_batch"], request["batch"], request["devices"]
        )
        speedup, stages = conductor.py_orchestrate()
        taken = time.process_time() - begun
        answers.write(json.dumps({"cpu_s": taken, "speedup": speedup, "stages": stages}) + "\n")
        answers.flush()


main()
