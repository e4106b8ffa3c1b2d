"""Plans of language models before and after the moves at the end of a search: algorithms, layout, wiring.

    .venv/bin/python benchmarks/joint_moves.py [--rows gpt2,qwen3] [--write docs/guides/language_models.md]

The search is of the searcher ``hybrid`` without them; then they are made as at its end.  Milliseconds are those of our
simulator, CPU seconds those of this process, with a set-up for the moves that a search has anyway.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from topoplan import Host, optimize
from topoplan_engine.keywords import experiment_of
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.search.finishing import finished, may_finish
from topoplan_engine.search.result import Result
from topoplan_engine.search.run_folder import Journals
from topoplan_engine.search.setup import named, set_up_search

HEAD = (
    "model",
    "hosts",
    "network",
    "before (ms)",
    "after (ms)",
    "ratio",
    "what moved",
    "CPU s: search",
    "CPU s: moves",
)


class Case(NamedTuple):
    """A model on a machine: options of `topoplan.optimize`."""

    model: str
    hosts: str
    options: Mapping[str, Any]


CASES = {
    "gpt2": Case("GPT-2, 64 samples", "64 of one A100", {"servers": 64, "batch_size": 64}),
    "llama3-8b,layers=8": Case(
        "Llama 3 8B of 8 layers, 64 samples", "8 DGX A100", {"servers": 8, "batch_size": 64, "machine": "dgx-a100"}
    ),
    "qwen3-8b,layers=8": Case(
        "Qwen3 8B of 8 layers, 32 samples", "4 DGX H100", {"servers": 4, "batch_size": 32, "machine": "dgx-h100"}
    ),
}
NETWORKS = ("topoopt", "fattree")


def moved(before: Result, after: Result) -> str:
    """Return which of the moves are in the best state."""
    first, last = before.best, after.best
    names = {
        "wiring": first.fabric.key != last.fabric.key,
        "layout": first.strategy.key != last.strategy.key,
        "algorithms": first.collectives != last.collectives,
    }
    return ", ".join(name for name, is_there in names.items() if is_there) or "nothing"


def row(host: Host, preset: str, network: str) -> list[str]:
    """Return a row of the table."""
    case, model = CASES[preset], f"huggingface:preset={preset}"
    began = time.process_time()
    before = optimize(model, host=host, searchers=["hybrid:joint=no"], topology=network, **case.options).result
    between = time.process_time()
    setup = set_up_search(
        host, named(host, experiment_of(model, searchers=["hybrid"], topology=network, **case.options))
    )
    searcher = may_finish(setup, host)
    assert searcher is not None
    after = finished(setup, host, searcher, before, math.inf, Journals(), lambda event, progress: None)
    seconds = [f"{each:.1f}" for each in (between - began, time.process_time() - between)]
    times = [f"{result.best_cost * 1e3:,.1f}" for result in (before, after)]
    return [
        case.model,
        case.hosts,
        network,
        *times,
        f"{after.best_cost / before.best_cost:.3f}",
        moved(before, after),
        *seconds,
    ]


def main() -> None:
    """Search all rows that are asked for, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="models whose names contain one of these words, with commas between")
    parser.add_argument("--write", type=Path, help="page whose section is replaced")
    asked = parser.parse_args()
    words = asked.rows.split(",") if asked.rows else [""]
    rows, host = [], Host.discover()
    for preset in (preset for preset in CASES if any(word in preset for word in words)):
        for network in NETWORKS:
            rows.append(row(host, preset, network))
            print(" | ".join(rows[-1]), flush=True)
    text = markdown_table(HEAD, rows)
    print(text)
    if asked.write:
        page = asked.write.read_text(encoding="utf-8")
        asked.write.write_text(replace_section(page, "joint", f"{text}\n", str(asked.write)), encoding="utf-8")


if __name__ == "__main__":
    main()
