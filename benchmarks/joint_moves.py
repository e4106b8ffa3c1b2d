"""Plans of language models with and without the moves at the end of a search: algorithms, layout, wiring.

    .venv/bin/python benchmarks/joint_moves.py [--rows gpt2,mixtral] [--write docs/guides/language_models.md]

Both searches are of the searcher ``hybrid`` with the same seed, one with ``joint=no``.  Milliseconds are those of our
simulator; CPU seconds are of this process, without compilation if kernels are compiled.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from topoplan import optimize
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.search.optimize import Outcome

HEAD = ("model", "hosts", "network", "without (ms)", "with (ms)", "ratio", "what moved", "CPU s without", "CPU s with")


class Case(NamedTuple):
    """A model on a machine: options of `topoplan.optimize`."""

    model: str
    hosts: str
    options: Mapping[str, Any]


CASES = {
    "gpt2": Case("GPT-2, 64 samples", "64 of one A100", {"servers": 64, "batch_size": 64}),
    "llama3-8b": Case(
        "Llama 3 8B, 64 samples", "16 DGX A100", {"servers": 16, "batch_size": 64, "machine": "dgx-a100"}
    ),
    "mixtral-8x7b,layers=8": Case(
        "Mixtral 8x7B of 8 layers, 32 samples", "4 DGX A100", {"servers": 4, "batch_size": 32, "machine": "dgx-a100"}
    ),
}
NETWORKS = ("topoopt", "fattree")


def searched(preset: str, network: str, searcher: str) -> tuple[Outcome, float]:
    """Search, and return the CPU seconds of that, too."""
    began = time.process_time()
    options = CASES[preset].options
    outcome = optimize(f"huggingface:preset={preset}", searchers=[searcher], topology=network, **options)
    return outcome, time.process_time() - began


def moved(outcome: Outcome) -> str:
    """Return which of the moves are in a plan."""
    record = outcome.plan.provenance.get("joint", {})
    names = {
        "wiring": record.get("wired_anew"),
        "layout": record.get("layout_moved"),
        "algorithms": record.get("collectives"),
    }
    return ", ".join(name for name, is_there in names.items() if is_there) or "nothing"


def row(preset: str, network: str) -> list[str]:
    """Return a row of the table."""
    (before, first), (after, second) = (searched(preset, network, name) for name in ("hybrid:joint=no", "hybrid"))
    case = CASES[preset]
    times = [f"{outcome.seconds * 1e3:,.1f}" for outcome in (before, after)]
    ratio = f"{after.seconds / before.seconds:.3f}"
    return [case.model, case.hosts, network, *times, ratio, moved(after), f"{first:.1f}", f"{second:.1f}"]


def main() -> None:
    """Search all rows that are asked for, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="models whose names contain one of these words, with commas between")
    parser.add_argument("--write", type=Path, help="page whose section is replaced")
    asked = parser.parse_args()
    words = asked.rows.split(",") if asked.rows else [""]
    searched(next(iter(CASES)), NETWORKS[0], "hybrid")  # loads and compiles what both need
    rows = [row(preset, network) for preset in CASES if any(word in preset for word in words) for network in NETWORKS]
    text = markdown_table(HEAD, rows)
    print(text)
    if asked.write:
        page = asked.write.read_text(encoding="utf-8")
        asked.write.write_text(replace_section(page, "joint", f"{text}\n", str(asked.write)), encoding="utf-8")


if __name__ == "__main__":
    main()
