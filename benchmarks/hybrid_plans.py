"""Hybrid plans: estimates beside the simulator, and what `auto` finds beside each planner, at equal CPU time.

    .venv/bin/python benchmarks/hybrid_plans.py order [--models llama,mixtral] [--plans 250]
    .venv/bin/python benchmarks/hybrid_plans.py compare [--models gpt2,llama] [--devices 8,16,64] [--seconds 20]
    .venv/bin/python benchmarks/hybrid_plans.py compare --problems transformer-spmd,bert-sgmoe-8
    .venv/bin/python benchmarks/hybrid_plans.py compare --problems models --devices 8 --seconds 5
    ... --write docs/strategies.md                       each row is put into the page's table once it is measured

``order`` draws plans from the whole grid of a model, estimates and simulates them: Kendall's tau of both, of all plans
and of those that fit; the place of the plan that is the fastest simulated in the order of estimates; and the estimated
over the simulated seconds, of that plan, in the median, and at worst, and bytes at worst.  The same plans are drawn on
every machine.

``compare`` has the milliseconds of the plans of ``mcmc`` (placements), ``pipeline``, ``spmd``, ``hybrid`` and ``auto``,
each a process of its own with so many CPU seconds; the last column is `auto` over the fastest of the first three: at
most 1 is the aim.  Machines are hosts of eight H100 with eight interfaces of 400 Gbps, or those of the problem.  With
``--problems models`` each model of the standard problems comes once, on hosts of four devices with one switch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import attrs
import numpy as np

from topoplan import Host, Problem, TopoplanError, optimize
from topoplan_engine.blocks import layer_numbers
from topoplan_engine.experiment import Choice
from topoplan_engine.kernels import clock as clocks
from topoplan_engine.keywords import experiment_of
from topoplan_engine.lowering import Lowering
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.search.setup import set_up_search
from topoplan_searcher_stated.construct import Rules, strategy_of
from topoplan_searcher_stated.estimates import Estimates
from topoplan_searcher_stated.grid import SCHEDULES, ladders, shapes
from topoplan_searcher_stated.settings import Settings

_CONFIGS = Path(__file__).resolve().parents[1] / "examples" / "models"
_GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50304, "n_positions": 1024}
#: Of each model: options of its frontend, samples of a device, precision.
MODELS: dict[str, tuple[dict[str, Any], int, Literal["bf16"]]] = {
    "gpt2": ({"config": _GPT2, "sequence_length": 1024}, 4, "bf16"),
    "llama": ({"config": "llama-3-8b.json", "sequence_length": 4096}, 4, "bf16"),
    "mixtral": ({"config": "mixtral-8x7b.json", "sequence_length": 4096, "layers": 8}, 2, "bf16"),
}
#: Models whose grids are estimated: as above, with devices.
GRIDS: dict[str, tuple[dict[str, Any], int, int]] = {
    "gpt2": ({"config": _GPT2, "sequence_length": 1024}, 8, 32),
    "llama-8b, 4 layers": ({"config": "llama-3-8b.json", "sequence_length": 4096, "layers": 4}, 8, 32),
    "llama-8b, 8 layers": ({"config": "llama-3-8b.json", "sequence_length": 8192, "layers": 8}, 16, 32),
    "llama-70b, 8 layers": ({"config": "llama-3-70b.json", "sequence_length": 4096, "layers": 8}, 16, 32),
    "mixtral, 4 layers": ({"config": "mixtral-8x7b.json", "sequence_length": 2048, "layers": 4}, 8, 32),
}
SEARCHERS = ("mcmc", "pipeline", "spmd", "hybrid", "auto")
ORDER = (
    *("model", "GPUs", "plans", "simulated", "tau", "tau, fit", "place of the best"),
    *("seconds, of the best", "median", "seconds", "bytes"),
)
COMPARE = ("model", "GPUs", *(f"{name} (ms)" for name in SEARCHERS), "plan of auto", "auto / best of three")


def frontend(options: dict[str, Any]) -> Choice:
    """Return the frontend of a model; a configuration that is no file is written to one."""
    config = options["config"]
    if isinstance(config, dict):
        path = Path("/tmp") / f"{config['model_type']}-{config['n_layer']}.json"
        path.write_text(json.dumps(config), encoding="utf-8")
    else:
        path = _CONFIGS / config
    return Choice("huggingface", {**options, "config": str(path)})


def machine(devices: int) -> dict[str, Any]:
    """Return hosts of eight H100."""
    return {
        "device": "h100",
        "servers": max(1, devices // 8),
        "gpus_per_server": 8,
        "degree": 8,
        "interface_bandwidth_gbps": 400.0,
        "inter_gpu_bandwidth_gbps": 3600.0,
    }


# ── Order of estimates ──────────────────────────────────────────────────────────────────────────────────────────────


def grid(problem: Problem) -> Iterator[Settings]:
    """Go through all shapes with schedules that have equally many layers, and all steps that save memory."""
    count = layer_numbers(problem.graph).n_layers
    for shape in shapes(problem, count):
        chunks = [name for name in SCHEDULES if shape.pp > 1 or name == "1f1b"]
        replicas = problem.cluster.n_devices // (shape.tp * shape.cp * shape.ep * shape.pp)
        for schedule, ladder in itertools.product(chunks, ladders(shape, replicas)):
            for zero, recompute in ladder:
                yield attrs.evolve(shape, schedule=schedule, zero=zero, recompute=recompute)


def kendall(a: np.ndarray, b: np.ndarray) -> float:
    """Return Kendall's tau of two columns, where a pair that is equal in one of them counts for nothing."""
    above = np.triu_indices(len(a), 1)
    signs = np.sign((a[:, None] - a)[above] * (b[:, None] - b)[above])
    return float(signs.mean()) if len(signs) else math.nan


def order_row(name: str, count: int) -> list[str]:
    """Estimate and simulate so many plans of the grid of a model."""
    options, devices, batch = GRIDS[name]
    experiment = experiment_of(frontend(options), precision="bf16", batch_size=batch, **machine(devices))
    problem = set_up_search(Host.discover(), experiment).problem
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    rules, lowering = Rules(problem.graph), Lowering(problem.graph, problem.cluster, problem.costs)
    estimates = Estimates(problem, fabric, rules)
    simulate = Host.discover().make("simulator", "fluid").build()
    plans = list(grid(problem))
    random.Random(0).shuffle(plans)
    rows: list[tuple[float, float, float, float]] = []
    for plan in plans:
        if len(rows) == count:
            break
        try:
            estimate = estimates.of(plan)
            strategy, _ = strategy_of(plan, problem.graph, devices, rules)
        except TopoplanError:  # layers, heads or the schedule do not go together
            continue
        nbytes = float(lowering.memory(strategy).max())
        makespan = simulate.makespan(lowering.lower(strategy), fabric, problem.cluster, math.inf)
        rows.append((makespan, estimate.seconds, nbytes, estimate.memory))
    simulated, estimated, nbytes, memory = np.array(rows).T
    fits = nbytes <= float(problem.cluster.usable_memory.min())
    best = int(np.where(fits, simulated, np.inf).argmin())
    place = 1 + int((estimated[fits] < estimated[best] * (1 - 1e-9)).sum())
    ratio, of_bytes = estimated / simulated, memory / nbytes
    return [
        name,
        str(devices),
        str(len(plans)),
        str(len(rows)),
        f"{kendall(simulated, estimated):.3f}",
        f"{kendall(simulated[fits], estimated[fits]):.3f}",
        f"{place} of {int(fits.sum())}",
        f"{ratio[best]:.3f}",
        f"{np.median(ratio):.3f}",
        f"{ratio.min():.3f} to {ratio.max():.3f}",
        f"{of_bytes.min():.3f} to {of_bytes.max():.3f}",
    ]


# ── Comparison ──────────────────────────────────────────────────────────────────────────────────────────────────────


def searched(model: str, devices: int, searcher: str, seconds: float) -> dict[str, Any]:
    """Search for so many CPU seconds in this process; return what was found."""
    now = time.process_time
    clocks.time = SimpleNamespace(monotonic=now, process_time=now)  # type: ignore[assignment, attr-defined]
    limit = {"searchers": searcher, "time_limit": f"{seconds}s"}
    try:
        if model in MODELS:
            options, samples, precision = MODELS[model]
            batch = samples * devices
            outcome = optimize(
                frontend(options),
                precision=precision,
                batch_size=batch,
                **machine(devices),
                **limit,  # type: ignore[arg-type]
            )
        else:
            outcome = optimize(problem_experiment(model, devices, searcher, seconds))
    except TopoplanError as error:
        return {"refused": str(error)}
    report = outcome.origin.report or {}
    return {
        "seconds": outcome.seconds if outcome.fits or outcome.memory_ignored else None,
        "origin": outcome.origin.name,
        "plan": report.get("plan", ""),
        "left_out": list(outcome.result.left_out),
    }


def problem_experiment(name: str, devices: int, searcher: str, seconds: float) -> Any:
    """Return a problem of the standard set, to be searched for so many seconds; 0 devices: on its own machine."""
    from topoplan_studies.problems import standard_problems

    problem = next(each for each in standard_problems() if each.name == name)
    experiment = problem.experiment([searcher], budget=10**9, seed=0)
    if devices:
        hosts = attrs.evolve(experiment.cluster, servers=max(1, devices // 4), gpus_per_server=4, gpus_per_device=1)
        if "dialect" in experiment.model.options:  # what FlexNet measured is of other cuts
            experiment = attrs.evolve(experiment, estimator=None)
        options = {key: value for key, value in experiment.model.options.items() if key != "dialect"}
        model = attrs.evolve(experiment.model, options=options)
        experiment = attrs.evolve(experiment, model=model, cluster=hosts, topology=Choice("bigswitch"))
    return attrs.evolve(experiment, run=attrs.evolve(experiment.run, time_limit=f"{seconds}s"))


def models_of_problems() -> list[str]:
    """Return the first of the standard problems of each model; presets are sizes of one."""
    from topoplan_studies.problems import standard_problems

    first: dict[str, str] = {}
    for problem in standard_problems():
        choice = problem.setting.model
        options = {key: value for key, value in choice.options.items() if key not in ("preset", "dialect")}
        first.setdefault(f"{choice.name} {options}", problem.name)
    return list(first.values())


def compare_row(model: str, devices: int, seconds: float) -> list[str]:
    """Search with each searcher in a process of its own."""
    answers = {}
    for name in SEARCHERS:
        command = [sys.executable, __file__, "--one", json.dumps([model, devices, name, seconds])]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode or not process.stdout:
            raise SystemExit(f"{model}, {name}: status {process.returncode} and no plan\n{process.stderr}")
        answers[name] = json.loads(process.stdout.splitlines()[-1])
    times = {name: answer.get("seconds") for name, answer in answers.items()}
    single = [times[name] for name in SEARCHERS[:3] if times[name] is not None]
    auto = answers["auto"]
    found = times["auto"]
    ratio = "none" if found is None or not single else f"{found / min(single):.3f}"
    return [
        model,
        str(devices) if devices else "",
        *("-" if each is None else f"{each * 1e3:.4g}" for each in times.values()),
        auto.get("plan") or auto.get("origin", auto.get("refused", ""))[:60],
        ratio,
    ]


def write_row(page: Path, section: str, head: Sequence[str], cells: Sequence[str]) -> None:
    """Put a row into a table of a page, in the place of that of the same model and size."""
    text = page.read_text(encoding="utf-8")
    old = text.split(f"<!-- begin {section} -->\n")[1].split(f"<!-- end {section} -->")[0].splitlines()[2:]
    rows = {tuple(row[:2]): row for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in old)}
    rows[tuple(cells[:2])] = list(cells)
    table = markdown_table(list(head), list(rows.values()), list(head[2:]))
    page.write_text(replace_section(text, section, f"{table}\n", str(page)), encoding="utf-8")


def main() -> None:
    """Print rows, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["order", "compare"], default="order")
    parser.add_argument("--models", default="")
    parser.add_argument("--devices", default="8,16,64")
    parser.add_argument("--problems", default="")
    parser.add_argument("--plans", type=int, default=250, help="plans of each grid that are simulated")
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds of each search")
    parser.add_argument("--write", type=Path, help="page whose table gets the rows")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(searched(*json.loads(given.one))))
        return
    head = ORDER if given.what == "order" else COMPARE
    models = given.models.split(",") if given.models else list(GRIDS if given.what == "order" else MODELS)
    if given.what == "order":
        rows = (order_row(name, given.plans) for name in GRIDS if any(name.startswith(each) for each in models))
    elif given.problems:
        names = models_of_problems() if given.problems == "models" else given.problems.split(",")
        devices = int(given.devices) if given.problems == "models" else 0
        rows = (compare_row(name, devices, given.seconds) for name in names)
    else:
        sizes = map(int, given.devices.split(","))
        rows = (compare_row(name, size, given.seconds) for size in sizes for name in models)
    for cells in rows:
        print(" | ".join(cells), flush=True)
        if given.write:
            write_row(given.write, f"hybrid {given.what}", head, cells)


if __name__ == "__main__":
    main()
