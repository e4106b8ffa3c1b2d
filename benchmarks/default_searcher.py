"""The default searcher beside each single one, at equal CPU time: six models on 8, 64, 128 and 512 GPUs.

    .venv/bin/python benchmarks/default_searcher.py [--seconds 20] [--devices 8,64,128,512] [--models llama,dlrm] \
        [--searchers spmd,pipeline,mcmc] [--seed 1] [--topology topoopt] [--page docs/guides/research.md]

Each search is a process of its own that may take so many CPU seconds: its clock is that of its CPU time, without that
of compilation.  Machines are hosts of eight H100 with eight interfaces of 400 Gbps, joined by one switch or by what
``--topology`` names (the page has rows of one switch).  The last column is the time of the
plan of `auto` over that of the best single searcher, both as the simulator says; the aim is at most 1.02.  A plan that
does not fit into memory is none.  With all models and sizes it takes 24 times five searches; with a page, each row is
written into the page's table as soon as it is measured, and rows of other models and sizes stay.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from topoplan import Host, TopoplanError, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.kernels import clock as clocks
from topoplan_engine.reporting.tables import markdown_row

_MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
#: Of each model: its frontend and options, samples of a device, and precision.
MODELS: dict[str, tuple[str, dict[str, Any], int, Literal["bf16", "fp32"]]] = {
    "llama": (
        "huggingface",
        {"config": str(_MODELS / "llama-3-8b.json"), "layers": 4, "sequence_length": 4096},
        1,
        "bf16",
    ),
    "llama-70b": (
        "huggingface",
        {"config": str(_MODELS / "llama-3-70b.json"), "layers": 8, "sequence_length": 8192},
        1,
        "bf16",
    ),
    "mixtral": (
        "huggingface",
        {"config": str(_MODELS / "mixtral-8x7b.json"), "layers": 2, "sequence_length": 4096},
        1,
        "bf16",
    ),
    "dlrm": ("dlrm", {"preset": "dlrm16"}, 64, "fp32"),
    "ncf": ("ncf", {}, 64, "fp32"),
    "resnet50": ("resnet50", {}, 16, "fp32"),
}
SEARCHERS = ("spmd", "pipeline", "mcmc", "baseline:rule=ddp")
AIM = 1.02
#: Around the table of a page.
_BEGIN, _END = "<!-- default searcher -->", "<!-- end of default searcher -->"


def searched(model: str, devices: int, searcher: str, seconds: float, seed: int, topology: str) -> dict[str, Any]:
    """Search for so many CPU seconds in this process; return the plan's seconds, and what ended the search."""
    now = time.process_time
    clocks.time = SimpleNamespace(monotonic=now, process_time=now)  # type: ignore[assignment, attr-defined]
    frontend, options, samples, precision = MODELS[model]
    host = Host.discover()
    try:
        outcome = optimize(
            Choice(frontend, options) if options else frontend,
            host=host,
            device="h100",
            servers=max(1, devices // 8),
            gpus_per_server=8,
            degree=8,
            interface_bandwidth_gbps=400.0,
            inter_gpu_bandwidth_gbps=3600.0,
            precision=precision,
            batch_size=samples * devices,
            topology=topology,
            searchers=searcher,
            time_limit=f"{seconds}s",
            seed=seed,
        )
    except TopoplanError as error:
        return {"refused": str(error)}
    return {
        "seconds": outcome.seconds if outcome.fits else None,
        "ended_by": outcome.result.ended_by,
        "origin": outcome.origin.name,
        "evaluations": outcome.result.evaluations,
        "left_out": outcome.result.left_out,
        "cpu_seconds": time.process_time(),
    }


def in_a_process(*what: str | float) -> dict[str, Any]:
    """Search as `searched` does, in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(what)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answer


def row(
    model: str, devices: int, searchers: list[str], seconds: float, seed: int, topology: str = "bigswitch"
) -> list[str]:
    """Return a row of the table: milliseconds by each searcher, and the ratio."""
    answers = {name: in_a_process(model, devices, name, seconds, seed, topology) for name in ("auto", *searchers)}
    times = {name: answer.get("seconds") for name, answer in answers.items()}
    single = [found for name, found in times.items() if name != "auto" and found is not None]
    found = times["auto"]
    ratio = "-"
    if single:
        ratio = (
            "none" if found is None else f"{found / min(single):.4f}" + ("" if found <= AIM * min(single) else " **")
        )
    auto = answers["auto"]
    origin = f"{auto.get('origin', auto.get('refused', ''))[:60]} ({auto.get('cpu_seconds', 0.0):.0f} s)"
    return [
        model,
        str(devices),
        *("-" if time_ is None else f"{time_ * 1e3:.4g}" for time_ in times.values()),
        origin,
        ratio,
    ]


def write_row(page: Path, cells: list[str]) -> None:
    """Put a row into the table of a page, in the place of that of the same model and size; the order is by size."""
    before, rest = page.read_text(encoding="utf-8").split(f"{_BEGIN}\n", 1)
    table, after = rest.split(_END, 1)
    head, rule, *rows = table.splitlines()
    by_cell = {tuple(row.strip("| ").split(" | ")[:2]): row for row in [*rows, markdown_row(cells)]}
    order = sorted(by_cell, key=lambda cell: (int(cell[1]), list(MODELS).index(cell[0])))
    table = "\n".join([head, rule, *(by_cell[cell] for cell in order)])
    page.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}", encoding="utf-8")


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds of each search")
    parser.add_argument("--devices", default="8,64,128,512")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--searchers", default=",".join(SEARCHERS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--topology", default="bigswitch", help="that joins the hosts")
    parser.add_argument("--page", type=Path, help="whose table gets the rows")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(searched(*json.loads(given.one))))
        return
    searchers = given.searchers.split(",")
    print(markdown_row(["model", "GPUs", "auto", *searchers, "plan of auto", "auto / best single"]))
    print(markdown_row(["---", *["--:"] * (2 + len(searchers)), "---", "--:"]))
    for devices in map(int, given.devices.split(",")):
        for model in given.models.split(","):
            cells = row(model, devices, searchers, given.seconds, given.seed, given.topology)
            print(markdown_row(cells), flush=True)
            if given.page:
                write_row(given.page, cells)


if __name__ == "__main__":
    main()
