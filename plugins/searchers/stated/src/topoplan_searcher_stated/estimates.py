"""How long a hybrid plan takes and what it keeps, by formulas: to order plans before any is simulated.

For degrees of tensor parallelism and samples of a micro-batch, each distinct operator is priced once.  Sums over the
operators of a stage then give seconds and bytes of every pipeline of these stages:

    iteration  =  micro-batches x slowest rank  +  bubble of the schedule  +  gradients over data parallel devices

with sums of tensor-parallel slices at the bandwidth of the links that their devices share.  Messages between stages,
and what hides behind computation, are left to the simulator.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan import MicroBatch, OperatorGraph, Problem, TopoplanError
from topoplan.arrays import F64, I32
from topoplan.model.sharding import Signature
from topoplan_engine.equal_operators import first_equal, layers_of
from topoplan_searcher_stated.megatron import sample_rules, tensor_rules
from topoplan_searcher_stated.settings import Settings

__all__ = ["Estimate", "Estimates"]


@attrs.frozen
class Estimate:
    """Seconds of an iteration, and bytes of the fullest device."""

    seconds: float
    memory: float


@attrs.frozen(eq=False)
class _Operators:
    """(n_ops,) of a micro-batch on one device of a mesh: seconds of computing and sums, and bytes.

    ``state`` are bytes of weights and gradients, ``optimizer`` those of the optimizer, ``inputs`` those that a layer
    keeps which runs again.
    """

    seconds: F64
    again: F64
    sums: F64
    activations: F64
    state: F64
    optimizer: F64
    gradients: F64


class Estimates:
    """Estimates plans of one problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._graph = problem, problem.graph
        cluster = problem.cluster
        self._per_host = cluster.n_devices // cluster.n_hosts
        self._inside = float(cluster.inside_bandwidth.min())
        rates = cluster.interfaces * cluster.interface_bandwidth
        self._outside = float(rates.min()) / self._per_host
        self._equal = first_equal(problem.graph)
        self._layer = _layer_numbers(problem.graph)

    @property
    def n_layers(self) -> int:
        """Numbered layers of the model; 0 where it has none."""
        return int(self._layer.max()) + 1

    def of(self, plan: Settings) -> Estimate:
        """Estimate a plan whose degrees, layers and batch go together.

        Raises:
            TopoplanError: an operator cannot be priced so.
        """
        cluster = self._problem.cluster
        data = cluster.n_devices // (plan.tp * plan.pp)
        micro_batches = self._graph.batch_size // (data * plan.micro_batch)
        parts = self._operators(plan.tp, data, micro_batches)
        chunks = plan.pp * _chunks(plan.schedule)
        stage = self._stages(chunks)
        seconds = parts.seconds + parts.sums + (parts.again + parts.sums / 2 if plan.recompute == "full" else 0.0)
        of_rank = np.bincount(stage % plan.pp, seconds, plan.pp)
        bubble = (of_rank.sum() - of_rank.max()) / _chunks(plan.schedule)
        gradients = np.bincount(stage % plan.pp, parts.gradients, plan.pp).max()
        is_near = plan.tp * data <= self._per_host
        sent = 2 * gradients * (data - 1) / data / (self._inside if is_near else self._outside)
        memory = self._memory(plan, parts, stage, data, micro_batches)
        return Estimate(float(micro_batches * of_rank.max() + bubble + sent), memory)

    def _memory(self, plan: Settings, parts: _Operators, stage: I32, data: int, micro_batches: int) -> float:
        """Return the bytes of the fullest rank: its states, and activations of the micro-batches in flight."""
        rank = stage % plan.pp
        optimizer = parts.optimizer / (data if plan.zero else 1)
        states = np.bincount(rank, parts.state + optimizer, plan.pp)
        whole = np.bincount(rank, parts.activations, plan.pp)
        chunks = _chunks(plan.schedule)
        later = plan.pp - np.arange(plan.pp)
        flying = np.minimum(micro_batches, later if chunks == 1 else plan.pp * (1 + (later - 1) / plan.pp / chunks))
        if plan.recompute == "full" and self.n_layers:
            border = float(self._border_bytes(plan.tp, data, micro_batches))
            layers = np.bincount(rank[self._layer >= 0], minlength=plan.pp) * self.n_layers / (self._layer >= 0).sum()
            one_layer = parts.activations[self._layer == 0].sum()
            return float((states + flying * layers * border + one_layer).max())
        return float((states + flying * whole).max())

    def _border_bytes(self, tensor: int, data: int, micro_batches: int) -> float:
        """Return the bytes of what the first layer reads, of a micro-batch on one device."""
        first = int(np.flatnonzero(self._layer == 0)[0])
        nbytes = max((each.nbytes for each in self._graph.operators[first].inputs), default=0)
        return nbytes / (tensor * data * micro_batches)

    def _stages(self, chunks: int) -> I32:
        """(n_ops,) the chunk of each operator, where layers are divided evenly."""
        if chunks == 1:
            return np.zeros(len(self._layer), dtype=np.int32)
        layer = np.maximum.accumulate(self._layer)
        stage = np.maximum(layer, 0) * chunks // self.n_layers
        last = int(np.flatnonzero(self._layer >= 0)[-1])
        stage[last + 1 :] = chunks - 1
        return stage.astype(np.int32)

    @functools.cache  # noqa: B019  of one search, as long as it lives
    def _rules(self, tensor: int) -> tuple[Sequence[Signature], Sequence[Signature]]:
        return sample_rules(self._graph), tensor_rules(self._graph, tensor, sequence=tensor > 1)

    @functools.cache  # noqa: B019
    def _operators(self, tensor: int, data: int, micro_batches: int) -> _Operators:
        """Price all operators of a micro-batch on a mesh of data by tensor parallel devices; equal ones once."""
        columns = np.zeros((7, len(self._equal)))
        for op, first in enumerate(self._equal):
            columns[:, op] = columns[:, first] if first < op else self._operator(op, tensor, data, micro_batches)
        return _Operators(*columns)

    def _operator(self, op: int, tensor: int, data: int, micro_batches: int) -> tuple[float, ...]:
        operator, costs = self._graph.operators[op], self._problem.costs
        rules = [each[op] for each in self._rules(tensor)]
        degrees = [1] * len(operator.dims)
        for rule, size in zip(rules, (data, tensor), strict=True):
            if rule.dim >= 0:
                degrees[rule.dim] *= size
        cut = tuple(degrees)
        devices = np.arange(math.prod(cut), dtype=np.int32)
        if operator.why_invalid(cut) or not costs.supports(op, cut):
            raise TopoplanError(f"plan: operator {operator.name!r} cannot be cut by {cut}")
        whole = costs.price(op, cut, devices)
        part = costs.price_micro_batch(op, cut, devices, MicroBatch.of(operator, micro_batches))
        forward, backward = float(part.forward.max()), float(part.backward.max())
        states = np.zeros(3) if whole.states is None else whole.states.max(axis=1)
        state_bytes = states.sum() if whole.kept is None else float(whole.kept.max())
        activations = max(0.0, float(whole.memory.max()) - state_bytes) / micro_batches
        summed = rules[1].dim >= 0 and tensor > 1 and not any(form.sliced for form in rules[1].outputs)
        nbytes = sum(tensor_.nbytes for tensor_ in operator.outputs) / data / micro_batches if summed else 0.0
        rate = self._inside if tensor <= self._per_host else self._outside
        # A sum and a gathering in each direction, of which every device sends all slices but one.
        sums = 4 * nbytes * (tensor - 1) / tensor / rate
        gradients = float(states[1])
        return forward + backward, forward, sums, activations, float(states[:2].sum()), float(states[2]), gradients


def _chunks(schedule: str) -> int:
    name, _, number = schedule.partition(":")
    return int(number) if number.isdigit() else 2 if name in ("zbv", "v-half", "v-min", "interleaved") else 1


def _layer_numbers(graph: OperatorGraph) -> I32:
    """(n_ops,) the number of the layer of each operator; -1 for one that is in none."""
    names = layers_of(graph).layer
    numbers = {name: k for k, name in enumerate(dict.fromkeys(name for name in names if name))}
    return np.array([numbers.get(name, -1) for name in names], dtype=np.int32)
