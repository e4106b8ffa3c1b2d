"""A program for all devices: in which forms every device has every tensor, on a mesh of devices.

Where single devices have parts of operators, a strategy is placements.  Where all devices run every operator, each on
its share (single program, multiple data), it is more: tensors change their form between operators, by collectives that
placements do not tell.  An `SpmdProgram` tells, for every operator and every axis of a mesh of devices, the signature
that it runs under, and in which form everything is stored that no operator makes.  Conversions follow from that
(`conversions_of`); `topoplan_engine.lowering.spmd` makes tasks of them.

The mesh numbers devices with its last axis fastest: on (2, 4) the second axis joins devices 0-3 and 4-7.
Along each axis forms are those of `topoplan.model.sharding`; where two axes slice one axis of a tensor, the later one
slices the slices of the earlier one.

A tensor that is made once is brought into another form once, for all that want it so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import attrs
import numpy as np

from topoplan.arrays import I32
from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph, Tensor
from topoplan.model.resharding import Collective, Step, convert
from topoplan.model.sharding import FULL, Form, Holding, Signature, arguments, signatures

__all__ = ["Exchange", "Forms", "Move", "SpmdProgram", "conversions_of", "exchanges"]

#: The form of a tensor along every axis of a mesh.
Forms = tuple[Form, ...]


@attrs.frozen
class Exchange:
    """One collective in every group of devices along some axes of the mesh.

    Attributes:
        step: what they do.
        axes: of the mesh.
        share: the part of the whole tensor that each group has; 1 where no other axis slices it.
    """

    step: Step
    axes: tuple[int, ...]
    share: float

    @property
    def free(self) -> bool:
        """Whether nothing is sent."""
        return self.step.collective in (Collective.SLICE, Collective.IDENTITY)


@attrs.frozen
class Move:
    """A tensor brought from one form into another.

    Attributes:
        op, output: what makes it; ``output`` is -1 for an argument that no operator makes.
        argument: which argument of ``op`` it is in that case, else -1.
        parameter: whether it is a weight.
        nbytes: of the tensor as a whole.
        users: operators that want it so, ascending.
        forward, backward: exchanges, one after the other; what no operator makes and is no weight has no gradient.
    """

    op: int
    output: int
    argument: int
    parameter: bool
    nbytes: int
    users: tuple[int, ...]
    forward: tuple[Exchange, ...]
    backward: tuple[Exchange, ...]


def _sizes(given: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(size) for size in given)


@attrs.frozen(kw_only=True)
class SpmdProgram:
    """What every device does.

    Attributes:
        mesh: devices along each axis.
        rules: (n_ops) signatures of each operator, one for every axis of the mesh.
        stored: (n_ops) for every argument of each operator (inputs, then weights) its forms, one for every axis, where
            no operator makes it; empty where one does.
        sharded_state: whether devices with equal parameters share what the optimizer and the gradients need of memory
            (ZeRO's second stage, Rajbhandari et al., SC 2020); as much is sent as without.
    """

    mesh: tuple[int, ...] = attrs.field(converter=_sizes)
    rules: tuple[tuple[Signature, ...], ...]
    stored: tuple[tuple[tuple[Form, ...], ...], ...]
    sharded_state: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.mesh or min(self.mesh) < 1:
            raise TopoplanError(f"program: a mesh of {self.mesh} devices (at least one along each of its axes)")

    @property
    def n_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.mesh)

    def made(self, op: int, output: int) -> Forms:
        """Return the forms in which an operator makes an output."""
        return tuple(rule.outputs[output] for rule in self.rules[op])

    def wanted(self, op: int, argument: int) -> Forms:
        """Return the forms in which an operator wants an argument."""
        return tuple(rule.inputs[argument] for rule in self.rules[op])

    def degrees(self, op: int, n_dims: int) -> tuple[int, ...]:
        """Return the cut of an operator that its signatures make."""
        degrees = [1] * n_dims
        for rule, size in zip(self.rules[op], self.mesh, strict=True):
            if rule.dim >= 0:
                degrees[rule.dim] *= size
        return tuple(degrees)

    def part(self, op: int, degrees: tuple[int, ...]) -> I32:
        """(n_devices,) the part of an operator, cut by `degrees`, that each device runs."""
        at = np.unravel_index(np.arange(self.n_devices), self.mesh)
        place = [np.zeros(self.n_devices, dtype=np.int64) for _ in degrees]
        for rule, size, mine in zip(self.rules[op], self.mesh, at, strict=True):
            if rule.dim >= 0:
                place[rule.dim] = place[rule.dim] * size + mine
        return np.ravel_multi_index(place, degrees).astype(np.int32) if degrees else np.zeros(self.n_devices, np.int32)

    def pieces(self, forms: Forms) -> int:
        """Return into how many slices a tensor in these forms is cut."""
        return math.prod(size for form, size in zip(forms, self.mesh, strict=True) if form.sliced)

    def misfit(self, graph: OperatorGraph, n_devices: int) -> str:
        """Say why the model cannot run so on so many devices; empty if it can."""
        if self.n_devices != n_devices:
            return f"program: a mesh of {' x '.join(map(str, self.mesh))} for {n_devices} devices"
        if len(self.rules) != len(graph.operators) or len(self.stored) != len(graph.operators):
            return (
                f"program: signatures of {len(self.rules)} operators, model {graph.name!r} has {len(graph.operators)}"
            )
        made = {(v, into) for _, _, v, into in graph.edges.reshape(-1, 4).tolist()}
        for index, op in enumerate(graph.operators):
            where, count = f"program: operator {op.name!r}", len(arguments(op))
            rules, stored = self.rules[index], self.stored[index]
            if len(rules) != len(self.mesh) or len(stored) != count:
                return f"{where}: needs {len(self.mesh)} signatures and forms of {count} arguments"
            for rule in rules:
                if len(rule.inputs) != count or len(rule.outputs) != len(op.outputs) or rule.dim >= len(op.dims):
                    return f"{where}: signature {rule} does not fit its {count} arguments"
                if not any(rule == sound and rule.dim == sound.dim for sound in signatures(op)):
                    return f"{where}: signature {rule} is none that computes the same"
            for dim, degree in zip(op.dims, self.degrees(index, len(op.dims)), strict=True):
                if degree > 1 and (dim.role is None or dim.size % degree):
                    return f"{where}: dimension {dim.name!r} of size {dim.size} has no {degree} equal parts"
            for argument, forms in enumerate(stored):
                by_operator = (index, argument) in made
                if len(forms) != (0 if by_operator else len(self.mesh)):
                    return f"{where}: argument {argument} has {len(forms)} forms of storage"
                tensor = arguments(op)[argument]
                for each in (self.wanted(index, argument), forms):
                    if reason := self._uneven(tensor, each):
                        return f"{where}: {reason}"
            for output, tensor in enumerate(op.outputs):
                if reason := self._uneven(tensor, self.made(index, output)):
                    return f"{where}: {reason}"
        try:
            conversions_of(self, graph)
        except TopoplanError as error:
            return str(error)
        return ""

    def _uneven(self, tensor: Tensor, forms: Forms) -> str:
        """Say why a tensor cannot be in these forms."""
        pieces: dict[int, int] = {}
        for form, size in zip(forms, self.mesh, strict=False):
            if form.sliced:
                pieces[form.axis] = pieces.get(form.axis, 1) * size
        for axis, count in pieces.items():
            if axis >= len(tensor.axes) or tensor.shape[axis] % count:
                return f"tensor {tensor.name!r} of shape {tensor.shape} has no {count} equal slices along axis {axis}"
        return ""


def conversions_of(program: SpmdProgram, graph: OperatorGraph) -> list[Move]:
    """Return everything that changes its form, in the order in which it is first needed.

    Raises:
        TopoplanError: a tensor is wanted in a form that it cannot be brought to.
    """
    sources = {(v, into): (u, out) for u, out, v, into in graph.edges.reshape(-1, 4).tolist()}
    users: dict[tuple[int, int, int, Forms], list[int]] = {}
    for v, op in enumerate(graph.operators):
        for k in range(len(arguments(op))):
            u, out = sources.get((v, k), (v, -1))
            given = program.made(u, out) if out >= 0 else program.stored[v][k]
            wanted = program.wanted(v, k)
            if given != wanted:
                users.setdefault((u, out, -1 if out >= 0 else k, wanted), []).append(v)
    moves = []
    for (u, out, k, wanted), those in users.items():
        op = graph.operators[u]
        tensor = op.outputs[out] if out >= 0 else arguments(op)[k]
        given = program.made(u, out) if out >= 0 else program.stored[u][k]
        found = exchanges(given, wanted, program.mesh)
        if found is None:
            raise TopoplanError(
                f"program: operator {graph.operators[those[0]].name!r} wants {tensor.name!r} as {_told(wanted)}, which "
                f"cannot be made of {_told(given)}"
            )
        forward, backward = found
        parameter = out < 0 and k >= len(op.inputs)
        gradient = backward if out >= 0 or parameter else ()
        moves.append(Move(u, out, k, parameter, tensor.nbytes, tuple(dict.fromkeys(those)), forward, gradient))
    return moves


def exchanges(
    given: Forms, wanted: Forms, mesh: tuple[int, ...]
) -> tuple[tuple[Exchange, ...], tuple[Exchange, ...]] | None:
    """Return what makes ``wanted`` of ``given`` on a mesh, and the same for gradients; None where it cannot be made.

    Axes of the mesh come one after the other, in the first order in which slices of slices are put together before
    those that they are slices of; axes along which everything is summed come together.
    """
    together = _summed(given, wanted)
    for order in itertools.permutations([axis for axis in range(len(mesh)) if axis not in together[1:]]):
        now = list(given)
        forward: list[Exchange] = []
        backward: list[Exchange] = []
        for axis in order:
            axes = together if axis in together else (axis,)
            conversion = convert(now[axis], wanted[axis])
            if conversion is None or any(_inside(now, wanted, each) for each in axes):
                break
            others = (now[k] for k in range(len(mesh)) if k not in axes)
            sizes = (size for k, size in enumerate(mesh) if k not in axes)
            share = 1 / math.prod(size for form, size in zip(others, sizes, strict=True) if form.sliced)
            forward += [Exchange(step, axes, share) for step in conversion.forward]
            backward[:0] = [Exchange(step, axes, share) for step in conversion.backward]
            for each in axes:
                now[each] = wanted[each]
        else:
            return tuple(forward), tuple(backward)
    return None


def _summed(given: Forms, wanted: Forms) -> tuple[int, ...]:
    """Return the axes along which a tensor, or the gradient of a parameter, is summed for everybody."""
    return tuple(
        axis
        for axis, (here, there) in enumerate(zip(given, wanted, strict=True))
        if there == FULL and here.holding in (Holding.REDUCE, Holding.REPLICATE) and here == given[_first(given)]
    )


def _first(given: Forms) -> int:
    """Return the first axis that a tensor is replicated or in partial sums along, or else 0."""
    return next((k for k, form in enumerate(given) if form.holding in (Holding.REDUCE, Holding.REPLICATE)), 0)


def _inside(now: list[Form], wanted: Forms, axis: int) -> bool:
    """Say whether slices that ``axis`` makes or joins are, or would be, sliced again by a later axis."""
    touched = {form.axis for form in (now[axis], wanted[axis]) if form.sliced and now[axis] != wanted[axis]}
    return any(form.sliced and form.axis in touched for form in now[axis + 1 :])


def _told(forms: Forms) -> str:
    return " x ".join(map(str, forms))
