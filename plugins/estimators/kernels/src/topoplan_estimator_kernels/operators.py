"""Which kernels the part of an operator launches, forward and backward, and what they take.

Operators run as PyTorch runs them: a product for the output and one for each gradient, a pass for what maps elements,
one kernel for attention.  An operator that was not measured moves its bytes in as many kernels as it launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs

from topoplan_kernel_constants.kernels import Kernels
from topoplan_kernel_constants.launches import launches_of
from topoplan_operator_times.parts import PartShape, Slice
from topoplan_operators.attention import attended_pairs

__all__ = ["PartSeconds", "operator_seconds"]


@attrs.frozen
class PartSeconds:
    """Seconds of a part forward and backward, one kernel behind the other in a stream."""

    forward: float
    backward: float


@attrs.frozen
class _Price:
    """A device and a precision, the part that is priced, and the narrower precision of its product with weights."""

    kernels: Kernels
    mode: str
    part: PartShape
    narrow: str = ""

    def moving(self, kind: str, rows: float, row: float, way: str = "forward") -> float:
        """Return the seconds of a measured pass."""
        return self.kernels.moving(self.mode, kind, way, max(rows, 1), max(row, 1))

    def both(self, kind: str, rows: float, row: float) -> tuple[float, float]:
        """Return those of a pass and its gradient."""
        return self.moving(kind, rows, row), self.moving(kind, rows, row, "backward")

    def nbytes(self, count: float, kernels: int) -> float:
        """Return the seconds of moving bytes in some kernels, at the rate of a copy."""
        if not kernels:
            return 0.0
        itemsize = 2 if self.mode in ("bf16", "fp16") else 4
        return self.moving("copy", 1, max(count / (2 * itemsize), 1)) + (kernels - 1) * self.kernels.curves.smallest

    def linear(
        self, rows: float, outputs: float, inputs: float, batch: float = 1, data: bool = True, weight: bool = True
    ) -> tuple[float, float]:
        """Return the seconds of a product, and of those of its gradients that are wanted.

        For a narrower product the input, and then the gradient of the output, are first written so, in both layouts.
        """
        of, mode = self.kernels.product, self.narrow or self.mode
        back = of(mode, "data", batch, rows, inputs, outputs) if data else 0.0
        if weight:
            back += of(mode, "weight", batch, outputs, inputs, rows)
        forward = of(mode, "forward", batch, rows, outputs, inputs)
        if self.narrow:
            forward += self.moving("copy", 1, batch * rows * inputs)
            back += self.moving("copy", 1, batch * rows * outputs) if data or weight else 0.0
        return forward, back

    def grouped(self, rows: float, outputs: float, inputs: float, groups: float) -> tuple[float, float]:
        """Return the seconds of one product a group, all in one kernel, and of the gradients of its data and weights.

        In a narrower precision a grouped product gains what a product of all rows does.
        """
        shapes = {
            "forward": (rows, outputs, inputs),
            "data": (rows, inputs, outputs),
            "weight": (outputs, inputs, rows),
        }
        times = {role: self.kernels.product("bf16-grouped", role, groups, *sizes) for role, sizes in shapes.items()}
        forward, backward = times["forward"], times["data"] + times["weight"]
        if not self.narrow:
            return forward, backward
        fast, plain = (
            attrs.evolve(self, narrow=narrow).linear(groups * rows, outputs, inputs) for narrow in (self.narrow, "")
        )
        return forward * fast[0] / plain[0], backward * fast[1] / plain[1]


def _count(piece: Slice) -> int:
    return math.prod(piece.shape)


def _add(*pairs: tuple[float, float]) -> tuple[float, float]:
    return sum(a for a, _ in pairs), sum(b for _, b in pairs)


def _linear(price: _Price) -> tuple[float, float]:
    """The second input is a weight that another operator has, too; without inputs two weights are multiplied."""
    part = price.part
    if not part.inputs:
        channels = part.outputs[0].shape[-1]
        rows = _count(part.outputs[0]) / channels
        bias = price.moving("columns", rows, channels) if len(part.weights) > 2 else 0.0
        return _add(_einsum(price), (0.0, bias))
    weights = (*part.inputs[1:], *part.weights)
    outputs, inputs = weights[0].shape
    rows = _count(part.outputs[0]) / outputs
    tied = len(part.inputs) > 1
    trained = part.gradients[1] if tied else part.trains(0)
    pairs = [price.linear(rows, outputs, inputs, data=part.gradients[0], weight=trained)]
    if len(weights) > 1:
        pairs.append((0.0, price.moving("columns", rows, outputs)))
    if part.constant("activation"):
        pairs.append(price.both("relu", rows, outputs))
    return _add(*pairs)


def _einsum(price: _Price) -> tuple[float, float]:
    """A batch of products; operands whose batch does not stand first are copied first."""
    part = price.part
    first, second = (*part.inputs, *part.weights)[:2]
    out = part.outputs[0]
    trained = (*part.gradients, *map(part.trains, range(len(part.weights))))
    size = dict(zip(first.dims, first.shape, strict=True)) | dict(zip(second.dims, second.shape, strict=True))

    def product(dims: set[int]) -> int:
        return math.prod(size[dim] for dim in dims)

    a, b, c = set(first.dims), set(second.dims), set(out.dims)
    batch, m, n, k = a & b & c, (a & c) - b, (b & c) - a, (a & b) - c
    pair = price.linear(product(m), product(n), product(k), product(batch), *trained[:2])
    copies = (0.0, 0.0)
    if batch and m and first.dims[0] in m:
        copies = price.moving("copy", 1, _count(first)), price.moving("copy", 1, _count(out))
    return _add(pair, copies)


def _experts(price: _Price) -> tuple[float, float]:
    """One grouped product over the experts, each of which has the slots of all samples; biases are a sum behind it."""
    outputs = price.part.outputs[0].shape[-1]
    rows = _count(price.part.outputs[0]) / outputs
    bias = price.moving("scale", 1, rows * outputs), price.moving("columns", rows, outputs)
    return _add(_expert_products(price), bias) if len(price.part.weights) > 1 else _expert_products(price)


def _expert_products(price: _Price) -> tuple[float, float]:
    part = price.part
    samples, count, slots, inputs = part.inputs[0].shape
    if price.mode != "bf16" or not part.trains(0) or not part.gradients[0]:
        return _einsum(price)
    return price.grouped(samples * slots, part.outputs[0].shape[-1], inputs, count)


def _conv2d(price: _Price) -> tuple[float, float]:
    part = price.part
    (samples, channels, height, width), filters = part.inputs[0].shape, part.weights[0]
    rows, columns = part.outputs[0].shape[2:]
    of = {
        "samples": samples,
        "channels": channels,
        "height": height,
        "width": width,
        "filters": filters.shape[0],
        "kernel_h": filters.shape[2],
        "kernel_w": filters.shape[3],
        "stride": max(part.constant("stride_h"), 1),
        "out_height": rows,
        "out_width": columns,
        "groups": channels // filters.shape[1],
    }
    passes = [("data", part.gradients[0]), ("weight", part.trains(0))]
    back = sum(price.kernels.convolution(price.mode, role, of) for role, is_made in passes if is_made)
    pairs = [(price.kernels.convolution(price.mode, "forward", of), back)]
    images = part.outputs[0].shape[0] * part.outputs[0].shape[1]
    if len(part.weights) > 1:
        pairs.append(price.both("image_bias", images, rows * columns))
    if part.constant("activation"):
        pairs.append(price.both("relu", images, rows * columns))
    return _add(*pairs)


def _pool2d(price: _Price) -> tuple[float, float]:
    part = price.part
    images, stride = part.inputs[0].shape[0] * part.inputs[0].shape[1], part.constant("stride_h")
    kind = "pool" if stride >= part.constant("kernel_h") else "pool_overlapping" if stride > 1 else "pool_dense"
    return price.both(kind, images, _count(part.inputs[0]) / images)


def _scores(price: _Price) -> tuple[float, float]:
    """Causal parts of the queries share the pairs evenly; a window leaves out the same share of both passes."""
    samples, positions, heads, group, keys, channels, values = price.part.sizes
    causal = bool(price.part.constant("causal")) and positions <= keys
    width = (channels + values) / 2  # both products count
    pair = _attention_of(price, samples, heads * group, heads, positions, keys, width, causal)
    window = price.part.constant("window")
    share = attended_pairs(keys, keys, window) / attended_pairs(keys, keys) if window else 1.0
    return pair[0] * share, pair[1] * share


def _attention_of(price: _Price, *sizes: float) -> tuple[float, float]:
    pair = [price.kernels.attention(price.mode, role, *sizes) for role in ("forward", "backward")]
    return pair[0], pair[1]


def _attention(price: _Price) -> tuple[float, float]:
    """FlexFlow's operator: projections of queries, keys, values and answers around the function."""
    part = price.part
    q, k = part.inputs[0], part.inputs[-1]
    heads, size, embed = part.sizes[2], part.constant("head_size"), part.outputs[0].shape[-1]
    samples, positions = q.shape[:2]
    keys, width = k.shape[1], heads * size
    pairs = [
        price.linear(samples * positions, width, q.shape[-1]),
        price.linear(samples * keys, width, k.shape[-1]),
        price.linear(samples * keys, width, k.shape[-1]),
        price.linear(samples * positions, embed, width),
        _attention_of(price, samples, heads, heads, positions, keys, size, False),
    ]
    # Rows of heads become four matrices, and their gradients rows again; so do gradients of answers, and gradients of
    # one input are summed.
    weight, answers = _count(part.weights[0]), samples * positions * width
    pieces = 4 * price.moving("copy", 1, weight / 4)
    back = pieces + price.moving("copy", 1, weight) + 3 * price.moving("copy", 1, answers)
    return _add(*pairs, (pieces, back + 2 * price.moving("add", 1, answers)))


def _multihead_attention(price: _Price) -> tuple[float, float]:
    """torch.nn's function, which returns the weights of attention: scores are written, and averaged over heads."""
    part = price.part
    (positions, samples, embed), keys = part.inputs[0].shape, part.inputs[1].shape[0]
    heads = part.constant("heads")
    size, scores = embed // heads, samples * heads * positions * keys
    rows = positions * samples
    pairs = [price.linear(rows, embed, embed), price.linear(keys * samples, embed, embed)] * 2
    pairs += [(0.0, price.moving("columns", rows, embed))] * 4
    pairs += [
        price.linear(positions, keys, size, samples * heads),
        price.both("softmax", samples * heads * positions, keys),
        price.linear(positions, size, keys, samples * heads),
        (price.moving("copy", 1, rows * embed),) * 2,
        price.both("scale", 1, rows * embed),
        (price.moving("copy", 1, scores / 2), 0.0),
    ]
    if len(part.inputs) == 4:
        pairs.append((price.moving("add", 1, scores), 0.0))
    return _add(*pairs)


def _table(price: _Price, kind: str) -> tuple[float, float]:
    part = price.part
    is_tied = not part.weights  # the table is another operator's, and an input here
    height, row = (part.inputs[1] if is_tied else part.weights[0]).shape
    words = _count(part.inputs[0])
    curve_names = [name for name in price.kernels.curves.kinds() if name.startswith(f"{kind}:")]
    nearest = min(sorted(curve_names), key=lambda name: abs(math.log(int(name.partition(":")[2]) / height)))
    forward, backward = price.both(nearest, words, row)
    if kind == "embedding":  # a dense gradient is written as a whole
        measured = int(nearest.partition(":")[2])
        backward += price.moving("copy", 1, max(height - measured, 0) * row / 2)
    return forward, backward if (part.gradients[1] if is_tied else part.trains(0)) else 0.0


def _last(kind: str) -> Callable[[_Price], tuple[float, float]]:
    """Return the price of a pass over rows of the last axis."""

    def of(price: _Price) -> tuple[float, float]:
        row = price.part.inputs[0].shape[-1]
        return price.both(kind, _count(price.part.inputs[0]) / row, row)

    return of


def _axis(kind: str) -> Callable[[_Price], tuple[float, float]]:
    def of(price: _Price) -> tuple[float, float]:
        row = price.part.inputs[0].shape[price.part.constant("axis")]
        return price.both(kind, _count(price.part.inputs[0]) / row, row)

    return of


def _norm(kind: str) -> Callable[[_Price], tuple[float, float]]:
    def of(price: _Price) -> tuple[float, float]:
        part = price.part
        row = _count(part.weights[0]) if part.weights else part.inputs[0].shape[-1]  # OLMo's has no weights
        return price.both(kind, _count(part.inputs[0]) / row, row)

    return of


def _map(kind: str) -> Callable[[_Price], tuple[float, float]]:
    return lambda price: price.both(kind, 1, _count(price.part.outputs[0]))


def _arithmetic(kind: str, lone_kind: str) -> Callable[[_Price], tuple[float, float]]:
    def of(price: _Price) -> tuple[float, float]:
        operands = len(price.part.inputs) + len(price.part.weights)
        return price.both(kind if operands > 1 else lone_kind, 1, _count(price.part.outputs[0]))

    return of


def _view(price: _Price) -> tuple[float, float]:
    return 0.0, 0.0


def _transpose(price: _Price) -> tuple[float, float]:
    row = price.part.outputs[0].shape[-1]
    stays = price.part.inputs[0].dims[-1] == price.part.outputs[0].dims[-1]
    return price.moving("heads" if stays else "transpose", _count(price.part.outputs[0]) / row, row), 0.0


def _concat(price: _Price) -> tuple[float, float]:
    return price.moving("copy", 1, _count(price.part.outputs[0])), 0.0


def _positions(price: _Price) -> tuple[float, float]:
    x = price.part.inputs[0]
    return price.moving("scale", 1, _count(x)), price.moving("mean_rows", x.shape[0], _count(x) / x.shape[0])


def _dispatch(price: _Price) -> tuple[float, float]:
    """Places are sorted, rows gathered; backward they are added up."""
    out, channels = price.part.outputs[0], price.part.outputs[0].shape[-1]
    ids = _count(price.part.inputs[1])
    samples = out.shape[0]
    forward, backward = price.both("gather", _count(out) / channels, channels)
    return forward + price.moving("argsort", samples, ids / samples) + price.nbytes(2 * out.nbytes, 2), backward


def _combine(price: _Price) -> tuple[float, float]:
    """Answers are gathered, multiplied by their gates, and summed."""
    channels = price.part.inputs[0].shape[-1]
    rows = _count(price.part.inputs[1])
    itemsize = price.part.inputs[0].itemsize
    each = rows * channels * itemsize
    forward, backward = price.both("gather", rows, channels)
    return forward + price.nbytes(3.5 * each, 7), backward + price.nbytes(5 * each, 4)


def _gating(price: _Price) -> tuple[float, float]:
    """Places in int64, and two tensors of experts and slots (GShard's)."""
    part = price.part
    outputs, inputs = part.weights[0].shape[1], part.weights[0].shape[0]
    rows = _count(part.inputs[0]) / inputs
    size = _count(part.outputs[0])
    pair = price.linear(rows, outputs, inputs)
    forward, backward = launches_of(price.kernels.counted, price.mode, part.kind)
    itemsize = part.outputs[0].itemsize
    moved = (16 + 5 * itemsize) * size, 4 * itemsize * size
    return _add(pair, (price.nbytes(moved[0], forward - 1), price.nbytes(moved[1], backward - 2)))


def _group_by(price: _Price) -> tuple[float, float]:
    """Samples are sorted by their experts, and each expert takes its rows."""
    ids = price.part.inputs[1]
    forward, _ = launches_of(price.kernels.counted, price.mode, price.part.kind)
    moved = 2 * sum(piece.nbytes for piece in price.part.outputs)
    return price.moving("argsort", 1, _count(ids)) + price.nbytes(moved, max(forward - 3, 1)), 0.0


def _other(price: _Price) -> tuple[float, float]:
    """Bytes in as many kernels as were counted; backward half as many more."""
    part = price.part
    forward, backward = launches_of(price.kernels.counted, price.mode, part.kind)
    moved = sum(piece.nbytes for piece in (*part.inputs, *part.weights, *part.outputs))
    return price.nbytes(moved, forward), price.nbytes(1.5 * moved, backward)


_PRICES: Mapping[str, Callable[[_Price], tuple[float, float]]] = {
    "add": _arithmetic("add", "scale"),
    "attention": _attention,
    "bmm": _einsum,
    "cache": _map("copy"),
    "chunk": _view,
    "clamp": _map("relu"),
    "clone": _map("copy"),
    "combine": _combine,
    "concat": _concat,
    "contiguous": _map("copy"),
    "conv2d": _conv2d,
    "cross_entropy": _last("cross_entropy"),
    "dispatch": _dispatch,
    "divide": _arithmetic("multiply", "scale"),
    "dropout": _map("dropout"),
    "einsum": _einsum,
    "embedding": lambda price: _table(price, "bag"),
    "expert_linear": _experts,
    "flat": _view,
    "flatten": _view,
    "gating": _gating,
    "gelu": _map("gelu"),
    "group_by": _group_by,
    "layer_norm": _norm("layer_norm"),
    "learned_positions": _positions,
    "linear": _linear,
    "log_softmax": _axis("log_softmax"),
    "matmul": _einsum,
    "multihead_attention": _multihead_attention,
    "multiply": _arithmetic("multiply", "scale"),
    "nll_loss": _last("nll_loss"),
    "pool2d": _pool2d,
    "relu": _map("relu"),
    "rms_norm": _norm("rms_norm"),
    "rotary": lambda price: price.both(
        "rotary", _count(price.part.inputs[0]) / price.part.sizes[-1], price.part.sizes[-1]
    ),
    "scaled_dot_product_attention": _scores,
    "sigmoid": _map("sigmoid"),
    "silu": _map("silu"),
    "softmax": _axis("softmax"),
    "sqrt": _map("sigmoid"),
    "sum": lambda price: price.both("sum", 1, _count(price.part.inputs[0])),
    "tanh": _map("sigmoid"),
    "top_k": _last("top_k"),
    "token_embedding": lambda price: _table(price, "embedding"),
    "transpose": _transpose,
    "view": _view,
}


#: Products with weights, which trainers run in fp8 or fp4; attention and all else stays as it is.
_NARROW = ("expert_linear", "linear")


def _fused_rotary(price: _Price) -> tuple[float, float]:
    seconds = price.moving("copy", 1, _count(price.part.inputs[0]))
    return seconds, seconds


def _permuted(price: _Price) -> tuple[float, float]:
    """Rows are copied to their places in one kernel, and their gradients back."""
    rows = price.part.outputs[0] if price.part.kind == "dispatch" else price.part.inputs[0]
    channels = rows.shape[-1]
    seconds = price.moving("gather", _count(rows) / channels, channels)
    return seconds, seconds


#: Bytes that Megatron-LM moves for each answer in bf16 whose bias is weighed in fp32, forward: product and sum are
#: written in fp32, joined, and cast (4 + 10 + 8 + 6).  Backward: the gradient is cast to fp32 and back, that of the
#: bias and that of the weight are each a product that is written and summed, and slices are joined (6, 6, 12, 12, 4).
_WEIGHED_BIAS = 28, 40


def _fused_experts(price: _Price) -> tuple[float, float]:
    """Biases are added within products, but those of answers, which are weighed: expert by expert, in a few kernels.

    Source: NVIDIA/Megatron-LM@d98e8a64, ``moe/experts.py`` (``_apply_bias``).
    """
    products = _expert_products(price)
    if len(price.part.weights) < 2 or not price.part.constant("answers"):
        return products
    answers, count = _count(price.part.outputs[0]), price.part.inputs[0].shape[1]
    forward, backward = (each * answers for each in _WEIGHED_BIAS)
    return _add(products, (price.nbytes(forward, 2 * count + 2), price.nbytes(backward, 6 * count + 2)))


def _fused_clamp(price: _Price) -> tuple[float, float]:
    """Halves of a joint projection are joined again, and so are their gradients (``fusions/fused_bias_geglu.py``)."""
    copy = price.moving("copy", 1, _count(price.part.outputs[0]))
    return _add(price.both("relu", 1, _count(price.part.outputs[0])), (copy, copy))


def _biased_product(price: _Price) -> tuple[float, float]:
    """A product adds its bias; the gradient of the bias reads those of its answers."""
    outputs = price.part.outputs[0].shape[-1]
    is_biased = len(price.part.weights) > 1
    sums = price.moving("columns", _count(price.part.outputs[0]) / outputs, outputs) if is_biased else 0.0
    return _add(_expert_products(price), (0.0, sums))


#: (How experts run, kind) -> price.  Source of ``fused``: NVIDIA/TransformerEngine@7088403, ops/fused/grouped_mlp.py.
_OF_EXPERTS: Mapping[tuple[str, str], Callable[[_Price], tuple[float, float]]] = {
    ("batched", "expert_linear"): _einsum,
    ("fused", "expert_linear"): _biased_product,
    ("fused", "clamp"): _view,
}


#: Kernels that Transformer Engine and Megatron-LM fuse: rotary embeddings, tokens to experts and back, and SwiGLU,
#: whose product with the activation is one pass.
_FUSED: Mapping[str, Callable[[_Price], tuple[float, float]]] = {
    "clamp": _fused_clamp,
    "combine": _permuted,
    "dispatch": _permuted,
    "expert_linear": _fused_experts,
    "rotary": _fused_rotary,
    "silu": _view,
}


def operator_seconds(
    kernels: Kernels, mode: str, part: PartShape, *, narrow: str = "", experts: str = "grouped", fused: bool = False
) -> PartSeconds:
    """Return the seconds of a part.

    Args:
        kernels: of the device.
        mode: ``fp32``, ``tf32`` or ``bf16``.
        part: as its kernels see it.
        narrow: ``fp8`` or ``fp4``, in which products with weights run; empty: as all others.
        experts: ``grouped``: in one product; ``fused``: with biases and limits; ``batched``: as PyTorch's einsum.
        fused: trainers' kernels take the place of several of PyTorch's.
    """
    of = _PRICES.get(part.kind, _other)
    if fused:
        of = _FUSED.get(part.kind, of)
    of = _OF_EXPERTS.get((experts, part.kind), of)
    forward, backward = of(_Price(kernels, mode, part, narrow=narrow if part.kind in _NARROW else ""))
    return PartSeconds(forward, backward)
