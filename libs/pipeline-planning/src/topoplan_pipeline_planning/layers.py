"""The model as prefix sums: columns over layers, each with the sum over the layer and all earlier ones.

`layers_of` computes them from an operator graph and the prices of its undivided operators.  A layer is a state of the
graph (`states`).  Times are those of one device that runs the whole batch, bytes those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan import CostFunction, OperatorGraph, TopoplanError
from topoplan.arrays import ARRAY_EQ, F64, I64, f64
from topoplan_pipeline_planning.states import Bools, States, TooManyStatesError, antichain_states, prefix_states

__all__ = ["Layers", "OperatorColumns", "layers_of", "operator_columns", "priced_columns", "profiled_columns"]


@attrs.frozen(kw_only=True)
class OperatorColumns:
    """(n,) each: seconds forward and backward, bytes of the output and of the parameters of each operator."""

    forward: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    backward: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    activations: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    parameters: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)


@attrs.frozen(kw_only=True, eq=False)
class Layers:
    """L layers of n operators.

    Attributes:
        seconds, parameters, activations: (L,) forward and backward, bytes and bytes, of the layer and all before it.
        crossing: (L,) bytes that cross a cut after the layer.
        before: (L, L) row j marks the layers k with a path from k to j; they come earlier.
        closed: (L, n) the operators of the layer and of all earlier ones.
    """

    seconds: F64 = attrs.field(converter=f64)
    parameters: F64 = attrs.field(converter=f64)
    activations: F64 = attrs.field(converter=f64)
    crossing: F64 = attrs.field(converter=f64)
    before: Bools
    closed: Bools

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self.seconds)

    def spanned(self, start: int | I64, end: int | I64) -> tuple[F64, F64]:
        """Return seconds and parameter bytes of layers ``[start, end]``.

        As in the release, a stage ends where the next one starts, but its end layer is counted in both.
        """
        last = np.minimum(end, self.count - 1)
        seconds, parameters = (np.concatenate(([0.0], column)) for column in (self.seconds, self.parameters))
        return self.seconds[last] - seconds[start], self.parameters[last] - parameters[start]

    @classmethod
    def of(cls, states: States, columns: OperatorColumns) -> Layers:
        """Sum the columns of the operators over states."""

        def total(mask: Bools, column: F64) -> F64:
            return np.asarray(np.where(mask, column, 0.0).sum(axis=1))

        return cls(
            seconds=total(states.closed, columns.forward + columns.backward),
            parameters=total(states.closed, columns.parameters),
            activations=total(states.closed, columns.activations),
            crossing=total(states.crossing, columns.activations),
            before=states.before,
            closed=states.closed,
        )


def operator_columns(graph: OperatorGraph, costs: CostFunction) -> OperatorColumns:
    """Return the prices of all operators on device 0 with the whole batch; with measured output bytes, if present."""
    first = np.zeros(1, dtype=np.int32)
    prices = [costs.price(op, (1,) * len(operator.dims), first) for op, operator in enumerate(graph.operators)]
    return priced_columns(graph, [price.forward[0] for price in prices], [price.backward[0] for price in prices])


def priced_columns(graph: OperatorGraph, forward: Sequence[float], backward: Sequence[float]) -> OperatorColumns:
    """Return what `operator_columns` returns, given the seconds of all operators."""
    return OperatorColumns(
        forward=forward,
        backward=backward,
        activations=[
            sum(tensor.nbytes for tensor in op.outputs) if op.profile is None else op.profile.activation_bytes
            for op in graph.operators
        ],
        parameters=_parameters(graph),
    )


def profiled_columns(graph: OperatorGraph) -> OperatorColumns:
    """Return the measured times and bytes that the operators of a graph contain.

    Raises:
        TopoplanError: an operator was not profiled.
    """
    profiles = [op.profile for op in graph.operators if op.profile is not None]
    if len(profiles) < len(graph.operators):
        name = next(op.name for op in graph.operators if op.profile is None)
        raise TopoplanError(
            f"searcher hpgo: model {graph.name!r}: operator {name!r} was not profiled (use a model with measured "
            "times, such as torchgraph reads; `topoplan optimize MODEL -s hpgo` plans with estimates)"
        )
    return OperatorColumns(
        forward=[profile.forward for profile in profiles],
        backward=[profile.backward for profile in profiles],
        activations=[profile.activation_bytes for profile in profiles],
        parameters=_parameters(graph),
    )


def _parameters(graph: OperatorGraph) -> list[float]:
    return [float(sum(tensor.nbytes for tensor in op.weights)) for op in graph.operators]


def layers_of(graph: OperatorGraph, columns: OperatorColumns, *, limit: int, simplify: bool) -> Layers:
    """Return the layers of a graph.

    Args:
        graph: the model; its first operator is the start of the pipeline.
        columns: its prices.
        limit: greatest number of layers.
        simplify: one layer per operator, in the order of the graph, instead of all antichain states.

    Raises:
        TopoplanError: there are more layers than ``limit``, or operators that no layer reaches.
    """
    children: list[list[int]] = [[] for _ in graph.operators]
    for u, _, v, _ in graph.edges.reshape(-1, 4).tolist():
        if v not in children[u]:
            children[u].append(v)
    context = f"searcher hpgo: model {graph.name!r}"
    if simplify:
        states = prefix_states(children)
    else:
        try:
            states = antichain_states(children, limit)
        except TooManyStatesError:
            raise TopoplanError(
                f"{context}: its parallel branches make more than {limit} layers (antichain states) of "
                f"{len(children)} operators (hpgo:simplify=true plans with one layer per operator; max-states "
                "allows more, at 24 bytes for each pair of layers)"
            ) from None
    if states.closed.shape[0] > limit:
        raise TopoplanError(f"{context}: {states.closed.shape[0]} layers are more than max-states={limit} (allow more)")
    orphans = np.flatnonzero(~states.closed[-1])
    if len(orphans):
        raise TopoplanError(
            f"{context}: operator {graph.operators[orphans[0]].name!r} is on no way from or to the first one, "
            f"{graph.operators[0].name!r} (a pipeline needs one connected model; or use hpgo:simplify=true)"
        )
    return Layers.of(states, columns)
