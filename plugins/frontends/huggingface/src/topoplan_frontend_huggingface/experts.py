"""A feed-forward part with experts: tokens are sent to some of them, and their answers are weighed and added.

    x ─► gate ─► router ─► dispatch (x) ─► gate_proj, up_proj ─► multiply ─► down_proj ─► combine ─► + shared expert

A plan assumes that every expert gets its even share of the tokens of each sample.  An expert has a whole number of
slots for them.  Work counts by tokens, so that FLOPs are exact where the share is no whole number.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from topoplan import Tensor
from topoplan.model.graph import Axis, Term
from topoplan_frontend_huggingface.blocks import Blocks
from topoplan_frontend_huggingface.sizes import Dense, Experts, Plain
from topoplan_operators import Handle, experts, products, tokens

__all__ = ["feed_forward", "plain_feed_forward", "routed"]


def feed_forward(b: Blocks, x: Handle, sizes: Dense, activation: str) -> Handle:
    """Return ``down(activation(gate(x)) * up(x))``."""
    gate_name, up_name, down_name = sizes.names
    gate = b.activate(activation, b.linear(x, sizes.width, gate_name, bias=sizes.bias), "act_fn")
    y = b.product(gate, b.linear(x, sizes.width, up_name, bias=sizes.bias), "multiply")
    return b.linear(y, x.shape[2], down_name, bias=sizes.bias)


def plain_feed_forward(b: Blocks, x: Handle, sizes: Plain, activation: str) -> Handle:
    """Return ``down(activation(up(x)))``."""
    up_name, down_name = sizes.names
    y = b.activate(activation, b.linear(x, sizes.width, up_name, bias=sizes.bias), "act_fn")
    return b.linear(y, x.shape[2], down_name, bias=sizes.bias)


def routed(b: Blocks, x: Handle, sizes: Experts, activation: str) -> Handle:
    """Return the weighed answers of the experts of every token, and of those that all tokens share.

    Args:
        b: of the module ``mlp``.
        x: (samples, positions, channels).
        sizes: of the experts.
        activation: function inside an expert.
    """
    scores = b.scores(x, sizes.count, sizes.gate, bias=sizes.biases, buffers=sizes.count if sizes.chosen_by_bias else 0)
    choice = "router" if sizes.gate == "gate" else "top_k"
    weights, chosen = b.add(experts.top_k(scores, sizes.chosen), [scores], choice)
    slots = experts.capacity(1, sizes.chosen, x.shape[1], sizes.count)
    y = b.add(tokens.dispatch(x, chosen, sizes.count, slots), [x, chosen], "dispatch")[0]
    inner = b.within("experts")
    factors = [_project(inner, y, x, sizes, sizes.width, name) for name in ("gate_proj", "up_proj")]
    if sizes.limited:
        names = ("gate_clamp", "up_clamp")
        factors = [inner.apply("clamp", each, name) for each, name in zip(factors, names, strict=True)]
    up = inner.product(inner.activate(activation, factors[0], "act_fn"), factors[1], "multiply")
    answers = _project(inner, up, x, sizes, x.shape[2], "down_proj", tags={"answers": "yes"})
    y = b.add(tokens.combine(answers, weights, chosen), [answers, weights, chosen], "combine")[0]
    if sizes.shared:
        shared = feed_forward(b.within(sizes.shared_name), x, Dense(width=sizes.shared, bias=sizes.bias), activation)
        if sizes.shared_gate:
            gate = b.apply("sigmoid", b.linear(x, 1, "shared_expert_gate"), "shared_expert_sigmoid")
            shared = b.product(shared, gate, "shared_expert_multiply")
        y = b.sum(y, shared, "add")
    return y


def _project(
    b: Blocks, y: Handle, x: Handle, sizes: Experts, out: int, module: str, tags: Mapping[str, str] | None = None
) -> Handle:
    """Multiply the slots of every expert by its matrix; the work is that of the tokens of ``x``."""
    positions = x.shape[1]
    operator = products.einsum(
        "neci,eio->neco", [y], [Handle((sizes.count, y.shape[3], out))], sample="n", kind="expert_linear"
    )
    share = sizes.chosen * positions / (sizes.count * y.shape[2])
    work = tuple(Term(term.coefficient * share, term.dims) for term in operator.work)
    operator = attrs.evolve(operator, work=work)
    if sizes.biases:
        letters = {dim.name: number for number, dim in enumerate(operator.dims)}
        bias = Tensor("bias", (Axis(sizes.count, letters["e"]), Axis(out, letters["o"])))
        operator = attrs.evolve(
            operator,
            weights=(*operator.weights, bias),
            linear_in=((0, 2), (1, 2)),
            tags={**operator.tags, **(tags or {})},
        )
    return b.add(operator, [y], module)[0]
