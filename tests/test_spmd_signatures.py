"""HiDup's table of signatures, row by row: which rules the algebra derives, which it lacks, and which are wrong.

Every signature is carried out on arrays: two devices get their shares, compute, and what they then hold must be the
whole operator's answer.  So each row of the table is one operator and a function that does what it says: from arrays
(inputs, then weights), of the whole operator or of a device's share, to its outputs.  Where a share must know where it
begins (which rows of a table it has), it is told by ``start``.
"""

from __future__ import annotations

import numpy as np
import pytest

from topoplan.model.graph import Role
from topoplan.model.sharding import PARTIAL, REPLICATED, Sharding, Signature, arguments
from topoplan_engine.sharding.signatures import signatures
from topoplan_operators import (
    Handle,
    dense,
    experts,
    losses,
    normalization,
    pointwise,
    products,
    shaping,
    spatial,
)
from topoplan_spmd_planning.released import released, unsound

#: Devices, and heads of attention.
N = 2
HEADS = 2


def softmax(x, axis):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def linear(x, w, b=0.0, start=0):
    return (x @ w.T + b,)


def einsum(expression):
    return lambda x, y, start=0: (np.einsum(expression, x, y),)


def layer_norm(x, w, b, start=0):
    return ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b,)


def attention(q, k, v, *rest, start=0):
    *mask, in_w, in_b, out_w, out_b = rest
    wq, wk, wv = np.split(in_w, 3)
    bq, bk, bv = np.split(in_b, 3)
    parted = lambda x: x.reshape(*x.shape[:2], HEADS, -1)  # noqa: E731
    q, k, v = parted(q @ wq.T + bq), parted(k @ wk.T + bk), parted(v @ wv.T + bv)
    scores = np.einsum("inhe,jnhe->nhij", q, k) / np.sqrt(q.shape[-1])
    weights = softmax(scores + mask[0] if mask else scores, -1)
    answers = np.einsum("nhij,jnhe->inhe", weights, v)
    return answers.reshape(*answers.shape[:2], -1) @ out_w.T + out_b, weights.mean(1)


def gating(x, w, start=0):
    """Send each position to its best expert, while that has slots."""
    gates = softmax(x @ w, -1)
    best = gates.argmax(-1)
    mask = np.eye(w.shape[1])[best]
    place = (mask.cumsum(1) - 1) * mask
    slots = np.eye(4)[np.clip(place.sum(-1), 0, 3).astype(int)] * (place.sum(-1) < 4)[..., None]
    dispatch = mask[..., None] * slots[..., None, :]
    return dispatch, dispatch * gates[..., None]


def rows(indices, table, start=0):
    """Look rows up; other devices have the rest of them."""
    row = indices.astype(int) - start
    present = (row >= 0) & (row < len(table))
    return (np.where(present[..., None], table[np.clip(row, 0, len(table) - 1)], 0.0),)


def nll(scores, targets, start=0):
    column = targets.astype(int) - start
    present = (column >= 0) & (column < scores.shape[1])
    values = np.take_along_axis(scores, np.clip(column, 0, scores.shape[1] - 1)[:, None], 1)[:, 0]
    return (-np.where(present, values, 0.0).sum(),)


def patches(x, w, b, start=0):
    n, c, h, width = x.shape
    parts = x.reshape(n, c, h // 2, 2, width // 2, 2)
    return (np.einsum("nchiwj,ocij->nohw", parts, w) + b[:, None, None],)


def elementwise(function):
    return lambda *xs, start=0: (function(*xs),)


def moves(function):
    return lambda x, start=0: (function(x),)


X, Y = Handle((4, 6, 8)), Handle((8, 6))
NUMBER, ROW = Handle(()), Handle((1, 6, 8))
TOKENS = Handle((4, 6))

#: Row of the table -> operator, and what it does.
OPERATORS = {
    "tanh": (pointwise.elementwise("tanh", [X]), elementwise(np.tanh)),
    "sigmoid": (pointwise.elementwise("sigmoid", [X]), elementwise(lambda x: 1 / (1 + np.exp(-x)))),
    "sqrt": (pointwise.elementwise("sqrt", [X]), elementwise(lambda x: np.sqrt(np.abs(x)))),
    "relu": (pointwise.elementwise("relu", [X]), elementwise(lambda x: np.maximum(x, 0))),
    "linear": (dense.linear(X, 4, bias=True, activation=False), linear),
    "linear without bias": (dense.linear(X, 4, bias=False, activation=False), linear),
    "sum": (losses.total(X), moves(np.sum)),
    "add a number": (pointwise.elementwise("add", [X, NUMBER]), elementwise(np.add)),
    "multiply by a number": (pointwise.elementwise("multiply", [X, NUMBER]), elementwise(np.multiply)),
    "divide by a number": (pointwise.elementwise("divide", [X, NUMBER]), elementwise(np.divide)),
    "floor-divide by a number": (pointwise.elementwise("floor_divide", [X, NUMBER]), elementwise(np.floor_divide)),
    "add": (pointwise.elementwise("add", [X, X]), elementwise(np.add)),
    "multiply": (pointwise.elementwise("multiply", [X, X]), elementwise(np.multiply)),
    "divide": (pointwise.elementwise("divide", [X, X]), elementwise(np.divide)),
    "floor-divide": (pointwise.elementwise("floor_divide", [X, X]), elementwise(np.floor_divide)),
    "add a row": (pointwise.elementwise("add", [X, ROW]), elementwise(np.add)),
    "multiply by a row": (pointwise.elementwise("multiply", [X, ROW]), elementwise(np.multiply)),
    "divide a row": (pointwise.elementwise("divide", [ROW, X]), elementwise(np.divide)),
    "chunk": (shaping.chunk(X, 2, 1), lambda x, start=0: tuple(np.split(x, 2, 1))),
    "contiguous": (pointwise.elementwise("contiguous", [X]), elementwise(np.copy)),
    "clone": (pointwise.elementwise("clone", [X]), elementwise(np.copy)),
    "view": (shaping.view(X, (4, 48)), moves(lambda x: x.reshape(len(x), -1))),
    "transpose": (shaping.transpose(X, 0, 2), moves(lambda x: x.swapaxes(0, 2))),
    "bmm": (products.einsum("bnm,bmp->bnp", [X, Handle((4, 8, 2))], kind="bmm"), einsum("bnm,bmp->bnp")),
    "matmul": (
        products.einsum("becm,emp->becp", [Handle((4, 2, 6, 8))], [Handle((2, 8, 4))], kind="matmul"),
        einsum("becm,emp->becp"),
    ),
    "softmax": (pointwise.softmax(X, 2), moves(lambda x: softmax(x, 2))),
    "log_softmax": (pointwise.softmax(X, 1, log=True), moves(lambda x: np.log(softmax(x, 1)))),
    "dropout": (pointwise.elementwise("dropout", [X]), elementwise(lambda x: x * (x > 0.1))),
    "layer_norm": (normalization.layer_norm(X), layer_norm),
    "gating": (experts.gating(X, 4, 4, 1), gating),
    "append the class token": (
        shaping.append_token(X),
        lambda x, t, start=0: (np.concatenate([np.broadcast_to(t, (len(x), 1, t.shape[-1])), x], 1),),
    ),
    "get the class token": (shaping.take_token(X), moves(lambda x: x[:, 0])),
    "dispatch": (products.einsum("bsd,bsec->becd", [X, Handle((4, 6, 2, 4))]), einsum("bsd,bsec->becd")),
    "expert 1": (
        products.einsum("becd,edh->bech", [Handle((4, 2, 4, 8))], [Handle((2, 8, 6))]),
        einsum("becd,edh->bech"),
    ),
    "expert 2": (
        products.einsum("bech,ehd->becd", [Handle((4, 2, 4, 6))], [Handle((2, 6, 8))]),
        einsum("bech,ehd->becd"),
    ),
    "combine": (
        products.einsum("becd,bsec->bsd", [Handle((4, 2, 4, 8)), Handle((4, 6, 2, 4))]),
        einsum("becd,bsec->bsd"),
    ),
    "attention": (dense.multihead_attention(X, X, X, HEADS), attention),
    "attention with a mask": (dense.multihead_attention(X, X, X, HEADS, Handle((4, 4))), attention),
    "embedding": (dense.token_embedding(TOKENS, 10, 8), rows),
    "nll_loss": (losses.nll_loss(Handle((4, 10)), Handle((4,))), nll),
    "nll_loss of positions": (losses.nll_loss(Handle((4, 10, 6)), TOKENS), nll),
    "conv2d": (spatial.conv2d(Handle((4, 6, 8, 8)), 2, 2, stride=2, padding=0, bias=True, activation=False), patches),
    "flatten": (shaping.flatten(Handle((4, 6, 2, 2)), 1), moves(lambda x: x.reshape(len(x), -1))),
}


#: Row of HiDup's table (the rule of whole tensors left out) -> its rules that follow from cutting a dimension of the
#: iteration space, those that follow from linearity, and those that do not follow because they are wrong.  No rule is
#: added by hand.  The first operand of a product with experts is the activation.
TABLE = {
    "tanh": ("G0 > G0, G1 > G1, G2 > G2", "", ""),
    "sigmoid": ("G0 > G0, G1 > G1, G2 > G2", "", ""),
    "sqrt": ("G0 > G0, G1 > G1, G2 > G2", "", ""),
    "relu": ("G0 > G0, G1 > G1, G2 > G2", "", ""),
    "linear": ("G0 F F > G0, G1 F F > G1, F G0 G0 > G2", "", ""),
    "linear without bias": ("G0 F > G0, G1 F > G1, F G0 > G2, G2 G1 > R", "R F > R", ""),
    "sum": ("G0 > R, G1 > R, G2 > R", "R > R", ""),
    "add a number": ("G0 F > G0, G1 F > G1, G2 F > G2", "", ""),
    "multiply by a number": ("G0 F > G0, G1 F > G1, G2 F > G2", "R F > R", ""),
    "divide by a number": ("G0 F > G0, G1 F > G1, G2 F > G2", "R F > R", ""),
    "floor-divide by a number": ("G0 F > G0, G1 F > G1, G2 F > G2", "", "R F > R"),
    "add": ("G0 G0 > G0, G1 G1 > G1, G2 G2 > G2", "", ""),
    "multiply": ("G0 G0 > G0, G1 G1 > G1, G2 G2 > G2", "R F > R, F R > R", ""),
    "divide": ("G0 G0 > G0, G1 G1 > G1, G2 G2 > G2", "R F > R", ""),
    "floor-divide": ("G0 G0 > G0, G1 G1 > G1, G2 G2 > G2", "", "R F > R"),
    "add a row": ("G0 F > G0, G1 G1 > G1, G2 G2 > G2", "", ""),
    "multiply by a row": ("G0 F > G0, G1 G1 > G1, G2 G2 > G2", "R F > R, F R > R", ""),
    "divide a row": ("F G0 > G0, G1 G1 > G1, G2 G2 > G2", "R F > R", ""),
    "chunk": ("G0 > G0 G0, G2 > G2 G2", "R > R R", ""),
    "contiguous": ("G0 > G0, G1 > G1, G2 > G2", "R > R", ""),
    "clone": ("G0 > G0, G1 > G1, G2 > G2", "R > R", ""),
    "view": ("", "R > R", ""),
    "transpose": ("G0 > G2, G1 > G1, G2 > G0", "R > R", ""),
    "bmm": ("G0 G0 > G0, G1 F > G1, G2 G1 > R, F G2 > G2", "R F > R, F R > R", ""),
    "matmul": ("G2 F > G2", "R F > R, F R > R", "G1 G1 > G1, F G3 > G3, G3 G2 > R"),
    "softmax": ("G0 > G0, G1 > G1", "", ""),
    "log_softmax": ("G0 > G0, G2 > G2", "", ""),
    "dropout": ("G0 > G0, G1 > G1, G2 > G2", "", ""),
    "layer_norm": ("G0 F F > G0, G1 F F > G1", "", ""),
    "gating": ("G0 F > G0 G0", "", ""),
    "append the class token": ("G0 F > G0, G2 G2 > G2", "", ""),
    "get the class token": ("G0 > G0, G2 > G1", "", ""),
    "dispatch": ("G0 G0 > G0, G1 G1 > R, G2 F > G3, F G2 > G1, F G3 > G2", "", ""),
    "expert 1": ("G0 F > G0, G1 G0 > G1, G2 F > G2, G3 G1 > R, F G2 > G3", "", ""),
    "expert 2": ("G0 F > G0, G1 G0 > G1, G2 F > G2, G3 G1 > R, F G2 > G3", "", ""),
    "combine": ("G0 G0 > G0, G1 G2 > R, G2 G3 > R, G3 F > G2", "", "F G2 > G1"),
    "attention": ("G1 G1 G1 F F F F > G1 G0", "", "G2 G2 G2 G0 G0 G1 F > R R"),
    "attention with a mask": ("G1 G1 G1 F F F F F > G1 G0", "", "G2 G2 G2 F G0 G0 G1 F > R R"),
    "embedding": ("G0 F > G0, G1 F > G1, F G1 > G2", "", ""),
    "nll_loss": ("G0 G0 > R", "", ""),
    "nll_loss of positions": ("G0 G0 > R, G2 G1 > R", "", ""),
    "conv2d": ("G0 F F > G0, F G0 G0 > G1", "", ""),
    "flatten": ("G0 > G0", "", ""),
}


def short(signature: Signature) -> str:
    def word(form: Sharding) -> str:
        return {REPLICATED: "F", PARTIAL: "R"}.get(form) or f"G{form.axis}"

    return f"{' '.join(map(word, signature.inputs))} > {' '.join(map(word, signature.outputs))}"


def row(text: str) -> set[str]:
    return {*text.split(", ")} - {""}


def shares(x, form, rng):
    """What each device holds of an array."""
    if form.sliced:
        return np.split(x, N, form.axis)
    if form == PARTIAL:
        first = rng.normal(size=x.shape)
        return [first, x - first]
    return [x] * N


def whole(parts, form, shape):
    """The array of which devices hold these parts; a device that computed more than its slice takes that from it."""
    if form == PARTIAL:
        return sum(parts)
    if form.sliced:
        size = shape[form.axis] // N
        parts = [
            part if part.shape[form.axis] == size else np.split(part, N, form.axis)[k] for k, part in enumerate(parts)
        ]
        return np.concatenate(parts, form.axis)
    np.testing.assert_allclose(parts[0], parts[1])
    return parts[0]


def values(op, rng):
    """Random arguments; indices where an operator takes them."""
    limits = {"indices": 10, "targets": 10}
    return [
        rng.integers(0, limits[t.name], t.shape) if t.name in limits else rng.normal(size=t.shape)
        for t in arguments(op)
    ]


def agrees(name: str, signature: Signature) -> bool:
    """Say whether devices that compute their shares under a signature compute what the operator does."""
    op, function = OPERATORS[name]
    rng = np.random.default_rng(0)
    arguments = values(op, rng)
    answers = function(*arguments)
    per_argument = [shares(x, form, rng) for x, form in zip(arguments, signature.inputs, strict=True)]
    dim = op.dims[signature.dim] if signature.dim >= 0 else None
    # Which rows of a table, or classes, a device has is known to it.
    step = dim.size // N if dim and dim.role is Role.REDUCTION and dim.name in ("r", "c") else 0
    results = [function(*mine, start=k * step) for k, mine in enumerate(zip(*per_argument, strict=True))]
    return all(
        np.allclose(whole([m[k] for m in results], form, np.shape(answer)), answer)
        for k, (form, answer) in enumerate(zip(signature.outputs, answers, strict=True))
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_the_table_is_derived(name):
    op, _ = OPERATORS[name]
    derived, known = signatures(op), released(op)[:-1]
    cut, linear, wrong = map(row, TABLE[name])
    assert {short(s) for s in known if s in derived and s.dim >= 0} == cut
    assert {short(s) for s in known if s in derived and s.dim < 0} == linear
    assert {short(s) for s in known if s not in derived} == wrong
    assert len(known) == len(cut) + len(linear) + len(wrong)
    assert released(op)[-1] == derived[-1]


@pytest.mark.parametrize("name", OPERATORS)
def test_derived_signatures_compute_the_same(name):
    for signature in signatures(OPERATORS[name][0]):
        assert agrees(name, signature), signature


@pytest.mark.parametrize("name", [name for name, (op, _) in OPERATORS.items() if unsound(op)])
def test_rules_that_are_not_derived_compute_something_else(name):
    for signature in unsound(OPERATORS[name][0]):
        try:
            assert not agrees(name, signature), signature
        except (ValueError, IndexError):
            continue  # shapes do not even fit


def test_how_much_of_the_table_is_derived():
    counts = np.array([[len(row(text)) for text in texts] for texts in TABLE.values()]).sum(0)
    assert counts.tolist() == [115, 19, 8]
    assert TABLE.keys() == OPERATORS.keys()
