"""An exported program as plain values: what `tracing` makes of a module, and `archive` of a file.

    module ─► tracing ─┐
                       ├─► Program ─► simplify ─► fusing ─► model ─► OperatorGraph
    .pt2   ─► archive ─┘

A program is straight-line code.  Each node calls one ATen operator on values that earlier nodes made, on parameters and
on inputs.  Shapes are numbers: symbols were replaced before.  Nothing in here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import attrs

__all__ = ["ITEMSIZES", "Argument", "Node", "Program", "Ref", "Region", "Value", "references"]

#: Type of an element, in torch's words -> bytes.
ITEMSIZES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}


@attrs.frozen
class Ref:
    """An argument that is a value of the program."""

    name: str


Argument = Ref | int | float | bool | str | None | tuple["Argument", ...]


@attrs.frozen
class Value:
    """A tensor: sizes of its axes, and the type of its elements in torch's words."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def floating(self) -> bool:
        """Whether gradients can pass: it holds real or complex numbers."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZES[self.dtype]


@attrs.frozen
class Region:
    """A call of ``torch.utils.checkpoint``: its number, and whether all of it runs again (``use_reentrant=True``)."""

    number: int
    reentrant: bool


@attrs.frozen
class Node:
    """A call of an operator.

    Attributes:
        name: unique in its program.
        target: the operator, such as ``aten.linear.default``.
        arguments: by the names of the operator's schema; those that were left out have their defaults.
        outputs: names of the values that it makes.
        module: (path, class) of the modules whose ``forward`` calls it, outermost first.
        where: file and line of the call, as ``model.py:12``; empty where it is not known.
        gradient: whether autograd records it; not within ``torch.no_grad``.
        cut: values that it reads detached, so that no gradient flows back through them.
        region: the region of activation checkpointing that it lies in; None for none.
    """

    name: str
    target: str
    arguments: Mapping[str, Argument]
    outputs: tuple[str, ...]
    module: tuple[tuple[str, str], ...] = ()
    where: str = ""
    gradient: bool = True
    cut: frozenset[str] = frozenset()
    region: Region | None = None

    @property
    def path(self) -> str:
        """Path of the innermost module, such as ``model.layers.0.mlp``; empty for the model itself."""
        return self.module[-1][0] if self.module else ""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values that it reads, in the order of its arguments."""
        return tuple(name for argument in self.arguments.values() for name in references(argument))


def references(argument: Argument) -> Iterator[str]:
    """Yield the names of values in an argument."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for item in argument:
            yield from references(item)


@attrs.frozen(kw_only=True)
class Program:
    """A program in the order of its calls.

    Attributes:
        name: of the model.
        nodes: its calls.
        values: what all values are: parameters, constants, inputs, and what nodes make.
        parameters: value -> name of the parameter, such as ``layers.0.weight``; those that share memory share a name.
        constants: values that do not change in training, or not by gradients: buffers and constant tensors.
        inputs: values that the caller gives, in order.
        outputs: values that the caller gets.
        data: constants that depend on what the caller gives, and so have samples.
        frozen: names of parameters that are not trained (``requires_grad=False``).
    """

    name: str
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    parameters: Mapping[str, str]
    constants: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    data: frozenset[str] = frozenset()
    attended: Mapping[str, tuple[bool, int | None]] = attrs.field(factory=dict)
    frozen: frozenset[str] = frozenset()
