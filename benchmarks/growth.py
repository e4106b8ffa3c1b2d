"""How evaluation time and memory grow with servers and with layers; writes docs/growth.md and docs/growth.svg.

    .venv/bin/python benchmarks/growth.py
    .venv/bin/python benchmarks/growth.py --points 2 --write PAGE.md    # the smallest of each, into another page

One evaluation changes one operator of a data-parallel transformer and prices it: lower and simulate, coupled
`fluid`, one switch.  Every point runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from topoplan_engine.reporting.figures import COLOURS, empty_figure, write_figure
from topoplan_engine.reporting.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
SERVERS = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
LAYERS = [8, 16, 32, 64, 128, 256, 512]
BATCH = 65536
#: A fit over the largest points says what growth tends to; before them it is hidden by what every call costs.
FITTED = 5


def measure(servers: int, layers: int) -> dict[str, float]:
    """Return tasks, processor seconds of one evaluation, and bytes that the whole search state took at its peak."""
    from topoplan import Candidate, Host, State
    from topoplan_engine import ClusterOptions, problem_on
    from topoplan_engine.experiment import build_cluster
    from topoplan_engine.kernels.allocator import keep_freed_memory
    from topoplan_engine.search.evaluator import Evaluator

    keep_freed_memory()  # as a search does

    def start(servers: int, layers: int) -> tuple[Evaluator, State]:
        host = Host.discover()
        frontend = host.make("frontend", "transformer", {"num_layers": layers})
        graph = frontend.build(BATCH)
        cluster = build_cluster(ClusterOptions(servers=servers, degree=1))
        estimator = host.make("estimator", "roofline")
        costs = estimator.build(graph, cluster)
        problem = problem_on(graph, cluster, costs, host.make("topology", "bigswitch"))
        fabric = problem.build_fabric(None, np.random.default_rng(0))
        simulator = host.make("simulator", "fluid")
        return Evaluator(problem, simulator.build(), "ignore"), State(problem.space.initial(), fabric)

    def evaluate(evaluator: Evaluator, state: State, op: int) -> float:
        degrees = [1] * len(evaluator.problem.graph.operators[op].dims)
        degrees[evaluator.problem.graph.operators[op].sample_dim] = evaluator.problem.cluster.n_devices // 2
        changed = Candidate(base=state, placements={op: evaluator.problem.space.place(tuple(degrees), 0)})
        begin = time.process_time()
        evaluator.price(changed)
        return time.process_time() - begin

    small, state = start(2, 1)
    evaluate(small, state, 1)  # loads the kernels
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    evaluator, state = start(servers, layers)
    tasks = evaluator._lowering.lower(state.strategy).n_tasks
    evaluate(evaluator, state, 1)
    seconds = statistics.median(evaluate(evaluator, state, op) for op in (2, 5, 8, 5, 2))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"servers": servers, "layers": layers, "tasks": tasks, "seconds": seconds, "bytes": max(memory, 1)}


def exponent(points: list[dict[str, float]], by: str, of: str) -> float:
    """Return the slope of a line through the largest points in logarithms."""
    rows = points[-FITTED:]
    return float(np.polyfit(np.log([p[by] for p in rows]), np.log([p[of] for p in rows]), 1)[0])


def table(points: list[dict[str, float]], by: str) -> str:
    """Return a Markdown table of a row of points, the fitted exponents in its last line."""
    headers = [by, "tasks", "evaluation", "memory"]
    rows = [
        [
            f"{point[by]:,.0f}",
            f"{point['tasks']:,.0f}",
            f"{point['seconds'] * 1e3:,.2f} ms",
            f"{point['bytes'] / 1e6:,.1f} MB",
        ]
        for point in points
    ]
    if len(points) <= FITTED:
        return markdown_table(headers, rows, numbers=headers)
    fits = [f"{by}^{exponent(points, by, of):.2f}" for of in ("tasks", "seconds", "bytes")]
    return markdown_table(headers, [*rows, ["grows as", *fits]], numbers=headers)


def plot(rows: dict[str, list[dict[str, float]]]) -> Figure:
    """Return a figure with a logarithmic panel for each row: evaluation time and memory."""
    figure = empty_figure(8.0, 3.5)
    for axes, (by, points) in zip(figure.subplots(1, len(rows), sharey=True), rows.items(), strict=True):
        sizes = [point[by] for point in points]
        for number, (of, unit, name) in enumerate((("seconds", 1e3, "ms per evaluation"), ("bytes", 1e-6, "MB"))):
            label = f"{name}: {by}^{exponent(points, by, of):.2f}"
            values = [point[of] * unit for point in points]
            axes.loglog(sizes, values, color=COLOURS[number], marker="o", markersize=4, label=label)
        axes.set_xticks(sizes, [f"{size:.0f}" for size in sizes], fontsize="x-small")
        axes.minorticks_off()
        axes.set_xlabel(by)
        axes.grid(visible=True, axis="y", color="#eeeeee")
        axes.legend()
    return figure


def main() -> None:
    """Measure all points and write the page and the plot."""

    def point(servers: int, layers: int) -> dict[str, float]:
        words = [sys.executable, __file__, str(servers), str(layers)]
        found: dict[str, float] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        print(found, file=sys.stderr)
        return found

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=len(SERVERS), help="of each row, the smallest first")
    parser.add_argument("--write", type=Path, metavar="PAGE.md", help="a copy of docs/growth.md to write instead")
    given = parser.parse_args()
    servers, layers = SERVERS[: given.points], LAYERS[: given.points]
    rows = {"servers": [point(n, 12) for n in servers], "layers": [point(16, n) for n in layers]}
    page = given.write or DOCS / "growth.md"
    head, rest = page.read_text().split("<!-- measured -->\n", 1)
    tail = rest.split("<!-- end -->\n", 1)[1]
    measured = (
        f"Twelve layers on more servers:\n\n{table(rows['servers'], 'servers')}\n\n"
        f"Sixteen servers, more layers:\n\n{table(rows['layers'], 'layers')}\n"
    )
    page.write_text(f"{head}<!-- measured -->\n{measured}<!-- end -->\n{tail}")
    if given.write is None:
        write_figure(plot(rows), DOCS / "growth.svg")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].isdecimal():
        print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
    else:
        main()
