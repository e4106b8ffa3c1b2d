"""Operators made of matrix products and table look-ups: linear, embeddings, multi-head attention.

Each function takes the tensors it reads and returns an `Operator` that has no name yet.
"""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_operators.handle import Handle, plain, whole

__all__ = ["attention", "embedding", "linear", "multihead_attention", "token_embedding"]

#: FLOPs that softmax spends on one element: maximum, subtract, exponential, sum, divide.
SOFTMAX_FLOPS = 5


def linear(x: Handle, out: int, *, bias: bool, activation: bool) -> Operator:
    """Return ``y[s, ..., o] = sum_i x[s, ..., i] * w[o, i] + b[o]``.

    Dimensions: ``s`` samples, one attribute per axis between (``t0``, ...), ``o`` and ``i``.

    Args:
        x: (samples, ..., channels).
        out: output channels.
        bias: whether it has a bias, a weight tensor of its own.
        activation: whether a function is applied to every output, at one FLOP each.
    """
    samples, *middle, channels = x.shape
    dims = (
        Dimension("s", samples, Role.SAMPLE),
        *(Dimension(f"t{k}", size, Role.ATTRIBUTE) for k, size in enumerate(middle)),
        Dimension("o", out, Role.PARAMETER),
        Dimension("i", channels, Role.REDUCTION),
    )
    rows, o, i = tuple(range(1 + len(middle))), 1 + len(middle), 2 + len(middle)
    weights = [Tensor("kernel", (Axis(out, o), Axis(channels, i)))]
    if bias:
        weights.append(Tensor("bias", (Axis(out, o),)))
    work = [Term(2, (*rows, o, i))]
    if bias or activation:
        work.append(Term(int(bias) + int(activation), (*rows, o)))
    return Operator(
        name="",
        kind="linear",
        dims=dims,
        inputs=(plain("x", x, *rows, i),),
        weights=tuple(weights),
        outputs=(plain("y", Handle((samples, *middle, out), x.itemsize), *rows, o),),
        work=tuple(work),
        tags={"flexnet": f"Dense_{channels}_{out}"},
        linear_in=() if activation else tuple((factor, *((2,) if bias else ())) for factor in (0, 1)),
        saved=("x", "y") if activation else None,
    )


def embedding(indices: Handle, rows: int, dim: int, *, itemsize: int) -> Operator:
    """Return the sum of the ``bag`` rows of a table that each sample names.

    Dimensions: ``n`` samples, ``d`` row length, ``r`` rows (cutting them gives partial sums), ``b`` bag.
    Only touched rows move through memory, and a part that holds a share of the rows touches this share
    of them on average.

    Args:
        indices: (samples, bag) row numbers.
        rows: rows of the table.
        dim: elements of a row.
        itemsize: bytes of an output element.
    """
    samples, bag = indices.shape
    n, d, r, b = range(4)
    return Operator(
        name="",
        kind="embedding",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("d", dim, Role.PARAMETER),
            Dimension("r", rows, Role.REDUCTION),
            Dimension("b", bag),
        ),
        inputs=(plain("indices", indices, n, b),),
        weights=(Tensor("table", (Axis(rows, r), Axis(dim, d))),),
        outputs=(plain("y", Handle((samples, dim), itemsize), n, d),),
        work=(Term(1 / rows, (n, d, r, b)),),
        traffic=(Term(4 / rows, (n, d, r, b)), Term(indices.itemsize, (n, b)), Term(itemsize, (n, d))),
        tags={"flexnet": f"Embed_{rows}x{dim}"},
        linear_in=((1,),),
    )


def token_embedding(indices: Handle, rows: int, dim: int) -> Operator:
    """Return the row of a table that each position of each sample names: ``y[n, t, d] = w[indices[n, t], d]``.

    Dimensions: ``n`` samples, ``t`` positions, ``d`` row length, ``r`` rows (cutting them gives partial sums:
    a part has zeros where another one holds the row).

    Args:
        indices: (samples, positions) row numbers.
        rows: rows of the table.
        dim: elements of a row.
    """
    samples, positions = indices.shape
    n, t, d, r = range(4)
    return Operator(
        name="",
        kind="token_embedding",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("t", positions, Role.ATTRIBUTE),
            Dimension("d", dim, Role.PARAMETER),
            Dimension("r", rows, Role.REDUCTION),
        ),
        inputs=(plain("indices", indices, n, t),),
        weights=(Tensor("table", (Axis(rows, r), Axis(dim, d))),),
        outputs=(plain("y", Handle((samples, positions, dim)), n, t, d),),
        work=(Term(1 / rows, (n, t, d, r)),),
        traffic=(Term(4 / rows, (n, t, d, r)), Term(indices.itemsize, (n, t)), Term(4, (n, t, d))),
        linear_in=((1,),),
    )


def attention(q: Handle, k: Handle, v: Handle, embed: int, heads: int, *, merge: bool) -> Operator:
    """Return multi-head attention (Vaswani et al., 2017), heads of ``embed // heads`` channels, without biases.

    Dimensions: ``n`` samples, ``q`` positions of the query, ``h`` heads.  Keys and values are needed whole;
    every head contributes a partial sum of all output channels.  One weight tensor holds, per head, the
    projections of query, key, value and output.

    Args:
        q: (samples, positions, channels) of the query.
        k: (samples, other positions, channels) of the keys.
        v: (samples, other positions, channels) of the values.
        embed: output channels.
        heads: number of heads; divides ``embed``.
        merge: a tensor that is given for several of q, k and v becomes one input, needed whole, so that it
            travels once.
    """
    if heads < 1 or embed % heads:
        raise TopoplanError(f"attention: {heads} heads do not divide {embed} channels (choose a divisor)")
    if k.shape[:2] != v.shape[:2]:
        raise TopoplanError(f"attention: keys {k.shape} and values {v.shape} differ in samples or positions")
    n, i, h = range(3)
    size, (samples, queries, _), keys = embed // heads, q.shape, k.shape[1]
    inputs = [plain("q", q, n, i, -1), whole("k", k, n), whole("v", v, n)]
    if merge and k == v:
        inputs = [whole("x", q, n)] if q == k else [inputs[0], whole("kv", k, n)]
    per_head = size * (q.shape[2] + k.shape[2] + v.shape[2] + embed)
    return Operator(
        name="",
        kind="attention",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("q", queries, Role.ATTRIBUTE),
            Dimension("h", heads, Role.REDUCTION),
        ),
        inputs=tuple(inputs),
        weights=(Tensor("kernel", (Axis(heads, h), Axis(per_head))),),
        outputs=(plain("y", Handle((samples, queries, embed), q.itemsize), n, i, -1),),
        extras=(
            *(extras := _attention_extras((samples, queries, keys, heads), size, q.itemsize)),
            # Products of single heads read copies, in the order of their axes (PyTorch, `sumproduct_pair` of einsum).
            attrs.evolve(extras[1], name="answers_in_order"),
            Tensor("kernel_in_order", (Axis(heads, h), Axis(per_head)), q.itemsize),
        ),
        scratch=extras[:4],  # their gradients
        work=(
            Term(2 * size * (q.shape[2] + embed) + keys * (4 * size + SOFTMAX_FLOPS), (n, i, h)),
            Term(2 * size * keys * (k.shape[2] + v.shape[2]), (n, h)),
        ),
        tags={
            "flexnet": f"MultiHeadAttention_{embed}{heads}",
            "activations": "queries keys values answers answers_in_order kernel_in_order",
        },
    )


def _attention_extras(sizes: tuple[int, int, int, int], channels: int, itemsize: int) -> tuple[Tensor, ...]:
    """Return what attention with projections makes inside and reads again: projections, answers, sums of scores.

    Args:
        sizes: samples, positions of the query, positions of the keys, heads.
        channels: of a head.
        itemsize: bytes of an element.
    """
    samples, queries, _, heads = sizes
    flat_heads = Axis(heads * channels, 2, scale=channels, extent=channels)
    return (
        *_projections(sizes, flat_heads, ("keys", "values"), itemsize),
        Tensor("sums", (Axis(samples, 0), Axis(queries, 1), Axis(heads, 2)), 4),
    )


def _projections(
    sizes: tuple[int, int, int, int], channels: Axis, of_keys: tuple[str, str], itemsize: int
) -> tuple[Tensor, ...]:
    """Return queries, answers, and by their names keys and values, with the channels of all heads."""
    samples, queries, keys, _ = sizes
    places = {"queries": Axis(queries, 1), "answers": Axis(queries, 1), **dict.fromkeys(of_keys, Axis(keys))}
    return tuple(Tensor(name, (Axis(samples, 0), place, channels), itemsize) for name, place in places.items())


def multihead_attention(q: Handle, k: Handle, v: Handle, heads: int, mask: Handle | None = None) -> Operator:
    """Return multi-head attention as PyTorch's `multi_head_attention_forward` has it: positions first, with biases.

    Outputs: the answers (positions, samples, channels), and the weights that they give to the keys, averaged over
    heads (samples, positions, keys).  Dimensions: ``n`` samples, ``q`` positions of the query, and for its cost
    ``s`` keys and ``e`` channels.  Heads are no dimension: the rows of the joint projection of queries, keys and
    values do not part by head, so that a slice of them is no head's.

    Args:
        q: (positions, samples, channels) of the query.
        k: (keys, samples, channels).
        v: (keys, samples, channels).
        heads: number of heads; divides the channels.
        mask: (positions, keys), added to the scores before softmax.
    """
    positions, samples, channels = q.shape
    if heads < 1 or channels % heads:
        raise TopoplanError(f"attention: {heads} heads do not divide {channels} channels (choose a divisor)")
    if k.shape != v.shape or k.shape[1:] != q.shape[1:]:
        raise TopoplanError(f"attention: query {q.shape}, keys {k.shape} and values {v.shape} do not fit")
    n, i, s, e = range(4)
    inputs = [plain("q", q, i, n, -1), plain("k", k, -1, n, -1), plain("v", v, -1, n, -1)]
    if mask is not None:
        inputs.append(plain("mask", mask, i, -1))
    keys = k.shape[0]
    extras = _written_extras((samples, positions, keys, heads), channels, q.itemsize)
    return Operator(
        name="",
        kind="multihead_attention",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("q", positions, Role.ATTRIBUTE),
            Dimension("s", keys),
            Dimension("e", channels),
        ),
        inputs=tuple(inputs),
        weights=(
            Tensor("in_projection", (Axis(3 * channels), Axis(channels))),
            Tensor("in_bias", (Axis(3 * channels),)),
            Tensor("out_projection", (Axis(channels), Axis(channels))),
            Tensor("out_bias", (Axis(channels),)),
        ),
        outputs=(
            plain("y", q, i, n, -1),
            plain("attention", Handle((samples, positions, keys)), n, i, -1),
        ),
        extras=extras,
        scratch=extras,  # their gradients
        tags={"activations": " ".join(tensor.name for tensor in extras)},
        work=(
            Term(4 * channels, (n, i, e)),  # projections of queries and answers
            Term(4 * channels, (n, s, e)),  # projections of keys and values
            Term(4, (n, i, s, e)),  # scores, and answers
            Term(SOFTMAX_FLOPS * heads, (n, i, s)),
        ),
    )


def _written_extras(sizes: tuple[int, int, int, int], channels: int, itemsize: int) -> tuple[Tensor, ...]:
    """Return what attention with projections keeps that writes its shares: it returns them, which fused kernels do not.

    Args:
        sizes: samples, positions of the query, positions of the keys, heads.
        channels: of all heads.
        itemsize: bytes of an element.
    """
    samples, queries, keys, heads = sizes
    return (
        *_projections(sizes, Axis(channels), ("keys_of_heads", "values_of_heads"), itemsize),
        Tensor("shares", (Axis(samples, 0), Axis(queries, 1), Axis(heads), Axis(keys)), itemsize),
    )
