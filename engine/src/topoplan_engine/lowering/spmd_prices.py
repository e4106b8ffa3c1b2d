"""What operators of a program for all devices take on every device: seconds and bytes.

An operator is priced as the placement that its signatures make; where they make fewer parts than there are devices,
several devices run the same part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64
from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.memory import MemoryUse
from topoplan.model.sharding import arguments
from topoplan.model.spmd import SpmdProgram
from topoplan.plugin.components import CostFunction
from topoplan_engine.partition import slice_elements

__all__ = ["DeviceCosts", "device_costs", "program_memory", "program_memory_use"]


class DeviceCosts(NamedTuple):
    """(D,) seconds of one operator's passes on every device, and the bytes that it keeps there by itself.

    ``states`` has three rows; see `PartCosts`.
    """

    forward: F64
    backward: F64
    memory: F64
    kept: F64 | None
    states: F64 | None


def device_costs(
    program: SpmdProgram, op: int, graph: OperatorGraph, cluster: Cluster, costs: CostFunction
) -> DeviceCosts:
    """Price one operator.

    Raises:
        TopoplanError: the cost function cannot price the cut.
    """
    degrees = program.degrees(op, len(graph.operators[op].dims))
    part = program.part(op, degrees)
    rows = np.argsort(part, kind="stable").reshape(int(part.max()) + 1, -1).T  # (copies of the parts, parts)
    alike = len(set(cluster.device_preset)) == 1 and bool((cluster.device_speed == cluster.device_speed[0]).all())
    columns = np.empty((4, len(part)))
    states = np.empty((3, len(part)))
    kept = known = True
    for number, devices in enumerate(rows):
        if number == 0 or not alike:
            priced = costs.price(op, degrees, devices.astype(np.int32))
            kept, known = priced.kept is not None, priced.states is not None
            stays = priced.memory if priced.kept is None else priced.kept
        columns[:, devices] = priced.forward, priced.backward, priced.memory, stays
        if priced.states is not None:
            states[:, devices] = priced.states
    return DeviceCosts(columns[0], columns[1], columns[2], columns[3] if kept else None, states if known else None)


class _Held(NamedTuple):
    """(D,) bytes of one operator on every device, and what is put together of its parameters.

    ``weights`` are part of ``state``, as they are stored.
    """

    activations: F64
    state: F64
    weights: F64
    whole: float


def program_memory(program: SpmdProgram, graph: OperatorGraph, prices: list[DeviceCosts]) -> F64:
    """Return the (D,) most bytes that each device holds.

    Activations of all micro-batches are there when the forward pass ends.  What belongs to parameters shrinks with the
    slices in which they are stored, and what is put together of them stays until the backward pass; with shared state
    a device keeps of it all but the parameters themselves only the share that is its own.
    """
    total = np.zeros(program.n_devices)
    for index, price in enumerate(prices):
        held = _held(program, graph, index, price)
        total += held.activations + held.state + held.whole
    return total


def program_memory_use(program: SpmdProgram, graph: OperatorGraph, prices: list[DeviceCosts]) -> MemoryUse:
    """Return the same by what it is for."""
    states, undivided = np.zeros((3, program.n_devices)), np.zeros(program.n_devices)
    for index, price in enumerate(prices):
        held = _held(program, graph, index, price)
        if price.states is None:
            undivided += held.state + held.whole
            continue
        states[0] += held.weights + held.whole
        rest = price.states[1:]
        share = rest / np.maximum(rest.sum(axis=0), 1e-300)
        states[1:] += share * (held.state - held.weights)
    return MemoryUse.of(program_memory(program, graph, prices), states, undivided)


def _held(program: SpmdProgram, graph: OperatorGraph, index: int, price: DeviceCosts) -> _Held:
    op = graph.operators[index]
    degrees = program.degrees(index, len(op.dims))
    outputs = sum(int(slice_elements(op, tensor, degrees).max()) * tensor.itemsize for tensor in op.outputs)
    state = price.kept if price.kept is not None else price.memory - np.minimum(outputs, price.memory)
    activations = price.memory - state
    cut = stored = whole = 0.0
    for argument, tensor in list(enumerate(arguments(op)))[len(op.inputs) :]:
        wanted, given = program.wanted(index, argument), program.stored[index][argument]
        cut += tensor.nbytes / program.pieces(wanted)
        stored += tensor.nbytes / program.pieces(given)
        if program.pieces(wanted) < program.pieces(given):
            whole += tensor.nbytes / program.pieces(wanted)
    if cut == 0:
        return _Held(activations, state, np.zeros_like(state), whole)
    state = state * (stored / cut)
    weights = np.minimum(state, stored)
    if program.sharded_state:
        sharers = max(1.0, program.n_devices * stored / sum(tensor.nbytes for tensor in op.weights))
        state = weights + (state - weights) / sharers
    return _Held(activations, state, weights, whole)
