"""Seconds and bytes of the instructions and reshardings of a model on a mesh, as columns for the kernel.

Each of two micro-batches is priced at its size, and has half of the bytes of activations.  Where the estimator has no
price of half a part, or only the whole batch is wanted, a micro-batch has half of the part's seconds.  Parameters are
resharded once, and their gradients are summed once; those that are gathered from slices and given back are gathered
once more in the backward pass.  Bytes are those of one device: stored parameters with gradients
and optimizer state, gathered parameters, and the activations of both micro-batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan import AxisUse, MicroBatch, OperatorGraph, Problem
from topoplan.arrays import F64, I32
from topoplan.model.sharding import PENDING_GRADIENT, MeshSharding, Sharding
from topoplan.model.taskgraph import Collective
from topoplan_engine.equal_operators import first_equal
from topoplan_engine.partition import slice_elements
from topoplan_engine.sharding.mesh import AnyMeshStep, any_mesh_steps, mesh_groups
from topoplan_spmd_planning.bounds import min_after
from topoplan_spmd_planning.columns import Columns
from topoplan_spmd_planning.conversions import Conversions, conversions_of
from topoplan_spmd_planning.known import LargestPart
from topoplan_spmd_planning.machine import Machine
from topoplan_spmd_planning.program import Instruction, Verb
from topoplan_spmd_planning.space import Joint, Kind, MeshProgram
from topoplan_spmd_planning.strategy import MICRO_BATCHES

__all__ = ["Prices", "least_bytes", "least_exchange", "priced"]


class _Crossing(NamedTuple):
    """(F+1, F+1) seconds of the conversions of a value, by the codes of its forms; infinite if there is none.

    Attributes:
        forward, backward: of the first micro-batch.
        second_forward, second_backward: of the second one, which uses the parameters of the first one.
    """

    forward: F64
    backward: F64
    second_forward: F64
    second_backward: F64


class Prices:
    """Prices of a model on a mesh.

    The estimator is asked for every operator, because it may tell equal ones apart by their names.
    """

    def __init__(
        self,
        problem: Problem,
        model: MeshProgram,
        machine: Machine,
        sharded_state: bool,
        *,
        whole_batch: bool = False,
        gathers_again: bool = False,
    ) -> None:
        self._problem, self._model, self._machine = problem, model, machine
        self._whole_batch, self._gathers_again = whole_batch, gathers_again
        self._sharded = sharded_state
        self._known = model.outline.known
        self._forms = self._known.forms(model.program)
        self._links = cache(lambda axes: machine.links(mesh_groups(model.mesh.sizes, axes)))
        # By collective, bytes and axes: many conversions have the same steps.
        self._along = cache(lambda kind, nbytes, axes: machine.seconds(kind, nbytes, self._links(axes)))
        self._pieces = cache(lambda forms: math.prod(model.mesh.pieces(forms).values()))
        self._crossings: dict[object, _Crossing] = {}

    def passes(self) -> tuple[list[float], list[float]]:
        """(S,) seconds of one micro-batch under each signature, forward and backward."""
        forward: list[float] = []
        backward: list[float] = []
        for instruction, cuts in zip(self._model.program.instructions, self._model.cuts, strict=True):
            if instruction.op < 0:
                forward += [0.0] * len(cuts.number)
                backward += [0.0] * len(cuts.number)
                continue
            seconds = [self._seconds_of(instruction.op, degrees) for degrees in cuts.degrees]
            forward += [seconds[number][0] for number in cuts.number]
            backward += [seconds[number][1] for number in cuts.number]
        return forward, backward

    def crossing(self, value: int) -> _Crossing:
        """Return the seconds of the conversions of a value."""
        described, kind, forms = self._model.program.values[value], self._kind(value), self._forms[value]
        nbytes, elements = described.nbytes, math.prod(described.shape)
        key = nbytes, elements, kind, id(forms)
        if key not in self._crossings:
            crossing = self._crossing(nbytes, kind, forms)
            if self._model.outline.restriction is not None:
                sent = self._sent(elements, kind, forms)
                crossing = _Crossing(*(np.where(sent, seconds, np.inf) for seconds in crossing))
            self._crossings[key] = crossing
        return self._crossings[key]

    def _crossing(self, nbytes: int, kind: Kind, forms: tuple[MeshSharding, ...]) -> _Crossing:
        # A pending gradient is summed here, over samples as well; other gradients are summed where they are read.
        axes = self._model.mesh.data if kind.parameter else ()
        stored = self._stored if axes else _as_it_is
        conversions: Conversions = self._known.fact(
            ("conversions", id(forms), axes), partial(conversions_of, forms, stored)
        )
        part = nbytes if kind.parameter else nbytes / MICRO_BATCHES
        forward, backward = conversions.seconds(partial(self._seconds, part))
        free = np.where(conversions.exists, 0.0, np.inf)
        if kind.parameter:
            backward = backward if kind is Kind.WEIGHT else free
            if self._gathers_again:
                backward = np.where(self._gathers(forms), backward + forward, backward)
            return _Crossing(forward, backward, free, free)
        backward = backward if kind is Kind.OUTPUT else free
        return _Crossing(forward, backward, forward, backward)

    def _gathers(self, forms: Sequence[MeshSharding]) -> NDArray[np.bool_]:
        """(F+1, F+1) whether a conversion puts a value together of slices."""
        pieces = np.array([0, *map(self._pieces, forms)])
        gathers: NDArray[np.bool_] = pieces[None, :] < pieces[:, None]
        gathers[:, 0] = False
        return gathers

    def _sent(self, elements: int, kind: Kind, forms: Sequence[MeshSharding]) -> NDArray[np.bool_]:
        """(F+1, F+1) whether a trainer brings a value from one form to another; it stores parameters as it says."""
        restriction, roles = self._model.outline.restriction, self._model.mesh.roles
        assert restriction is not None
        sent = np.ones((len(forms) + 1,) * 2, dtype=np.bool_)

        def brings(role: AxisUse, source: Sharding, target: Sharding) -> bool:
            if kind is Kind.OUTPUT:
                return source == target or restriction.converts(role, source, target)
            return kind is Kind.DATA or restriction.stores(elements, role, source, target)

        for (a, source), (b, target) in itertools.permutations(enumerate(forms, 1), 2):
            sent[a, b] = all(map(brings, roles, source, target))
        return sent

    def _stored(self, forms: MeshSharding) -> MeshSharding:
        return self._model.stored(forms) if PENDING_GRADIENT in forms else forms

    def _seconds(self, nbytes: float, step: AnyMeshStep) -> float:
        """Return the seconds of a collective for a tensor of ``nbytes`` as a whole."""
        share = 1 / math.prod(self._model.mesh.sizes[axis] for axis in step.sliced)
        return float(self._along(step.step.collective, nbytes * share, step.axes))

    def gathered_bytes(self, value: int, source: MeshSharding, target: MeshSharding) -> float:
        """Return the bytes of a parameter that is gathered from slices and kept; 0 if it is not."""
        if self._gathers_again:
            return 0.0
        pieces = self._pieces(target)
        return self._model.program.values[value].nbytes / pieces if pieces < self._pieces(source) else 0.0

    def gathered(self, value: int) -> F64:
        """(F+1, F+1) bytes that the conversions of a value hold; infinite if there is none."""
        forms, gathered = self._forms[value], np.where(np.isfinite(self.crossing(value).forward), 0.0, np.inf)
        if self._kind(value).parameter:
            for a, b in np.argwhere(gathered == 0.0).tolist():
                gathered[a, b] = self.gathered_bytes(value, forms[a - 1], forms[b - 1])
        return gathered

    def sums(self, instruction: Instruction[Joint]) -> list[float]:
        """Return for each signature the seconds to sum the gradient of a sliced parameter over samples."""
        axes = self._model.mesh.data
        if not axes or not self._reads_weight(instruction) or self._kind(instruction.outputs[0]) is Kind.FROZEN:
            return [0.0] * len(instruction.signatures)
        nbytes = self._model.program.values[instruction.outputs[0]].nbytes
        return [
            0.0
            if PENDING_GRADIENT in rule.outputs[0]
            else float(self._along(Collective.ALL_REDUCE, nbytes / self._pieces(rule.outputs[0]), axes))
            for rule in instruction.signatures
        ]

    def persistent_bytes(self, position: int) -> list[float]:
        """Return for each signature of an instruction the bytes that it holds on a device until the backward pass."""
        instruction, cuts = self._model.program.instructions[position], self._model.cuts[position]
        if instruction.op >= 0:
            nbytes = [self._held_bytes(instruction.op, degrees) for degrees in cuts.degrees]
            return [nbytes[number] for number in cuts.number]
        if not self._reads_weight(instruction):
            return [0.0] * len(cuts.number)
        (value,) = instruction.outputs
        return [self._stored_bytes(value, rule.outputs[0]) for rule in instruction.signatures]

    def _held_bytes(self, op: int, degrees: tuple[int, ...]) -> float:
        """Return the bytes that an operator holds on a device besides its parameters and what belongs to them."""
        operator, first = self._problem.graph.operators[op], first_equal(self._problem.graph)[op]

        def cut() -> int:
            return sum(int(slice_elements(operator, w, degrees).max()) * w.itemsize for w in operator.weights)

        weights = self._known.fact(("weights", first, degrees), cut)
        return max(0.0, self._price(op, degrees).memory - self._state(op) * weights)

    def _stored_bytes(self, value: int, forms: MeshSharding) -> float:
        """Return the bytes of a parameter on a device, with what belongs to it."""
        pieces = self._pieces(forms)
        stored = self._model.program.values[value].nbytes / pieces
        replicas = (self._state(self._model.outline.owner[value]) - 1) * stored
        return stored + replicas / (self._problem.cluster.n_devices / pieces if self._sharded else 1)

    def _kind(self, value: int) -> Kind:
        return self._model.outline.kinds[value]

    def _reads_weight(self, instruction: Instruction[Joint]) -> bool:
        return instruction.verb is Verb.READ and self._kind(instruction.outputs[0]).parameter

    def _seconds_of(self, op: int, degrees: tuple[int, ...]) -> tuple[float, float]:
        """Return the seconds of one micro-batch of an operator cut by ``degrees``, forward and backward."""
        key = "passes", op, degrees, self._whole_batch
        return self._known.fact(key, partial(self._derive_seconds, op, degrees))

    def _derive_seconds(self, op: int, degrees: tuple[int, ...]) -> tuple[float, float]:
        costs, batch = self._problem.costs, MicroBatch.of(self._problem.graph.operators[op], MICRO_BATCHES)
        if self._whole_batch or not costs.supports_micro_batch(op, degrees, batch):
            part = self._price(op, degrees)
            return part.forward / MICRO_BATCHES, part.backward / MICRO_BATCHES
        part = self._known.largest(costs.price_micro_batch(op, degrees, self._devices(degrees), batch))
        return part.forward, part.backward

    def _devices(self, degrees: tuple[int, ...]) -> I32:
        count = math.prod(degrees)
        return self._known.fact(("devices", count), lambda: np.arange(count, dtype=np.int32))

    def _price(self, op: int, degrees: tuple[int, ...]) -> LargestPart:
        """Price an operator cut by ``degrees``; other meshes ask the same."""
        parts = self._known.parts
        if (op, degrees) not in parts:
            parts[op, degrees] = self._known.largest(self._problem.costs.price(op, degrees, self._devices(degrees)))
        return parts[op, degrees]

    def _state(self, op: int) -> float:
        """Return the persistent bytes for each byte of an operator's parameters; at least 1."""
        return self._known.fact(("state", op), partial(self._state_of, op))

    def _state_of(self, op: int) -> float:
        operator = self._problem.graph.operators[op]
        weights = sum(tensor.nbytes for tensor in operator.weights)
        if not weights:
            return 0.0
        costs = self._price(op, (1,) * len(operator.dims))
        outputs = sum(tensor.nbytes for tensor in operator.outputs)
        state = costs.memory - min(outputs, costs.memory) if costs.kept is None else costs.kept
        return max(1.0, state / weights)


def _as_it_is(forms: MeshSharding) -> MeshSharding:
    return forms


def least_bytes(prices: Prices, model: MeshProgram, graph: OperatorGraph) -> float:
    """Return a lower bound on the bytes of a device: the sum of each operator's minimum over its signatures.

    A signature counts with the best storage of its parameters, and with what is gathered of them.
    """
    instructions = model.program.instructions
    reads = {i.outputs[0]: position for position, i in enumerate(instructions) if i.verb is Verb.READ}
    cached: dict[object, float] = {}
    visited: set[int] = set()
    total = 0.0
    for position, instruction in enumerate(instructions):
        if instruction.op < 0:
            continue
        weights = [(k, value) for k, value in enumerate(instruction.inputs) if value in reads and value not in visited]
        visited.update(value for _, value in weights)
        key = (first_equal(graph)[instruction.op], tuple(k for k, _ in weights))
        if key not in cached:
            cached[key] = min(
                persistent + sum(_least_of(prices, model, reads[value], value, rule.inputs[k]) for k, value in weights)
                for persistent, rule in zip(prices.persistent_bytes(position), instruction.signatures, strict=True)
            )
        total += cached[key]
    return total


def _least_of(prices: Prices, model: MeshProgram, read: int, value: int, target: MeshSharding) -> float:
    """Return the minimal bytes of a parameter that is used with the shardings ``target``: stored and gathered."""
    sources = [rule.outputs[0] for rule in model.program.instructions[read].signatures]
    return min(
        (
            stored + (0.0 if source == target else prices.gathered_bytes(value, source, target))
            for stored, source in zip(prices.persistent_bytes(read), sources, strict=True)
            if source == target or any_mesh_steps(source, target) is not None
        ),
        default=np.inf,
    )


def least_exchange(prices: Prices, model: MeshProgram) -> float:
    """Return a lower bound on the seconds of communication: parameters, as `topoplan_spmd_planning.bounds` counts them.

    It needs no columns, which cost more than all else on a mesh that is dominated.
    """
    program, cached, total = model.program, dict[object, float](), 0.0
    forms = model.outline.known.forms(program)
    for read in program.instructions:
        if read.verb is not Verb.READ or not model.outline.kinds[read.outputs[0]].parameter:
            continue
        (value,) = read.outputs
        reader, argument = model.outline.user[value]
        users = program.instructions[reader].signatures
        kind = model.outline.kinds[value]
        key = program.values[value].nbytes, kind, id(read.signatures), id(users), argument  # shared by equal layers
        if key not in cached:
            codes = {form: code for code, form in enumerate(forms[value], 1)}
            sources = [codes[rule.outputs[0]] for rule in read.signatures]
            targets = [codes[form] for form in dict.fromkeys(rule.inputs[argument] for rule in users)]
            crossing = prices.crossing(value)
            exchange = crossing.forward + crossing.backward
            np.fill_diagonal(exchange, 0.0)
            sums = np.array(prices.sums(read))
            cached[key] = float((sums[:, None] + exchange[np.ix_(sources, targets)]).min())
        total += cached[key]
    return total


def priced(prices: Prices, model: MeshProgram, limit: float, subject: str) -> Columns:
    """Return the columns of a model on a mesh, for the recursion that overlaps both passes within ``limit`` bytes.

    Error messages begin with ``subject``.
    """
    base, bounded = model.outline.known.columns(model.program, subject), bool(np.isfinite(limit))
    instructions = model.program.instructions
    # Values of equal bytes, forms and kind have the same conversions.
    numbers: dict[object, int] = {}
    place = [
        numbers.setdefault(pair, len(numbers)) for pair in zip(base.like.tolist(), model.outline.kinds, strict=True)
    ]
    distinct = [place.index(number) for number in range(len(numbers))]
    crossings = [_stacked(rows)[place] for rows in zip(*(prices.crossing(value) for value in distinct), strict=True)]
    persistent = np.zeros(int(base.signature_at[-1]))
    gathered = np.zeros_like(crossings[0])
    if bounded:
        persistent = _column(prices.persistent_bytes(position) for position in range(len(instructions)))
        gathered = _stacked([prices.gathered(value) for value in distinct])[place]
    forward, backward = prices.passes()
    return base._replace(
        overlapped=True,
        seconds=np.array(forward),
        back=np.array(backward),
        sums=_column(map(prices.sums, instructions)),
        signature_bytes=persistent,
        forward=crossings[0],
        backward=crossings[1],
        second_forward=crossings[2],
        second_backward=crossings[3],
        gathered_bytes=gathered,
        limit=limit,
        min_bytes=min_after(persistent, base.signature_at) * (1 - 1e-9),
    )


def _stacked(tables: Sequence[F64]) -> F64:
    """(n, F, F) tables of several values, infinite beyond the last form of each."""
    most = max(map(len, tables))
    stacked = np.full((len(tables), most, most), np.inf)
    for number, table in enumerate(tables):
        stacked[number, : len(table), : len(table)] = table
    return stacked


def _column(rows: Iterable[list[float]]) -> F64:
    return np.array(list(itertools.chain.from_iterable(rows)), dtype=np.float64)
