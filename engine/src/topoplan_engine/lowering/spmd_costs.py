"""What an SPMD program costs on every device: seconds of its operators' passes, and bytes of memory.

An operator is priced as the placement that its signatures make; if they make fewer parts than there are devices,
several devices run the same part.

    rules of an operator, mesh ─► degrees ─► parts ─► `PartCosts` of the estimator ─► `DeviceCosts`, place by place
                                                           └► with stored slices of weights ─► `OperatorBytes`

Seconds are those of one micro-batch, priced at its size and not as a share of the batch; bytes are those of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction, MicroBatch, PartCosts
from topoplan.model.graph import Operator, OperatorGraph
from topoplan.model.sharding import arguments
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import Stage
from topoplan_engine.equal_operators import first_equal
from topoplan_engine.lowering.fragments import weight_seconds
from topoplan_engine.partition import slice_elements
from topoplan_engine.sharding.programs import pieces

__all__ = [
    "DeviceCosts",
    "OperatorBytes",
    "PricedParts",
    "ProgramPrices",
    "gradients_of",
    "of_one_number",
    "operator_bytes",
]


class DeviceCosts(NamedTuple):
    """(D,) seconds in which every device runs an operator, and bytes of memory, before those of other operators.

    Seconds are those of one micro-batch, bytes those of the batch; ``weight_gradient`` is a part of ``backward``.

    ``kept`` and ``states`` (three rows) are those of `PartCosts`; ``outputs`` are bytes of the largest part's, and
    so are both ``gradients``.
    """

    forward: F64
    backward: F64
    memory: F64
    kept: F64 | None
    states: F64 | None
    outputs: int
    gradients: tuple[float, float] | None
    weight_gradient: F64

    def rows(self) -> list[F64]:
        """Return all columns."""
        return [row for each in self if isinstance(each, np.ndarray) for row in np.atleast_2d(each)]

    @property
    def uniform(self) -> bool:
        """Whether columns are views of one number."""
        return all(of_one_number(each) for each in self if isinstance(each, np.ndarray))

    def at(self, places: I32 | I64) -> DeviceCosts:
        """Return the costs at some places."""
        if len(places) > 1 and self.uniform:
            return self._of(lambda each: np.broadcast_to(each[..., :1], (*each.shape[:-1], len(places))))
        return self._of(lambda each: each[..., places])

    def _of(self, columns: Callable[[F64], F64]) -> DeviceCosts:
        return DeviceCosts._make(columns(each) if isinstance(each, np.ndarray) else each for each in self)


def of_one_number(column: F64) -> bool:
    """Return whether rows of a column are views of one number each, without a look at more."""
    return column.shape[-1] == 1 or column.strides[-1] == 0


class PlacedParts(NamedTuple):
    """(D,) the part of an operator that each place runs, and (copies, parts) the places that run each part."""

    part: I32
    devices: I32


class PricedParts(NamedTuple):
    """What prices of stages have in common.

    Attributes:
        parts: by mesh, degrees and dimensions that the axes of the mesh cut.
        columns: by the prices of an operator, which are kept with them so that no two have one id.
    """

    parts: dict[object, PlacedParts]
    columns: dict[object, tuple[PartCosts, PartCosts, DeviceCosts]]

    def of(self, program: SpmdProgram, row: int, degrees: tuple[int, ...]) -> PlacedParts:
        """Return the parts of an operator of a program, by its number there."""
        cut = program.mesh, degrees, tuple(rule.dim for rule in program.rules[row])
        if cut not in self.parts:
            self.parts[cut] = _parts_of_devices(program, row, degrees)
        return self.parts[cut]


class ProgramPrices:
    """Prices of the operators of programs, of one graph on one cluster.

    Operators with equal cuts and prices share their columns, which are as long as there are devices.
    """

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self._graph, self._costs = graph, costs
        self._uniform = len(set(cluster.device_preset)) == 1 and bool(
            (cluster.device_speed == cluster.device_speed[0]).all()
        )
        self._output_bytes: dict[tuple[int, tuple[int, ...]], int] = {}  # by first equal operator and degrees

    def of_operators(self, stage: Stage, micro_batches: int, prices_so_far: PricedParts) -> list[DeviceCosts]:
        """Price the operators of a stage.

        Args:
            stage: the stage.
            micro_batches: of the batch.
            prices_so_far: of other stages of the same micro-batches; what is new is added.

        Raises:
            TopoplanError: the cost function cannot price a cut.
        """
        program, device_of_place = stage.program, stage.mesh.devices
        shared, devices_of = prices_so_far.columns, dict[object, I32]()
        prices, equal = [], first_equal(self._graph)
        for row, op in enumerate(stage.operators.tolist()):
            operator, first = self._graph.operators[op], equal[op]
            degrees = program.degrees(row, len(operator.dims))
            parts, outputs = prices_so_far.of(program, row, degrees), self._outputs(first, degrees)
            if not self._uniform:
                prices.append(self._apart(op, degrees, parts, device_of_place, outputs, micro_batches))
                continue
            cut = program.mesh, degrees, tuple(rule.dim for rule in program.rules[row])
            if cut not in devices_of:
                devices_of[cut] = device_of_place[parts.devices[0]]
            devices, batch = devices_of[cut], MicroBatch.of(operator, micro_batches)
            price = self._costs.price(op, degrees, devices)
            passes = self._costs.price_micro_batch(op, degrees, devices, batch)
            key = id(price), id(passes), cut, outputs, bool(operator.weights)
            if key not in shared:
                shared[key] = price, passes, _of_parts(operator, price, passes, outputs).at(parts.part)
            prices.append(shared[key][2])
        return prices

    def _apart(
        self,
        op: int,
        degrees: tuple[int, ...],
        parts: PlacedParts,
        device_of_place: I32,
        outputs: int,
        micro_batches: int,
    ) -> DeviceCosts:
        """Price an operator on devices that differ, copy by copy of its parts."""
        operator, copies = self._graph.operators[op], []
        batch = MicroBatch.of(operator, micro_batches)
        for places in parts.devices:
            devices = device_of_place[places]
            price = self._costs.price(op, degrees, devices)
            passes = self._costs.price_micro_batch(op, degrees, devices, batch)
            copies.append(_of_parts(operator, price, passes, outputs))
        side_by_side = DeviceCosts._make(
            np.concatenate(each, axis=-1) if isinstance(each[0], np.ndarray) else each[-1]
            for each in zip(*copies, strict=True)
        )
        return side_by_side.at(np.argsort(parts.devices.ravel()))

    def _outputs(self, op: int, degrees: tuple[int, ...]) -> int:
        """Return the bytes of the outputs of an operator's largest part."""
        nbytes = self._output_bytes.get((op, degrees))
        if nbytes is None:
            operator = self._graph.operators[op]
            slices = [(slice_elements(operator, tensor, degrees), tensor.itemsize) for tensor in operator.outputs]
            nbytes = self._output_bytes[op, degrees] = sum(int(part.max()) * itemsize for part, itemsize in slices)
        return nbytes


def _parts_of_devices(program: SpmdProgram, op: int, degrees: tuple[int, ...]) -> PlacedParts:
    """Return which device runs which part of an operator that is cut by ``degrees``."""
    part = program.part_of_place(op, len(degrees))
    devices = np.argsort(part, kind="stable").reshape(int(part.max()) + 1, -1).T
    return PlacedParts(part, devices.astype(np.int32))


def _of_parts(operator: Operator, price: PartCosts, passes: PartCosts, outputs: int) -> DeviceCosts:
    """Return the price of every part, with a column for each; ``passes`` are those of a micro-batch."""
    return DeviceCosts(
        forward=passes.forward,
        backward=passes.backward,
        memory=price.memory,
        kept=price.kept,
        states=price.states,
        outputs=outputs,
        gradients=_largest(price),
        weight_gradient=weight_seconds(operator, passes, shared=True),
    )


def _largest(price: PartCosts) -> tuple[float, float] | None:
    """Return the bytes of gradients of the largest part; parts of programs are equal."""
    return None if price.gradients is None else (float(price.gradients[0].max()), float(price.gradients[1].max()))


class OperatorBytes(NamedTuple):
    """(D,) bytes of one operator on every device: activations, state and what is gathered.

    Attributes:
        activations: of the whole batch.
        state: what belongs to parameters, as they are stored.
        weights: the parameters themselves, a part of ``state``.
        gathered: bytes of all-gathered parameters that stay, the same on every device.
    """

    activations: F64
    state: F64
    weights: F64
    gathered: float


def gradients_of(prices: Sequence[DeviceCosts]) -> F64:
    """(2, n_ops) bytes of gradients of outputs on every device, and of what backward passes make beside them."""
    return np.array([(0.0, 0.0) if price.gradients is None else price.gradients for price in prices]).T


def operator_bytes(
    program: SpmdProgram, graph: OperatorGraph, prices: Sequence[DeviceCosts], equal: Sequence[int] | None = None
) -> list[OperatorBytes]:
    """Return the bytes of every operator on every device; equal operators with equal shardings share theirs.

    ``equal`` has a number for each operator that equal ones share, where it is known (`first_equal`).
    """
    shared: dict[object, OperatorBytes] = {}
    result = []
    for index, (first, price) in enumerate(zip(equal or first_equal(graph), prices, strict=True)):
        shardings = (program.rules[index], program.stored[index]) if graph.operators[index].weights else ()
        key = first, id(price), shardings
        if key not in shared:
            shared[key] = _bytes_of_operator(program, graph, index, price)
        result.append(shared[key])
    return result


def _bytes_of_operator(program: SpmdProgram, graph: OperatorGraph, index: int, price: DeviceCosts) -> OperatorBytes:
    """Return the bytes of one operator."""
    op = graph.operators[index]
    state = price.kept if price.kept is not None else price.memory - np.minimum(price.outputs, price.memory)
    activations = price.memory - state
    cut_bytes = stored_bytes = gathered = 0.0
    for argument, tensor in list(enumerate(arguments(op)))[len(op.inputs) :]:
        required, stored = program.wanted(index, argument), program.stored[index][argument]
        cut_bytes += tensor.nbytes / pieces(program, required)
        stored_bytes += tensor.nbytes / pieces(program, stored)
        if pieces(program, required) < pieces(program, stored) and not program.gathers_again:
            gathered += tensor.nbytes / pieces(program, required)
    if cut_bytes == 0:
        return OperatorBytes(activations, state, np.zeros_like(state), gathered)
    state = state * (stored_bytes / cut_bytes)
    weights = np.minimum(state, stored_bytes)
    if program.sharded_state:
        sharers = max(1.0, program.n_devices * stored_bytes / sum(tensor.nbytes for tensor in op.weights))
        state = weights + (state - weights) / sharers
    return OperatorBytes(activations, state, weights, gathered)
