"""The operator graph and the algebra that everything about parallelization is derived from.

An operator is an *iteration space* (named loop dimensions) plus, for each of its tensors, a map from tensor axes to
dimensions.  Cutting a dimension into parts then says which slice of every tensor a part holds;
`topoplan_engine.partition` derives slices, replicas, groups, partial sums and volumes from it, for every operator.

Data flow: a frontend builds an `OperatorGraph` (usually with `topoplan_operators.GraphBuilder`); the
estimator prices its operators and `topoplan_engine.lowering` turns graph + strategy into a task graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

import attrs

from topoplan.arrays import ARRAY_EQ, I32, FrozenMapping, OneLine, i32
from topoplan.errors import TopoplanError, shown

__all__ = [
    "Axis",
    "Checkpoint",
    "Dimension",
    "Operator",
    "OperatorGraph",
    "Profile",
    "Role",
    "Slices",
    "Tensor",
    "Term",
]


class Role(StrEnum):
    """What cutting a dimension means (SOAP of FlexFlow, plus reduction).

    The O of SOAP, *operator*, is not a dimension: it is the choice of devices in a placement.
    """

    SAMPLE = "sample"
    """Independent samples: weights are replicated and their gradients summed.  A loss sums over them."""
    ATTRIBUTE = "attribute"
    """A position inside a sample (height, width, sequence): weights replicated, halos exchanged."""
    PARAMETER = "parameter"
    """An axis of a weight and of the output: the weight is sharded, the input replicated."""
    REDUCTION = "reduction"
    """An axis that the operator sums over: parts hold partial sums of the output."""


#: Iterations of the longest loop, and bytes of the largest tensor: sums of both stay exact.
_LARGEST_SIZE, _MOST_BYTES = 2**40, 2**53


@attrs.frozen
class Dimension:
    """One loop of an operator: ``size`` iterations; ``role=None`` says that it cannot be cut."""

    name: str
    size: int
    role: Role | None = None

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.size <= _LARGEST_SIZE:
            raise TopoplanError(f"dimension {shown(self.name)}: size {shown(self.size)} must be 1 to {_LARGEST_SIZE}")


class Slices(int):
    """A degree with the iterations of each slice, for unequal devices; a plain one, as even as can be, is no equal."""

    sizes: tuple[int, ...]

    def __new__(cls, sizes: Iterable[int]) -> Slices:
        """Make the degree of these sizes."""
        degree = super().__new__(cls, len(lengths := tuple(map(int, sizes))))
        degree.sizes = lengths
        return degree

    def __getnewargs__(self) -> tuple[tuple[int, ...]]:  # type: ignore[override]
        return (self.sizes,)

    def __eq__(self, degree: object) -> bool:
        return isinstance(degree, Slices) and self.sizes == degree.sizes

    __ne__ = object.__ne__

    def __hash__(self) -> int:
        return hash(self.sizes)

    def __repr__(self) -> str:
        return " + ".join(map(str, self.sizes))


@attrs.frozen
class Axis:
    """How one axis of a tensor follows a dimension of the iteration space.

    The part that runs iterations ``[a, b)`` of dimension ``dim`` touches elements ``[a*scale + offset, (b-1)*scale +
    offset + extent)`` of the axis, clipped to ``[0, size)``.  ``dim=-1`` says that every part touches the whole axis.
    So a plain axis is ``scale=extent=1``; the rows that a convolution reads have ``scale=stride, offset=-padding,
    extent=kernel`` (the halo); an input of a concatenation has ``offset=-start``; an axis flattened behind others of
    ``k`` elements has ``scale=extent=k``.
    """

    size: int
    dim: int = -1
    scale: int = 1
    offset: int = 0
    extent: int = 1

    def __attrs_post_init__(self) -> None:
        if not (
            0 <= self.size <= _MOST_BYTES and max(abs(self.scale), abs(self.offset), abs(self.extent)) <= _MOST_BYTES
        ):
            raise TopoplanError(f"an axis of size {shown(self.size)} is larger than {_MOST_BYTES}, or follows what is")


@attrs.frozen
class Tensor:
    """A tensor of an operator: its axes, outermost first, and the bytes of one element.

    ``requires_grad`` is False of a weight that is not trained, and of an input through which no gradient flows back,
    as behind PyTorch's ``detach`` or inside of ``no_grad``.  `topoplan_engine.training` says what follows.

    >>> Tensor("weight", (Axis(4, 1), Axis(8, 2)), requires_grad=False).nbytes
    128
    """

    name: str
    axes: tuple[Axis, ...]
    itemsize: int = 4
    requires_grad: bool = True

    def __attrs_post_init__(self) -> None:
        if not (self.itemsize >= 1 and self.nbytes <= _MOST_BYTES):
            bytes_text = f"tensor {shown(self.name)}: itemsize {shown(self.itemsize)}, {shown(self.nbytes)} bytes"
            raise TopoplanError(f"{bytes_text} (expected an itemsize from 1 on, at most {_MOST_BYTES} bytes)")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    @property
    def elements(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.itemsize


@attrs.frozen
class Term:
    """One term of a cost polynomial: ``coefficient`` times the product of the part's sizes of ``dims``."""

    coefficient: float = attrs.field(converter=float)
    dims: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Profile:
    """What was measured of a whole operator with an opaque body, on one device with the whole batch.

    Attributes:
        forward, backward: seconds.
        activation_bytes: bytes of all its outputs, which tensors give in whole bytes for each sample.
    """

    forward: float
    backward: float
    activation_bytes: float


@attrs.frozen
class Checkpoint:
    """That an operator lies in a region of activation checkpointing, whose forward pass runs again in the backward one.

    A region is the operators from one that ``begins`` it to the last one behind it that has a checkpoint and begins
    none.  Its inputs are kept, and nothing that it makes for itself.

    Attributes:
        begins: whether the operator is the first of its region.
        reentrant: the whole region runs again; otherwise only up to the last tensor that its backward pass reads, as
            with PyTorch's ``use_reentrant=False``.
    """

    begins: bool = False
    reentrant: bool = False


@attrs.frozen(kw_only=True, cache_hash=True)
class Operator:
    """One operator of a model.

    Attributes:
        name: unique in its graph, e.g. ``conv1`` or ``Dense_104``.
        kind: what it computes, e.g. ``linear``, ``conv2d``, ``embedding``.
        dims: the iteration space.
        inputs, weights, outputs: its tensors with their axis maps.
        work: forward FLOPs as a polynomial in the part's sizes.
        traffic: bytes that the forward pass moves through device memory, likewise; empty means the slices of all
            inputs, weights and outputs, once each.
        tags: what plugins say of it to each other, such as another program's name of operators of this form.
        profile: what was measured of this very operator, where the model comes with measurements.
        linear_in: sets of arguments (numbered through inputs, then weights) in which the operator is linear
            *together*, all others held: ``((0, 1),)`` says ``f(a+c, b+d) = f(a, b) + f(c, d)``, as addition does,
            and ``((0,), (1,))`` that it is linear in either one alone, as a product.  Partial sums of these
            arguments give partial sums of the outputs.
        combines: dimensions along which parts make terms of outputs that lack them, although the operator is not
            linear: what the parts exchange is as much as to add them up (the maximum and the sum of a loss).
        saved: names of inputs and outputs that its backward pass reads; None for what `linear_in` implies.
        extras: what it keeps for its backward pass beside these, such as a mask.
        checkpoint: the region of activation checkpointing that it lies in; None for none.
        scratch: what its backward pass makes and gives back before it ends, if that is more than the gradients of its
            inputs, which it makes after them: a loss in fp32 has two gradients of the size of all scores.
    """

    name: str
    kind: str
    dims: tuple[Dimension, ...]
    inputs: tuple[Tensor, ...] = ()
    weights: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...]
    work: tuple[Term, ...] = ()
    traffic: tuple[Term, ...] = ()
    tags: Mapping[str, str] = attrs.field(factory=dict, converter=FrozenMapping)
    profile: Profile | None = None
    linear_in: tuple[tuple[int, ...], ...] = ()
    combines: tuple[int, ...] = ()
    saved: tuple[str, ...] | None = None
    extras: tuple[Tensor, ...] = ()
    checkpoint: Checkpoint | None = None
    scratch: tuple[Tensor, ...] = ()

    def __attrs_post_init__(self) -> None:
        for tensor in (*self.inputs, *self.weights, *self.outputs, *self.extras, *self.scratch):
            used = [axis.dim for axis in tensor.axes if axis.dim >= 0]
            if len(used) != len(set(used)) or any(d >= len(self.dims) for d in used):
                raise TopoplanError(
                    f"operator {self.name!r}: tensor {tensor.name!r} maps a dimension twice or one that does not exist"
                )
        self._check_numbers()
        for tensor in self.outputs:
            output_dims = {axis.dim for axis in tensor.axes}
            for index, dim in enumerate(self.dims):
                if dim.role in (Role.ATTRIBUTE, Role.PARAMETER) and index not in output_dims:
                    raise TopoplanError(
                        f"operator {self.name!r}: dimension {dim.name!r} is {dim.role} "
                        f"but output {tensor.name!r} lacks it (make it a reduction, or one that cannot be cut)"
                    )

    def _check_numbers(self) -> None:
        """Raise `TopoplanError` for a number that names no dimension, or no argument."""
        arguments = len(self.inputs) + len(self.weights)
        named = (
            ("work", "dimension", len(self.dims), [dim for term in self.work for dim in term.dims]),
            ("traffic", "dimension", len(self.dims), [dim for term in self.traffic for dim in term.dims]),
            ("combines", "dimension", len(self.dims), self.combines),
            ("linear_in", "argument", arguments, [each for several in self.linear_in for each in several]),
        )
        for field, what, count, numbers in named:
            for number in numbers:
                if not 0 <= number < count:
                    raise TopoplanError(
                        f"operator {self.name!r}: {field} names {what} {number} (it has {count}, counted from 0)"
                    )

    def why_invalid(self, degrees: tuple[int, ...]) -> str | None:
        """Return why ``degrees`` cannot cut the iteration space, or None if they can."""
        if len(degrees) != len(self.dims):
            return f"{len(degrees)} degrees for {len(self.dims)} dimensions"
        for dim, degree in zip(self.dims, degrees, strict=True):
            if degree > 1 and dim.role is None:
                return f"dimension {dim.name!r} cannot be cut (degree {degree})"
            if not 1 <= degree <= dim.size:
                return f"dimension {dim.name!r} of size {dim.size} cannot be cut into {degree} (1 to {dim.size})"
            if isinstance(degree, Slices) and (min(degree.sizes) < 1 or sum(degree.sizes) != dim.size):
                return f"dimension {dim.name!r}: slices of {degree} (each at least 1, together {dim.size})"
        return None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the iteration space."""
        return tuple(dim.size for dim in self.dims)

    @property
    def sample_dim(self) -> int:
        """Index of the sample dimension, or -1."""
        return next((i for i, dim in enumerate(self.dims) if dim.role is Role.SAMPLE), -1)

    def sample_cut(self, degree: int) -> tuple[int, ...]:
        """Return the degrees that cut the samples, where there are any, and nothing else."""
        return tuple(degree if index == self.sample_dim else 1 for index in range(len(self.dims)))


@attrs.frozen(kw_only=True, repr=False)
class OperatorGraph(OneLine):
    """A model: operators in topological order, joined by tensors.

    Attributes:
        name: model name.
        operators: in topological order, which is also the order of the task graph.
        edges: (m, 4) int32, rows ``(producer, its output, consumer, its input)`` sorted by consumer and input; inputs
            without a row are data of the training set.  ``producer < consumer`` in all rows: there is no cycle.
        batch_size: samples per iteration, over all devices.
        tags: what plugins say of the model to each other.
        precision: ``fp32``, or ``fp16`` or ``bf16`` for mixed precision; see `topoplan_engine.precision`.
        optimizer: ``adam``, ``momentum`` or ``sgd``, which says what is kept beside weights; empty for Adam
            (`topoplan_engine.precision.optimizer_of`).
        reduces_per_part: gradients are summed as in FlexNet.  The members of an all-reduce are parts, not devices: a
            device takes part once for each of its parts, and one that has them all still has a task for it.  GPUs that
            a device stands for (`Cluster.gpus_per_device`) have a link between any two of them, not one each.
    """

    name: str
    operators: tuple[Operator, ...]
    edges: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    batch_size: int
    tags: Mapping[str, str] = attrs.field(factory=dict, converter=FrozenMapping)
    precision: str = "fp32"
    optimizer: str = ""
    reduces_per_part: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.operators:
            raise TopoplanError(f"model {self.name!r}: has no operators")
        names = [op.name for op in self.operators]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise TopoplanError(f"model {self.name!r}: two operators are named {twice!r}")
        for u, out, v, into in self.edges.reshape(-1, 4).tolist():
            if not 0 <= u < v < len(self.operators):
                raise TopoplanError(f"model {self.name!r}: edge {u} -> {v} is not in topological order")
            if not (0 <= out < len(self.operators[u].outputs) and 0 <= into < len(self.operators[v].inputs)):
                raise TopoplanError(
                    f"model {self.name!r}: an edge joins output {out} of {names[u]!r} to input {into} of {names[v]!r}, "
                    f"which have {len(self.operators[u].outputs)} and {len(self.operators[v].inputs)}"
                )
            output, consumer_input = self.operators[u].outputs[out], self.operators[v].inputs[into]
            if output.shape != consumer_input.shape:
                raise TopoplanError(
                    f"model {self.name!r}: {names[v]!r} input {into} has shape {consumer_input.shape}, "
                    f"but {names[u]!r} gives {output.shape}"
                )

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all weights, trained or not."""
        return sum(weight.nbytes for op in self.operators for weight in op.weights)
