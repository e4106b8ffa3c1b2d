"""What PyTorch runs for operators of language models; functions as in `topoplan_command_profile.kernels`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topoplan_operator_times.parts import PartShape

__all__ = ["LANGUAGE_INDICES", "LANGUAGE_KERNELS"]

#: As `topoplan_command_profile.kernels.INDICES`.
LANGUAGE_INDICES: Mapping[str, Mapping[int, Callable[[PartShape], int]]] = {
    "combine": {2: lambda part: part.inputs[0].shape[1]},
    "cross_entropy": {1: lambda part: part.inputs[0].shape[-1]},
    "dispatch": {1: lambda part: part.outputs[0].shape[1]},
}


def _learned_positions(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return x[0] + w[0][: x[0].shape[1]]


def _rms_norm(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """Heads may lie in the last axis, one behind the other."""
    channels = w[0].shape
    return torch.nn.functional.rms_norm(x[0].unflatten(-1, (-1, *channels)), channels, w[0]).reshape(x[0].shape)


def _rotary(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """Halves of the rotated channels are the pairs; the table of angles is made anew, as in every part."""
    channels, rotated = part.sizes[-1], part.constant("rotated")
    heads = x[0].reshape(*x[0].shape[:2], -1, channels)
    turned, unturned = heads[..., :rotated], heads[..., rotated:]
    angles = heads.new_ones(heads.shape[1], 1, rotated)
    first, second = turned.chunk(2, dim=-1)
    y = turned * angles + torch.cat((-second, first), dim=-1) * angles
    return (torch.cat((y, unturned), dim=-1) if unturned.shape[-1] else y).reshape(x[0].shape)


def _scaled_dot_product_attention(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """Positions may stand before heads, and heads and channels in one axis; a slice of the positions has no mask."""
    samples, positions, heads, group, keys, channels, values = part.sizes
    is_whole, window, mask = positions == keys, part.constant("window"), None
    if window and is_whole:
        mask = torch.ones(positions, keys, dtype=torch.bool, device=x[0].device).tril().triu(1 - window)
    is_first = part.inputs[0].dims[1] == 1

    def of_heads(tensor: Any, length: int, count: int, width: int) -> Any:
        if is_first:
            return tensor.reshape(samples, length, count, width).transpose(1, 2)
        return tensor.reshape(samples, count, length, width)

    answers = torch.nn.functional.scaled_dot_product_attention(
        of_heads(x[0], positions, heads * group, channels),
        of_heads(x[1], keys, heads, channels),
        of_heads(x[2], keys, heads, values),
        attn_mask=mask,
        is_causal=bool(part.constant("causal")) and is_whole and mask is None,
        enable_gqa=group > 1,
    )
    return (answers.transpose(1, 2) if is_first else answers).reshape(part.outputs[0].shape)


def _cross_entropy(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """The loss of each position stands for the three numbers that it is made of."""
    losses = torch.nn.functional.cross_entropy(x[0].flatten(0, -2), x[1].flatten(), reduction="none")
    return losses.reshape(*x[1].shape, 1).expand(part.outputs[0].shape)


def _dispatch(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """Positions sorted by their expert; each expert takes as many as it has slots."""
    samples, experts, slots, channels = part.outputs[0].shape
    order = torch.argsort(x[1].flatten(1), dim=1) // x[1].shape[2]
    places = torch.arange(experts * slots, device=order.device) % order.shape[1]
    rows = (order[:, places, None] % x[0].shape[1]).expand(-1, -1, channels)
    return torch.gather(x[0], 1, rows).reshape(samples, experts, slots, channels)


def _combine(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    samples, experts, slots, channels = x[0].shape
    positions, choices = x[1].shape[1:]
    places = torch.arange(positions * choices, device=x[2].device) % slots
    rows = (x[2][:, :positions].flatten(1) % experts * slots + places)[..., None].expand(-1, -1, channels)
    answers = torch.gather(x[0].flatten(1, 2), 1, rows).reshape(samples, positions, choices, channels)
    return (answers * x[1][..., None]).sum(dim=2)


LANGUAGE_KERNELS: Mapping[str, Callable[[Any, PartShape, Sequence[Any], Sequence[Any]], Any]] = {
    "combine": _combine,
    "cross_entropy": _cross_entropy,
    "dispatch": _dispatch,
    "learned_positions": _learned_positions,
    "rms_norm": _rms_norm,
    "rotary": _rotary,
    "scaled_dot_product_attention": _scaled_dot_product_attention,
}
