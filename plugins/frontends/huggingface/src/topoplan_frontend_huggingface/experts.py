"""A feed-forward part with experts: tokens are sent to some of them, and their answers are weighed and added.

    x ─► gate ─► router ─► dispatch (x) ─► gate_proj, up_proj ─► multiply ─► down_proj ─► combine ─► + shared expert

A plan assumes that every expert gets its even share of the tokens of each sample.  An expert has a whole number of
slots for them.  Work counts by tokens, so that FLOPs are exact where the share is no whole number.
"""

from __future__ import annotations

import math

import attrs

from topoplan import Operator, Tensor
from topoplan.model.graph import Axis, Dimension, Role, Term
from topoplan_frontend_huggingface.blocks import Blocks
from topoplan_frontend_huggingface.families import Experts
from topoplan_operators import Handle, products
from topoplan_operators.handle import plain

__all__ = ["combine", "dispatch", "feed_forward", "routed", "router"]

_INDEX_BYTES = 8


def feed_forward(b: Blocks, x: Handle, width: int, activation: str, *, bias: bool) -> Handle:
    """Return ``down(activation(gate(x)) * up(x))``."""
    gate = b.apply(activation, b.linear(x, width, "gate_proj", bias=bias), "act_fn")
    y = b.product(gate, b.linear(x, width, "up_proj", bias=bias), "multiply")
    return b.linear(y, x.shape[2], "down_proj", bias=bias)


def routed(b: Blocks, x: Handle, sizes: Experts, activation: str) -> Handle:
    """Return the weighed answers of the experts of every token, and of those that all tokens share.

    Args:
        b: of the module ``mlp``.
        x: (samples, positions, channels).
        sizes: of the experts.
        activation: function inside an expert.
    """
    scores = b.linear(x, sizes.count, "gate")
    weights, chosen = b.add(router(scores, sizes.chosen), [scores], "router")
    y = b.add(dispatch(x, chosen, sizes.count), [x, chosen], "dispatch")[0]
    inner = b.within("experts")
    gate = inner.apply(activation, _project(inner, y, x, sizes, sizes.width, "gate_proj"), "act_fn")
    up = inner.product(gate, _project(inner, y, x, sizes, sizes.width, "up_proj"), "multiply")
    answers = _project(inner, up, x, sizes, x.shape[2], "down_proj")
    y = b.add(combine(answers, weights, chosen), [answers, weights, chosen], "combine")[0]
    if sizes.shared:
        shared = feed_forward(b.within(sizes.shared_name), x, sizes.shared, activation, bias=sizes.bias)
        if sizes.shared_gate:
            gate = b.apply("sigmoid", b.linear(x, 1, "shared_expert_gate"), "shared_expert_sigmoid")
            shared = b.product(shared, gate, "shared_expert_multiply")
        y = b.sum(y, shared, "add")
    return y


def _project(b: Blocks, y: Handle, x: Handle, sizes: Experts, out: int, module: str) -> Handle:
    """Multiply the slots of every expert by its matrix; the work is that of the tokens of ``x``."""
    positions = x.shape[1]
    operator = products.einsum(
        "neci,eio->neco", [y], [Handle((sizes.count, y.shape[3], out))], sample="n", kind="expert_linear"
    )
    share = sizes.chosen * positions / (sizes.count * y.shape[2])
    work = tuple(Term(term.coefficient * share, term.dims) for term in operator.work)
    return b.add(attrs.evolve(operator, work=work), [y], module)[0]


def router(scores: Handle, chosen: int) -> Operator:
    """Return weights and numbers of the best experts of each position of ``scores`` (samples, positions, experts)."""
    samples, positions, experts = scores.shape
    n, t, e = range(3)
    shape = (samples, positions, chosen)
    return Operator(
        name="",
        kind="router",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("t", positions, Role.ATTRIBUTE),
            Dimension("e", experts),
        ),
        inputs=(plain("scores", scores, n, t, e),),
        outputs=(
            plain("weights", Handle(shape, scores.itemsize), n, t, -1),
            plain("experts", Handle(shape, _INDEX_BYTES), n, t, -1),
        ),
        work=(Term(chosen, (n, t, e)),),
    )


def dispatch(x: Handle, chosen: Handle, experts: int) -> Operator:
    """Return the tokens of each expert: (samples, experts, slots, channels).

    Dimensions: ``n`` samples, ``e`` experts, ``d`` channels; a part with some experts reads all positions of a sample.

    Args:
        x: (samples, positions, channels).
        chosen: (samples, positions, chosen) numbers of experts.
        experts: of the layer.
    """
    samples, positions, channels = x.shape
    slots = math.ceil(chosen.shape[2] * positions / experts)
    n, e, d = range(3)
    return Operator(
        name="",
        kind="dispatch",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("e", experts, Role.ATTRIBUTE),
            Dimension("d", channels, Role.ATTRIBUTE),
        ),
        inputs=(plain("x", x, n, -1, d), plain("experts", chosen, n, -1, -1)),
        outputs=(plain("y", Handle((samples, experts, slots, channels), x.itemsize), n, e, -1, d),),
        linear_in=((0,),),
    )


def combine(answers: Handle, weights: Handle, chosen: Handle) -> Operator:
    """Return for each token the sum of the answers of its experts, weighed; (samples, positions, channels).

    Dimensions: ``n`` samples, ``d`` channels, ``e`` experts (parts hold partial sums), and positions for the cost.

    Args:
        answers: (samples, experts, slots, channels).
        weights: (samples, positions, chosen).
        chosen: as ``weights``, numbers of experts.
    """
    samples, experts, slots, channels = answers.shape
    positions, count = weights.shape[1:]
    n, e, d, t = range(4)
    return Operator(
        name="",
        kind="combine",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("e", experts, Role.REDUCTION),
            Dimension("d", channels, Role.ATTRIBUTE),
            Dimension("t", positions),
        ),
        inputs=(
            Tensor("answers", (Axis(samples, n), Axis(experts, e), Axis(slots), Axis(channels, d)), answers.itemsize),
            plain("weights", weights, n, t, -1),
            plain("experts", chosen, n, t, -1),
        ),
        outputs=(plain("y", Handle((samples, positions, channels), answers.itemsize), n, t, d),),
        work=(Term(2 * count / experts, (n, e, d, t)),),
        linear_in=((0,),),
    )
