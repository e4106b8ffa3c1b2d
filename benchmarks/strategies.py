"""What plans of language models cost by published formulas, beside what is simulated and counted here.

    .venv/bin/python benchmarks/strategies.py                          # the tables
    .venv/bin/python benchmarks/strategies.py --write docs/strategies.md

The first table has schedules: a chain of equal chunks under each of them is lowered to a task graph and simulated, on
a network that sends in no time, which is the setting of the formulas.  A rank's bubble is what it is idle between its
first and its last pass; its kept activations are those of the peak of its memory.  The second table has what one of
eight tensor-parallel devices keeps of a layer for its backward pass.

    schedule, ranks, micro-batches -> `StagedStrategy` -> task graph -> `fluid` -> row beside its formula -> page
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from topoplan import (
    Cluster,
    CostFunction,
    DeviceMesh,
    Host,
    OperatorGraph,
    PartCosts,
    Pass,
    Stage,
    StagedStrategy,
    TopologyContext,
)
from topoplan.model.sharding import REPLICATED
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.reporting.pages import replace_section
from topoplan_engine.reporting.tables import markdown_table
from topoplan_engine.sharding.signatures import signatures
from topoplan_engine.sharding.stage_programs import stage_programs
from topoplan_operators import GraphBuilder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "samples"))

from plan_rows import plans_table

from topoplan_samples.megatron_layers import PERCENT, of_a_layer

SECONDS = [(1.0, 1.0, 1.0), (4.0, 5.0, 3.0)]
SIZES = [(4, 8), (8, 24)]


class Formula(NamedTuple):
    """What is published of a schedule.

    Attributes:
        bubble: of ranks, F, B and W; None where nothing is for passes that differ.
        kept: activations of a rank's layers, of ranks and micro-batches.
        chunks: of each rank.
        about: how they are meant, where that is not exactly.
    """

    bubble: Callable[[int, float, float, float], float | None]
    kept: Callable[[int, int], float]
    chunks: int = 1
    about: str = ""


def _equal(share: float) -> Callable[[int, float, float, float], float | None]:
    """A share of the bubble of 1F1B, where all passes take the same time."""
    return lambda p, f, b, w: share * (p - 1) * (f + b + w) if f == b == w else None


FORMULAS = {
    "gpipe": Formula(lambda p, f, b, w: (p - 1) * (f + b + w), lambda p, m: m),
    "1f1b": Formula(lambda p, f, b, w: (p - 1) * (f + b + w), lambda p, m: min(m, p)),
    "interleaved:chunks=2": Formula(
        lambda p, f, b, w: (p - 1) * (f + b + w) / 2, lambda p, m: p * (1 + (p - 1) / (2 * p)), 2
    ),
    "interleaved:chunks=3": Formula(
        lambda p, f, b, w: (p - 1) * (f + b + w) / 3, lambda p, m: p * (1 + (p - 1) / (3 * p)), 3
    ),
    "zb-h1": Formula(lambda p, f, b, w: (p - 1) * (f + b - w), lambda p, m: p),
    "zb-h2": Formula(lambda p, f, b, w: (p - 1) * (f + b - 2 * w), lambda p, m: 2 * p - 1),
    "zb-2p": Formula(lambda p, f, b, w: (p - 1) * (f + b - 2 * w), lambda p, m: 2 * p),
    "zbv": Formula(_equal(0.0), lambda p, m: p, 2),
    "dualpipe": Formula(
        lambda p, f, b, w: (p / 2 - 1) * (f + 2 * (b + w) - 3 * w), lambda p, m: p + 1, about="at most "
    ),
    "v-half": Formula(_equal(1 / 2), lambda p, m: p / 2, 2, about="about "),
    "v-min": Formula(_equal(2 / 3), lambda p, m: p / 3, 2, about="about "),
}


class Row(NamedTuple):
    """A schedule: its bubble and kept activations by formula, simulated, and the length of the iteration."""

    schedule: str
    ranks: int
    micro_batches: int
    seconds: tuple[float, float, float]
    formula: float
    simulated: float
    formula_kept: float
    kept: float
    makespan: float
    about: str


class _Equal(CostFunction):
    """Costs of a chain of equal operators: a batch takes as long as its micro-batches, and each keeps one unit."""

    linear_in_samples = True

    def __init__(self, seconds: tuple[float, float, float], chunks: int, micro_batches: int) -> None:
        self._forward, self._inputs, self._weights = (micro_batches * each / chunks for each in seconds)
        self._bytes = micro_batches * 1e6 / chunks

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say that it prices every cut."""
        return True

    def price(self, op: int, degrees: tuple[int, ...], devices: np.ndarray) -> PartCosts:
        """Return the same for every operator."""
        one = np.ones(len(devices))
        return PartCosts(
            forward=self._forward * one,
            backward=(self._inputs + self._weights) * one,
            weight_gradient=self._weights * one,
            memory=self._bytes * one,
            kept=0 * one,
        )


def chain(schedule: str, ranks: int, micro_batches: int, host: Host) -> tuple[OperatorGraph, StagedStrategy]:
    """Return a model with one operator for each chunk, and the pipeline of these."""
    order = host.make("schedule", schedule).order(ranks, micro_batches)
    first = (order.row_of[Pass.FORWARD] >= 0).argmax(axis=1).tolist()  # tells copies of the model apart
    parts = [first[:chunk].count(copy) for chunk, copy in enumerate(first)]
    builder = GraphBuilder("chain", micro_batches)
    x = builder.input((1,))
    for _ in range(max(parts) + 1):
        x = builder.linear(x, 1, bias=False)
    graph = builder.build()
    uncut = [next(r for r in signatures(op) if r.dim < 0 and {*r.outputs} == {REPLICATED}) for op in graph.operators]
    programs = stage_programs(graph, range(max(parts) + 1), [(1,)] * len(uncut), [(rule,) for rule in uncut], 0)
    stages = [
        Stage(operators=[part], mesh=DeviceMesh(axes=["tp"], sizes=[1], devices=[rank]), body=programs[part])
        for part, rank in zip(parts, order.rank_of.tolist(), strict=True)
    ]
    return graph, StagedStrategy.of(graph, stages, order, micro_batches)


def simulated(schedule: str, ranks: int, micro_batches: int, seconds: tuple[float, float, float], host: Host) -> Row:
    """Lower and simulate a schedule; its row beside the formula."""
    formula = FORMULAS[schedule]
    graph, strategy = chain(schedule, ranks, micro_batches, host)
    cluster = Cluster.uniform(n_hosts=ranks, interface_bandwidth=1e17, latency=0.0)
    lowering = Lowering(graph, cluster, _Equal(seconds, formula.chunks, micro_batches))
    tasks = lowering.lower(strategy)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = host.make("topology", "bigswitch").build(context)
    timeline = host.make("simulator", "fluid").build()(tasks, fabric, cluster)
    compute = np.isin(tasks.kind, (TaskKind.FORWARD, TaskKind.BACKWARD))
    idle = []
    for rank in range(ranks):
        start, finish = (times[compute & (tasks.device == rank)] for times in (timeline.start, timeline.finish))
        idle.append(finish.max() - start.min() - (finish - start).sum())
    bubble = formula.bubble(ranks, *seconds)
    return Row(
        schedule=schedule,
        ranks=ranks,
        micro_batches=micro_batches,
        seconds=seconds,
        formula=np.nan if bubble is None else bubble,
        simulated=float(max(idle)),
        formula_kept=formula.kept(ranks, micro_batches),
        kept=float(lowering.memory_use(strategy).activations.max()) / 1e6,
        makespan=float(timeline.makespan),
        about=formula.about,
    )


def rows() -> Iterator[Row]:
    """Return a row for each schedule, size and set of seconds that a formula is published for."""
    host = Host.discover()
    for schedule, formula in FORMULAS.items():
        for ranks, micro_batches in SIZES:
            for seconds in SECONDS:
                if formula.bubble(ranks, *seconds) is not None:
                    yield simulated(schedule, ranks, micro_batches, seconds, host)


def schedules_table(table: Sequence[Row]) -> str:
    """Return the table of schedules in Markdown."""

    def cells(row: Row) -> list[str]:
        sizes = [str(row.ranks), str(row.micro_batches), ", ".join(f"{each:g}" for each in row.seconds)]
        times = [f"{row.about}{row.formula:.4g}", f"{row.simulated:.4g}", f"{row.makespan:.4g}"]
        return [row.schedule, *sizes, *times, f"{row.about}{row.formula_kept:.3g}", f"{row.kept:.3g}"]

    head = ["schedule", "ranks", "micro-batches", "F, B, W (s)"]
    head += ["bubble by formula (s)", "simulated", "iteration", "kept by formula", "at the peak of memory"]
    return markdown_table(head, [cells(row) for row in table], head[1:])


def activations_table() -> str:
    """Return the table of what a layer keeps in Markdown."""
    body = []
    for model, percents in PERCENT.items():
        whole = of_a_layer(model)
        for mode, percent in percents.items():
            ours = 100 * of_a_layer(model, mode) / whole
            body.append([model, mode, f"{percent:.2f}", f"{ours:.2f}"])
    head = ["model", "sequence parallel, recomputed", "read off (%)", "ours (%)"]
    return markdown_table(head, body, head[2:])


def main() -> None:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="page whose tables are made anew")
    arguments = parser.parse_args()
    tables = {"schedules": schedules_table([*rows()]), "activations": activations_table(), "plans": plans_table()}
    if arguments.write is None:
        print("\n\n".join(tables.values()))
        return
    page = arguments.write.read_text(encoding="utf-8")
    for name, table in tables.items():
        page = replace_section(page, name, f"{table}\n", str(arguments.write))
    arguments.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
