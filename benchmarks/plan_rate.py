"""How many valid plans a CPU second prices, beside Calculon on the same model and machine, in one run.

    .venv/bin/python benchmarks/plan_rate.py [--write docs/strategies.md]
    CALCULON=path/to/calculon .venv/bin/python benchmarks/plan_rate.py          with the peer, a clone of its repository

GPT-3 175B in 2,048 sequences on 4,096 H100.  Ours are all plans of the searcher ``hybrid``: degrees, micro-batches,
layouts, ZeRO, recomputation, schedules, layers of chunks.  Each runs its order of passes, rank by rank, with the
seconds of its passes and of what it sends.  The CPU seconds begin before the first mesh is lowered and the first
schedule is made; compiled kernels are loaded before.  A plan is valid if it can be built and fits.  Calculon's are
random executions of all that it enumerates, by formulas, as released and with its logger silenced.

Source of the peer: calculon-ai/calculon@caa4b11 (Isaev et al., SC'23).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import Host, Problem
from topoplan_engine.blocks import layer_numbers
from topoplan_engine.experiment import Choice
from topoplan_engine.keywords import experiment_of
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.search.setup import set_up_search
from topoplan_searcher_stated.construct import Rules
from topoplan_searcher_stated.estimates import BALANCED, EVEN, Estimates, PlanColumns, shape_of
from topoplan_searcher_stated.grid import SCHEDULES, layouts, shapes
from topoplan_searcher_stated.settings import Settings

_PROCESSORS, _BATCH, _EXECUTIONS = 4096, 2048, 8000
#: What shares or saves memory: (zero, recompute).
_SAVINGS = ((0, "none"), (1, "none"), (1, "selective"), (1, "full"))
HEAD = ("what prices", "plans", "priced by", "valid (%)", "plans / CPU s", "valid plans / CPU s")


class Rate(NamedTuple):
    """Plans, those that fit, and the CPU seconds of all."""

    plans: int
    valid: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Valid plans a CPU second."""
        return self.valid / self.seconds


def problem_of(processors: int, batch: int) -> Problem:
    """Return the problem: GPT-3 175B on hosts of eight H100, on rails."""
    model = Choice("huggingface", {"preset": "gpt3-175b"})
    machine = {"machine": "dgx-h100", "servers": processors // 8, "topology": "rail-optimized"}
    return set_up_search(Host.discover(), experiment_of(model, precision="bf16", batch_size=batch, **machine)).problem


def all_plans(shapes_of_plans: list[Settings]) -> PlanColumns:
    """Return all plans of some shapes: schedules and layers of chunks."""
    pipelined = np.array([shape.pp > 1 for shape in shapes_of_plans])
    number, columns = np.arange(len(shapes_of_plans)), []
    for schedule in range(len(SCHEDULES)):
        for layers in (EVEN, BALANCED):
            rows = number[pipelined | (schedule == 0 and layers == EVEN)]
            columns.append(np.stack([rows, np.full(len(rows), schedule), np.full(len(rows), layers)]))
    return PlanColumns(*np.concatenate(columns, axis=1))


def our_rate(problem: Problem) -> Rate:
    """Price all plans of a problem from the beginning; see the module."""
    fabric, usable = problem.build_fabric(None, np.random.default_rng(0)), float(problem.cluster.usable_memory.min())
    began = time.process_time()
    degrees = shapes(problem, layer_numbers(problem.graph).n_layers)
    sizes = sorted({shape.micro_batch for shape in degrees})
    estimates = Estimates(problem, fabric, Rules(problem.graph), sizes)
    everything = [
        attrs.evolve(shape_of(shape), zero=zero, recompute=recompute, layout=layout)
        for shape in degrees
        for zero, recompute in _SAVINGS
        for layout in layouts(shape, problem.cluster)
    ]
    plans = all_plans(everything)
    prices = estimates.prices(everything, SCHEDULES, (), plans)
    valid = int((np.isfinite(prices.seconds) & (prices.memory <= usable)).sum())
    return Rate(len(prices.seconds), valid, time.process_time() - began)


def our_row(rate: Rate) -> list[str]:
    """Return the row of the table."""
    share, per_second = 100 * rate.valid / rate.plans, rate.plans / rate.seconds
    return [
        "Topoplan",
        f"{rate.plans:,}",
        "units as they are lowered, order of passes run",
        f"{share:.0f}",
        f"{per_second:,.0f}",
        f"{rate.per_second:,.0f}",
    ]


def peer_rows(checkout: str) -> list[list[str]]:
    """Return the rows of the peer, which runs in a process of its own."""
    worker = str(Path(__file__).parent / "peers" / "calculon.py")
    words = [sys.executable, worker, checkout, *map(str, (_PROCESSORS, _BATCH, _EXECUTIONS))]
    answer = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return [
        [
            f"Calculon, {how}",
            f"{_EXECUTIONS:,} of {answer['executions']:,.0f}",
            "formulas",
            f"{100 * answer['valid']:.0f}",
            f"{answer[key]:,.0f}",
            f"{answer[key] * answer['valid']:,.0f}",
        ]
        for how, key in (("as released", "released"), ("logger silenced", "silenced"))
    ]


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="page whose table it is")
    given = parser.parse_args()
    our_rate(problem_of(64, 64))  # loads compiled kernels
    rows = [our_row(our_rate(problem_of(_PROCESSORS, _BATCH)))]
    if checkout := os.environ.get("CALCULON"):
        rows += peer_rows(checkout)
    table = markdown_table(list(HEAD), rows, list(HEAD[3:]))
    print(table)
    if given.write:
        text = given.write.read_text(encoding="utf-8")
        given.write.write_text(replace_section(text, "plan rate", f"{table}\n", str(given.write)), encoding="utf-8")


if __name__ == "__main__":
    main()
