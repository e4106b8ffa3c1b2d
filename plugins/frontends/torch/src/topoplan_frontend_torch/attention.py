"""Attention without weights, and rotary embedding, as ATen has them: heads before positions, views on flat tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from topoplan import Operator, Tensor
from topoplan.model.graph import Axis, Dimension, Role
from topoplan_frontend_torch.calls import Call, UntranslatedError
from topoplan_frontend_torch.layouts import Layout
from topoplan_operators import Handle, attention, shaping
from topoplan_operators.handle import plain

__all__ = ["ATTENTION"]


def _scaled_dot_product(call: Call) -> Sequence[Layout]:
    """Return attention of (samples, heads, positions, channels).

    Where all three are views on tensors (samples, positions, heads x channels), these are used as they are; otherwise
    they are put into the order samples, positions, heads, channels.  Heads of keys and values that are repeated for the
    query (`repeat_kv`) are taken once.
    """
    q, k, v = (call.view(name) for name in ("query", "key", "value"))
    if len(q.shape) == 3:
        q, k, v = (x.unsqueezed(1) for x in (q, k, v))
    if len(q.shape) != 4 or len(k.shape) != 4 or len(v.shape) != 4:
        raise UntranslatedError(f"a query of {len(q.shape)} axes")
    k, v = _once(k), _once(v)
    if k.shape[1] != v.shape[1] or q.shape[1] % k.shape[1]:
        raise UntranslatedError(f"{q.shape[1]} heads of the query and {k.shape[1]} of the keys")
    heads, kv_heads, window = q.shape[1], k.shape[1], None
    causal = bool(call.argument("is_causal"))
    if call.has("attn_mask"):
        causal, window = call.program.attended.get(call.node.name, (False, None))
    if all(_is_flat(x) for x in (q, k, v)):
        operator = attention.scaled_dot_product(
            q.handle, k.handle, v.handle, heads=(heads, kv_heads), causal=causal, window=window
        )
        inputs = [Layout.of(x.handle, x.sample) for x in (q, k, v)]
    else:
        inputs = [call.made_plain(x.permuted((0, 2, 1, 3))) for x in (q, k, v)]
        operator = attention.scaled_dot_product(*(x.handle for x in inputs), causal=causal, window=window)
    output = call.emit(operator, inputs)[0]
    samples, positions, channels = q.shape[0], q.shape[2], v.shape[3]
    split_heads = output.reshaped((samples, positions, heads, channels))
    if split_heads is None:
        raise UntranslatedError(f"an answer of shape {output.shape}")
    answer = split_heads.permuted((0, 2, 1, 3)).reshaped(call.shape)
    return [answer] if answer is not None else [call.made_plain(split_heads.permuted((0, 2, 1, 3)))]


def _once(x: Layout) -> Layout:
    """Return keys or values without the repetition of their heads."""
    repeated = any(atom.axis < 0 for atom in x.axes[1])
    return (
        x.without_repeats()
        if repeated and not any(atom.axis < 0 for axis in (x.axes[0], *x.axes[2:]) for atom in axis)
        else x
    )


def _is_flat(x: Layout) -> bool:
    """Whether a view is on a tensor (samples, positions, heads x channels)."""
    samples, heads, positions, channels = x.shape
    if x.handle.shape != (samples, positions, heads * channels):
        return False
    split_heads = Layout.of(x.handle).reshaped((samples, positions, heads, channels))
    return split_heads is not None and split_heads.permuted((0, 2, 1, 3)).axes == x.axes


def _rotary(call: Call) -> Sequence[Layout]:
    rotated = call.integer("rotated")
    return [call.on_last_axes(call.view("self"), 1, lambda x: attention.rotary(x, rotated=rotated))]


def _keys_and_values(call: Call) -> Sequence[Layout]:
    """Return keys and values of latent attention, of heads and channels in one axis: see `_latent`."""
    joint, shared = call.view("self"), call.view("shared")
    samples, heads, positions, channels = joint.shape
    (_, _, _, key_channels), (_, _, _, value_channels) = call.shapes
    if not _is_flat(joint):
        ordered = call.made_plain(joint.permuted((0, 2, 1, 3)))
        joint = call.emit(shaping.view(ordered.handle, (samples, positions, heads * channels)), [ordered])[0]
    narrow = shared.without_repeats().reshaped((samples, positions, shared.shape[3]))
    if narrow is None:
        raise UntranslatedError(f"channels of shape {shared.shape} that heads share")
    narrow = call.made_plain(narrow)
    operator = _latent(joint.handle, narrow.handle, heads, key_channels, value_channels)
    outputs = call.emit(operator, [Layout.of(joint.handle, joint.sample), narrow])
    views = [output.reshaped((samples, positions, heads, output.shape[2] // heads)) for output in outputs]
    if any(view is None for view in views):
        raise UntranslatedError(f"keys and values of shapes {call.shapes}")
    return [view.permuted((0, 2, 1, 3)) for view in views if view is not None]


def _latent(joint: Handle, shared: Handle, heads: int, key_channels: int, value_channels: int) -> Operator:
    """Return keys and values of every head: keys have channels of their own, and others that all heads share.

    Source: DeepSeek-V2, 2024, section 2.1.  Dimensions: ``n`` samples, ``t`` positions, ``h`` heads.

    Args:
        joint: (samples, positions, heads x (own channels of a key + channels of a value)).
        shared: (samples, positions, shared channels of a key).
        heads: number of them.
        key_channels, value_channels: of one head.
    """
    samples, positions, _ = joint.shape

    def of_heads(name: str, channels: int) -> Tensor:
        axis = Axis(heads * channels, 2, scale=channels, extent=channels)
        return Tensor(name, (Axis(samples, 0), Axis(positions, 1), axis), joint.itemsize)

    return Operator(
        name="",
        kind="keys_and_values",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("t", positions, Role.ATTRIBUTE),
            Dimension("h", heads, Role.ATTRIBUTE),
        ),
        inputs=(of_heads("joint", joint.shape[2] // heads), plain("shared", shared, 0, 1, -1)),
        outputs=(of_heads("keys", key_channels), of_heads("values", value_channels)),
        linear_in=((0, 1),),
    )


ATTENTION: Mapping[str, Callable[[Call], Sequence[Layout]]] = {
    "scaled_dot_product_attention": _scaled_dot_product,
    "topoplan.keys_and_values": _keys_and_values,
    "topoplan.rotary": _rotary,
}
