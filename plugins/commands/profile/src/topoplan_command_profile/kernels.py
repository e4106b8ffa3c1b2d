"""What PyTorch runs for a part of each kind of operator: one function per kind, more of them in `language_kernels`.

A function takes torch, the shape of the part, its inputs and its weights, and returns what the operator returns: one
tensor, or several.  torch is an argument because it is no dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topoplan_command_profile.language_kernels import LANGUAGE_INDICES, LANGUAGE_KERNELS
from topoplan_operator_times.parts import PartShape

__all__ = ["INDICES", "KERNELS", "TABLES"]

#: torch, part, inputs, weights -> one output or several.
Kernel = Callable[[Any, PartShape, Sequence[Any], Sequence[Any]], Any]

#: What an operator without a second operand adds, multiplies or divides by.
_NUMBER = 2.0

#: Kinds whose gradients have the rows that samples name, and no others.
TABLES = ("embedding", "token_embedding")

#: Kind -> input that holds indices -> how many there are to choose from.
INDICES: Mapping[str, Mapping[int, Callable[[PartShape], int]]] = {
    **LANGUAGE_INDICES,
    "aggregate": {1: lambda part: len(part.inputs) - 2},
    "aggregate_spec": {1: lambda part: len(part.inputs) - 2},
    "embedding": {0: lambda part: part.weights[0].shape[0]},
    "group_by": {1: lambda part: len(part.outputs)},
    "nll_loss": {1: lambda part: part.inputs[0].shape[1]},
    "token_embedding": {0: lambda part: part.weights[0].shape[0]},
}


def _linear(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """A weight that another operator has, too, is the second input."""
    y = torch.nn.functional.linear(x[0], *x[1:], *w)
    return torch.relu(y) if part.constant("activation") else y


def _pair(part: PartShape, word: str) -> tuple[int, int]:
    return part.constant(f"{word}_h"), part.constant(f"{word}_w")


def _conv2d(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    dilation = tuple(step or 1 for step in _pair(part, "dilation"))
    groups = x[0].shape[1] // w[0].shape[1]
    windows = {"stride": _pair(part, "stride"), "padding": _pair(part, "padding"), "dilation": dilation}
    y = torch.nn.functional.conv2d(x[0], *w, groups=groups, **windows)
    return torch.relu(y) if part.constant("activation") else y


def _pool2d(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    windows = (_pair(part, word) for word in ("kernel", "stride", "padding"))
    return torch.nn.functional.max_pool2d(x[0], *windows)


def _reshape(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return x[0].reshape(part.outputs[0].shape)


def _concat(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.cat([piece for piece in x if piece.numel()], dim=part.constant("axis"))


def _embedding(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """Gradients are sparse: rows that no sample names are not touched."""
    return torch.nn.functional.embedding_bag(x[0], w[0], mode="sum", sparse=True)


def _token_embedding(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.nn.functional.embedding(x[0], w[0], sparse=True)


def _attention(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """The rows of the kernel are heads; a row holds the projections of queries, keys, values and answers."""
    q, k, v = x if len(x) == 3 else (x[0], x[-1], x[-1])
    heads, size, embed = part.sizes[2], part.constant("head_size"), part.outputs[0].shape[-1]

    def heads_of(tensor: Any, rows: Any) -> Any:
        matrix = rows.reshape(heads, tensor.shape[-1], size)
        return torch.einsum("npc,hcd->nhpd", tensor, matrix)

    widths = [tensor.shape[-1] * size for tensor in (q, k, v)]
    for_q, for_k, for_v, for_y = w[0].split([*widths, embed * size], dim=1)
    answers = torch.nn.functional.scaled_dot_product_attention(
        heads_of(q, for_q), heads_of(k, for_k), heads_of(v, for_v)
    )
    return torch.einsum("nhpd,hde->npe", answers, for_y.reshape(heads, size, embed))


def _multihead_attention(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    mask = x[3] if len(x) == 4 else None
    return torch.nn.functional.multi_head_attention_forward(
        *x[:3],
        x[0].shape[-1],
        part.constant("heads"),
        w[0],
        w[1],
        None,
        None,
        False,
        0.0,
        w[2],
        w[3],
        attn_mask=mask,
    )


def _softmax(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.softmax(x[0], dim=part.constant("axis"))


def _log_softmax(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.log_softmax(x[0], dim=part.constant("axis"))


def _layer_norm(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.nn.functional.layer_norm(x[0], w[0].shape, *w)


def _dropout(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.nn.functional.dropout(x[0], training=True)


def _function(name: str) -> Kernel:
    """Return the kernel of a function of one element."""
    return lambda torch, part, x, w: getattr(torch, name)(x[0])


def _arithmetic(name: str) -> Kernel:
    """Return the kernel of an operation of two operands."""
    return lambda torch, part, x, w: getattr(torch, name)(*(*x, *w, _NUMBER)[:2])


def _contiguous(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return x[0].clone()


def _einsum(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    terms = [[*piece.dims] for piece in (*part.inputs, *part.weights)]
    operands = [item for pair in zip((*x, *w), terms, strict=True) for item in pair]
    return torch.einsum(*operands, [*part.outputs[0].dims])


def _transpose(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    order = [part.inputs[0].dims.index(dim) for dim in part.outputs[0].dims]
    return x[0].permute(order).contiguous()


def _chunk(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    sizes = zip(part.inputs[0].shape, part.outputs[0].shape, strict=True)
    axis = next((k for k, (whole, piece) in enumerate(sizes) if whole != piece), 0)
    return torch.chunk(x[0], len(part.outputs), dim=axis)


def _append_token(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.cat([w[0].expand(x[0].shape[0], -1, -1), x[0]], dim=1)


def _take_token(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return x[0][:, 0].contiguous()


def _top_k(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.topk(x[0], part.outputs[0].shape[-1])


def _group_by(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """Samples sorted by their expert; each expert takes as many as it has slots."""
    order = torch.argsort(x[1].flatten()) // max(x[1].numel() // x[0].shape[0], 1)
    slots = part.outputs[0].shape[0]
    starts = torch.arange(slots, device=order.device)
    return tuple(x[0].index_select(0, order[(starts + k * slots) % len(order)]) for k in range(len(part.outputs)))


def _aggregate(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """Inputs are the gates' values and indices, perhaps other gates, and the answers of the experts."""
    answers = torch.stack(list(x[part.constant("gates") :]))
    values, chosen = x[0], x[1] % len(answers)
    slots = torch.arange(len(values), device=chosen.device)[:, None] % answers.shape[1]
    return (answers[chosen, slots] * values[..., None]).sum(dim=1)


def _gating(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    """GShard's gates: the experts of each position, its slot there, and the weight of the answer."""
    slots = part.outputs[0].shape[-1]
    gates = torch.softmax(x[0] @ w[0], dim=-1)
    chosen = torch.topk(gates, min(part.constant("choices"), gates.shape[-1]), dim=-1).indices
    choice = torch.zeros_like(gates).scatter(-1, chosen, 1.0)
    place = ((choice.cumsum(dim=1) - 1) * choice).long()
    fits = choice * (place < slots)
    dispatch = torch.nn.functional.one_hot(place.clamp(max=slots - 1), slots).to(gates.dtype) * fits[..., None]
    return dispatch, dispatch * gates[..., None]


def _nll_loss(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return torch.nn.functional.nll_loss(x[0], x[1], reduction="sum")


def _sum(torch: Any, part: PartShape, x: Sequence[Any], w: Sequence[Any]) -> Any:
    return x[0].sum()


KERNELS: Mapping[str, Kernel] = {
    **LANGUAGE_KERNELS,
    "add": _arithmetic("add"),
    "aggregate": _aggregate,
    "aggregate_spec": _aggregate,
    "append_token": _append_token,
    "attention": _attention,
    "bmm": _einsum,
    "cache": _contiguous,
    "chunk": _chunk,
    "clone": _contiguous,
    "concat": _concat,
    "contiguous": _contiguous,
    "conv2d": _conv2d,
    "divide": _arithmetic("div"),
    "dropout": _dropout,
    "einsum": _einsum,
    "expert_linear": _einsum,
    "embedding": _embedding,
    "flat": _reshape,
    "flatten": _reshape,
    "floor_divide": _arithmetic("floor_divide"),
    "gating": _gating,
    "group_by": _group_by,
    "gelu": lambda torch, part, x, w: torch.nn.functional.gelu(x[0]),
    "layer_norm": _layer_norm,
    "linear": _linear,
    "log_softmax": _log_softmax,
    "matmul": _einsum,
    "multihead_attention": _multihead_attention,
    "multiply": _arithmetic("mul"),
    "nll_loss": _nll_loss,
    "pool2d": _pool2d,
    "relu": _function("relu"),
    "sigmoid": _function("sigmoid"),
    "silu": lambda torch, part, x, w: torch.nn.functional.silu(x[0]),
    "softmax": _softmax,
    "sqrt": _function("sqrt"),
    "sum": _sum,
    "take_token": _take_token,
    "tanh": _function("tanh"),
    "token_embedding": _token_embedding,
    "top_k": _top_k,
    "transpose": _transpose,
    "view": _reshape,
}
