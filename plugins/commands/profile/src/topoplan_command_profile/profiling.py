"""Time the distinct parts of a model, and keep what was timed in a table as it comes.

    graph, cluster ─► cuts: each cut that a search may use ─► distinct part shapes ─► timer ─► table (a file)

Whoever interrupts a run loses the part that was being timed: the table holds all others, and the next run with this
table goes on with what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs
import numpy as np

from topoplan import Cluster, CostFunction, OperatorGraph, PartCosts, TopoplanError
from topoplan.arrays import I32
from topoplan_command_profile.torch_timer import Runs
from topoplan_engine.search.space import Space
from topoplan_operator_times.flexnet import Measurement, cut_of, name_of
from topoplan_operator_times.parts import PartShape, gradients_of, part_shape
from topoplan_operator_times.table import Bench, PartTimes, Table, Times, Work, read, write
from topoplan_operator_times.work import factors_of, part_work

__all__ = ["Part", "all_cuts", "flexnet_entries", "load", "parts_of", "time_parts"]

#: Seconds between two writes of the table.
_EVERY = 1.0

#: Operator -> its cuts, degree vectors.
Cuts = Callable[[int], Iterable[tuple[int, ...]]]


@attrs.frozen(eq=False)
class Part:
    """A part of an operator of a model: the number of the operator, its cut, and the part's shape and work."""

    op: int
    degrees: tuple[int, ...]
    shape: PartShape
    work: Work


class _Anything(CostFunction):
    """Prices of nothing: a space of placements with these costs has every legal cut."""

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        return True

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        raise NotImplementedError


def all_cuts(graph: OperatorGraph, cluster: Cluster) -> Cuts:
    """Return what says which cuts of each operator a search on a cluster may use."""
    return Space(graph, cluster, _Anything()).degrees


def parts_of(graph: OperatorGraph, cuts: Cuts, gpus: int = 1) -> list[Part]:
    """Return a part of every cut of every operator, the largest one of the cut."""
    parts = []
    rows = zip(graph.operators, gradients_of(graph), factors_of(graph), strict=True)
    for op, (operator, gradients, factors) in enumerate(rows):
        for degrees in cuts(op):
            work = part_work(operator, degrees, gpus)
            largest = int(np.argmax(work.flops + work.traffic))
            parts.append(
                Part(
                    op,
                    degrees,
                    part_shape(operator, degrees, gradients, gpus),
                    Work(
                        flops=float(work.flops[largest]),
                        traffic=float(work.traffic[largest]),
                        backward=(factors.flops, factors.traffic, factors.kernels),
                    ),
                )
            )
    return parts


def load(path: Path, bench: Bench) -> Table:
    """Return the table of a file, or an empty one where there is no file.

    Raises:
        TopoplanError: the file is no table, or was measured on something else.
    """
    if not path.exists():
        return Table(bench, {})
    table = read(path)
    if table.bench != bench:
        raise TopoplanError(
            f"{path}: was measured on {table.bench}; this is {bench} (name another file with --table, or remove it)"
        )
    return table


def time_parts(
    graph: OperatorGraph,
    parts: Iterable[Part],
    table: Table,
    path: Path,
    timer: Callable[[PartShape], Runs],
    on_progress: Callable[[int, str], None] = lambda finished, name: None,
) -> int:
    """Time the parts that a table lacks, and write it whenever a second has passed, and at the end.

    Args:
        graph: the model.
        parts: of it; each shape is timed once, cheap ones first.
        table: gets a row for each.
        path: of the table.
        timer: returns the seconds of all runs of a part.
        on_progress: called before each part with the number of finished ones.

    Returns:
        How many parts were timed.
    """
    missing: dict[PartShape, Part] = {}
    for part in parts:
        if part.shape not in table.rows:
            missing.setdefault(part.shape, part)
    written = time.monotonic()
    try:
        for number, (shape, part) in enumerate(missing.items()):
            name = f"{graph.name}/{graph.operators[part.op].name}"
            on_progress(number, name)
            runs = timer(shape)
            table.rows[shape] = PartTimes(
                operator=name,
                shape=shape,
                work=part.work,
                repeats=len(runs.forward),
                forward=_quartiles(runs.forward),
                backward=_quartiles(runs.backward),
            )
            if time.monotonic() - written > _EVERY:
                write(path, table)
                written = time.monotonic()
    finally:
        write(path, table)
    return len(missing)


def flexnet_entries(graph: OperatorGraph, parts: Iterable[Part], table: Table) -> list[Measurement]:
    """Return the entries of FlexNet's file: for each name the cuts of the first operator that has it.

    Raises:
        TopoplanError: FlexNet has no name for an operator.
    """
    first: dict[str, int] = {}
    entries = []
    for part in parts:
        operator = graph.operators[part.op]
        name, cut = name_of(operator), cut_of(operator, part.degrees)
        if not name:
            raise TopoplanError(
                f"operator {operator.name!r} ({operator.kind}): FlexNet has no name for it (leave out --flexnet: "
                "-e measured:file=TABLE reads the table, which has every operator)"
            )
        if first.setdefault(name, part.op) == part.op and not isinstance(cut, str):
            row = table.rows[part.shape]
            forward, backward = (None if times is None else times.median for times in (row.forward, row.backward))
            entries.append(Measurement(name, cut, forward, backward, part.shape.nbytes))
    return entries


def _quartiles(seconds: Iterable[float]) -> Times | None:
    values = list(seconds)
    return Times(*map(float, np.percentile(values, (25, 50, 75)))) if values else None
