"""How evaluation time and memory grow with servers and with layers; writes docs/growth.md and docs/growth.svg.

    .venv/bin/python benchmarks/growth.py

One evaluation changes one operator of a data-parallel transformer and prices it: lower and simulate, coupled
`fluid`, one switch.  Every point runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

DOCS = Path(__file__).parents[1] / "docs"
SERVERS = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
LAYERS = [8, 16, 32, 64, 128, 256, 512]
BATCH = 65536
#: A fit over the largest points says what growth tends to; before them it is hidden by what every call costs.
FITTED = 5


def measure(servers: int, layers: int) -> dict[str, float]:
    """Return tasks, processor seconds of one evaluation, and bytes that the whole search state took at its peak."""
    from topoplan import Candidate, Host, State, TopologyContext
    from topoplan.model.problem import Problem
    from topoplan_engine import ClusterOptions
    from topoplan_engine.experiment import build_cluster
    from topoplan_engine.search.evaluator import Evaluator
    from topoplan_engine.search.space import Space

    def start(servers: int, layers: int) -> tuple[Evaluator, State]:
        host = Host.discover()
        frontend = host.make("frontend", "transformer", {"num_layers": layers})
        graph = frontend.build(BATCH)
        cluster = build_cluster(ClusterOptions(servers=servers, degree=1))
        estimator = host.make("estimator", "roofline")
        costs = estimator.build(graph, cluster)
        topology = host.make("topology", "bigswitch")
        fabric = topology.build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
        space = Space(graph, cluster, costs)
        problem = Problem(
            graph=graph,
            cluster=cluster,
            costs=costs,
            space=space,
            topology="bigswitch",
            build_fabric=lambda demand, rng: fabric,
            reconfigurable=False,
        )
        simulator = host.make("simulator", "fluid")
        return Evaluator(problem, simulator.build(), "ignore"), State(space.initial(), fabric)

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
    lines = [f"| {by} | tasks | evaluation | memory |", "|---:|---:|---:|---:|"]
    lines += [
        f"| {p[by]:,.0f} | {p['tasks']:,.0f} | {p['seconds'] * 1e3:,.2f} ms | {p['bytes'] / 1e6:,.1f} MB |"
        for p in points
    ]
    fits = [f"{by}^{exponent(points, by, of):.2f}" for of in ("tasks", "seconds", "bytes")]
    return "\n".join([*lines, f"| grows as | {' | '.join(fits)} |"])


def plot(rows: dict[str, list[dict[str, float]]]) -> str:
    """Return an SVG with a logarithmic panel for each row: evaluation time and memory."""
    size = 'width="760" height="330"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts.append(f'<rect {size} fill="white"/>')
    for panel, (by, points) in enumerate(rows.items()):
        left, bottom, width, height = 60 + 380 * panel, 280, 280, 230
        first, last = np.log10(points[0][by]), np.log10(points[-1][by])
        frame = f'x="{left}" y="{bottom - height}" width="{width}" height="{height}"'
        parts.append(f'<rect {frame} fill="none" stroke="#999"/>')
        for p in points:
            x = left + width * (np.log10(p[by]) - first) / (last - first)
            parts.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle" font-size="9">{p[by]:.0f}</text>')
        for decade in range(-1, 5):
            y = bottom - height * (decade + 1) / 5
            parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{10.0**decade:g}</text>')
            parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#eee"/>')
        for of, unit, colour, shift in (("seconds", 1e3, "#c33", 0), ("bytes", 1e-6, "#36c", 16)):
            at = [
                (
                    left + width * (np.log10(p[by]) - first) / (last - first),
                    bottom - height * (np.clip(np.log10(p[of] * unit), -1, 4) + 1) / 5,
                )
                for p in points
            ]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
            name = "ms an evaluation" if of == "seconds" else "MB of memory"
            parts.append(
                f'<text x="{left + 8}" y="{bottom - height + 18 + shift}" fill="{colour}">'
                f"{name}: {by}^{exponent(points, by, of):.2f}</text>"
            )
        parts.append(f'<text x="{left + width / 2}" y="{bottom + 36}" text-anchor="middle">{by}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Measure all points and write the page and the plot."""

    def point(servers: int, layers: int) -> dict[str, float]:
        words = [sys.executable, __file__, str(servers), str(layers)]
        found: dict[str, float] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        print(found, file=sys.stderr)
        return found

    rows = {"servers": [point(n, 12) for n in SERVERS], "layers": [point(16, n) for n in LAYERS]}
    page = DOCS / "growth.md"
    head, rest = page.read_text().split("<!-- measured -->\n", 1)
    tail = rest.split("<!-- end -->\n", 1)[1]
    measured = (
        f"Twelve layers on more servers:\n\n{table(rows['servers'], 'servers')}\n\n"
        f"Sixteen servers, more layers:\n\n{table(rows['layers'], 'layers')}\n"
    )
    page.write_text(f"{head}<!-- measured -->\n{measured}<!-- end -->\n{tail}")
    (DOCS / "growth.svg").write_text(plot(rows))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
    else:
        main()
