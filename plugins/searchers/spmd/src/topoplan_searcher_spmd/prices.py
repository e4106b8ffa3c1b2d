"""Seconds and bytes of the instructions and reshardings of a model on a mesh, as columns for the kernel.

Each of two micro-batches has half of the operators' seconds and half of the bytes of activations.  Parameters are
resharded once, and their gradients are summed once.  Bytes are those of one device: stored parameters with gradients
and optimizer state, gathered parameters, and the activations of both micro-batches.
"""

from __future__ import annotations

import math
from functools import cache

import attrs
import numpy as np

from topoplan import OperatorGraph, Problem
from topoplan.arrays import F64
from topoplan.model.sharding import PENDING_GRADIENT, MeshSharding
from topoplan.model.taskgraph import Collective
from topoplan_engine.partition import slice_elements
from topoplan_engine.sharding.mesh import MeshStep, mesh_groups, mesh_steps
from topoplan_searcher_spmd.bounds import min_after
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.space import Joint, Kind, LargestPart, MeshProgram
from topoplan_spmd_planning.columns import Columns, columns_of, forms_of
from topoplan_spmd_planning.program import Instruction, Verb
from topoplan_spmd_planning.strategy import MICRO_BATCHES

__all__ = ["Prices", "least_bytes", "least_exchange", "priced"]

_Exchanges = tuple[MeshStep, ...]


class Prices:
    """Prices of a model on a mesh."""

    def __init__(self, problem: Problem, model: MeshProgram, machine: Machine, sharded_state: bool) -> None:
        self._problem, self._model, self._machine = problem, model, machine
        self._sharded = sharded_state
        self._sizes = model.mesh.sizes
        self._groups = cache(lambda axes: mesh_groups(self._sizes, axes))
        self._exchanges = cache(lambda source, target: mesh_steps(source, target, self._sizes))
        # By collective, bytes and axes: many conversions have the same steps.
        self._along = cache(lambda kind, nbytes, axes: machine.seconds(kind, nbytes, self._groups(axes)))
        self._state = [self._state_of(op) for op in range(len(problem.graph.operators))]

    def compute(self, instruction: Instruction[Joint], rule: Joint) -> float:
        """Return the forward seconds of one micro-batch."""
        return self.passes(instruction, rule)[0]

    def passes(self, instruction: Instruction[Joint], rule: Joint) -> tuple[float, float]:
        """Return the seconds of one micro-batch, forward and backward."""
        if instruction.op < 0:
            return 0.0, 0.0
        part = self._price(instruction.op, rule.degrees)
        return part.forward / MICRO_BATCHES, part.backward / MICRO_BATCHES

    def conversion(self, nbytes: int, source: MeshSharding, target: MeshSharding) -> tuple[float, float] | None:
        """Return zeros if the resharding exists, else None; `crossing` has its price, which depends on the value."""
        del nbytes
        return None if self._exchanges(source, target) is None else (0.0, 0.0)

    def crossing(
        self, value: int, source: MeshSharding, target: MeshSharding
    ) -> tuple[float, float, float, float, float]:
        """Return the forward and backward seconds of a resharding, for both micro-batches, and its bytes."""
        model, nbytes = self._model, self._model.program.values[value].nbytes
        kind = model.outline.kinds[value]
        if kind is not Kind.WEIGHT:
            forward_steps, backward_steps = self._steps(source, target)
            part = nbytes / MICRO_BATCHES
            forward = self._seconds(forward_steps, part)
            backward = self._seconds(backward_steps, part) if kind is Kind.OUTPUT else 0.0
            return forward, backward, forward, backward, 0.0
        # A pending gradient is summed here, over samples as well; other gradients are summed where they are read.
        forward_steps, backward_steps = self._steps(
            model.stored(source) if PENDING_GRADIENT in source else source, target
        )
        joined_bytes = self.gathered_bytes(value, source, target)
        return self._seconds(forward_steps, nbytes), self._seconds(backward_steps, nbytes), 0.0, 0.0, joined_bytes

    def exchange(self, value: int, source: MeshSharding, target: MeshSharding) -> float:
        """Return the seconds of a resharding of a parameter and of its gradient; infinite if it does not exist."""
        if source == target:
            return 0.0
        if self._exchanges(source, target) is None:
            return np.inf
        forward, backward, *_ = self.crossing(value, source, target)
        return forward + backward

    def gathered_bytes(self, value: int, source: MeshSharding, target: MeshSharding) -> float:
        """Return the bytes of a parameter that is gathered from slices; 0 if it is not."""
        pieces = self._pieces(target)
        return self._model.program.values[value].nbytes / pieces if pieces < self._pieces(source) else 0.0

    def sums(self, instruction: Instruction[Joint], rule: Joint) -> float:
        """Return the seconds to sum the gradient of a sliced parameter over samples."""
        if instruction.verb is not Verb.READ or self._model.outline.kinds[instruction.outputs[0]] is not Kind.WEIGHT:
            return 0.0
        (forms,), axes = rule.outputs, self._model.mesh.data
        if not axes or PENDING_GRADIENT in forms:
            return 0.0
        share = self._model.program.values[instruction.outputs[0]].nbytes / self._pieces(forms)
        return float(self._along(Collective.ALL_REDUCE, share, axes))

    def persistent_bytes(self, instruction: Instruction[Joint], rule: Joint) -> float:
        """Return the bytes that an instruction holds on a device until the backward pass."""
        if instruction.op >= 0:
            part, op = self._price(instruction.op, rule.degrees), self._problem.graph.operators[instruction.op]
            cut = sum(int(slice_elements(op, w, rule.degrees).max()) * w.itemsize for w in op.weights)
            return max(0.0, part.memory - self._state[instruction.op] * cut)
        if instruction.verb is not Verb.READ or self._model.outline.kinds[instruction.outputs[0]] is not Kind.WEIGHT:
            return 0.0
        value, (forms,) = instruction.outputs[0], rule.outputs
        pieces = self._pieces(forms)
        stored = self._model.program.values[value].nbytes / pieces
        replicas = (self._state[self._model.outline.owner[value]] - 1) * stored
        return stored + replicas / (self._problem.cluster.n_devices / pieces if self._sharded else 1)

    def _pieces(self, forms: MeshSharding) -> int:
        return math.prod(self._model.mesh.pieces(forms).values())

    def _steps(self, source: MeshSharding, target: MeshSharding) -> tuple[_Exchanges, _Exchanges]:
        exchanges = self._exchanges(source, target)
        assert exchanges is not None
        return exchanges

    def _seconds(self, steps: _Exchanges, nbytes: float) -> float:
        return sum(self._along(step.step.collective, nbytes * step.share, step.axes) for step in steps)

    def _price(self, op: int, degrees: tuple[int, ...]) -> LargestPart:
        """Price an operator cut by ``degrees``; other meshes ask the same."""
        largest = self._model.outline.largest_parts
        if (op, degrees) not in largest:
            devices = np.arange(int(np.prod(degrees, dtype=np.int64)), dtype=np.int32)
            part = self._problem.costs.price(op, degrees, devices)
            largest[op, degrees] = LargestPart(
                float(part.forward.max()),
                float(part.backward.max()),
                float(part.memory.max()),
                None if part.kept is None else float(part.kept[0]),
            )
        return largest[op, degrees]

    def _state_of(self, op: int) -> float:
        """Return the persistent bytes for each byte of an operator's parameters; at least 1."""
        operator = self._problem.graph.operators[op]
        weights = sum(tensor.nbytes for tensor in operator.weights)
        if not weights:
            return 0.0
        costs = self._price(op, (1,) * len(operator.dims))
        outputs = sum(tensor.nbytes for tensor in operator.outputs)
        state = costs.memory - min(outputs, costs.memory) if costs.kept is None else costs.kept
        return max(1.0, state / weights)


def least_bytes(prices: Prices, model: MeshProgram, graph: OperatorGraph) -> float:
    """Return a lower bound on the bytes of a device: the sum of each operator's minimum over its signatures.

    A signature counts with the best storage of its parameters, and with what is gathered of them.
    """
    reads = {i.outputs[0]: i for i in model.program.instructions if i.verb is Verb.READ}
    cached: dict[object, float] = {}
    visited: set[int] = set()
    total = 0.0
    for instruction in model.program.instructions:
        if instruction.op < 0:
            continue
        weights = [(k, value) for k, value in enumerate(instruction.inputs) if value in reads and value not in visited]
        visited.update(value for _, value in weights)
        op = graph.operators[instruction.op]
        key = (attrs.evolve(op, name=""), tuple(k for k, _ in weights))
        if key not in cached:
            cached[key] = min(
                prices.persistent_bytes(instruction, rule)
                + sum(_least_of(prices, reads[value], value, rule.inputs[k]) for k, value in weights)
                for rule in instruction.signatures
            )
        total += cached[key]
    return total


def _least_of(prices: Prices, read: Instruction[Joint], value: int, target: MeshSharding) -> float:
    """Return the minimal bytes of a parameter that is used with the shardings ``target``: stored and gathered."""
    return min(
        (
            prices.persistent_bytes(read, rule)
            + (0.0 if rule.outputs[0] == target else prices.gathered_bytes(value, rule.outputs[0], target))
            for rule in read.signatures
            if rule.outputs[0] == target or prices.conversion(0, rule.outputs[0], target) is not None
        ),
        default=np.inf,
    )


def least_exchange(prices: Prices, model: MeshProgram) -> float:
    """Return a lower bound on the seconds of communication: parameters, as `topoplan_searcher_spmd.bounds` counts them.

    It needs no columns, which cost more than all else on a mesh that is dominated.
    """
    program, cached, total = model.program, dict[object, float](), 0.0
    for read in program.instructions:
        if read.verb is not Verb.READ or model.outline.kinds[read.outputs[0]] is not Kind.WEIGHT:
            continue
        (value,) = read.outputs
        reader, argument = model.outline.user[value]
        users = program.instructions[reader].signatures
        key = program.values[value].nbytes, id(read.signatures), id(users), argument  # equal layers share signatures
        if key not in cached:
            targets = dict.fromkeys(rule.inputs[argument] for rule in users)
            cached[key] = min(
                prices.sums(read, rule) + prices.exchange(value, rule.outputs[0], target)
                for rule in read.signatures
                for target in targets
            )
        total += cached[key]
    return total


def priced(prices: Prices, model: MeshProgram, limit: float, subject: str) -> Columns:
    """Return the columns of a model on a mesh, for the recursion that overlaps both passes within ``limit`` bytes.

    Error messages begin with ``subject``.
    """
    program = model.program
    base = columns_of(program, prices, subject)
    pairs = [(i, rule) for i in program.instructions for rule in i.signatures]
    crossings = np.full((5, *base.forward.shape), np.inf)
    numbers: dict[object, int] = {}
    for v, forms in enumerate(forms_of(program)):
        first = numbers.setdefault((base.like[v], model.outline.kinds[v]), v)
        if first < v:
            crossings[:, v] = crossings[:, first]
            continue
        for a, b in np.argwhere(np.isfinite(base.forward[v])).tolist():
            crossings[:, v, a, b] = prices.crossing(v, forms[a - 1], forms[b - 1])

    def column(values: list[float]) -> F64:
        return np.array(values, dtype=np.float64)

    bounded = np.isfinite(limit)
    held_bytes = column([prices.persistent_bytes(i, rule) for i, rule in pairs] if bounded else [0.0] * len(pairs))
    return base._replace(
        overlapped=True,
        back=column([prices.passes(i, rule)[1] for i, rule in pairs]),
        sums=column([prices.sums(i, rule) for i, rule in pairs]),
        signature_bytes=held_bytes,
        forward=crossings[0],
        backward=crossings[1],
        second_forward=crossings[2],
        second_backward=crossings[3],
        gathered_bytes=crossings[4] if bounded else np.zeros_like(crossings[4]),
        limit=limit,
        min_bytes=min_after(held_bytes, base.signature_at) * (1 - 1e-9),
    )
