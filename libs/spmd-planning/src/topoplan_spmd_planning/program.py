"""A model as one SPMD program, in HiDup's terms.

HiDup's operators are those of a PyTorch trace: first the data, then the operators, each after the reads of its
parameters, and the loss as output.  An operator graph is converted accordingly.  Weights become reads.  Inputs without
a producer become data if they have samples, and reads of constants otherwise.

    OperatorGraph ─► instructions, in program order, with the signatures of each and the values between them
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

import attrs

from topoplan import Operator, OperatorGraph, Tensor
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, Sharding, Signature, shard
from topoplan_engine.equal_operators import first_equal

__all__ = ["Instruction", "Program", "Rule", "Value", "Verb", "fits", "write_down"]


class Rule(Protocol):
    """A signature of an instruction: a form for each of its inputs and outputs."""

    @property
    def inputs(self) -> tuple[Hashable, ...]:
        """The shardings of the inputs."""

    @property
    def outputs(self) -> tuple[Hashable, ...]:
        """The shardings of the outputs."""


R = TypeVar("R", bound=Rule)


class Verb(Enum):
    """The kind of an instruction."""

    TAKE = auto()
    """Take data of the training set."""
    READ = auto()
    """Read a parameter or a constant."""
    RUN = auto()
    """Run an operator of the graph."""
    LOSS = auto()
    """Hand over the loss, in partial sums."""


@attrs.frozen
class Value:
    """A tensor of the program: its name, the bytes of the whole tensor, its producer and its last user.

    ``last`` is -1 for a value without users.
    """

    name: str
    shape: tuple[int, ...]
    nbytes: int
    producer: int
    last: int


@attrs.frozen
class Instruction(Generic[R]):
    """One step of the program.

    Attributes:
        verb: kind of the instruction.
        name: of the operator, or of the tensor that is read.
        inputs, outputs: values.
        signatures: its possible signatures, for ``inputs`` and ``outputs``.
        op: index of the operator in its graph, or -1.
    """

    verb: Verb
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    signatures: tuple[R, ...]
    op: int = -1


@attrs.frozen
class Program(Generic[R]):
    """Instructions in order, and the values between them."""

    instructions: tuple[Instruction[R], ...]
    values: tuple[Value, ...]


def write_down(
    graph: OperatorGraph,
    rules: Callable[[Operator], tuple[Signature, ...]],
    n_devices: int = 1,
    *,
    data_first: bool = True,
) -> Program[Signature]:
    """Return the program of a model.

    Args:
        graph: the model.
        rules: returns the signatures of an operator, the replicated one last.
        n_devices: omit signatures with tensors that so many devices cannot slice evenly; HiDup does not check this.
        data_first: all data comes first, as in HiDup; otherwise data comes before its first user.
    """
    writer = _Writer(n_devices)
    rules_of = {first: rules(graph.operators[first]) for first in dict.fromkeys(first_equal(graph))}
    sources = {(v, input_index): (u, out) for u, out, v, input_index in graph.edges.reshape(-1, 4).tolist()}
    outputs_of: dict[tuple[int, int], int] = {}
    inputs_of: dict[tuple[int, int], int] = {}
    data_inputs = [
        (v, input_index, tensor)
        for v, op in enumerate(graph.operators)
        for input_index, tensor in enumerate(op.inputs)
        if (v, input_index) not in sources
    ]
    samples = {
        (v, input_index): tensor for v, input_index, tensor in data_inputs if _has_samples(graph.operators[v], tensor)
    }

    def take(input_keys: Iterable[tuple[int, int]]) -> None:
        for v, input_index in input_keys:
            inputs_of[v, input_index] = writer.take(
                f"{graph.operators[v].name}.{samples[v, input_index].name}", samples[v, input_index]
            )

    take(samples if data_first else ())
    for v, op in enumerate(graph.operators):
        take(() if data_first else (key for key in samples if key[0] == v))
        constants = {i: t for u, i, t in data_inputs if u == v and (v, i) not in inputs_of}
        # Weights first, then constants, as PyTorch lists the parameters of a module before its buffers.
        weights = [writer.read(f"{op.name}.{tensor.name}", tensor) for tensor in op.weights]
        inputs_of.update({(v, i): writer.read(f"{op.name}.{t.name}", t) for i, t in constants.items()})
        inputs = [inputs_of[v, k] if (v, k) in inputs_of else outputs_of[sources[v, k]] for k in range(len(op.inputs))]
        outputs = writer.run(v, op, (*inputs, *weights), rules_of[first_equal(graph)[v]])
        outputs_of.update({(v, k): value for k, value in enumerate(outputs)})
    writer.end()
    return writer.program()


class _Writer:
    """Builder of a program: the instructions and values so far."""

    def __init__(self, n_devices: int) -> None:
        self._n_devices = n_devices
        self._instructions: list[Instruction[Signature]] = []
        self._values: list[tuple[str, Tensor, int]] = []
        self._last: dict[int, int] = {}

    def take(self, name: str, tensor: Tensor) -> int:
        """Take data: sliced by samples, or whole."""
        return self._write(Verb.TAKE, name, (), [tensor], (Signature((), (shard(0),)), Signature((), (REPLICATED,))))[0]

    def read(self, name: str, tensor: Tensor) -> int:
        """Read a parameter: replicated, or stored in slices along any axis; a mask is always replicated."""
        slices = () if tensor.name == "mask" else range(len(tensor.axes))
        forms = (PENDING_GRADIENT, *(shard(axis) for axis in slices))
        return self._write(Verb.READ, name, (), [tensor], tuple(Signature((), (form,)) for form in forms))[0]

    def run(self, op: int, operator: Operator, inputs: tuple[int, ...], rules: tuple[Signature, ...]) -> list[int]:
        """Run an operator."""
        return self._write(Verb.RUN, operator.name, inputs, operator.outputs, rules, op)

    def end(self) -> None:
        """Add the loss: all scalars without users are outputs."""
        scalars = [v for v, (_, tensor, _) in enumerate(self._values) if v not in self._last and not tensor.axes]
        for value in scalars:
            self._write(Verb.LOSS, "output", (value,), [], (Signature((PARTIAL,), ()),))

    def program(self) -> Program[Signature]:
        """Return the program."""
        values = tuple(
            Value(name, tensor.shape, tensor.nbytes, producer, self._last.get(number, -1))
            for number, (name, tensor, producer) in enumerate(self._values)
        )
        return Program(tuple(self._instructions), values)

    def _write(
        self,
        verb: Verb,
        name: str,
        inputs: tuple[int, ...],
        outputs: list[Tensor] | tuple[Tensor, ...],
        rules: tuple[Signature, ...],
        op: int = -1,
    ) -> list[int]:
        position = len(self._instructions)
        self._last.update(dict.fromkeys(inputs, position))
        values = list(range(len(self._values), len(self._values) + len(outputs)))
        self._values += [(name if len(outputs) == 1 else f"{name}.{t.name}", t, position) for t in outputs]
        shapes = [self._values[number][1].shape for number in (*inputs, *values)]
        weights = tuple(
            rule
            for rule in rules
            if all(
                fits(form, shape, self._n_devices)
                for form, shape in zip((*rule.inputs, *rule.outputs), shapes, strict=True)
            )
        )
        self._instructions.append(Instruction(verb, name, inputs, tuple(values), weights, op))
        return values


def fits(sharding: Sharding, shape: Sequence[int], n_devices: int) -> bool:
    """Say whether so many devices can hold a tensor of ``shape`` so: in equal slices, if in slices."""
    return not sharding.sliced or (sharding.axis < len(shape) and shape[sharding.axis] % n_devices == 0)


def _has_samples(op: Operator, tensor: Tensor) -> bool:
    return any(axis.dim >= 0 and axis.dim == op.sample_dim for axis in tensor.axes)
