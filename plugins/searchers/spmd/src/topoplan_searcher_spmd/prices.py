"""What instructions and conversions of a model on a mesh take, in seconds and bytes, as columns for the kernel.

Each of two micro-batches is charged half of the operators and of what is made of samples; parameters are converted,
and their gradients summed, once.  Bytes are those of one device: what it keeps of parameters with all that belongs to
them, what is put together of them, and the activations of both micro-batches.
"""

from __future__ import annotations

from functools import cache

import attrs
import numpy as np

from topoplan import OperatorGraph, PartCosts, Problem
from topoplan.arrays import F64
from topoplan.model.sharding import PENDING_GRADIENT, MeshSharding
from topoplan.model.taskgraph import Collective
from topoplan_engine.partition import slice_elements
from topoplan_engine.sharding.mesh import MeshStep, mesh_groups, mesh_steps
from topoplan_searcher_spmd.bounds import following
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.space import Joint, Kind, Written
from topoplan_spmd_planning.columns import Columns, columns_of, forms_of
from topoplan_spmd_planning.program import Instruction, Verb
from topoplan_spmd_planning.strategy import MICRO_BATCHES

__all__ = ["Prices", "least_bytes", "priced"]

_Exchanges = tuple[MeshStep, ...]


class Prices:
    """Prices of a model on a mesh."""

    def __init__(self, problem: Problem, written: Written, machine: Machine, sharded_state: bool) -> None:
        self._problem, self._written, self._machine = problem, written, machine
        self._sharded = sharded_state
        self._sizes = written.mesh.sizes
        self._groups = cache(lambda axes: mesh_groups(self._sizes, axes))
        self._exchanges = cache(lambda source, target: mesh_steps(source, target, self._sizes))
        self._parts: dict[tuple[int, tuple[int, ...]], PartCosts] = {}
        self._state = [self._state_of(op) for op in range(len(problem.graph.operators))]

    def compute(self, instruction: Instruction[Joint], rule: Joint) -> float:
        """Return the forward seconds of one micro-batch."""
        return self.passes(instruction, rule)[0]

    def passes(self, instruction: Instruction[Joint], rule: Joint) -> tuple[float, float]:
        """Return the seconds of one micro-batch, forward and backward."""
        if instruction.op < 0:
            return 0.0, 0.0
        part = self._part(instruction, rule)
        return float(part.forward.max()) / MICRO_BATCHES, float(part.backward.max()) / MICRO_BATCHES

    def conversion(self, nbytes: int, source: MeshSharding, target: MeshSharding) -> tuple[float, float] | None:
        """Say which conversions there are; `crossing` prices them, for which bytes are not enough."""
        del nbytes
        return None if self._exchanges(source, target) is None else (0.0, 0.0)

    def crossing(
        self, value: int, source: MeshSharding, target: MeshSharding
    ) -> tuple[float, float, float, float, float]:
        """Return forward and backward seconds of a conversion of the first micro-batch, of the second, and bytes."""
        written, whole = self._written, self._written.program.values[value].nbytes
        kind = written.outline.kinds[value]
        if kind is not Kind.WEIGHT:
            ahead, back = self._made(source, target)
            part = whole / MICRO_BATCHES
            forward = self._seconds(ahead, part)
            backward = self._seconds(back, part) if kind is Kind.MADE else 0.0
            return forward, backward, forward, backward, 0.0
        # A gradient that is to be summed here is summed over samples at once; others are where they are read.
        ahead, back = self._made(written.stored(source) if PENDING_GRADIENT in source else source, target)
        joined_bytes = self.put_together(value, source, target)
        return self._seconds(ahead, whole), self._seconds(back, whole), 0.0, 0.0, joined_bytes

    def put_together(self, value: int, source: MeshSharding, target: MeshSharding) -> float:
        """Return the bytes that a parameter takes which is put together of slices."""
        pieces = self._pieces(target)
        return self._written.program.values[value].nbytes / pieces if pieces < self._pieces(source) else 0.0

    def sums(self, instruction: Instruction[Joint], rule: Joint) -> float:
        """Return the seconds in which the gradient of a parameter that is stored in slices is summed over samples."""
        if instruction.verb is not Verb.READ or self._written.outline.kinds[instruction.outputs[0]] is not Kind.WEIGHT:
            return 0.0
        (forms,), axes = rule.outputs, self._written.mesh.data
        if not axes or PENDING_GRADIENT in forms:
            return 0.0
        share = self._written.program.values[instruction.outputs[0]].nbytes / self._pieces(forms)
        return self._machine.seconds(Collective.ALL_REDUCE, share, self._groups(axes))

    def kept(self, instruction: Instruction[Joint], rule: Joint) -> float:
        """Return the bytes that an instruction leaves on a device until the backward pass."""
        if instruction.op >= 0:
            part, op = self._part(instruction, rule), self._problem.graph.operators[instruction.op]
            degrees = rule.degrees(self._written.mesh, len(op.dims))
            cut = sum(int(slice_elements(op, w, degrees).max()) * w.itemsize for w in op.weights)
            return max(0.0, float(part.memory.max()) - self._state[instruction.op] * cut)
        if instruction.verb is not Verb.READ or self._written.outline.kinds[instruction.outputs[0]] is not Kind.WEIGHT:
            return 0.0
        value, (forms,) = instruction.outputs[0], rule.outputs
        pieces = self._pieces(forms)
        stored = self._written.program.values[value].nbytes / pieces
        replicas = (self._state[self._written.outline.owner[value]] - 1) * stored
        return stored + replicas / (self._problem.cluster.n_devices / pieces if self._sharded else 1)

    def _pieces(self, forms: MeshSharding) -> int:
        return int(np.prod([*self._written.mesh.pieces(forms).values()], dtype=np.int64))

    def _made(self, source: MeshSharding, target: MeshSharding) -> tuple[_Exchanges, _Exchanges]:
        exchanges = self._exchanges(source, target)
        assert exchanges is not None
        return exchanges

    def _seconds(self, steps: _Exchanges, nbytes: float) -> float:
        return sum(
            self._machine.seconds(step.step.collective, nbytes * step.share, self._groups(step.axes)) for step in steps
        )

    def _part(self, instruction: Instruction[Joint], rule: Joint) -> PartCosts:
        dims = self._problem.graph.operators[instruction.op].dims
        return self._price(instruction.op, rule.degrees(self._written.mesh, len(dims)))

    def _price(self, op: int, degrees: tuple[int, ...]) -> PartCosts:
        if (op, degrees) not in self._parts:
            devices = np.arange(int(np.prod(degrees, dtype=np.int64)), dtype=np.int32)
            self._parts[op, degrees] = self._problem.costs.price(op, degrees, devices)
        return self._parts[op, degrees]

    def _state_of(self, op: int) -> float:
        """Return the bytes that a device keeps for each byte of an operator's parameters, at least themselves."""
        operator = self._problem.graph.operators[op]
        weights = sum(tensor.nbytes for tensor in operator.weights)
        if not weights:
            return 0.0
        whole = self._price(op, (1,) * len(operator.dims))
        outputs = sum(tensor.nbytes for tensor in operator.outputs)
        state = whole.memory[0] - min(outputs, whole.memory[0]) if whole.kept is None else whole.kept[0]
        return max(1.0, float(state) / weights)


def least_bytes(prices: Prices, written: Written, graph: OperatorGraph) -> float:
    """Return bytes that a device holds at least: for each operator by itself, the signature that keeps the least.

    With a signature go the parameters, as they are stored best for it, and what is put together of them.
    """
    reads = {i.outputs[0]: i for i in written.program.instructions if i.verb is Verb.READ}
    cached: dict[object, float] = {}
    counted: set[int] = set()
    total = 0.0
    for instruction in written.program.instructions:
        if instruction.op < 0:
            continue
        weights = [(k, value) for k, value in enumerate(instruction.inputs) if value in reads and value not in counted]
        counted.update(value for _, value in weights)
        op = graph.operators[instruction.op]
        like = (attrs.evolve(op, name=""), tuple(k for k, _ in weights))
        if like not in cached:
            cached[like] = min(
                prices.kept(instruction, rule)
                + sum(_least_of(prices, reads[value], value, rule.inputs[k]) for k, value in weights)
                for rule in instruction.signatures
            )
        total += cached[like]
    return total


def _least_of(prices: Prices, read: Instruction[Joint], value: int, target: MeshSharding) -> float:
    """Return the bytes of a parameter that is wanted in some forms: as it is stored, and put together."""
    return min(
        (
            prices.kept(read, rule)
            + (0.0 if rule.outputs[0] == target else prices.put_together(value, rule.outputs[0], target))
            for rule in read.signatures
            if rule.outputs[0] == target or prices.conversion(0, rule.outputs[0], target) is not None
        ),
        default=np.inf,
    )


def priced(prices: Prices, written: Written, limit: float, who: str) -> Columns:
    """Return the columns of a model on a mesh, for the recursion that overlaps both passes within ``limit`` bytes.

    ``who`` begins messages.
    """
    program = written.program
    base = columns_of(program, prices, who)
    pairs = [(i, rule) for i in program.instructions for rule in i.signatures]
    crossings = np.full((5, *base.forward.shape), np.inf)
    numbers: dict[object, int] = {}
    for v, forms in enumerate(forms_of(program)):
        like = numbers.setdefault((program.values[v].nbytes, written.outline.kinds[v], forms), v)
        if like < v:
            crossings[:, v] = crossings[:, like]
            continue
        for a, b in np.argwhere(np.isfinite(base.forward[v])).tolist():
            crossings[:, v, a, b] = prices.crossing(v, forms[a - 1], forms[b - 1])

    def column(values: list[float]) -> F64:
        return np.array(values, dtype=np.float64)

    bounded = np.isfinite(limit)
    held_bytes = column([prices.kept(i, rule) for i, rule in pairs] if bounded else [0.0] * len(pairs))
    return base._replace(
        overlapped=True,
        back=column([prices.passes(i, rule)[1] for i, rule in pairs]),
        sums=column([prices.sums(i, rule) for i, rule in pairs]),
        held=held_bytes,
        forward=crossings[0],
        backward=crossings[1],
        again_forward=crossings[2],
        again_backward=crossings[3],
        put_together=crossings[4] if bounded else np.zeros_like(crossings[4]),
        limit=limit,
        lean=following(held_bytes, base.signature_at) * (1 - 1e-9),
    )
