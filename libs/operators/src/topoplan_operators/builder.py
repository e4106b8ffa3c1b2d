"""The builder of operator graphs, for frontends.

Every method adds one operator and returns a `Handle` of its output for later operators.  Shapes in arguments lack the
axis of samples, because the builder has the batch size.

Two dialects:

* ``standard``: readable names (``conv1``, ``linear2``), every cut that is sound, 4-byte embeddings.
* ``flexnet``: as in FlexNet (TopoOpt, NSDI'23): a name has a type word and a running number from 100 (``Dense_104``),
  only samples can be cut, and every output has the element type of its first input.  The activations of embeddings
  therefore have 8 bytes, like their indices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, OperatorGraph, Role, Tensor
from topoplan_operators import (
    attention,
    dense,
    experts,
    normalization,
    pointwise,
    products,
    reductions,
    shaping,
    spatial,
    tokens,
)
from topoplan_operators.handle import Handle
from topoplan_operators.spatial import Pair

__all__ = ["Dialect", "GraphBuilder"]

Dialect = Literal["standard", "flexnet"]
Activation = Literal["none", "relu", "sigmoid"]

#: Kind of operator -> its word in readable names, its word in FlexNet's names.
WORDS = {
    "add": ("add", "Add"),
    "aggregate": ("aggregate", "Aggregate"),
    "aggregate_spec": ("aggregate_spec", "AggregateSpec"),
    "attention": ("attention", "MultiHeadAttention"),
    "cache": ("cache", "Cache"),
    "concat": ("concat", "Concat"),
    "conv2d": ("conv", "Conv2D"),
    "embedding": ("embedding", "Embedding"),
    "flat": ("flat", "Flat"),
    "group_by": ("group", "Group_by"),
    "linear": ("linear", "Dense"),
    "multiply": ("multiply", "Mul"),
    "pool2d": ("pool", "Pool2D"),
    "relu": ("relu", "ReLU"),
    "scaled_dot_product_attention": ("attention", "ScaledDotProductAttention"),
    "softmax": ("softmax", "Softmax"),
    "top_k": ("topk", "TopK"),
}
FLEXNET_FIRST_NUMBER = 100


class GraphBuilder:
    """Builds an `OperatorGraph`; operators are in the order of the calls.

    ``name=`` of a method replaces the readable name in the ``standard`` dialect; FlexNet names by type.
    """

    def __init__(self, name: str, batch_size: int, dialect: Dialect = "standard") -> None:
        if batch_size < 1:
            raise TopoplanError(f"model {name!r}: batch size {batch_size} must be at least 1")
        if dialect not in get_args(Dialect):
            raise TopoplanError(f"model {name!r}: dialect {dialect!r} is none of {', '.join(get_args(Dialect))}")
        self.name = name
        self.batch_size = batch_size
        self.dialect = dialect
        self._operators: list[Operator] = []
        self._edges: list[tuple[int, int, int, int]] = []
        self._counts: Counter[str] = Counter()

    def input(self, shape: Sequence[int], itemsize: int = 4) -> Handle:
        """Declare data of the training set: ``shape`` of one sample, bytes of an element."""
        return Handle((self.batch_size, *shape), itemsize)

    def linear(
        self, x: Handle, out: int, *, activation: Activation = "none", bias: bool = True, name: str | None = None
    ) -> Handle:
        """Multiply the last axis of ``x`` by a matrix to ``out`` channels."""
        return self.append(dense.linear(x, out, bias=bias, activation=activation != "none"), [x], name)[0]

    def conv2d(
        self,
        x: Handle,
        out: int,
        kernel: Pair,
        *,
        stride: Pair = 1,
        padding: Pair = 0,
        activation: Activation = "none",
        bias: bool = True,
        groups: int = 1,
        dilation: Pair = 1,
        name: str | None = None,
    ) -> Handle:
        """Convolve ``x`` (samples, channels, height, width) to ``out`` channels; depthwise with a group for each."""
        operator = spatial.conv2d(
            x,
            out,
            kernel,
            stride=stride,
            padding=padding,
            bias=bias,
            activation=activation != "none",
            groups=groups,
            dilation=dilation,
        )
        return self.append(operator, [x], name)[0]

    def pool2d(
        self, x: Handle, kernel: Pair, *, stride: Pair = 1, padding: Pair = 0, name: str | None = None
    ) -> Handle:
        """Pool ``x`` (samples, channels, height, width)."""
        return self.append(spatial.pool2d(x, kernel, stride=stride, padding=padding), [x], name)[0]

    def average_pool2d(
        self, x: Handle, kernel: Pair, *, stride: Pair = 1, padding: Pair = 0, name: str | None = None
    ) -> Handle:
        """Average ``x`` (samples, channels, height, width) over windows."""
        return self.append(spatial.pool2d(x, kernel, stride=stride, padding=padding, average=True), [x], name)[0]

    def mean(self, x: Handle, axes: Sequence[int], *, keep: bool = False, name: str | None = None) -> Handle:
        """Average ``x`` over axes; over all positions, this is global average pooling."""
        return self.append(reductions.reduced("mean", x, axes, keep=keep), [x], name)[0]

    def sum(self, x: Handle, axes: Sequence[int], *, keep: bool = False, name: str | None = None) -> Handle:
        """Sum ``x`` over axes."""
        return self.append(reductions.reduced("sum", x, axes, keep=keep), [x], name)[0]

    def flat(self, x: Handle, *, name: str | None = None) -> Handle:
        """Flatten all axes of ``x`` except the samples."""
        return self.append(spatial.flat(x), [x], name)[0]

    def concat(self, xs: Sequence[Handle], axis: int = 1, *, name: str | None = None) -> Handle:
        """Put tensors side by side along ``axis`` (0 is the samples)."""
        return self.append(pointwise.concat(xs, axis), xs, name)[0]

    def embedding(self, indices: Handle, rows: int, dim: int, *, name: str | None = None) -> Handle:
        """Sum for each sample the rows ``indices`` (samples, bag) of a table of ``rows`` x ``dim``."""
        itemsize = indices.itemsize if self.dialect == "flexnet" else 4
        return self.append(dense.embedding(indices, rows, dim, itemsize=itemsize), [indices], name)[0]

    def attention(self, q: Handle, k: Handle, v: Handle, embed: int, heads: int, *, name: str | None = None) -> Handle:
        """Attend from ``q`` to ``k`` and ``v`` (samples, positions, channels); ``heads`` divides ``embed``.

        In the ``standard`` dialect a tensor that is used for several of them is one input; in FlexNet it is several.
        """
        operator = dense.attention(q, k, v, embed, heads, merge=self.dialect == "standard")
        sources = {1: [q], 2: [q, k], 3: [q, k, v]}[len(operator.inputs)]
        return self.append(operator, sources, name)[0]

    def scaled_dot_product_attention(
        self,
        q: Handle,
        k: Handle,
        v: Handle,
        *,
        heads: tuple[int, int] | None = None,
        heads_axis: int = 2,
        causal: bool = False,
        window: int | None = None,
        name: str | None = None,
    ) -> Handle:
        """Attend without weights from ``q`` to ``k`` and ``v``; see `attention.scaled_dot_product` for their shapes."""
        operator = attention.scaled_dot_product(
            q, k, v, heads=heads, heads_axis=heads_axis, causal=causal, window=window
        )
        return self.append(operator, [q, k, v], name)[0]

    def rotary(self, x: Handle, *, rotated: int | None = None, name: str | None = None) -> Handle:
        """Rotate pairs of channels, the last axis of ``x``, by their position; ``rotated`` channels, or all."""
        return self.append(attention.rotary(x, rotated=rotated), [x], name)[0]

    def layer_norm(self, x: Handle, normalized: int = 1, *, name: str | None = None) -> Handle:
        """Normalize the last ``normalized`` axes of ``x`` to mean 0 and variance 1, with weights and biases."""
        return self.append(normalization.layer_norm(x, normalized), [x], name)[0]

    def rms_norm(self, x: Handle, normalized: int = 1, *, name: str | None = None) -> Handle:
        """Normalize the last ``normalized`` axes of ``x`` to mean square 1, with weights."""
        return self.append(normalization.rms_norm(x, normalized), [x], name)[0]

    def batch_norm(self, x: Handle, *, synchronized: bool = False, name: str | None = None) -> Handle:
        """Normalize every channel of ``x`` (samples, channels, ...) to mean 0 and variance 1, with weights and biases.

        Statistics are those of the samples of each part, as in data parallelism; or, if synchronized, of all samples:
        then an operator ``batch_statistics`` sums them, across parts too.
        """
        if not synchronized:
            return self.append(normalization.batch_norm(x), [x], name)[0]
        sums = self.append(normalization.batch_statistics(x), [x, x], name and f"{name}_statistics")
        return self.append(normalization.batch_scale(x, *sums), [x, *sums], name)[0]

    def local_response_norm(self, x: Handle, size: int, *, name: str | None = None) -> Handle:
        """Divide ``x`` (samples, channels, ...) by a power of the squares of ``size`` neighbouring channels."""
        return self.append(normalization.local_response_norm(x, size), [x], name)[0]

    def split(self, x: Handle, sizes: Sequence[int], axis: int = -1, *, name: str | None = None) -> list[Handle]:
        """Split ``x`` along ``axis`` into tensors of these sizes."""
        return self.append(shaping.split(x, sizes, axis), [x], name)

    def slice(self, x: Handle, axis: int, start: int, stop: int, step: int = 1, *, name: str | None = None) -> Handle:
        """Return every ``step``-th element of ``x`` along ``axis``, from ``start`` to before ``stop``."""
        return self.append(shaping.sliced(x, axis, start, stop, step), [x], name)[0]

    def select(self, x: Handle, axis: int, index: int, *, name: str | None = None) -> Handle:
        """Return the elements of ``x`` at one position of ``axis``, which the result lacks."""
        return self.append(shaping.select(x, axis, index), [x], name)[0]

    def gather(self, x: Handle, indices: Handle, axis: int = 0, *, name: str | None = None) -> Handle:
        """Return the slices of ``x`` along ``axis`` that ``indices`` name."""
        return self.append(tokens.gather(x, indices, axis), [x, indices], name)[0]

    def scatter_add(self, x: Handle, indices: Handle, rows: int, *, name: str | None = None) -> Handle:
        """Add each row of ``x`` to the one of ``rows`` rows that ``indices`` name."""
        return self.append(tokens.scatter_add(x, indices, rows), [x, indices], name)[0]

    def dispatch(self, x: Handle, experts_of: Handle, experts: int, slots: int, *, name: str | None = None) -> Handle:
        """Send each position of ``x`` to the experts of its choice: (samples, experts, slots, channels)."""
        return self.append(tokens.dispatch(x, experts_of, experts, slots), [x, experts_of], name)[0]

    def combine(self, answers: Handle, gates: Handle, experts_of: Handle, *, name: str | None = None) -> Handle:
        """Return for each position its experts' answers (samples, experts, slots, channels), weighted by its gates."""
        return self.append(tokens.combine(answers, gates, experts_of), [answers, gates, experts_of], name)[0]

    def einsum(
        self,
        expression: str,
        inputs: Sequence[Handle],
        weights: Sequence[Sequence[int]] = (),
        *,
        name: str | None = None,
    ) -> Handle:
        """Sum products of tensors and weights of these shapes, e.g. ``"becd,edh->bech"``; ``b`` are samples."""
        operator = products.einsum(expression, inputs, [Handle(tuple(shape)) for shape in weights])
        return self.append(operator, inputs, name)[0]

    def elementwise(self, kind: str, *inputs: Handle, name: str | None = None) -> Handle:
        """Apply a function of `pointwise.FUNCTIONS` to every element, or arithmetic to those of two tensors."""
        return self.append(pointwise.elementwise(kind, inputs), inputs, name)[0]

    def view(self, x: Handle, shape: Sequence[int], *, name: str | None = None) -> Handle:
        """Give each sample of ``x`` another shape; axes that are split or joined are cut where both sides allow it."""
        return self.append(shaping.view(x, (x.shape[0], *shape)), [x], name)[0]

    def softmax(self, x: Handle, *, name: str | None = None) -> Handle:
        """Normalize the last axis of ``x``."""
        return self.append(pointwise.softmax(x), [x], name)[0]

    def relu(self, x: Handle, *, name: str | None = None) -> Handle:
        """Clip ``x`` at zero."""
        return self.append(pointwise.elementwise("relu", [x]), [x], name)[0]

    def add(self, x: Handle, y: Handle, *, name: str | None = None) -> Handle:
        """Add two tensors of one shape."""
        return self.append(pointwise.elementwise("add", [x, y]), [x, y], name)[0]

    def multiply(self, x: Handle, y: Handle, *, name: str | None = None, flexnet_name: str | None = None) -> Handle:
        """Multiply two tensors of one shape; ``flexnet_name`` replaces the type word in FlexNet's name."""
        return self.append(pointwise.elementwise("multiply", [x, y]), [x, y], name, flexnet_name)[0]

    def top_k(self, x: Handle, k: int, *, name: str | None = None) -> tuple[Handle, Handle]:
        """Return values and indices of the ``k`` largest along the last axis of ``x``."""
        values, indices = self.append(experts.top_k(x, k), [x], name)
        return values, indices

    def group_by(
        self, x: Handle, assign: Handle, n_experts: int, alpha: float, *, name: str | None = None
    ) -> list[Handle]:
        """Return for each expert the samples that ``assign`` (samples, k) selects, at most ``alpha`` even shares."""
        return self.append(experts.group_by(x, assign, n_experts, alpha), [x, assign], name)

    def aggregate(self, gates: Sequence[Handle], answers: Sequence[Handle], *, name: str | None = None) -> Handle:
        """Return for each sample the experts' answers (capacity, channels), weighted by its gates."""
        operator = experts.aggregate(gates, answers, kind="aggregate", flexnet_name="Aggregate")
        return self.append(operator, [*gates, *answers], name)[0]

    def aggregate_spec(self, gates: Sequence[Handle], answers: Sequence[Handle], *, name: str | None = None) -> Handle:
        """Like `aggregate`; in FlexNet this second kind trains each expert with its own loss."""
        operator = experts.aggregate(gates, answers, kind="aggregate_spec", flexnet_name="AggregateSpec")
        return self.append(operator, [*gates, *answers], name)[0]

    def cache(self, x: Handle, *, name: str | None = None) -> Handle:
        """Keep a copy of ``x`` from iteration to iteration."""
        return self.append(experts.cache(x), [x], name)[0]

    def build(self) -> OperatorGraph:
        """Return the graph of all operators added so far."""
        flexnet = self.dialect == "flexnet"
        return OperatorGraph(
            name=self.name,
            operators=tuple(self._operators),
            edges=np.array(self._edges, dtype=np.int32).reshape(-1, 4),
            batch_size=self.batch_size,
            tags={"dialect": "flexnet"} if flexnet else {},
            optimizer="momentum" if flexnet else "",
            reduces_per_part=flexnet,
        )

    def append(
        self,
        operator: Operator,
        sources: Sequence[Handle],
        name: str | None = None,
        flexnet_name: str | None = None,
    ) -> list[Handle]:
        """Add an operator and return its outputs.

        All other methods call this one.  It names the operator, removes cuts that the dialect does not allow, and joins
        the operator to its sources.

        Args:
            operator: from a function of `topoplan_operators`, or your own; its name is replaced.
            sources: one for each of its inputs.
            name: its readable name; the default is its kind and a running number.
            flexnet_name: replaces the type word in FlexNet's name.
        """
        index = len(self._operators)
        readable, word = WORDS.get(operator.kind, (operator.kind, operator.kind))
        if self.dialect == "flexnet":
            operator = only_samples(operator)
            name = f"{flexnet_name or word}_{FLEXNET_FIRST_NUMBER + index}"
        elif name is None:
            self._counts[readable] += 1
            name = f"{readable}{self._counts[readable]}"
        self._operators.append(attrs.evolve(operator, name=name))
        self._edges.extend(
            (source.producer, source.output, index, position)
            for position, source in enumerate(sources)
            if source.producer >= 0
        )
        return [Handle(tensor.shape, tensor.itemsize, index, k) for k, tensor in enumerate(operator.outputs)]


def only_samples(operator: Operator) -> Operator:
    """Return ``operator`` as in FlexNet: only samples can be cut, and all other dimensions are undivided in every part.

    Axes of inputs and weights that no longer follow a cut are marked as undivided.  A window that omits the last row of
    an image then does not reduce the bytes that are sent.
    """

    def shut(tensor: Tensor) -> Tensor:
        axes = tuple(axis if axis.dim == operator.sample_dim else Axis(axis.size) for axis in tensor.axes)
        return attrs.evolve(tensor, axes=axes)

    dims = tuple(dim if dim.role is Role.SAMPLE else Dimension(dim.name, dim.size) for dim in operator.dims)
    return attrs.evolve(
        operator,
        dims=dims,
        inputs=tuple(map(shut, operator.inputs)),
        weights=tuple(map(shut, operator.weights)),
    )
