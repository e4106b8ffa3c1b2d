"""Calculon's random executions of a model: how many a CPU second, and how many of them are valid.

    python benchmarks/peers/calculon.py CHECKOUT processors batch executions

CHECKOUT is a clone of calculon-ai/calculon.  Prints one JSON object: executions a CPU second as released, and with
logging switched off, and the share that fits.  Pandas and psutil, which it imports to write files and to count
processors, are not needed here.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any


def measured(checkout: Path, processors: int, batch: int, executions: int) -> dict[str, float]:
    """Return what is printed; see the module."""
    sys.path.insert(0, str(checkout))
    for name in ("pandas", "psutil"):
        stand_in = ModuleType(name)
        stand_in.cpu_count = lambda logical=False: 1  # type: ignore[attr-defined]
        sys.modules.setdefault(name, stand_in)
    from calculon.io import read_json_file
    from calculon.llm import Llm, System
    from calculon.llm.all_executions import AllExecutions

    app = Llm.Application(read_json_file(str(checkout / "models" / "gpt3-175B.json")))
    system = System(read_json_file(str(checkout / "systems" / "h100_80g_nvl8.json")))
    everything = list(AllExecutions.all_executions(app, system, processors, batch, "float16", [True]))
    drawn = random.Random(0).sample(everything, executions)
    seconds, valid = rate(lambda: AllExecutions.search(app, system, drawn[: executions // 8]))
    logging.disable(logging.CRITICAL)
    quiet, more = rate(lambda: AllExecutions.search(app, system, drawn[executions // 8 :]))
    return {
        "executions": float(len(everything)),
        "released": executions // 8 / seconds,
        "silenced": (executions - executions // 8) / quiet,
        "valid": (valid + more) / executions,
    }


def rate(run: Any) -> tuple[float, int]:
    """Return the CPU seconds of a call, and how many it returns."""
    began = time.process_time()
    rows = run()
    return time.process_time() - began, len(rows)


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]), *map(int, sys.argv[2:5]))))
