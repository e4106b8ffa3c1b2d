"""What an SPMD program costs on every device: seconds of its operators' passes, and bytes of memory.

An operator is priced as the placement that its signatures make; if they make fewer parts than there are devices,
several devices run the same part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.recording import MemoryUse
from topoplan.model.sharding import arguments
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.lowering.memory import memory_use_of
from topoplan_engine.partition import slice_elements
from topoplan_engine.sharding.programs import pieces

__all__ = [
    "DeviceCosts",
    "OperatorBytes",
    "OutputBytes",
    "device_costs",
    "operator_bytes",
    "program_memory",
    "program_memory_use",
]


class DeviceCosts(NamedTuple):
    """(D,) seconds of one operator's passes on every device, and bytes of memory, before those of other operators.

    ``kept`` and ``states`` (three rows) are those of `PartCosts`; ``outputs`` are bytes of the largest part's.
    """

    forward: F64
    backward: F64
    memory: F64
    kept: F64 | None
    states: F64 | None
    outputs: int


#: Bytes of the outputs of an operator's largest part, by its number and degrees: of one graph.
OutputBytes = dict[tuple[int, tuple[int, ...]], int]


def _part_of_device(program: SpmdProgram, op: int, degrees: tuple[int, ...]) -> I32:
    """(n_devices,) the part of an operator, cut by ``degrees``, that each device runs."""
    position = np.unravel_index(np.arange(program.n_devices), program.mesh)
    place = [np.zeros(program.n_devices, dtype=np.int64) for _ in degrees]
    for rule, size, along in zip(program.rules[op], program.mesh, position, strict=True):
        if rule.dim >= 0:
            place[rule.dim] = place[rule.dim] * size + along
    return np.ravel_multi_index(place, degrees).astype(np.int32) if degrees else np.zeros(program.n_devices, np.int32)


def device_costs(
    program: SpmdProgram, op: int, graph: OperatorGraph, cluster: Cluster, costs: CostFunction, outputs: OutputBytes
) -> DeviceCosts:
    """Price one operator.

    Args:
        program: says how it is cut.
        op: its number in ``graph``.
        graph, cluster, costs: what it is priced for.
        outputs: what is known of outputs; those of the operator are added.

    Raises:
        TopoplanError: the cost function cannot price the cut.
    """
    degrees = program.degrees(op, len(graph.operators[op].dims))
    part = _part_of_device(program, op, degrees)
    rows = np.argsort(part, kind="stable").reshape(int(part.max()) + 1, -1).T  # (copies of the parts, parts)
    uniform = len(set(cluster.device_preset)) == 1 and bool((cluster.device_speed == cluster.device_speed[0]).all())
    columns = np.empty((4, len(part)))
    states = np.empty((3, len(part)))
    persistent_known = states_known = True
    for number, devices in enumerate(rows):
        if number == 0 or not uniform:
            price = costs.price(op, degrees, devices.astype(np.int32))
            persistent_known, states_known = price.kept is not None, price.states is not None
            persistent = price.memory if price.kept is None else price.kept
        columns[:, devices] = price.forward, price.backward, price.memory, persistent
        if price.states is not None:
            states[:, devices] = price.states
    return DeviceCosts(
        forward=columns[0],
        backward=columns[1],
        memory=columns[2],
        kept=columns[3] if persistent_known else None,
        states=states if states_known else None,
        outputs=_output_bytes(op, degrees, graph, outputs),
    )


def _output_bytes(op: int, degrees: tuple[int, ...], graph: OperatorGraph, outputs: OutputBytes) -> int:
    """Return the bytes of the outputs of an operator's largest part, and add them to ``outputs``."""
    nbytes = outputs.get((op, degrees))
    if nbytes is None:
        operator = graph.operators[op]
        sizes = [int(slice_elements(operator, tensor, degrees).max()) * tensor.itemsize for tensor in operator.outputs]
        nbytes = outputs[op, degrees] = sum(sizes)
    return nbytes


class OperatorBytes(NamedTuple):
    """(D,) bytes of one operator on every device.

    Attributes:
        activations: of the whole batch.
        state: what belongs to parameters, as they are stored.
        weights: the parameters themselves, a part of ``state``.
        gathered: bytes of all-gathered parameters, the same on every device.
    """

    activations: F64
    state: F64
    weights: F64
    gathered: float


def program_memory(program: SpmdProgram, graph: OperatorGraph, prices: list[DeviceCosts]) -> F64:
    """Return the (D,) peak of the bytes that each device holds.

    Activations of all micro-batches are there when the forward pass ends.  The state of parameters shrinks with the
    slices in which they are stored; gathered parameters stay until the backward pass.  With sharded state, a device
    holds only its own share of everything but the parameters.
    """
    total = np.zeros(program.n_devices)
    for index, price in enumerate(prices):
        nbytes = operator_bytes(program, graph, index, price)
        total += nbytes.activations + nbytes.state + nbytes.gathered
    return total


def program_memory_use(program: SpmdProgram, graph: OperatorGraph, prices: list[DeviceCosts]) -> MemoryUse:
    """Return the bytes of `program_memory` by their use."""
    states, undivided = np.zeros((3, program.n_devices)), np.zeros(program.n_devices)
    for index, price in enumerate(prices):
        nbytes = operator_bytes(program, graph, index, price)
        if price.states is None:
            undivided += nbytes.state + nbytes.gathered
            continue
        states[0] += nbytes.weights + nbytes.gathered
        gradients_and_optimizer = price.states[1:]
        share = gradients_and_optimizer / np.maximum(gradients_and_optimizer.sum(axis=0), 1e-300)
        states[1:] += share * (nbytes.state - nbytes.weights)
    return memory_use_of(program_memory(program, graph, prices), states, undivided)


def operator_bytes(program: SpmdProgram, graph: OperatorGraph, index: int, price: DeviceCosts) -> OperatorBytes:
    """Return the bytes of one operator on every device."""
    op = graph.operators[index]
    state = price.kept if price.kept is not None else price.memory - np.minimum(price.outputs, price.memory)
    activations = price.memory - state
    cut_bytes = stored_bytes = gathered = 0.0
    for argument, tensor in list(enumerate(arguments(op)))[len(op.inputs) :]:
        required, stored = program.wanted(index, argument), program.stored[index][argument]
        cut_bytes += tensor.nbytes / pieces(program, required)
        stored_bytes += tensor.nbytes / pieces(program, stored)
        if pieces(program, required) < pieces(program, stored):
            gathered += tensor.nbytes / pieces(program, required)
    if cut_bytes == 0:
        return OperatorBytes(activations, state, np.zeros_like(state), gathered)
    state = state * (stored_bytes / cut_bytes)
    weights = np.minimum(state, stored_bytes)
    if program.sharded_state:
        sharers = max(1.0, program.n_devices * stored_bytes / sum(tensor.nbytes for tensor in op.weights))
        state = weights + (state - weights) / sharers
    return OperatorBytes(activations, state, weights, gathered)
