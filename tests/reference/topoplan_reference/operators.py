"""What operators compute, in numpy: the whole of each kind, and a part of it from the slices that it reads.

Most functions need not know which part they compute.  Those that do get where it begins and ends in each dimension.
Windows are slices, with what lies beyond a tensor filled in, so that a part neither pads nor clips.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from topoplan.model.graph import Operator
from topoplan.model.sharding import arguments
from topoplan_operators import Handle, attention, dense, normalization, products, shaping

__all__ = ["CASES", "Case"]

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
    """

    op: Operator
    whole: Function
    part: Function | None = None
    fill: float = 0.0
    integers: Mapping[str, int] = MappingProxyType({})
    differentiable: bool = True

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


def product_cases() -> dict[str, Case]:
    x = Handle((3, 4, 5))
    return {
        "linear": Case(dense.linear(x, 3, bias=False, activation=False), lambda x, w: (x @ w.T,)),
        "matrix product": Case(
            products.einsum("bnm,bmp->bnp", [x, Handle((3, 5, 2))]),
            lambda x, y: (x @ y,),
        ),
    }


#: Name -> case; every kind of operator, and every way in which tensors follow dimensions, has one.
CASES: Mapping[str, Case] = {**attention_cases(), **view_cases(), **norm_cases(), **product_cases()}
