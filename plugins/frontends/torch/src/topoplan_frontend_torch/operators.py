"""What each ATen operator is in the algebra: functions from a call to where its values lie.

A translation that finds a form that the algebra has not raises `UntranslatedError`; the call is then planned as a whole
(`model`).  Views move no element: they only change how a tensor is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import attrs

from topoplan import Operator
from topoplan_engine.training import has_sparse_gradient
from topoplan_frontend_torch.attention import ATTENTION
from topoplan_frontend_torch.calls import Call, UntranslatedError
from topoplan_frontend_torch.elementwise import ELEMENTWISE
from topoplan_frontend_torch.layouts import Layout
from topoplan_frontend_torch.recurrent import RECURRENT
from topoplan_frontend_torch.routing import ROUTING
from topoplan_frontend_torch.spatial import SPATIAL
from topoplan_frontend_torch.views import VIEWS
from topoplan_operators import Handle, dense, experts, losses, normalization, pointwise, products

__all__ = ["TRANSLATIONS", "Translation"]

#: Letters of axes in sums of products; the last three are those of a matrix product.
_LETTERS = "abcdefghijklmnopqrstuvw"

#: From a call to where its values lie, in their order.
Translation = Callable[[Call], Sequence[Layout]]


def _linear(call: Call) -> Sequence[Layout]:
    return _product(call, call.view("input"), call.view("weight"), "bias")


def _addmm(call: Call) -> Sequence[Layout]:
    weight = call.view("mat2")
    return _product(call, call.view("mat1"), weight.permuted((1, 0)), "self")


def _product(call: Call, x: Layout, weight: Layout, bias: str) -> Sequence[Layout]:
    """Return ``x`` times a weight (out, in), plus a bias."""
    if len(weight.shape) != 2:
        raise UntranslatedError(f"a product with a weight of {len(weight.shape)} axes")
    x = call.ending_whole(x)
    x = x if x.ends_plainly(1) and not x.repeats else call.made_plain(x)
    biases = [call.made_plain(call.view(bias))] if call.has(bias) else []
    out = weight.shape[0]
    operator = dense.linear(x.handle, out, bias=bool(biases), activation=False)
    base = call.emit(operator, [x.base], [call.made_plain(weight), *biases])[0]
    return [x.on(base.handle, base.sample)]


def _matmul(call: Call) -> Sequence[Layout]:
    first, right = call.view("self"), call.view("other", "mat2", "batch2", "vec", "tensor")
    if right.parameter and len(right.shape) == 2 and len(first.shape) > 1:
        return _product(call, first, right.permuted((1, 0)), "")
    ranks = len(first.shape), len(right.shape)
    batch = _LETTERS[: max(*ranks, 2) - 2]
    rows, columns = "x" if ranks[0] > 1 else "", "z" if ranks[1] > 1 else ""  # a vector has neither
    first_word = f"{batch[len(batch) - ranks[0] + 2 :]}xy" if rows else "y"
    second_word = f"{batch[len(batch) - ranks[1] + 2 :]}yz" if columns else "y"
    return _summed(call, [first_word, second_word], f"{batch}{rows}{columns}", [first, right])


def _einsum(call: Call) -> Sequence[Layout]:
    equation, factors = call.argument("equation"), call.views("tensors", "operands")
    if not isinstance(equation, str) or "->" not in equation:
        raise UntranslatedError(f"equation {equation!r}")
    terms, _, out = equation.replace(" ", "").partition("->")
    words = [*terms.split(","), out]
    letters = dict(zip(dict.fromkeys(c for word in words for c in word if c != "."), _LETTERS, strict=False))
    free = [letter for letter in _LETTERS if letter not in letters.values()]
    ranks = [len(factor.shape) for factor in factors] + [len(call.shape)]
    renamed = []
    for word, rank in zip(words, ranks, strict=True):
        hidden = rank - len(word.replace("...", ""))
        text = "".join(letters.get(c, c) for c in word).replace("...", "".join(free[len(free) - hidden :]))
        renamed.append(text)
    return _summed(call, renamed[:-1], renamed[-1], factors)


def _summed(call: Call, terms: Sequence[str], out: str, factors: Sequence[Layout]) -> Sequence[Layout]:
    """Return a sum of products: one letter for each axis; axes of size 1 meet all of a letter's elements."""
    if len(factors) != 2:
        raise UntranslatedError(f"a product of {len(factors)} tensors")
    order = sorted(range(2), key=lambda k: bool(factors[k].parameter))  # inputs before weights
    views, words = [], []
    for k in order:
        view = factors[k] if _is_permuted(factors[k]) else _permuted(call, factors[k])
        word = [""] * len(view.handle.shape)
        for letter, axis in zip(terms[k], view.axes, strict=True):
            for atom in axis:
                word[atom.axis] = letter
        if "" in word:
            view = Layout.of(
                call.made_plain(factors[k]).handle, call.made_plain(factors[k]).sample, parameter=factors[k].parameter
            )
            word = list(terms[k])
        views.append(view)
        words.append("".join(word))
    used = set("".join(words))
    base = "".join(letter for letter in out if letter in used)
    inputs = [view for view in views if not view.parameter]
    weights = [view for view in views if view.parameter]
    operator = products.einsum(
        f"{','.join(words)}->{base}", [view.handle for view in inputs], [view.handle for view in weights], sample=" "
    )
    kind = call.operator if call.operator in ("bmm", "matmul", "einsum") else "matmul"
    plain = [view.base for view in inputs]
    slots = _slots(words, [view.sample for view in views], base)
    number = {dim.name: index for index, dim in enumerate(operator.dims)}
    output = call.emit(attrs.evolve(operator, kind=kind), plain, weights, slots=number.get(slots))[0]
    shape = output.reshaped(call.shape)
    if shape is None:
        raise UntranslatedError(f"a product of shape {call.shape}")
    return [shape]


def _slots(words: Sequence[str], samples: Sequence[int | None], out: str) -> str:
    """Return the letter of the places for samples, where a product sums over samples to fill these; else nothing.

    So experts get their tokens (GShard): the factor that has samples, experts and slots sums samples; of the axes that
    it leaves, the last one is taken for the slots.
    """
    letters = [word[axis] for word, axis in zip(words, samples, strict=True) if axis is not None]
    if not letters or any(letter in out for letter in letters):
        return ""
    for word in words:
        letters_of_one = [c for c in word if c in out and sum(c in each for each in words) == 1]
        if letters[0] in word and len(letters_of_one) > 1:
            return letters_of_one[-1]
    return ""


def _is_permuted(view: Layout) -> bool:
    return all(len(axis) < 2 for axis in view.axes) and all(
        view.follows(k) >= 0 for k, axis in enumerate(view.axes) if axis
    )


def _permuted(call: Call, view: Layout) -> Layout:
    """Return a view each of whose axes is a whole axis of a tensor."""
    if not view.repeats and all(len(axis) < 2 for axis in view.axes):
        return call.graph.unmerged(call.node, view)
    return call.made_plain(view)


def _embedding(call: Call) -> Sequence[Layout]:
    table, indices = call.view("weight"), call.plain("indices")
    rows, channels = _table(table)
    shape = indices.shape if indices.shape else (1,)
    flat = Handle((shape[0], math.prod(shape[1:])), indices.handle.itemsize)
    operator = _as_said(call, dense.token_embedding(flat, rows, channels))
    output = call.emit(operator, [Layout.of(flat, indices.sample)], [table])[0]
    return [_reshaped(output, call.shape)]


def _as_said(call: Call, operator: Operator) -> Operator:
    """Return an embedding whose gradient is sparse or dense as ``sparse=`` says."""
    if has_sparse_gradient(operator) == bool(call.argument("sparse", default=False)):
        return operator
    gradient = "dense" if has_sparse_gradient(operator) else "sparse"
    return attrs.evolve(operator, tags={**operator.tags, "gradient": gradient})


def _table(table: Layout) -> tuple[int, int]:
    if not table.parameter or len(table.shape) != 2 or not table.is_plain:
        raise UntranslatedError("an embedding whose table is computed")
    return table.shape[0], table.shape[1]


def _embedding_bag(call: Call) -> Sequence[Layout]:
    rows, channels = _table(call.view("weight"))
    bags, indices = call.shape[0], call.plain("indices")
    flat = Handle((bags, max(1, math.prod(indices.shape) // bags)), indices.handle.itemsize)
    operator = _as_said(call, dense.embedding(flat, rows, channels, itemsize=4))
    output = call.emit(operator, [Layout.of(flat, 0)], [call.view("weight")])
    return [*output, *output * (len(call.node.outputs) - 1)]


def _reshaped(layout: Layout, shape: Sequence[int]) -> Layout:
    view = layout.reshaped(shape)
    if view is None:
        raise UntranslatedError(f"shape {layout.shape} as {tuple(shape)}")
    return view


def _normalization(call: Call) -> Sequence[Layout]:
    """Layer norm and RMS norm, over the last axes."""
    x = call.view("input", "self")
    normalized = call.argument("normalized_shape")
    count = len(normalized) if isinstance(normalized, tuple) else call.integer("axes", default=1)
    norm = normalization.rms_norm if call.operator.endswith("rms_norm") else normalization.layer_norm
    weights = [call.made_plain(call.view(name)) for name in ("weight", "bias") if call.has(name)]
    if any(not weight.parameter for weight in weights):
        raise UntranslatedError("a normalization whose weights are computed")

    def make(tensor: Handle) -> Operator:
        operator = norm(tensor, count)
        return attrs.evolve(operator, weights=operator.weights[: len(weights)])

    return [call.on_last_axes(x, count, make, weights)] * len(call.node.outputs)


def _group_norm(call: Call) -> Sequence[Layout]:
    """Group norm, and instance norm, in which every channel is a group."""
    x = call.plain("input")
    if len(x.shape) < 2:
        raise UntranslatedError(f"an input of {len(x.shape)} axes")
    groups = call.integer("num_groups", "group", default=x.shape[1])
    weights = [call.made_plain(call.view(name)) for name in ("weight", "bias") if call.has(name)]
    operator = normalization.group_norm(x.handle, groups)
    return call.emit(attrs.evolve(operator, weights=operator.weights[: len(weights)]), [x], weights) * len(
        call.node.outputs
    )


def _weight_norm(call: Call) -> Sequence[Layout]:
    """A direction with the length of a weight (Salimans and Kingma, 2016): each device that reads it computes it."""
    direction, length = call.plain("v"), call.plain("g")
    operator = normalization.weight_norm(direction.handle, length.handle)
    return call.emit(operator, [], [direction, length])


def _bilinear(call: Call) -> Sequence[Layout]:
    first, second = call.plain("input1"), call.plain("input2")
    biases = [call.made_plain(call.view("bias"))] if call.has("bias") else []
    weight = call.view("weight")
    operator = products.bilinear(first.handle, second.handle, weight.shape[0], bias=bool(biases))
    return call.emit(operator, [first, second], [call.made_plain(weight), *biases])


def _accumulated(call: Call) -> Sequence[Layout]:
    """Sums or products of all elements up to each one along an axis."""
    x = call.plain("self")
    operator = pointwise.accumulated(call.operator, x.handle, call.axis("dim", rank=len(x.shape)))
    return call.emit(operator, [x]) * len(call.node.outputs)


def _prelu(call: Call) -> Sequence[Layout]:
    """Leaky ReLU whose slope is a parameter: one, or one for each channel (axis 1)."""
    x, weight = call.plain("self"), call.view("weight")
    (slopes,) = weight.shape or (1,)
    shape = (1, slopes, *(1,) * (len(x.shape) - 2)) if len(x.shape) > 1 else (slopes,)
    slope = call.made_plain(_reshaped(weight, shape))
    return call.emit(pointwise.elementwise("prelu", [x.handle], [slope.handle]), [x], [slope])


def _softmax(call: Call) -> Sequence[Layout]:
    x = call.view("self", "input")
    axis = call.axis("dim", rank=len(x.shape))
    if x.follows(axis) < 0:
        x = call.made_plain(x)
    operator = pointwise.softmax(x.handle, x.follows(axis), log="log" in call.operator)
    output = call.emit(operator, [x.base])[0]
    return [x.on(output.handle, output.sample)]


def _top_k(call: Call) -> Sequence[Layout]:
    x = call.view("self")
    if call.argument("dim", default=-1) not in (-1, len(x.shape) - 1):
        raise UntranslatedError("the best along another axis than the last")
    x = x if x.ends_plainly(1) else call.made_plain(x)
    values, indices = call.emit(experts.top_k(x.handle, call.integer("k")), [x.base])
    call.graph.chosen = indices
    chosen = attrs.evolve(x.on(indices.handle, indices.sample), constant=True)
    return [x.on(values.handle, values.sample), chosen][: len(call.node.outputs)]


def _cross_entropy(call: Call) -> Sequence[Layout]:
    """Return the loss of scores (samples, classes, ...), or of rows of scores that stand for several positions."""
    scores, target = call.view("self"), call.view("target")
    if target.shape != (scores.shape[0], *scores.shape[2:]) or not target.constant:
        raise UntranslatedError("a loss with probabilities as targets")
    if call.operator != "cross_entropy_loss":
        plain, classes = call.made_plain(scores), call.made_plain(target)
        return call.emit(losses.nll_loss(plain.handle, classes.handle), [plain, classes])
    scores = scores.permuted([0, *range(2, len(scores.shape)), 1])
    if scores.handle.shape[-1] == scores.shape[-1] and (in_place := scores.reshaped(scores.handle.shape)) is not None:
        scores = in_place
    scores = call.made_plain(scores)
    targets = Handle(scores.shape[:-1], target.handle.itemsize)
    operator = losses.cross_entropy(scores.handle, targets)
    return call.emit(operator, [scores, Layout.of(targets, scores.sample, constant=True)])


TRANSLATIONS: Mapping[str, Translation] = {
    **VIEWS,
    **ELEMENTWISE,
    **ATTENTION,
    **ROUTING,
    **SPATIAL,
    **RECURRENT,
    "linear": _linear,
    "addmm": _addmm,
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "inner"), _matmul),
    "bilinear": _bilinear,
    "_weight_norm": _weight_norm,
    "_weight_norm_interface": _weight_norm,
    "prelu": _prelu,
    "_prelu_kernel": _prelu,
    "einsum": _einsum,
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "layer_norm": _normalization,
    "rms_norm": _normalization,
    **dict.fromkeys(("group_norm", "native_group_norm", "instance_norm"), _group_norm),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), _accumulated),
    "topoplan.rms_norm": _normalization,
    "softmax": _softmax,
    "_softmax": _softmax,
    "log_softmax": _softmax,
    "topk": _top_k,
    "topoplan.top_k": _top_k,
    "cross_entropy_loss": _cross_entropy,
    "nll_loss": _cross_entropy,
    "nll_loss_nd": _cross_entropy,
}
