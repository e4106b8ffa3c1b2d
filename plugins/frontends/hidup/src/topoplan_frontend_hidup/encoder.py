"""Encoder layers of transformers with experts, as PyTorch traces them: attention, then a dense half or experts.

A layer normalizes after each half: ``x = norm(x + attention(x))``, then ``x = norm(x + half(x))``.  The model is that
of HiDup (Zhang et al., SoCC 2022); experts are those of GShard (Lepikhin et al., 2020) and Switch Transformer (Fedus
et al., 2021): every sample fills the slots of every expert by itself.

    x ─► transpose ─► attention ─► transpose ─► dropout ─► add ─► norm ─► dense half or experts ─► add ─► norm
"""

from __future__ import annotations

import math

from topoplan_frontend_hidup import BertSgmoe, VitSgmoe
from topoplan_operators import GraphBuilder, Handle, dense, experts, normalization, pointwise, products, shaping

__all__ = ["SAMPLES_PER_DEVICE", "encoder"]

#: Default number of samples of each device in an iteration.
SAMPLES_PER_DEVICE = 32


def encoder(
    b: GraphBuilder, x: Handle, options: BertSgmoe | VitSgmoe, *, positions: int, mask: Handle | None
) -> Handle:
    """Append all layers; return the output of the last one.

    Args:
        b: takes the operators.
        x: (samples, positions, channels).
        options: the model's.
        positions: among which an expert's slots are counted.
        mask: (positions, positions), added to the scores of every layer's attention.
    """
    count = 2 * options.world_size if options.experts is None else options.experts
    slots = math.ceil(positions / count * (options.capacity_factor * options.choices))
    for layer in range(options.layers):
        name = f"layer{layer}"
        x = _attention(b, x, options.heads, mask, name)
        if layer % 2:
            y = _experts(b, x, options.hidden, count, slots, options.choices, name)
        else:
            y = _dense(b, x, options.hidden, name)
        x = _residual(b, x, y, f"{name}_norm2")
    return x


def _attention(b: GraphBuilder, x: Handle, heads: int, mask: Handle | None, name: str) -> Handle:
    """Return the first half: attention needs positions before samples."""
    q, k, v = (
        b.append(shaping.transpose(x, 0, 1), [x], f"{name}_{word}_transpose")[0] for word in ("query", "key", "value")
    )
    operator = dense.multihead_attention(q, k, v, heads, mask)
    y, _ = b.append(operator, [q, k, v] if mask is None else [q, k, v, mask], f"{name}_attention")
    y = b.append(shaping.transpose(y, 0, 1, sample=1), [y], f"{name}_attention_transpose")[0]
    return _residual(b, x, _dropout(b, y, f"{name}_attention_dropout"), f"{name}_norm1")


def _dense(b: GraphBuilder, x: Handle, hidden: int, name: str) -> Handle:
    y = b.relu(b.linear(x, hidden, name=f"{name}_linear1"), name=f"{name}_relu")
    y = b.linear(_dropout(b, y, f"{name}_dropout1"), x.shape[-1], name=f"{name}_linear2")
    return _dropout(b, y, f"{name}_dropout2")


def _experts(b: GraphBuilder, x: Handle, hidden: int, count: int, slots: int, chosen: int, name: str) -> Handle:
    """Return the experts' output for ``x``; letters: b samples, s positions, e experts, c slots, d and h channels."""
    width = x.shape[-1]
    dispatch, combine = b.append(experts.gating(x, count, slots, chosen), [x], f"{name}_gating")

    def product(expression: str, word: str, *inputs: Handle, weight: Handle | None = None) -> Handle:
        operator = products.einsum(expression, inputs, [] if weight is None else [weight])
        return b.append(operator, inputs, f"{name}_{word}")[0]

    y = product("bsd,bsec->becd", "dispatch", x, dispatch)
    y = product("becd,edh->bech", "expert1", y, weight=Handle((count, width, hidden)))
    y = b.relu(y, name=f"{name}_relu")
    y = product("bech,ehd->becd", "expert2", y, weight=Handle((count, hidden, width)))
    return product("becd,bsec->bsd", "combine", y, combine)


def _dropout(b: GraphBuilder, x: Handle, name: str) -> Handle:
    return b.append(pointwise.elementwise("dropout", [x]), [x], name)[0]


def _residual(b: GraphBuilder, x: Handle, y: Handle, name: str) -> Handle:
    """Return ``x + y``, normalized."""
    y = b.add(x, y, name=f"{name}_add")
    return b.append(normalization.layer_norm(y), [y], name)[0]
