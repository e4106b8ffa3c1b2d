"""Attention without weights, for models that project queries, keys and values by linear layers of their own.

Several heads of the query may share one head of keys and values (grouped queries: Ainslie et al., GQA, EMNLP 2023).
The iteration space then has the heads of keys and values, ``h``, and the heads of the query for each of them, ``g``.
Both can be cut where both are axes of the query.  Where the query has them in one axis, or flat with its channels,
that axis follows ``h``: heads are then cut into at most as many parts as keys and values have.
"""

from __future__ import annotations

from collections.abc import Mapping

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_operators.handle import Handle, every_axis, plain
from topoplan_operators.patterns import followed, shape_of, solved

__all__ = ["attended_pairs", "rotary", "scaled_dot_product"]

#: FLOPs of a rotated element: two products, and their sum.
ROTARY_FLOPS = 3

#: Axes of the query, axis of the heads -> how query, keys, values and answers follow the dimensions.
_LAYOUTS = {
    (3, 2): ("n q (h g d)", "n t (h d)", "n t (h e)", "n q (h g e)"),
    (4, 2): ("n q (h g) d", "n t h d", "n t h e", "n q (h g) e"),
    (4, 1): ("n (h g) q d", "n h t d", "n h t e", "n (h g) q e"),
    (5, 2): ("n q h g d", "n t h d", "n t h e", "n q h g e"),
    (5, 1): ("n h g q d", "n h t d", "n h t e", "n h g q e"),
}


def scaled_dot_product(
    q: Handle,
    k: Handle,
    v: Handle,
    *,
    heads: tuple[int, int] | None = None,
    heads_axis: int = 2,
    causal: bool = False,
    window: int | None = None,
) -> Operator:
    """Return softmax(q k / sqrt(channels)) v of every head: of the query's shape, with the channels of ``v``.

    Dimensions: ``n`` samples, ``q`` positions of the query, ``h`` heads of keys and values, ``g`` heads of the query
    for each, ``t`` positions of keys and values, ``d`` channels of query and keys, ``e`` channels of values.  Keys and
    values are needed at all positions, also where attention is causal: what a slice of queries reads ends where the
    slice does, but always begins at the first position, and no axis map says that.

    FLOPs are those of the two products for the pairs of positions that attend to each other (`attended_pairs`), and
    none of softmax.  Kernels leave the others out block by block (FlashAttention-2: Dao, 2023, section 3.1).  Parts of
    the queries share the pairs evenly, as context parallelism does with zigzag halves.

    Args:
        q: (samples, positions, heads, channels), (samples, positions, heads x channels), or (samples, positions, heads
            of keys and values, heads of the query for each, channels).
        k: (samples, other positions, heads, channels), or flat as ``q``.
        v: as ``k``; its channels may be others.
        heads: of the query, and of keys and values; given for flat tensors, and only for these.
        heads_axis: 2, or 1 where heads stand before positions.
        causal: no position attends to a later one.
        window: positions that one attends to at most, itself and those before it; needs ``causal``.

    Raises:
        TopoplanError: shapes or heads do not fit.
    """
    kind = "scaled_dot_product_attention"
    named = {"keys": k, "values": v, "query": q}
    patterns, sizes = _sizes(kind, named, heads, heads_axis)
    numbers = {dim: number for number, dim in enumerate("nqhgtde")}
    cuttable = {"n": Role.SAMPLE, "q": Role.ATTRIBUTE, "h": Role.ATTRIBUTE}
    if len(q.shape) == 5:
        cuttable["g"] = Role.ATTRIBUTE
    answer = Handle(shape_of(patterns["y"], sizes), q.itemsize)
    n, i, h, g, t, d, e = range(7)
    limit = window if causal and window is not None and window < max(sizes["q"], sizes["t"]) else None
    share = attended_pairs(sizes["q"], sizes["t"], limit) / (sizes["q"] * sizes["t"]) if causal else 1
    return Operator(
        name="",
        kind=kind,
        dims=tuple(Dimension(dim, sizes[dim], cuttable.get(dim)) for dim in numbers),
        inputs=tuple(
            followed(name, named[name], patterns[name], numbers, sizes) for name in ("query", "keys", "values")
        ),
        outputs=(followed("y", answer, patterns["y"], numbers, sizes),),
        work=(Term(2 * share, (n, i, h, g, t, d)), Term(2 * share, (n, i, h, g, t, e))),
        tags=({"causal": "yes"} if causal else {}) | ({"window": str(limit)} if limit else {}),
        linear_in=((2,),),
        # FlashAttention (Dao et al., 2022) makes the scores again from the logarithm of their sums.
        saved=("query", "keys", "values", "y"),
        extras=(Tensor("sums", tuple(Axis(sizes[dim], numbers[dim]) for dim in "nhgq"), 4),),
    )


def attended_pairs(queries: int, keys: int, window: int | None = None) -> int:
    """Return how many pairs of positions causal attention computes: query ``i`` attends to keys ``0`` to ``i``.

    So PyTorch counts positions for ``is_causal=True``, from the first of both.  For as many queries as keys it is the
    lower triangle, s(s+1)/2.

    Args:
        queries, keys: positions.
        window: positions that a query attends to at most, itself and those before it.

    >>> attended_pairs(4, 4), attended_pairs(4, 4, window=2), attended_pairs(2, 8)
    (10, 7, 3)
    """
    pairs = _steps(queries, keys)
    return pairs if window is None else pairs - _steps(queries - window, keys)


def _steps(count: int, most: int) -> int:
    """Return 1 + 2 + ... of ``count`` summands, none of them above ``most``."""
    growing = max(0, min(count, most))
    return growing * (growing + 1) // 2 + max(0, count - growing) * most


def _sizes(
    kind: str, named: Mapping[str, Handle], heads: tuple[int, int] | None, heads_axis: int
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the pattern of query, keys, values and answers, and the size of every dimension."""
    q, k, v = (named[name].shape for name in ("query", "keys", "values"))
    layout = _LAYOUTS.get((len(q), heads_axis))
    if layout is None or (heads is None) == (len(q) == 3):
        raise TopoplanError(
            f"{kind}: query {q} is not samples, positions, heads and channels "
            "(flat heads and channels need the numbers of heads)"
        )
    given_sizes = {}
    if heads is not None:
        if min(heads) < 1 or heads[0] % heads[1]:
            raise TopoplanError(f"{kind}: {heads[0]} heads of the query are no multiple of {heads[1]} of the keys")
        given_sizes = {"h": heads[1], "g": heads[0] // heads[1]}
    patterns = dict(zip(("query", "keys", "values", "y"), layout, strict=True))
    try:
        return patterns, solved([(patterns[name], x) for name, x in named.items()], given_sizes)
    except TopoplanError as error:
        raise TopoplanError(f"{kind}: query {q}, keys {k}, values {v} do not fit: {error}") from None


def rotary(x: Handle, *, rotated: int | None = None) -> Operator:
    """Return ``x`` (samples, ..., channels) with pairs of channels rotated by angles that grow with the position.

    Source: Su et al., RoFormer, 2021.  Every axis but the channels can be cut: a pair is two channels far apart.
    Angles are computed anew in every part, and their table is too small to count.

    Args:
        x: heads have an axis of their own, since the channels of each head are rotated.
        rotated: number of channels that are; the default is all of them.

    Raises:
        TopoplanError: ``rotated`` is no even number of channels.
    """
    channels = x.shape[-1]
    rotated = channels if rotated is None else rotated
    if not 0 < rotated <= channels or rotated % 2:
        raise TopoplanError(f"rotary: {rotated} of {channels} channels (an even number of them)")
    axes = tuple(range(len(x.shape)))
    dims = every_axis(x.shape)
    return Operator(
        name="",
        kind="rotary",
        dims=(*dims[:-1], Dimension(dims[-1].name, channels)),
        inputs=(plain("x", x, *axes),),
        outputs=(plain("y", x, *axes),),
        work=(Term(ROTARY_FLOPS * rotated / channels, axes),),
        linear_in=((0,),),
    )
