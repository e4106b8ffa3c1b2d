"""Prices of a program on a mesh, signature by signature and conversion by conversion.

The searcher ``spmd`` derives what several meshes and equal layers share once; here nothing is shared but
the links that the groups of an axis use.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from topoplan.model.sharding import PENDING_GRADIENT
from topoplan.model.taskgraph import Collective
from topoplan_engine.partition import slice_elements
from topoplan_engine.sharding.mesh import mesh_groups, mesh_steps
from topoplan_spmd_planning.columns import columns_of
from topoplan_spmd_planning.program import Verb
from topoplan_spmd_planning.space import Kind

__all__ = ["PlainPrices", "plain_columns"]


class PlainPrices:
    """Prices of a model on a mesh; see `topoplan_spmd_planning.mesh_prices`."""

    def __init__(self, problem, model, machine, sharded_state):
        self.problem, self.model, self.machine, self.sharded = problem, model, machine, sharded_state
        self.sizes, self.values = model.mesh.sizes, model.program.values
        self.links = functools.cache(lambda axes: machine.links(mesh_groups(self.sizes, axes)))

    def compute(self, instruction, rule):
        return self.passes(instruction, rule)[0]

    def passes(self, instruction, rule):
        """Seconds of a micro-batch, forward and backward."""
        if instruction.op < 0:
            return 0.0, 0.0
        part = self.price(instruction.op, self.degrees(instruction.op, rule))
        return float(part.forward.max()) / 2, float(part.backward.max()) / 2

    def conversion(self, nbytes, source, target):
        return None if mesh_steps(source, target, self.sizes) is None else (0.0, 0.0)

    def crossing(self, value, source, target):
        """Seconds of both passes, of the first and of the second micro-batch, and bytes that are held."""
        kind, nbytes = self.model.outline.kinds[value], self.values[value].nbytes
        if kind is Kind.WEIGHT:
            stored = self.model.stored(source) if PENDING_GRADIENT in source else source
            forward, backward = mesh_steps(stored, target, self.sizes)
            pieces = self.pieces(target)
            gathered = nbytes / pieces if pieces < self.pieces(source) else 0.0
            return self.seconds(forward, nbytes), self.seconds(backward, nbytes), 0.0, 0.0, gathered
        forward, backward = mesh_steps(source, target, self.sizes)
        there = self.seconds(forward, nbytes / 2)
        back = self.seconds(backward, nbytes / 2) if kind is Kind.OUTPUT else 0.0
        return there, back, there, back, 0.0

    def sums(self, instruction, rule):
        """Seconds to sum the gradient of a sliced parameter over samples."""
        axes = self.model.mesh.data
        if not self.reads_weight(instruction) or not axes or PENDING_GRADIENT in rule.outputs[0]:
            return 0.0
        nbytes = self.values[instruction.outputs[0]].nbytes / self.pieces(rule.outputs[0])
        return self.along(Collective.ALL_REDUCE, nbytes, axes)

    def persistent_bytes(self, instruction, rule):
        """Bytes that an instruction holds until the backward pass."""
        if instruction.op >= 0:
            op, degrees = self.problem.graph.operators[instruction.op], self.degrees(instruction.op, rule)
            weights = sum(int(slice_elements(op, w, degrees).max()) * w.itemsize for w in op.weights)
            return max(
                0.0, float(self.price(instruction.op, degrees).memory.max()) - self.state(instruction.op) * weights
            )
        if not self.reads_weight(instruction):
            return 0.0
        value, pieces = instruction.outputs[0], self.pieces(rule.outputs[0])
        stored = self.values[value].nbytes / pieces
        others = (self.state(self.model.outline.owner[value]) - 1) * stored
        return stored + others / (self.problem.cluster.n_devices / pieces if self.sharded else 1)

    def reads_weight(self, instruction):
        return instruction.verb is Verb.READ and self.model.outline.kinds[instruction.outputs[0]] is Kind.WEIGHT

    def degrees(self, op, rule):
        degrees = [1] * len(self.problem.graph.operators[op].dims)
        for signature, size in zip(rule.rules, self.sizes, strict=True):
            if signature.dim >= 0:
                degrees[signature.dim] *= size
        return tuple(degrees)

    def price(self, op, degrees):
        return self.problem.costs.price(op, degrees, np.arange(math.prod(degrees), dtype=np.int32))

    def state(self, op):
        operator = self.problem.graph.operators[op]
        weights = sum(tensor.nbytes for tensor in operator.weights)
        if not weights:
            return 0.0
        price = self.price(op, (1,) * len(operator.dims))
        memory, outputs = float(price.memory.max()), sum(tensor.nbytes for tensor in operator.outputs)
        return max(1.0, (memory - min(outputs, memory) if price.kept is None else float(price.kept[0])) / weights)

    def pieces(self, forms):
        return math.prod(self.model.mesh.pieces(forms).values())

    def along(self, kind, nbytes, axes):
        return self.machine.seconds(kind, nbytes, self.links(axes))

    def seconds(self, steps, nbytes):
        return sum(self.along(step.step.collective, nbytes * step.share, step.axes) for step in steps)


def plain_columns(problem, model, machine, sharded_state, forms):
    """Return the columns that have prices, by name, with bytes; ``forms`` are those of the values."""
    prices, program = PlainPrices(problem, model, machine, sharded_state), model.program
    base = columns_of(program, prices, "m")
    crossings = np.full((5, *base.forward.shape), np.inf)
    for value, those in enumerate(forms):
        for (a, source), (b, target) in itertools.permutations(enumerate(those, 1), 2):
            if prices.conversion(0, source, target) is not None:
                crossings[:, value, a, b] = prices.crossing(value, source, target)
    pairs = [(i, rule) for i in program.instructions for rule in i.signatures]
    return {
        "seconds": base.seconds,
        "back": [prices.passes(i, rule)[1] for i, rule in pairs],
        "sums": [prices.sums(i, rule) for i, rule in pairs],
        "signature_bytes": [prices.persistent_bytes(i, rule) for i, rule in pairs],
        "forward": crossings[0],
        "backward": crossings[1],
        "second_forward": crossings[2],
        "second_backward": crossings[3],
        "gathered_bytes": crossings[4],
    }
