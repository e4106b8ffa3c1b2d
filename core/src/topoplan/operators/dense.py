"""Operators made of matrix products and table look-ups: linear, embedding, multi-head attention.

Each function takes the tensors it reads and returns an `Operator` that has no name yet.
"""

from __future__ import annotations

from topoplan.errors import TopoplanError
from topoplan.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan.operators.handle import Handle, plain, whole

__all__ = ["attention", "embedding", "linear"]

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
        structure=f"Dense_{channels}_{out}",
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
        structure=f"Embed_{rows}x{dim}",
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
        work=(
            Term(2 * size * (q.shape[2] + embed) + keys * (4 * size + SOFTMAX_FLOPS), (n, i, h)),
            Term(2 * size * keys * (k.shape[2] + v.shape[2]), (n, h)),
        ),
        structure=f"MultiHeadAttention_{embed}{heads}",
    )
