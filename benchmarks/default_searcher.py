"""The default searcher beside each single one, at equal CPU time: six models on 8, 64, 128 and 512 GPUs.

    .venv/bin/python benchmarks/default_searcher.py [--seconds 20] [--devices 8,64,128,512] [--models llama,dlrm] \
        [--searchers spmd,pipeline,mcmc] [--seeds 5] [--topology topoopt] [--page docs/guides/research.md]

Each search is a process of its own that may take so many CPU seconds: its clock is that of its CPU time, without that
of compilation.  Machines are hosts of eight H100 with eight interfaces of 400 Gbps, joined by one switch or by what
``--topology`` names (the page has rows of one switch).  The last column is the time of the
plan of `auto` over that of the best single searcher, both as the simulator says; the aim is at most 1.02.  A plan that
does not fit into memory is none.

Chains are searches of chance: one seed says little.  Where the ratio of the first seed lies within 4 % of the aim or
above it, and a chain made one of the plans concerned, `auto` and the single searchers within 10 % of the best one are
run with the seeds 0 to 4, and means decide; a cell then has the mean, the least and the largest time.  Planners, which
draw nothing, are run once.

With all models and sizes it takes 24 times five searches, and some 150 more for seeds; with a page, each row is
written into the page's table as soon as it is measured, and rows of other models and sizes stay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
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
#: The first seed's ratio from which on others are asked; single searchers so near the best one are asked, too.
_DOUBTFUL, _NEAR = 0.98, 1.10
#: Draw nothing: any seed gives the same plan.
_PLANNERS = ("spmd", "pipeline", "hybrid", "baseline")
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
    model: str, devices: int, searchers: list[str], seconds: float, seeds: int, topology: str = "bigswitch"
) -> list[str]:
    """Return a row of the table: milliseconds by each searcher, and the ratio."""
    answers = {name: in_a_process(model, devices, name, seconds, 0, topology) for name in ("auto", *searchers)}
    times = {name: [float(found)] for name, answer in answers.items() if (found := answer.get("seconds")) is not None}
    auto = answers["auto"]
    rivals = _rivals(times, auto.get("origin", ""))
    for name in rivals:
        for seed in range(1, seeds):
            again = in_a_process(model, devices, name, seconds, seed, topology)
            times[name].append(again.get("seconds") or float("inf"))
    origin = f"{auto.get('origin', auto.get('refused', ''))[:60]} ({auto.get('cpu_seconds', 0.0):.0f} s)"
    cells = [_cell(times.get(name, ())) for name in answers]
    return [model, str(devices), str(seeds if rivals else 1), *cells, origin, _ratio(times)]


def _rivals(times: dict[str, list[float]], origin: str) -> list[str]:
    """Return the searchers to run with several seeds: none where the first seed is clear or chance has no part."""
    single = {name: found[0] for name, found in times.items() if name != "auto"}
    if "auto" not in times or not single or times["auto"][0] < _DOUBTFUL * min(single.values()):
        return []
    near = [name for name, found in single.items() if found <= _NEAR * min(single.values())]
    chains = [name for name in near if name.split(":")[0] not in _PLANNERS]
    if "auto" in origin:
        chains = ["auto", *chains]
    best = min(single, key=lambda name: single[name])
    return chains if "auto" in chains or best in chains else []


def _cell(found: Sequence[float]) -> str:
    if not found:
        return "-"
    mean = f"{statistics.fmean(found) * 1e3:.4g}"
    return mean if len(found) == 1 else f"{mean} ({min(found) * 1e3:.4g} to {max(found) * 1e3:.4g})"


def _ratio(times: dict[str, list[float]]) -> str:
    means = {name: statistics.fmean(found) for name, found in times.items()}
    found = means.pop("auto", None)
    if not means:
        return "-"
    best = min(means.values())
    return "none" if found is None else f"{found / best:.4f}" + ("" if found <= AIM * best else " **")


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
    parser.add_argument("--seeds", type=int, default=5, help="of chains, where the first one leaves the aim in doubt")
    parser.add_argument("--topology", default="bigswitch", help="that joins the hosts")
    parser.add_argument("--page", type=Path, help="whose table gets the rows")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(searched(*json.loads(given.one))))
        return
    searchers = given.searchers.split(",")
    print(markdown_row(["model", "GPUs", "seeds", "auto", *searchers, "plan of auto", "auto / best single"]))
    print(markdown_row(["---", *["--:"] * (3 + len(searchers)), "---", "--:"]))
    for devices in map(int, given.devices.split(",")):
        for model in given.models.split(","):
            cells = row(model, devices, searchers, given.seconds, given.seeds, given.topology)
            print(markdown_row(cells), flush=True)
            if given.page:
                write_row(given.page, cells)


if __name__ == "__main__":
    main()
