"""What instructions and conversions of a model on a mesh take, in seconds and bytes, as columns for the kernel.

Each of two micro-batches is charged half of the operators and of what is made of samples; parameters are converted,
and their gradients summed, once.  Bytes are those of one device: what it keeps of parameters with all that belongs to
them, what is put together of them, and the activations of both micro-batches.
"""

from __future__ import annotations

import numpy as np

from topoplan import PartCosts, Problem
from topoplan.arrays import F64
from topoplan.conversions import Collective, Step, convert
from topoplan.forms import FULL, REPLICATE, Form, Signature
from topoplan.lowering.spmd import groups_of
from topoplan.partition import slice_elements
from topoplan_searcher_hidup.columns import FORMS, Columns, columns_of
from topoplan_searcher_hidup.program import Instruction, Verb
from topoplan_searcher_hidup.strategy import MICRO_BATCHES
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.space import Kind, Written

__all__ = ["Prices", "priced"]


class Prices:
    """Prices of a model on a mesh."""

    def __init__(self, problem: Problem, written: Written, machine: Machine, sharded_state: bool) -> None:
        self._problem, self._written, self._machine = problem, written, machine
        self._sharded = sharded_state
        mesh = written.mesh
        self._last = groups_of(mesh, (len(mesh) - 1,))
        self._samples = groups_of(mesh, (0,) if len(mesh) > 1 else ())
        self._all = groups_of(mesh, tuple(range(len(mesh))))
        self._parts: dict[tuple[int, tuple[int, ...]], PartCosts] = {}
        self._state = [self._state_of(op) for op in range(len(problem.graph.operators))]

    def compute(self, instruction: Instruction, rule: Signature) -> float:
        """Return the forward seconds of one micro-batch."""
        return self.passes(instruction, rule)[0]

    def passes(self, instruction: Instruction, rule: Signature) -> tuple[float, float]:
        """Return the seconds of one micro-batch, forward and backward."""
        if instruction.op < 0:
            return 0.0, 0.0
        part = self._part(instruction, rule)
        return float(part.forward.max()) / MICRO_BATCHES, float(part.backward.max()) / MICRO_BATCHES

    def conversion(self, nbytes: int, given: Form, wanted: Form) -> tuple[float, float] | None:
        """Say which conversions there are; `crossing` prices them, for which bytes are not enough."""
        del nbytes
        return None if convert(given, wanted) is None else (0.0, 0.0)

    def crossing(self, value: int, given: Form, wanted: Form) -> tuple[float, float, float, float, float]:
        """Return forward and backward seconds of a conversion of the first micro-batch, of the second, and bytes."""
        conversion = convert(given, wanted)
        assert conversion is not None
        written, whole = self._written, self._bytes(value)
        kind = written.kinds[value]
        if kind is not Kind.WEIGHT:
            part = whole / MICRO_BATCHES
            forward = self._sum(conversion.forward, part)
            backward = self._sum(conversion.backward, part) if kind is Kind.MADE else 0.0
            return forward, backward, forward, backward, 0.0
        forward = self._sum(conversion.forward, whole)
        if given == REPLICATE and wanted == FULL:
            backward = self._machine.seconds(Collective.ALL_REDUCE, whole, self._all)
        else:
            backward = self._sum(conversion.backward, whole)
            if given == REPLICATE:
                backward += self._machine.seconds(Collective.ALL_REDUCE, whole, self._samples)
        kept = whole if given.sliced and wanted == FULL else 0.0
        return forward, backward, 0.0, 0.0, kept

    def sums(self, instruction: Instruction, rule: Signature) -> float:
        """Return the seconds in which the gradient of a parameter that is stored in slices is summed."""
        if instruction.verb is not Verb.READ or self._written.kinds[instruction.outputs[0]] is not Kind.WEIGHT:
            return 0.0
        (form,) = rule.outputs
        share = self._bytes(instruction.outputs[0]) / self._written.sizes[1]
        return self._machine.seconds(Collective.ALL_REDUCE, share, self._samples) if form.sliced else 0.0

    def kept(self, instruction: Instruction, rule: Signature) -> float:
        """Return the bytes that an instruction leaves on a device until the backward pass."""
        if instruction.op >= 0:
            part, op = self._part(instruction, rule), self._problem.graph.operators[instruction.op]
            degrees = self._written.degrees(op, instruction.op, rule)
            cut = sum(int(slice_elements(op, w, degrees).max()) * w.itemsize for w in op.weights)
            return max(0.0, float(part.memory.max()) - self._state[instruction.op] * cut)
        if instruction.verb is not Verb.READ or self._written.kinds[instruction.outputs[0]] is not Kind.WEIGHT:
            return 0.0
        value, (form,) = instruction.outputs[0], rule.outputs
        pieces = self._written.sizes[1] if form.sliced else 1
        stored = self._bytes(value) / pieces
        rest = (self._state[self._written.owner[value]] - 1) * stored
        return stored + rest / (self._all.size / pieces if self._sharded else 1)

    def _bytes(self, value: int) -> float:
        """Return the bytes of a value in each group along the last axis."""
        size = self._written.sizes[0] if self._written.forms[value].sliced else 1
        return self._written.program.values[value].nbytes / size

    def _sum(self, steps: tuple[Step, ...], nbytes: float) -> float:
        return sum(self._machine.seconds(step.collective, nbytes, self._last) for step in steps)

    def _part(self, instruction: Instruction, rule: Signature) -> PartCosts:
        op = self._problem.graph.operators[instruction.op]
        return self._price(instruction.op, self._written.degrees(op, instruction.op, rule))

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


def priced(prices: Prices, written: Written, limit: float) -> Columns:
    """Return the columns of a model on a mesh, for the recursion that overlaps both passes within ``limit`` bytes."""
    program = written.program
    base = columns_of(program, prices)
    pairs = [(i, rule) for i in program.instructions for rule in i.signatures]
    crossings = np.full((5, *base.forward.shape), np.inf)
    known: dict[object, tuple[float, ...]] = {}
    for v, given, wanted in np.argwhere(np.isfinite(base.forward)).tolist():
        form = (program.values[v].nbytes, written.kinds[v], written.forms[v].sliced, given, wanted)
        if form not in known:
            known[form] = prices.crossing(v, FORMS[given], FORMS[wanted])
        crossings[:, v, given, wanted] = known[form]

    def column(values: list[float]) -> F64:
        return np.array(values, dtype=np.float64)

    return base._replace(
        overlapped=True,
        back=column([prices.passes(i, rule)[1] for i, rule in pairs]),
        sums=column([prices.sums(i, rule) for i, rule in pairs]),
        held=column([prices.kept(i, rule) for i, rule in pairs] if np.isfinite(limit) else [0.0] * len(pairs)),
        forward=crossings[0],
        backward=crossings[1],
        again_forward=crossings[2],
        again_backward=crossings[3],
        put_together=crossings[4] if np.isfinite(limit) else np.zeros_like(crossings[4]),
        limit=limit,
    )
