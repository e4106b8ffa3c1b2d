"""One node of an ONNX graph as its translation sees it: inputs, attributes, and the builder of what it becomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import attrs

from topoplan import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor
from topoplan_frontend_onnx.folding import slices_of
from topoplan_frontend_onnx.reading import Node
from topoplan_frontend_onnx.values import Activation, Constant, Value
from topoplan_operators import Handle, shaping

__all__ = ["Adds", "Call", "Unknown"]


class Unknown(Exception):  # noqa: N818 - not an error: the node becomes an opaque operator
    """There is no translation of a node; the message says why."""


class Adds(Protocol):
    """What a call needs of the graph under construction."""

    def add(self, operator: Operator, sources: Sequence[Activation]) -> Sequence[Handle]:
        """Append an operator, named by the node."""

    def bias_behind(self, node: Node, channels: int) -> bool:
        """Whether nothing but an addition of so many parameters reads what ``node`` gives; it is then left out."""

    def first_use(self, source: str) -> bool:
        """Whether no operator has this parameter yet; from now on one has."""

    def owner(self, source: str) -> str:
        """Return the name of the first operator that has this parameter."""

    def only_reader(self, node: Node, place: int) -> bool:
        """Whether nothing but ``node`` reads this input of it."""


@attrs.frozen(eq=False)
class Call:
    """A node and its inputs.

    Attributes:
        node, inputs: an input that is left out is None.
        opset: version of ONNX's operators.
        graph: under construction.
        traced_batch, batch: samples for which the file was written, and those that are planned.
    """

    node: Node
    inputs: Sequence[Value | None]
    opset: int
    graph: Adds
    traced_batch: int
    batch: int

    def present(self, place: int) -> bool:
        """Whether there is such an input."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def activation(self, place: int) -> Activation:
        """Return an input that is an activation."""
        value = self.inputs[place] if self.present(place) else None
        if not isinstance(value, Activation):
            raise Unknown(f"input {place} is {'a constant' if value else 'missing'}")
        return value

    def weight(self, place: int) -> Constant:
        """Return an input that is a constant."""
        value = self.inputs[place] if self.present(place) else None
        if not isinstance(value, Constant):
            raise Unknown(f"input {place} is {'no constant' if value else 'missing'}")
        return value

    def integer(self, name: str, default: int) -> int:
        """Return an attribute that is an integer."""
        value = self.node.attributes.get(name, default)
        if not isinstance(value, int):
            raise TopoplanError(f"{name} is no integer")
        return value

    def integers(self, name: str) -> list[int]:
        """Return an attribute that is a list of integers; empty if it has none."""
        value = self.node.attributes.get(name) or []
        if not isinstance(value, list) or any(not isinstance(number, int) for number in value):
            raise TopoplanError(f"{name} is no list of integers")
        return value

    def sizes(self, name: str, count: int) -> list[int]:
        """Return a list of ``count`` sizes; ones if there is none."""
        value = self.integers(name) or [1] * count
        if len(value) != count or min(value) < 1:
            raise TopoplanError(f"{name} {value} are not {count} positive sizes")
        return value

    def axis(self, name: str, default: int, rank: int) -> int:
        """Return an attribute that is an axis."""
        axis = self.integer(name, default)
        if not -rank <= axis < rank:
            raise TopoplanError(f"{name} {axis} is none of {rank} axes")
        return axis % rank

    def constant_integers(self, place: int) -> list[int]:
        """Return the numbers of an input whose values are known."""
        value = self.weight(place).value
        if value is None:
            raise TopoplanError(f"the values of input {place} are not in the file")
        return [int(number) for number in value.ravel()]

    def constant_reals(self, place: int) -> list[float]:
        """Return the real numbers of an input whose values are known."""
        value = self.weight(place).value
        if value is None:
            raise TopoplanError(f"the values of input {place} are not in the file")
        return [float(number) for number in value.ravel()]

    def word(self, name: str, default: str) -> str:
        """Return an attribute that is a word."""
        value = self.node.attributes.get(name, default)
        if not isinstance(value, str):
            raise TopoplanError(f"{name} is no word")
        return value

    def slices(self, x: Activation) -> list[tuple[int, slice]]:
        """Return axis and slice, for Slice with inputs or, as before version 10, with attributes."""
        if len(self.inputs) > 2:
            columns = [self.constant_integers(k) for k in range(1, len(self.inputs)) if self.present(k)]
        else:
            columns = [self.integers(name) for name in ("starts", "ends", "axes")]
            columns = columns if columns[2] else columns[:2]
        return slices_of(len(x.shape), columns)

    def pads(
        self, shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return what stands before and behind every axis of positions, from whatever says it."""
        rank = len(shape)
        automatic = self.node.attributes.get("auto_pad", "NOTSET")
        windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            pairs = []
            for size, window, step in zip(shape, windows, stride, strict=True):
                total = max((-(-size // step) - 1) * step + window - size, 0)
                few, most = total // 2, total - total // 2
                pairs.append((few, most) if automatic == "SAME_UPPER" else (most, few))
            return pairs
        numbers = self.integers("pads") or [0] * (2 * rank)
        if len(numbers) != 2 * rank or min(numbers) < 0:
            raise TopoplanError(f"pads {numbers} of {rank} axes")
        pairs = list(zip(numbers[:rank], numbers[rank:], strict=True))
        if self.integer("ceil_mode", 0):
            pairs = [
                (low, high + -(size + low + high - window) % step)
                for size, window, step, (low, high) in zip(shape, windows, stride, pairs, strict=True)
            ]
        return pairs

    def traced(self, x: Activation) -> tuple[int, ...]:
        """Return the shape that ``x`` has in the file."""
        return tuple(
            size * self.traced_batch // self.batch if k == x.samples else size for k, size in enumerate(x.shape)
        )

    def planned(self, x: Activation, target: Sequence[int]) -> tuple[int, ...]:
        """Return the shape in the plan of what ``x`` becomes, which in the file has shape ``target``.

        Samples stay the outermost of the axes that hold the same elements as the axis of samples did.
        """
        shape = list(target)
        if x.samples < 0 or self.batch == self.traced_batch:
            return tuple(shape)
        for before, after in shaping.runs(self.traced(x), shape):
            if x.samples in before and after:
                shape[after[0]] = shape[after[0]] * self.batch // self.traced_batch
        return tuple(shape)

    def repeated(self, x: Constant, like: Activation) -> Activation:
        """Return parameters, or a computed constant, for every sample of ``like``, which has as many axes."""
        shape = list(x.shape)
        if like.samples >= 0 and len(shape) == len(like.shape):
            shape[like.samples] = like.shape[like.samples]
        if not x.source:
            return Activation(Handle(tuple(shape), x.itemsize), like.samples, True)
        axes = tuple(Axis(size, k) for k, size in enumerate(shape))
        stored = Tensor("parameter", tuple(Axis(size) for size in x.table or x.shape), x.itemsize)
        is_first = self.graph.first_use(x.source)
        operator = Operator(
            name="",
            kind="expand",
            dims=tuple(
                Dimension("n", size, Role.SAMPLE) if k == like.samples else Dimension(f"a{k}", size, Role.ATTRIBUTE)
                for k, size in enumerate(shape)
            ),
            tags={} if is_first else {"shared": "parameter", "owner.parameter": self.graph.owner(x.source)},
            inputs=() if is_first else (stored,),
            weights=(stored,) if is_first else (),
            outputs=(Tensor("y", axes, x.itemsize),),
        )
        return Activation(self.graph.add(operator, [])[0], like.samples)

    def with_computed(self, place: int) -> Call:
        """Return the call with an input that is a constant as the output of an operator that holds it."""
        constant = self.weight(place)
        inputs = list(self.inputs)
        inputs[place] = self.repeated(constant, Activation(Handle(constant.shape), -1))
        return attrs.evolve(self, inputs=inputs)

    def absorbed_bias(self, channels: int) -> bool:
        """Whether a bias of so many channels is all that is added next, so that this node can add it."""
        return self.graph.bias_behind(self.node, channels)

    def emit(self, operator: Operator, sources: Sequence[Activation]) -> Activation:
        """Add an operator with one output, and return that."""
        return self.emit_all(operator, sources)[0]

    def emit_all(self, operator: Operator, sources: Sequence[Activation]) -> list[Activation]:
        """Add an operator and return its outputs; what is computed of training data alone is training data."""
        operator, dim = _with_samples(operator, sources)
        places = [next((k for k, axis in enumerate(y.axes) if axis.dim == dim >= 0), -1) for y in operator.outputs]
        if sources and all(x.data for x in sources) and not operator.weights:
            handles: Sequence[Handle] = [Handle(y.shape, y.itemsize) for y in operator.outputs]
            return [Activation(handle, place, True) for handle, place in zip(handles, places, strict=True)]
        handles = self.graph.add(self._without_shared(self._frozen(operator)), sources)
        return [Activation(handle, place) for handle, place in zip(handles, places, strict=True)]

    def _frozen(self, operator: Operator) -> Operator:
        """Return the operator with weights of integers as what they are: of fewer bytes, and not trained."""
        of_integers = {x.elements: x for x in self.inputs if isinstance(x, Constant) and not x.trained}
        if not of_integers:
            return operator
        weights = [
            attrs.evolve(weight, itemsize=of_integers[weight.elements].itemsize, requires_grad=False)
            if weight.elements in of_integers
            else weight
            for weight in operator.weights
        ]
        return attrs.evolve(operator, weights=tuple(weights))

    def _without_shared(self, operator: Operator) -> Operator:
        """Return the operator with parameters of another one as inputs: they are in memory there, and reduced."""
        constants = {x.source: x for x in self.inputs if isinstance(x, Constant) and x.source}
        shared = {
            math.prod(x.table or x.shape): x.source for x in constants.values() if not self.graph.first_use(x.source)
        }
        count = next((k for k, w in enumerate(operator.weights) if w.elements not in shared), len(operator.weights))
        if not count:
            return operator
        inputs = (*operator.inputs, *operator.weights[:count])
        weights = operator.weights[:count]
        owners = {f"owner.{w.name}": self.graph.owner(shared[w.elements]) for w in weights}
        tags = {**operator.tags, "shared": " ".join(w.name for w in weights), **owners}
        return attrs.evolve(operator, inputs=inputs, weights=operator.weights[count:], tags=tags)


def _with_samples(operator: Operator, sources: Sequence[Activation]) -> tuple[Operator, int]:
    """Return the operator with samples where its inputs have them, and their dimension; -1 where there are none."""
    followed = (
        tensor.axes[x.samples].dim for x, tensor in zip(sources, operator.inputs, strict=True) if x.samples >= 0
    )
    dim = next((number for number in followed if number >= 0), -1)
    if dim < 0:
        return operator, dim

    def role(number: int, now: Role | None) -> Role | None:
        if number == dim:
            return Role.SAMPLE
        if now is not Role.SAMPLE:
            return now
        in_all = all(any(axis.dim == number for axis in y.axes) for y in operator.outputs)
        return Role.ATTRIBUTE if in_all else Role.REDUCTION

    dims = tuple(attrs.evolve(d, role=role(k, d.role)) for k, d in enumerate(operator.dims))
    return attrs.evolve(operator, dims=dims), dim
