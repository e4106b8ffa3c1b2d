"""Published layouts of large training runs beside what the searcher ``hybrid`` finds for the same model and machine.

    .venv/bin/python benchmarks/published_layouts.py [--rows 18.4B,405B] [--write docs/strategies.md]

Each layout is stated as with ``--plan`` and simulated; the search has no time limit.  Seconds are those of our
simulator, on both sides, with the same prices.  A stated plan that does not fit into memory is priced all the same.

Sources: Narayanan et al., SC'21 (arXiv 2104.04473), table 1, with one micro-batch size of ours; Grattafiori et al.,
The Llama 3 Herd of Models (arXiv 2407.21783), table 4; DeepSeek-V3 (arXiv 2412.19437), section 3, on H100 hosts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from topoplan import optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table

HEAD = (
    "run",
    "GPUs",
    "published layout",
    "published (s)",
    "fits",
    "found",
    "found (s)",
    "found / published",
    "CPU s of the search",
)


class Run(NamedTuple):
    """A published run: options of its model, its machine, devices, samples of a batch, and its layout."""

    model: dict[str, Any]
    machine: str
    devices: int
    batch: int
    plan: str


def _gpt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    """Return the configuration of a model of table 1."""
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": 51200, "n_positions": 2048}
    return {"config": {"model_type": "gpt2", **sizes}}


RUNS = {
    "GPT 18.4B": Run(_gpt(6144, 40, 48), "dgx-a100", 256, 1024, "tp=8,micro-batch=4,recompute=full"),
    "GPT 39.1B": Run(_gpt(8192, 48, 64), "dgx-a100", 512, 1536, "tp=8,pp=2,micro-batch=4,recompute=full"),
    "GPT 145.6B": Run(_gpt(12288, 80, 96), "dgx-a100", 1536, 2304, "tp=8,pp=8,micro-batch=2,recompute=full"),
    "Llama-3.1 405B": Run(
        {"preset": "llama3.1-405b", "sequence_length": 8192},
        "dgx-h100",
        8192,
        2048,
        "tp=8,pp=16,zero=1,layers=7+8*14+7",
    ),
    "DeepSeek-V3": Run(
        {"preset": "deepseek-v3", "sequence_length": 4096},
        "dgx-h100",
        2048,
        15360,
        "pp=16,ep=64,zero=1,schedule=dualpipe,layers=3+4*14+2",
    ),
}


def searched(name: str, searcher: str) -> dict[str, Any]:
    """Search, or state a plan, in this process."""
    run = RUNS[name]
    options = dict(run.model)
    if "config" in options:
        path = Path(tempfile.mkdtemp()) / "config.json"
        path.write_text(json.dumps(options["config"]), encoding="utf-8")
        options["config"] = str(path)
    began = time.process_time()
    outcome = optimize(
        Choice("huggingface", options),
        machine=run.machine,
        servers=run.devices // 8,
        topology="rail-optimized",
        precision="bf16",
        batch_size=run.batch,
        searchers=searcher,
    )
    report = outcome.origin.report or {}
    spent = time.process_time() - began
    return {"seconds": outcome.seconds, "fits": outcome.fits, "plan": report.get("short", ""), "spent": spent}


def row_of(name: str) -> list[str]:
    """Return a row of the table: each side is a process of its own."""
    answers = []
    for searcher in (f"stated:{RUNS[name].plan}", "hybrid"):
        words = [sys.executable, __file__, "--one", json.dumps([name, searcher])]
        output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        answers.append(json.loads(output.splitlines()[-1]))
    stated, found = answers
    return [
        name,
        f"{RUNS[name].devices:,}",
        stated["plan"],
        f"{stated['seconds']:.4g}",
        "yes" if stated["fits"] else "no",
        found["plan"],
        f"{found['seconds']:.4g}",
        f"{found['seconds'] / stated['seconds']:.3f}",
        f"{found['spent']:.0f}",
    ]


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="runs whose names have one of these words")
    parser.add_argument("--write", type=Path, help="page whose table it is")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(searched(*json.loads(given.one))))
        return
    rows = [row_of(name) for name in RUNS if any(word in name for word in given.rows.split(","))]
    table = markdown_table(list(HEAD), rows, [HEAD[1], HEAD[3], *HEAD[6:]])
    print(table)
    if given.write:
        text = given.write.read_text(encoding="utf-8")
        page = replace_section(text, "published layouts", f"{table}\n", str(given.write))
        given.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
