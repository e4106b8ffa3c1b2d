"""What a layer of a file can be: one class for each kind, whose fields are the options of its table.

A class reads the tensors in the order of ``from`` and returns an `Operator` without a name, from the functions of
`topoplan_operators`.  Its docstring and the help texts of its fields are the reference of the format; the table in
the README is made of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import attrs

from topoplan import Operator, TopoplanError, option
from topoplan.errors import shown
from topoplan_operators import (
    Handle,
    attention,
    dense,
    experts,
    losses,
    normalization,
    pointwise,
    products,
    reductions,
    shaping,
    spatial,
    tokens,
)
from topoplan_operators.heads import flat_heads

__all__ = ["FUNCTIONS", "KINDS", "Kind"]

#: Functions of one element that have no options.
FUNCTIONS = ("relu", "gelu", "silu", "sigmoid", "tanh", "exp", "sqrt", "dropout")


def needed(*, help: str, minimum: float | None = None) -> Any:
    """Declare an option without a default."""
    return option(attrs.NOTHING, help=help, minimum=minimum)


@attrs.frozen(kw_only=True)
class Kind(ABC):
    """A kind of layer.

    Attributes:
        kind: how files call it.
        reads: least and largest number of tensors that it reads.
        axes: the fewest axes of its first tensor, samples included, and their names; the last name stands for more.
    """

    kind: ClassVar[str]
    reads: ClassVar[tuple[int, int]] = (1, 1)
    axes: ClassVar[tuple[str, ...]] = ("samples",)

    @abstractmethod
    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator on these tensors."""

    def check(self, xs: Sequence[Handle]) -> None:
        """Raise `TopoplanError` where there are too few or too many tensors, or the first one has too few axes."""
        fewest, most = self.reads
        if not fewest <= len(xs) <= most:
            number = str(fewest) if fewest == most else f"{fewest} to {most}" if most < 1000 else f"at least {fewest}"
            raise TopoplanError(f"from: {self.kind} reads {number} tensor{'s' * (number != '1')}, got {len(xs)}")
        if len(xs[0].shape) < len(self.axes):
            raise TopoplanError(
                f"from: a tensor of shape {shown(xs[0].shape)}, samples included ({self.kind} needs "
                f"{', '.join(self.axes)})"
            )


def exactly(xs: Sequence[Handle], rank: int, kind: str, axes: str) -> None:
    """Raise `TopoplanError` unless all tensors have ``rank`` axes."""
    for x in xs:
        if len(x.shape) != rank:
            raise TopoplanError(f"from: a tensor of shape {shown(x.shape)}, samples included ({kind} needs {axes})")


def pair(sizes: tuple[int, ...], key: str) -> spatial.Pair:
    """Return height and width; one number stands for both."""
    if len(sizes) not in (1, 2):
        raise TopoplanError(f"{key}: {list(sizes)} (expected one number, or height and width)")
    return sizes[0] if len(sizes) == 1 else (sizes[0], sizes[1])


def axis_of(axis: int, x: Handle, *, samples: bool = False) -> int:
    """Return an axis counted from the first one; negative numbers count from the last one."""
    rank, first = len(x.shape), 0 if samples else 1
    number = axis + rank if axis < 0 else axis
    if not first <= number < rank:
        raise TopoplanError(f"axis: {axis} (expected {first} to {rank - 1}, or -1 for the last; 0 is samples)")
    return number


@attrs.frozen(kw_only=True)
class Linear(Kind):
    """Multiply the last axis by a matrix."""

    kind = "linear"
    axes = ("samples", "channels")

    out: int = needed(help="output channels", minimum=1)
    bias: bool = option(True, help="whether a bias is added")
    activation: Literal["none", "relu", "gelu", "silu", "sigmoid", "tanh"] = option(
        "none", help="function of every output"
    )

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return dense.linear(xs[0], self.out, bias=self.bias, activation=self.activation != "none")


@attrs.frozen(kw_only=True)
class Conv2d(Kind):
    """Convolve images (samples, channels, height, width)."""

    kind = "conv2d"

    out: int = needed(help="output channels", minimum=1)
    kernel: tuple[int, ...] = needed(help="height and width, or one number", minimum=1)
    stride: tuple[int, ...] = option((1,), help="likewise", minimum=1)
    padding: tuple[int, ...] = option((0,), help="likewise, on each side", minimum=0)
    dilation: tuple[int, ...] = option((1,), help="likewise, from one element of the kernel to the next", minimum=1)
    groups: int = option(1, help="groups of channels that do not mix", minimum=1)
    bias: bool = option(True, help="whether a bias is added")
    activation: Literal["none", "relu", "gelu", "silu", "sigmoid", "tanh"] = option(
        "none", help="function of every output"
    )

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return spatial.conv2d(
            xs[0],
            self.out,
            pair(self.kernel, "kernel"),
            stride=pair(self.stride, "stride"),
            padding=pair(self.padding, "padding"),
            dilation=pair(self.dilation, "dilation"),
            groups=self.groups,
            bias=self.bias,
            activation=self.activation != "none",
        )


@attrs.frozen(kw_only=True)
class Pool2d(Kind):
    """Take the maximum or the mean in windows of images."""

    kind = "pool2d"

    kernel: tuple[int, ...] = needed(help="height and width, or one number", minimum=1)
    stride: tuple[int, ...] = option((), help="likewise; default: the kernel", minimum=1)
    padding: tuple[int, ...] = option((0,), help="likewise, on each side", minimum=0)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        kernel, stride = pair(self.kernel, "kernel"), pair(self.stride or self.kernel, "stride")
        return spatial.pool2d(xs[0], kernel, stride=stride, padding=pair(self.padding, "padding"))


@attrs.frozen(kw_only=True)
class Flatten(Kind):
    """Join the axes from one on."""

    kind = "flatten"

    axis: int = option(1, help="first axis that is joined")

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return shaping.flatten(xs[0], axis_of(self.axis, xs[0]))


@attrs.frozen(kw_only=True)
class Embedding(Kind):
    """Look up a row of a table for each index (samples, positions)."""

    kind = "embedding"
    axes = ("samples", "positions")

    rows: int = needed(help="rows of the table", minimum=1)
    out: int = needed(help="elements of a row", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 2, self.kind, "samples, positions")
        return dense.token_embedding(xs[0], self.rows, self.out)


@attrs.frozen(kw_only=True)
class EmbeddingBag(Kind):
    """Sum the rows of a table that the indices (samples, bag) of a sample name."""

    kind = "embedding_bag"

    rows: int = needed(help="rows of the table", minimum=1)
    out: int = needed(help="elements of a row", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 2, self.kind, "samples, bag")
        return dense.embedding(xs[0], self.rows, self.out, itemsize=4)


@attrs.frozen(kw_only=True)
class MultiheadAttention(Kind):
    """Attend from the first tensor to keys and values (samples, positions, channels); projections included."""

    kind = "multihead_attention"
    reads = (1, 3)

    heads: int = needed(help="number of heads", minimum=1)
    out: int | None = option(None, help="output channels; default: those of the first tensor", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 3, self.kind, "samples, positions, channels")
        q, k, v = {1: (0, 0, 0), 2: (0, 1, 1), 3: (0, 1, 2)}[len(xs)]
        return dense.attention(xs[q], xs[k], xs[v], self.out or xs[0].shape[2], self.heads, merge=True)


@attrs.frozen(kw_only=True)
class Attention(Kind):
    """Attend from queries to keys and values without weights; heads lie in the channels of each."""

    kind = "attention"
    reads = (3, 3)

    heads: int = needed(help="heads of queries", minimum=1)
    kv_heads: int | None = option(None, help="heads of keys and values; default: as many", minimum=1)
    causal: bool = option(False, help="whether no position attends to a later one")
    window: int | None = option(
        None, help="positions that one attends to at most where attention is causal; default: all before it", minimum=1
    )

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 3, self.kind, "samples, positions, heads x channels")
        if self.window is not None and not self.causal:
            raise TopoplanError(f"window: {self.window} needs causal = true")
        heads = (self.heads, self.kv_heads or self.heads)
        return attention.scaled_dot_product(xs[0], xs[1], xs[2], heads=heads, causal=self.causal, window=self.window)


@attrs.frozen(kw_only=True)
class Rotary(Kind):
    """Rotate pairs of channels of every head by their position; heads lie in the channels."""

    kind = "rotary"
    axes = ("samples", "positions", "channels")

    heads: int = needed(help="number of heads", minimum=1)
    rotated: int | None = option(None, help="channels of a head that rotate; default: all", minimum=2)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        *outer, width = xs[0].shape
        if width % self.heads:
            raise TopoplanError(f"heads: {self.heads} does not divide {width} channels (choose a divisor)")
        heads = Handle((*outer, self.heads, width // self.heads), xs[0].itemsize)
        return flat_heads(attention.rotary(heads, rotated=self.rotated))


@attrs.frozen(kw_only=True)
class Softmax(Kind):
    """Normalize exponentials over an axis."""

    kind = "softmax"
    axes = ("samples", "classes")

    axis: int = option(-1, help="over which")
    log: bool = option(False, help="whether the logarithm is taken")

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return pointwise.softmax(xs[0], axis_of(self.axis, xs[0]), log=self.log)


@attrs.frozen(kw_only=True)
class LayerNorm(Kind):
    """Give the last axes mean 0 and variance 1, times a weight, plus a bias."""

    kind = "layer_norm"
    axes = ("samples", "channels")

    last: int = option(1, help="how many axes", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return normalization.layer_norm(xs[0], self.last)


@attrs.frozen(kw_only=True)
class RmsNorm(Kind):
    """Give the last axes mean square 1, times a weight."""

    kind = "rms_norm"
    axes = ("samples", "channels")

    last: int = option(1, help="how many axes", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return normalization.rms_norm(xs[0], self.last)


@attrs.frozen(kw_only=True)
class BatchNorm(Kind):
    """Give every channel (axis 1) mean 0 and variance 1 over samples and positions, times a weight, plus a bias."""

    kind = "batch_norm"
    axes = ("samples", "channels")

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return normalization.batch_norm(xs[0])


@attrs.frozen(kw_only=True)
class Concat(Kind):
    """Put tensors side by side."""

    kind = "concat"
    reads = (1, 10_000)
    axes = ("samples", "channels")

    axis: int = option(1, help="along which")

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return pointwise.concat(xs, axis_of(self.axis, xs[0]))


@attrs.frozen(kw_only=True)
class Chunk(Kind):
    """Split a tensor evenly; outputs y0, y1, ..."""

    kind = "chunk"
    axes = ("samples", "channels")

    parts: int = needed(help="how many", minimum=1)
    axis: int = option(-1, help="along which")

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        if self.parts > xs[0].shape[axis_of(self.axis, xs[0])]:
            raise TopoplanError(f"parts: {self.parts} of an axis of {xs[0].shape[self.axis]} elements")
        return shaping.chunk(xs[0], self.parts, axis_of(self.axis, xs[0]))


@attrs.frozen(kw_only=True)
class Split(Kind):
    """Split a tensor into stretches of an axis; outputs y0, y1, ..."""

    kind = "split"
    axes = ("samples", "channels")

    sizes: tuple[int, ...] = needed(help="of the stretches", minimum=1)
    axis: int = option(-1, help="along which")

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return shaping.split(xs[0], self.sizes, axis_of(self.axis, xs[0]))


@attrs.frozen(kw_only=True)
class Mean(Kind):
    """Take the mean over axes."""

    kind = "mean"
    axes = ("samples", "positions")

    over: tuple[int, ...] = needed(help="axes, such as [2, 3]")

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        axes = [axis_of(axis, xs[0]) for axis in self.over]
        return reductions.reduced("mean", xs[0], axes)


@attrs.frozen(kw_only=True)
class Permute(Kind):
    """Put the axes behind samples into another order."""

    kind = "permute"

    order: tuple[int, ...] = needed(help="axes of the input, such as [2, 1]; 0, samples, stays in front", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        if sorted(self.order) != list(range(1, len(xs[0].shape))):
            raise TopoplanError(f"order: {list(self.order)} is no order of the axes 1 to {len(xs[0].shape) - 1}")
        return shaping.permute(xs[0], (0, *self.order))


@attrs.frozen(kw_only=True)
class View(Kind):
    """Give a tensor another shape of as many elements."""

    kind = "view"

    shape: tuple[int, ...] = needed(help="sizes without samples", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return shaping.view(xs[0], (xs[0].shape[0], *self.shape))


@attrs.frozen(kw_only=True)
class AppendToken(Kind):
    """Put one learned token before the positions (samples, positions, channels)."""

    kind = "append_token"

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 3, self.kind, "samples, positions, channels")
        return shaping.append_token(xs[0])


@attrs.frozen(kw_only=True)
class TakeToken(Kind):
    """Take the first position (samples, positions, channels)."""

    kind = "take_token"

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 3, self.kind, "samples, positions, channels")
        return shaping.take_token(xs[0])


@attrs.frozen(kw_only=True)
class Einsum(Kind):
    """Sum products of tensors in Einstein notation; b is the axis of samples."""

    kind = "einsum"
    reads = (1, 8)

    expression: str = needed(help='such as "bqhd,bkhd->bhqk"')

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        if len(self.expression) > 200:
            raise TopoplanError(f"expression: {shown(self.expression)} is too long (at most 200 characters)")
        return products.einsum(self.expression, xs)


@attrs.frozen(kw_only=True)
class TopK(Kind):
    """Choose the largest of the last axis (samples, ..., classes); outputs values and indices."""

    kind = "top_k"
    axes = ("samples", "classes")

    k: int = needed(help="how many", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return experts.top_k(xs[0], self.k)


@attrs.frozen(kw_only=True)
class Gating(Kind):
    """Choose experts and slots for each position; outputs dispatch and combine (GShard)."""

    kind = "gating"

    experts: int = needed(help="number of experts", minimum=1)
    slots: int = needed(help="of each expert for each sample", minimum=1)
    chosen: int = option(2, help="experts of each position", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 3, self.kind, "samples, positions, channels")
        return experts.gating(xs[0], self.experts, self.slots, self.chosen)


@attrs.frozen(kw_only=True)
class Dispatch(Kind):
    """Send positions to experts: x and the numbers of experts; output (samples, experts, slots, channels)."""

    kind = "dispatch"
    reads = (2, 2)

    experts: int = needed(help="number of experts", minimum=1)
    capacity: float = option(1.0, help="slots of an expert, in even shares of the positions", minimum=0.001)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 3, self.kind, "samples, positions, channels")
        slots = experts.capacity(self.capacity, xs[1].shape[2], xs[0].shape[1], self.experts)
        return tokens.dispatch(xs[0], xs[1], self.experts, slots)


@attrs.frozen(kw_only=True)
class ExpertLinear(Kind):
    """Multiply the channels of each expert (samples, experts, slots, channels) by a matrix of its own."""

    kind = "expert_linear"

    out: int = needed(help="output channels", minimum=1)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs, 4, self.kind, "samples, experts, slots, channels")
        weight = Handle((xs[0].shape[1], xs[0].shape[3], self.out))
        return products.einsum("neci,eio->neco", xs, [weight], sample="n", kind=self.kind)


@attrs.frozen(kw_only=True)
class Combine(Kind):
    """Weigh and add the answers of experts: answers, weights, and numbers of experts."""

    kind = "combine"
    reads = (3, 3)

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        exactly(xs[1:], 3, self.kind, "samples, positions, choices")
        return tokens.combine(xs[0], xs[1], xs[2])


@attrs.frozen(kw_only=True)
class NllLoss(Kind):
    """Sum minus the scores (samples, classes, ...) that targets (samples, ...) name."""

    kind = "nll_loss"
    reads = (2, 2)
    axes = ("samples", "classes")

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return losses.nll_loss(xs[0], xs[1])


@attrs.frozen(kw_only=True)
class Sum(Kind):
    """Sum all elements."""

    kind = "sum"

    def operator(self, xs: Sequence[Handle]) -> Operator:
        """Return the operator."""
        return losses.total(xs[0])


def _pointwise(word: str, doc: str, number: int) -> type[Kind]:
    """Return the class of an operator of one element of ``number`` tensors, without options."""

    def operator(_: Kind, xs: Sequence[Handle]) -> Operator:
        return pointwise.elementwise(word, xs)

    body: dict[str, Any] = {"kind": word, "reads": (number, number), "operator": operator, "__doc__": doc}
    decorate: Callable[..., type[Kind]] = attrs.frozen(kw_only=True)
    return decorate(type(word, (Kind,), {**body, "__module__": __name__}))


_ARITHMETIC = {
    "add": "Add two tensors",
    "subtract": "Subtract two tensors",
    "multiply": "Multiply two tensors",
    "divide": "Divide one tensor by another",
}

_CLASSES: tuple[type[Kind], ...] = (
    *(Linear, Conv2d, Pool2d, Flatten, Embedding, EmbeddingBag, MultiheadAttention, Attention, Rotary, Softmax),
    *(LayerNorm, RmsNorm, BatchNorm, Concat, Chunk, Split, Mean, Permute, View, AppendToken, TakeToken, Einsum),
    *(TopK, Gating, Dispatch, ExpertLinear, Combine, NllLoss, Sum),
    *(_pointwise(word, f"Apply {word} to every element.", 1) for word in FUNCTIONS),
    *(
        _pointwise(word, f"{doc} element by element; an axis of size 1 meets every element.", 2)
        for word, doc in _ARITHMETIC.items()
    ),
)
#: Name of a kind -> its class.
KINDS: Mapping[str, type[Kind]] = MappingProxyType({one.kind: one for one in _CLASSES})
