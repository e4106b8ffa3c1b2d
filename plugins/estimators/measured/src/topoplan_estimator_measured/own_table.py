"""Costs from our own table of times, which ``topoplan profile operators`` writes.

A part has the time of the part of its shape in the table (`topoplan_operator_times.parts`), so that every operator and
every cut that was timed is priced by its own measurement, and nothing is interpolated.  Where the parts of a cut differ
by one, all of them have the time of the largest; slices for devices of unequal speed were not timed.  Memory is that of
the tensors, as `roofline` counts it.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I32, f64
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction, PartCosts
from topoplan.model.graph import OperatorGraph, Slices
from topoplan_engine.precision import weight_states
from topoplan_engine.training import gradient_flow, trained_weights
from topoplan_operator_times.parts import gradients_of, part_shape
from topoplan_operator_times.saved import gradient_tensors, saved_tensors
from topoplan_operator_times.speeds import at_speeds
from topoplan_operator_times.states import state_bytes
from topoplan_operator_times.table import PartTimes, Table
from topoplan_operator_times.work import part_work, weight_shares

__all__ = ["TableCosts"]


class TableCosts(CostFunction):
    """A `topoplan.CostFunction`: see the module.

    Attributes:
        assumptions: what the times were measured on, as plans record it.
    """

    knows_training = True

    def __init__(self, table: Table, where: str, graph: OperatorGraph, cluster: Cluster) -> None:
        if table.bench.precision != graph.precision:
            raise TopoplanError(
                f"{where}: precision {table.bench.precision} is not that of the model, {graph.precision} "
                f"(use --precision {table.bench.precision}, or a table that was measured in {graph.precision})"
            )
        self.assumptions = {"measured_on": str(table.bench)}
        self._rows, self._where = table.rows, where
        self._graph, self._gpus = graph, cluster.gpus_per_device
        self._gradients, self._saved = gradients_of(graph), saved_tensors(graph)
        self._flow, self._weight_share = gradient_flow(graph), weight_shares(graph)
        self._gradient_tensors = gradient_tensors(graph)
        self._states = weight_states(graph)
        self._speed = cluster.device_speed
        self._timed: dict[tuple[int, tuple[int, ...]], PartTimes | None] = {}
        self._prices: dict[tuple[int, tuple[int, ...]], PartCosts] = {}

    def speedups(self) -> tuple[F64, str]:
        """Return that no time is to be divided: the table is of the precision of the model."""
        return np.ones(len(self._graph.operators)), f"times were measured in {self._graph.precision}"

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether this cut was timed, and fitted into memory."""
        row = self._row(op, degrees)
        return row is not None and row.forward is not None

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part; the arrays are read-only.

        Raises:
            TopoplanError: the cut was not timed, or did not fit into memory.
        """
        operator, row = self._graph.operators[op], self._row(op, degrees)
        cut = " x ".join(map(repr, degrees))
        if row is None:
            raise TopoplanError(
                f"{self._where}: operator {operator.name!r} ({operator.kind}) cut {cut} was not measured "
                "(topoplan profile operators, with the options of this model and cluster, adds it to the table)"
            )
        if row.forward is None or row.backward is None:
            raise TopoplanError(
                f"{self._where}: operator {operator.name!r} cut {cut} did not fit into memory when it was measured "
                "(choose more parts)"
            )
        cached = self._prices.get((op, degrees))
        if cached is None:
            cached = self._prices[op, degrees] = self._costs(op, degrees, row.forward.median, row.backward.median)
        return at_speeds(cached, self._speed[devices])

    def _row(self, op: int, degrees: tuple[int, ...]) -> PartTimes | None:
        key = (op, degrees)
        if key not in self._timed:
            operator = self._graph.operators[op]
            unequal = any(isinstance(degree, Slices) for degree in degrees)
            legal = operator.why_invalid(degrees) is None and not unequal
            shape = part_shape(operator, degrees, self._gradients[op], self._gpus) if legal else None
            self._timed[key] = None if shape is None else self._rows.get(shape)
        return self._timed[key]

    def _costs(self, op: int, degrees: tuple[int, ...], forward: float, backward: float) -> PartCosts:
        """Return costs on devices of normal speed."""
        operator = self._graph.operators[op]
        work = part_work(
            operator, degrees, self._gpus, self._saved[op], trained_weights(self._graph, op), self._gradient_tensors[op]
        )
        backward = backward if self._flow.backward[op] else 0.0
        states = state_bytes(operator, work, self._states)
        share = self._weight_share[op]
        return PartCosts(
            forward=f64(np.full(len(work.weights), forward)),
            backward=f64(np.full(len(work.weights), backward)),
            memory=f64(states.sum(axis=0) + work.saved),
            states=f64(states),
            weight_gradient=None if share is None else f64(np.full(len(work.weights), backward * share)),
            gradients=f64(work.gradients),
        )
