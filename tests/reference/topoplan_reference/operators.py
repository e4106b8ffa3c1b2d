"""What operators compute, in numpy: the whole of each kind, and a part of it from the slices that it reads.

Most functions need not know which part they compute.  Those that do get where it begins and ends in each dimension.
Windows are slices, with what lies beyond a tensor filled in, so that a part neither pads nor clips.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from topoplan.model.graph import Operator
from topoplan.model.sharding import arguments
from topoplan_frontend_huggingface.attention import keys_and_values
from topoplan_frontend_huggingface.blocks import cross_entropy
from topoplan_frontend_huggingface.families import Latent
from topoplan_operators import (
    Handle,
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
from topoplan_operators.heads import flat_heads as in_one_axis

__all__ = ["CASES", "Bounds", "Case"]

#: Dimension -> first iteration of a part, and one behind its last.
Bounds = Mapping[str, tuple[int, int]]
Function = Callable[..., tuple[Any, ...]]


@attrs.frozen
class Case:
    """An operator, and what it computes.

    Attributes:
        op: the operator, small.
        whole: from all its inputs and weights to all its outputs.
        part: the same of a part, from its bounds and slices; None where it computes what the whole does.
        fill: what a window reads beyond the tensor.
        integers: name of a tensor of indices -> how many there are to choose from.
        differentiable: gradients are compared, too.
        uncut: dimensions whose cut changes what is computed.
    """

    op: Operator
    whole: Function
    part: Function | None = None
    fill: float = 0.0
    integers: Mapping[str, int] = MappingProxyType({})
    differentiable: bool = True
    uncut: tuple[str, ...] = ()

    def function(self, bounds: Bounds, *arrays: np.ndarray) -> tuple[Any, ...]:
        """Compute a part."""
        return self.whole(*arrays) if self.part is None else self.part(bounds, *arrays)

    def values(self) -> list[np.ndarray]:
        """Random inputs and weights."""
        rng = np.random.default_rng(0)
        return [
            rng.integers(0, self.integers[tensor.name], tensor.shape).astype(float)
            if tensor.name in self.integers
            else rng.normal(size=tensor.shape)
            for tensor in arguments(self.op)
        ]


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def grouped_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Heads in two axes: query (n, q, h, g, d), keys (n, t, h, d), values (n, t, h, e)."""
    scores = np.einsum("nqhgd,nthd->nhgqt", q, k) / np.sqrt(q.shape[-1])
    return np.asarray(np.einsum("nhgqt,nthe->nqhge", softmax(scores), v))


def heads_last(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    return (grouped_attention(grouped, k, v).reshape(*q.shape[:3], -1),)


def heads_first(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
    return (heads_last(q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2))[0].swapaxes(1, 2),)


def flat_heads(d: int, e: int) -> Function:
    """Heads and channels in one axis; ``d`` channels of queries and keys, ``e`` of values."""

    def function(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
        q, k, v = (x.reshape(*x.shape[:2], -1, size) for x, size in ((q, d), (k, d), (v, e)))
        answer = heads_last(q, k, v)[0]
        return (answer.reshape(*answer.shape[:2], -1),)

    return function


def causal_part(bounds: Bounds, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
    """Heads last, one head of the query for each of the keys; positions see no later ones."""
    start, stop = bounds["q"]
    later = np.arange(k.shape[1]) > np.arange(start, stop)[:, None]
    scores = np.einsum("nqhd,nthd->nhqt", q, k) / np.sqrt(q.shape[-1])
    return (np.einsum("nhqt,nthe->nqhe", softmax(np.where(later, -np.inf, scores)), v),)


def rotary_part(bounds: Bounds, x: np.ndarray) -> tuple[np.ndarray]:
    """(samples, positions, heads, channels); the first 4 channels are rotated."""
    start, stop = bounds["a1"]
    angles = np.arange(start, stop)[:, None] / 10.0 ** np.arange(2)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b, rest = x[..., :2], x[..., 2:4], x[..., 4:]
    return (np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1),)


def whole_of(part: Function, op: Operator) -> Function:
    """The function of the whole, of one that has to know where a part begins."""
    bounds = {dim.name: (0, dim.size) for dim in op.dims}
    return lambda *arrays: part(bounds, *arrays)


def rms_norm(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray]:
    return (x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w,)


def layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray]:
    return ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b,)


def viewed(op: Operator) -> Case:
    """A view; the shape of a part's output follows from its bounds."""
    (output,) = op.outputs

    def part(bounds: Bounds, x: np.ndarray) -> tuple[np.ndarray]:
        lengths = [
            axis.size if axis.dim < 0 else (stop - start) * axis.scale
            for axis in output.axes
            for start, stop in [bounds[op.dims[axis.dim].name] if axis.dim >= 0 else (0, 0)]
        ]
        return (x.reshape(lengths),)

    return Case(op, lambda x: (x.reshape(output.shape),), part)


def attention_cases() -> dict[str, Case]:
    q, kv = Handle((2, 5, 6, 2)), Handle((2, 4, 3, 2))
    causal = attention.scaled_dot_product(Handle((2, 5, 3, 2)), Handle((2, 5, 3, 2)), Handle((2, 5, 3, 4)), causal=True)
    swapped = [Handle((x.shape[0], x.shape[2], x.shape[1], x.shape[3])) for x in (q, kv, kv)]
    turned = attention.rotary(Handle((2, 5, 3, 6)), rotated=4)
    return {
        "attention with grouped queries": Case(attention.scaled_dot_product(q, kv, kv), heads_last),
        "attention with heads first": Case(attention.scaled_dot_product(*swapped, heads_axis=1), heads_first),
        "attention with flat heads": Case(
            attention.scaled_dot_product(Handle((2, 5, 12)), Handle((2, 4, 6)), Handle((2, 4, 9)), heads=(6, 3)),
            flat_heads(2, 3),
        ),
        "attention with heads in two axes": Case(
            attention.scaled_dot_product(Handle((2, 3, 3, 2, 2)), kv, kv),
            lambda q, k, v: (grouped_attention(q, k, v),),
        ),
        "causal attention": Case(causal, whole_of(causal_part, causal), causal_part),
        "rotary positions": Case(turned, whole_of(rotary_part, turned), rotary_part),
    }


def in_heads(part: Function, channels: int) -> Function:
    """A part whose first input and only output have heads and channels in one axis."""

    def function(bounds: Bounds, x: np.ndarray, *weights: np.ndarray) -> tuple[np.ndarray]:
        (answer,) = part(bounds, x.reshape(*x.shape[:-1], -1, channels), *weights)
        return (answer.reshape(x.shape),)

    return function


def keys_and_values_part(bounds: Bounds, kv: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Heads of 2 channels of keys and 3 of values; 4 more channels of keys are rotated, and alike in all heads."""
    rotated = position[..., None, :]
    start, stop = bounds["t"]
    (rotated,) = rotary_part({"a1": (start, stop)}, rotated)
    heads = kv.reshape(*kv.shape[:2], -1, 5)
    shared = np.broadcast_to(rotated, (*heads.shape[:3], 4))
    keys = np.concatenate([heads[..., :2], shared], -1)
    return keys.reshape(*kv.shape[:2], -1), heads[..., 2:].reshape(*kv.shape[:2], -1)


def loss_parts(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray]:
    """Maximum, sum of exponentials, and own score of each position."""
    own = np.take_along_axis(scores, targets[..., None].astype(int), -1)[..., 0]
    return (np.stack([scores.max(-1), np.exp(scores).sum(-1), own], -1),)


def decoder_cases() -> dict[str, Case]:
    """Operators of the frontend `huggingface`, and those on heads in one axis."""
    heads = Handle((2, 5, 3, 6))
    turned = in_one_axis(attention.rotary(heads, rotated=4))
    normalized = in_one_axis(normalization.rms_norm(heads))
    kv, position = Handle((2, 5, 15)), Handle((2, 5, 4))
    latent = Latent(heads=3, query_rank=None, rank=7, plain=2, rotated=4, values=3, bias=False)
    joint = keys_and_values(kv, position, latent)
    return {
        "rotary positions of flat heads": Case(
            turned, whole_of(in_heads(rotary_part, 6), turned), in_heads(rotary_part, 6)
        ),
        "rms_norm of flat heads": Case(
            normalized,
            lambda x, w: in_heads(lambda _, *arrays: rms_norm(*arrays), 6)({}, x, w),
            in_heads(lambda _, *arrays: rms_norm(*arrays), 6),
        ),
        "keys and values of latent attention": Case(joint, whole_of(keys_and_values_part, joint), keys_and_values_part),
        "cross entropy": Case(
            cross_entropy(Handle((2, 3, 5)), Handle((2, 3))), loss_parts, integers={"targets": 5}, uncut=("c",)
        ),
    }


def view_cases() -> dict[str, Case]:
    shapes = {
        "splits an axis": ((2, 5, 12), (2, 5, 3, 4)),
        "joins axes": ((2, 3, 5, 4), (2, 3, 20)),
        "joins samples and positions": ((3, 4, 5), (12, 5)),
        "splits samples and positions": ((12, 5), (3, 4, 5)),
        "moves a border": ((2, 6, 4), (2, 4, 6)),
        "has axes of one element": ((2, 1, 6, 1), (2, 6, 1, 1)),
    }
    return {
        f"view that {name}": viewed(shaping.view(Handle(before), after)) for name, (before, after) in shapes.items()
    }


def norm_cases() -> dict[str, Case]:
    x = Handle((3, 4, 5))
    return {
        "rms_norm": Case(normalization.rms_norm(x), rms_norm),
        "layer_norm": Case(normalization.layer_norm(x), layer_norm),
    }


def looked_up(bounds: Bounds, indices: np.ndarray, table: np.ndarray) -> tuple[np.ndarray]:
    """Rows of a table; zeros for those of other parts."""
    start, stop = bounds["r"]
    mine = (indices >= start) & (indices < stop)
    return (table[np.where(mine, indices - start, 0).astype(int)] * mine[..., None],)


def summed_up(bounds: Bounds, indices: np.ndarray, table: np.ndarray) -> tuple[np.ndarray]:
    return (looked_up(bounds, indices, table)[0].sum(1),)


def product_cases() -> dict[str, Case]:
    x = Handle((3, 4, 5))
    table, bag = dense.token_embedding(Handle((3, 4)), 6, 2), dense.embedding(Handle((3, 4)), 6, 2, itemsize=4)
    rows = {"indices": 6}
    return {
        "token_embedding": Case(table, whole_of(looked_up, table), looked_up, integers=rows),
        "embedding": Case(bag, whole_of(summed_up, bag), summed_up, integers=rows),
        "layers of experts": Case(
            products.einsum("becd,edh->bech", [Handle((2, 3, 2, 4))], [Handle((3, 4, 2))]),
            lambda x, w: (np.einsum("becd,edh->bech", x, w),),
        ),
        "linear": Case(dense.linear(x, 3, bias=False, activation=False), lambda x, w: (x @ w.T,)),
        "matrix product": Case(
            products.einsum("bnm,bmp->bnp", [x, Handle((3, 5, 2))]),
            lambda x, y: (x @ y,),
        ),
    }


def convolved(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, *, stride: int, pads: tuple[int, int], dilation: int, groups: int
) -> np.ndarray:
    """A convolution, position by position."""
    x = np.pad(x, ((0, 0), (0, 0), pads, pads))
    kernel = w.shape[2]
    reach = (kernel - 1) * dilation + 1
    sizes = [(size - reach) // stride + 1 for size in x.shape[2:]]
    inputs, outputs = x.shape[1] // groups, len(w) // groups
    y = np.empty((len(x), len(w), *sizes))
    for g, i, j in itertools.product(range(groups), *map(range, sizes)):
        rows, columns = (slice(k * stride, k * stride + reach, dilation) for k in (i, j))
        patch = x[:, g * inputs : (g + 1) * inputs, rows, columns]
        made = slice(g * outputs, (g + 1) * outputs)
        y[:, made, i, j] = np.einsum("nchw,ochw->no", patch, w[made]) + b[made]
    return y


def convolution_case(channels: int, out: int, *, stride: int = 1, dilation: int = 1, groups: int = 1) -> Case:
    """3 x 3, with one zero before and two behind."""
    x = Handle((2, channels, 7, 7))
    sizes: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    bias = groups > 1
    op = spatial.convolution(
        x,
        out,
        (3, 3),
        stride=(stride, stride),
        padding=[(1, 2)] * 2,
        bias=bias,
        activation=False,
        groups=groups,
        dilation=(dilation, dilation),
    )

    def whole(x: np.ndarray, w: np.ndarray, b: Any = None) -> tuple[np.ndarray]:
        return (convolved(x, w, np.zeros(len(w)) if b is None else b, pads=(1, 2), **sizes),)

    def part(bounds: Bounds, x: np.ndarray, w: np.ndarray, b: Any = None) -> tuple[np.ndarray]:
        start, stop = bounds["g"] if bias else (0, 1)
        b = np.zeros(len(w)) if b is None else b
        return (convolved(x, w, b, pads=(0, 0), stride=stride, dilation=dilation, groups=stop - start),)

    return Case(op, whole, part, differentiable=groups == out)


def pooled(reduce: Callable[..., Any], fill: float) -> tuple[Function, Function]:
    """Windows of 3 x 3 by steps of 2 with a border of 1: of the whole, and of a part, which has its border."""

    def inner(x: np.ndarray) -> np.ndarray:
        sizes = [(size - 3) // 2 + 1 for size in x.shape[2:]]
        y = np.empty((*x.shape[:2], *sizes))
        for i, j in itertools.product(*map(range, sizes)):
            y[:, :, i, j] = reduce(x[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3], axis=(2, 3))
        return y

    def whole(x: np.ndarray) -> tuple[np.ndarray]:
        return (inner(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=fill)),)

    return whole, lambda bounds, x: (inner(x),)


def image_cases() -> dict[str, Case]:
    x = Handle((2, 3, 7, 7))
    sound = spatial.pooling(Handle((2, 3, 8)), (2,), stride=(2,), padding=[(0, 0)])
    most, mean = pooled(np.max, -np.inf), pooled(np.mean, 0.0)
    return {
        "convolution": convolution_case(3, 4, stride=2),
        "dilated convolution": convolution_case(2, 3, dilation=2),
        "grouped convolution": convolution_case(4, 6, groups=2),
        "depthwise convolution": convolution_case(4, 4, groups=4, stride=2),
        "depthwise convolution with two outputs each": convolution_case(3, 6, groups=3),
        "maximum pooling": Case(spatial.pool2d(x, 3, stride=2, padding=1), *most, fill=-np.inf),
        "average pooling": Case(spatial.pool2d(x, 3, stride=2, padding=1, average=True), *mean),
        "pooling of one axis": Case(sound, lambda x: (x.reshape(*x.shape[:2], -1, 2).max(-1),)),
        "flat": Case(spatial.flat(Handle((2, 5, 3, 2))), lambda x: (x.reshape(len(x), -1),)),
    }


def response_norm(x: np.ndarray) -> tuple[np.ndarray]:
    """Over 4 neighbours: one before, two behind."""
    squares = np.pad(x**2, ((0, 0), (1, 2), (0, 0)))
    return (x / (2 + sum(squares[:, k : k + x.shape[1]] for k in range(4))) ** 0.75,)


def response_norm_part(bounds: Bounds, x: np.ndarray) -> tuple[np.ndarray]:
    channels = x.shape[1] - 3
    return (x[:, 1 : 1 + channels] / (2 + sum(x[:, k : k + channels] ** 2 for k in range(4))) ** 0.75,)


def channels_normalized(
    x: np.ndarray, sums: np.ndarray, squares: np.ndarray, w: np.ndarray, b: np.ndarray, count: int = 12
) -> tuple[np.ndarray]:
    mean = sums / count
    scale = w / np.sqrt(abs(squares / count - mean**2) + 1e-5)
    return ((x - mean[:, None]) * scale[:, None] + b[:, None],)


def batch_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray]:
    return channels_normalized(x, x.sum((0, 2)), (x**2).sum((0, 2)), w, b, len(x) * x.shape[2])


def statistic_cases() -> dict[str, Case]:
    x, channels = Handle((3, 5, 4)), Handle((5,))
    return {
        "batch_norm by its own samples": Case(normalization.batch_norm(x), batch_norm, uncut=("n",)),
        "sums of all samples": Case(
            normalization.batch_statistics(x), lambda x, y: (x.sum((0, 2)), (x * y).sum((0, 2)))
        ),
        "batch_norm by these sums": Case(normalization.batch_scale(x, channels, channels), channels_normalized),
        "local_response_norm": Case(normalization.local_response_norm(x, 4), response_norm, response_norm_part),
        "mean of positions": Case(
            reductions.reduced("mean", x, (2,)), lambda x: (x.mean(2),), lambda _, x: (x.sum(2) / 4,)
        ),
        "mean that keeps axes": Case(
            reductions.reduced("mean", x, (-1, 1), keep=True),
            lambda x: (x.mean((1, 2), keepdims=True),),
            lambda _, x: (x.sum((1, 2), keepdims=True) / 20,),
        ),
        "sum of samples": Case(reductions.reduced("sum", x, (0, 2)), lambda x: (x.sum((0, 2)),)),
    }


def extended(bounds: Bounds, *xs: np.ndarray) -> tuple[np.ndarray]:
    """A concatenation: what a part reads of each tensor is zero where others stand."""
    return (np.sum(xs, axis=0),)


def move_cases() -> dict[str, Case]:
    x = Handle((3, 7, 4))
    return {
        "concat": Case(
            pointwise.concat([Handle((3, 2, 4)), Handle((3, 5, 4))], 1), lambda *xs: (np.concatenate(xs, 1),), extended
        ),
        "split into uneven sizes": Case(
            shaping.split(x, (4, 1, 2), 1), lambda x: tuple(np.split(x, (4, 5), 1)), lambda _, x: (x, x, x)
        ),
        "chunk": Case(shaping.chunk(x, 2, 2), lambda x: tuple(np.split(x, 2, 2))),
        "slice": Case(shaping.sliced(x, 1, 1, 7, 3), lambda x: (x[:, 1:7:3],), every_third),
        "select": Case(shaping.select(x, 1, 4), lambda x: (x[:, 4],), lambda _, x: (x[:, 0],)),
        "permute": Case(shaping.permute(x, (0, 2, 1)), lambda x: (x.transpose(0, 2, 1),)),
        "take_token": Case(shaping.take_token(x), lambda x: (x[:, 0],)),
    }


def every_third(bounds: Bounds, x: np.ndarray) -> tuple[np.ndarray]:
    return (x[:, ::3],)


def elementwise_cases() -> dict[str, Case]:
    x = Handle((3, 5, 4))
    functions: dict[str, Callable[[np.ndarray], Any]] = {
        "exp": np.exp,
        "neg": np.negative,
        "pow": lambda x: x**2,
        "silu": lambda x: x / (1 + np.exp(-x)),
        "tanh": np.tanh,
    }

    def case(function: Callable[..., Any]) -> Function:
        return lambda *xs: (function(*xs),)

    return {
        **{name: Case(pointwise.elementwise(name, [x]), case(f)) for name, f in functions.items()},
        "subtract": Case(pointwise.elementwise("subtract", [x, x]), case(np.subtract)),
        "multiply by channels": Case(pointwise.elementwise("multiply", [x], [Handle((4,))]), case(np.multiply)),
        "add a column": Case(pointwise.elementwise("add", [Handle((5, 1)), x]), case(np.add)),
        "softmax": Case(pointwise.softmax(x), case(softmax)),
    }


def chosen_rows(bounds: Bounds, x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray]:
    """Rows along axis 1; zeros for those of other parts."""
    start, stop = bounds["r"]
    mine = (indices >= start) & (indices < stop)
    rows = x[:, np.where(mine, indices - start, 0).astype(int)]
    return (rows * mine[:, :, None],)


def chosen_samples(bounds: Bounds, x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray]:
    start, stop = bounds["r"]
    mine = (indices >= start) & (indices < stop)
    return (x[np.where(mine, indices - start, 0).astype(int)] * mine[:, None],)


def chosen_elements(bounds: Bounds, x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray]:
    """Elements along axis 1; zeros for those of other parts."""
    start, stop = bounds["r"]
    mine = (indices >= start) & (indices < stop)
    return (np.take_along_axis(x, np.where(mine, indices - start, 0).astype(int), axis=1) * mine,)


def added_rows(bounds: Bounds, x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray]:
    start, stop = bounds["r"]
    y = np.zeros((stop - start, x.shape[1]))
    for row, index in zip(x, indices.astype(int), strict=True):
        if start <= index < stop:
            y[index - start] += row
    return (y,)


def slots_of(experts: np.ndarray, count: int) -> np.ndarray:
    """Slot of every choice (samples, positions, choices): how many before it chose the same expert."""
    slots = np.empty(experts.shape, dtype=int)
    for b, sample in enumerate(experts.astype(int)):
        used = np.zeros(count, dtype=int)
        for place in np.ndindex(*sample.shape):
            slots[b][place] = used[sample[place]]
            used[sample[place]] += 1
    return slots


def dispatched(bounds: Bounds, x: np.ndarray, experts: np.ndarray) -> tuple[np.ndarray]:
    (e, e_stop), (c, c_stop), (s, s_stop) = bounds["e"], bounds["c"], bounds["s"]
    y = np.zeros((len(x), e_stop - e, c_stop - c, x.shape[2]))
    slots = slots_of(experts, 3)
    for b, position, k in np.ndindex(*experts.shape):
        expert, slot = int(experts[b, position, k]), slots[b, position, k]
        if s <= position < s_stop and e <= expert < e_stop and c <= slot < c_stop:
            y[b, expert - e, slot - c] += x[b, position - s]
    return (y,)


def combined(bounds: Bounds, y: np.ndarray, gates: np.ndarray, experts: np.ndarray) -> tuple[np.ndarray]:
    (e, e_stop), (c, c_stop), (s, s_stop) = bounds["e"], bounds["c"], bounds["s"]
    x = np.zeros((len(y), s_stop - s, y.shape[3]))
    slots = slots_of(experts, 3)
    for b, position, k in np.ndindex(*experts.shape):
        expert, slot = int(experts[b, position, k]), slots[b, position, k]
        if s <= position < s_stop and e <= expert < e_stop and c <= slot < c_stop:
            x[b, position - s] += gates[b, position - s, k] * y[b, expert - e, slot - c]
    return (x,)


def largest(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-x, axis=-1)[..., :2]
    return np.take_along_axis(x, order, -1), order


def token_cases() -> dict[str, Case]:
    x, choices = Handle((2, 5, 3)), Handle((2, 5, 2))
    operators: dict[str, tuple[Operator, Function, dict[str, int]]] = {
        "gather positions": (tokens.gather(x, Handle((2, 4)), 1), chosen_rows, {"indices": 5}),
        "gather samples": (tokens.gather(Handle((5, 3)), Handle((7,))), chosen_samples, {"indices": 5}),
        "gather elements": (tokens.gather_elements(x, Handle((2, 4, 3)), 1), chosen_elements, {"indices": 5}),
        "scatter_add": (tokens.scatter_add(Handle((7, 3)), Handle((7,)), 4), added_rows, {"indices": 4}),
        "dispatch to experts": (tokens.dispatch(x, choices, 3, 4), dispatched, {"experts": 3}),
        "combine answers of experts": (
            tokens.combine(Handle((2, 3, 4, 3)), choices, choices),
            combined,
            {"experts": 3},
        ),
    }
    cases = {
        name: Case(op, whole_of(part, op), part, integers=integers) for name, (op, part, integers) in operators.items()
    }
    return {**cases, "top_k": Case(experts.top_k(Handle((2, 3, 5)), 2), largest, differentiable=False)}


#: Name -> case; every kind of operator, and every way in which tensors follow dimensions, has one.
CASES: Mapping[str, Case] = {
    **attention_cases(),
    **decoder_cases(),
    **view_cases(),
    **norm_cases(),
    **product_cases(),
    **image_cases(),
    **statistic_cases(),
    **move_cases(),
    **elementwise_cases(),
    **token_cases(),
}
