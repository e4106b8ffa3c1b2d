"""Attention of decoders: grouped queries, and the latent attention of DeepSeek, with rotary positions."""

from __future__ import annotations

from functools import partial

from topoplan import Operator, Tensor
from topoplan.model.graph import Axis, Dimension, Role, Term
from topoplan_frontend_huggingface.blocks import Blocks
from topoplan_frontend_huggingface.sizes import Grouped, Latent, QueryNorm
from topoplan_operators import Handle, attention, normalization, shaping
from topoplan_operators.attention import ROTARY_FLOPS
from topoplan_operators.handle import plain

__all__ = ["grouped", "keys_and_values", "latent"]


def grouped(b: Blocks, x: Handle, sizes: Grouped, *, causal: bool = True, window: int | None = None) -> Handle:
    """Return the answers of attention with grouped queries, projected back.

    Args:
        b: of the module ``self_attn``.
        x: (samples, positions, channels).
        sizes: of the model.
        causal: no position attends to a later one.
        window: positions that one attends to at most; None for all.
    """
    heads, channels, hidden = (sizes.heads, sizes.kv_heads), sizes.channels, x.shape[2]
    q, k, v = (
        b.linear(x, count * channels, name, bias=sizes.input_bias)
        for name, count in zip(sizes.names, (heads[0], heads[1], heads[1]), strict=False)
    )
    q, k = (_normalized(b, y, sizes, letter) for letter, y in (("q", q), ("k", k)))
    if sizes.rotary:
        q = b.per_head(attention.rotary, q, channels, "q_rotary")
        k = b.per_head(attention.rotary, k, channels, "k_rotary")
    y = b.attend(q, k, v, heads, "attention", causal=causal, window=window, sinks=sizes.sinks)
    return b.linear(y, hidden, sizes.names[3], bias=sizes.output_bias)


def _normalized(b: Blocks, y: Handle, sizes: Grouped, letter: str) -> Handle:
    """Return queries or keys as the family normalizes them."""
    if sizes.normalized is QueryNorm.HEADS:
        return b.per_head(normalization.rms_norm, y, sizes.channels, f"{letter}_norm")
    if sizes.normalized is QueryNorm.LAYER:
        return b.per_head(normalization.layer_norm, y, sizes.channels, f"{letter}_layernorm")
    if sizes.normalized is QueryNorm.OWN:
        return b.norm_of_heads(y, sizes.channels, f"{letter}_layernorm")
    return b.rms_norm(y, f"{letter}_norm") if sizes.normalized is QueryNorm.ALL else y


def latent(b: Blocks, x: Handle, sizes: Latent, *, causal: bool = True, window: int | None = None) -> Handle:
    """Return the answers of latent attention, projected back; arguments as of `grouped`."""
    hidden, channels = x.shape[2], sizes.plain + sizes.rotated
    if sizes.query_rank is None:
        q = b.linear(x, sizes.heads * channels, "q_proj")
    else:
        q = b.rms_norm(b.linear(x, sizes.query_rank, "q_a_proj", bias=sizes.bias), "q_a_layernorm")
        q = b.linear(q, sizes.heads * channels, "q_b_proj")
    q = b.per_head(partial(attention.rotary, rotated=sizes.rotated), q, channels, "q_rotary")
    joint = b.linear(x, sizes.rank + sizes.rotated, "kv_a_proj_with_mqa", bias=sizes.bias)
    short, position = b.add(shaping.split(joint, (sizes.rank, sizes.rotated), 2), [joint], "kv_split")
    short = b.rms_norm(short, "kv_a_layernorm")
    kv = b.linear(short, sizes.heads * (sizes.plain + sizes.values), "kv_b_proj")
    k, v = b.add(keys_and_values(kv, position, sizes), [kv, position], "keys_and_values")
    y = b.attend(q, k, v, (sizes.heads, sizes.heads), "attention", causal=causal, window=window)
    return b.linear(y, hidden, "o_proj", bias=sizes.bias)


def keys_and_values(kv: Handle, position: Handle, sizes: Latent) -> Operator:
    """Return keys and values of every head: keys have channels of their own, and rotated ones that all heads share.

    Dimensions: ``n`` samples, ``t`` positions, ``h`` heads.

    Args:
        kv: (samples, positions, heads x (plain + values)).
        position: (samples, positions, rotated), before it is rotated.
        sizes: of the model.
    """
    samples, positions, _ = kv.shape
    n, t, h = range(3)

    def of_heads(name: str, channels: int) -> Tensor:
        axis = Axis(sizes.heads * channels, h, scale=channels, extent=channels)
        return Tensor(name, (Axis(samples, n), Axis(positions, t), axis), kv.itemsize)

    return Operator(
        name="",
        kind="keys_and_values",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("t", positions, Role.ATTRIBUTE),
            Dimension("h", sizes.heads, Role.ATTRIBUTE),
        ),
        inputs=(of_heads("kv", sizes.plain + sizes.values), plain("position", position, n, t, -1)),
        outputs=(of_heads("keys", sizes.plain + sizes.rotated), of_heads("values", sizes.values)),
        work=(Term(ROTARY_FLOPS * sizes.rotated, (n, t)),),
        linear_in=((0, 1),),
    )
