"""What each ONNX operator is here: functions from a call to the value of its first output.

Shapes in a file are for the batch that its exporter traced.  Constants that repeat them, as the target of a reshape
does, are read for that batch (`Call.traced`), and the result is brought to the batch that is planned (`Call.planned`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_frontend_onnx.calls import Call, Unknown
from topoplan_frontend_onnx.folding import reshaped
from topoplan_frontend_onnx.fusing import ATTENTION
from topoplan_frontend_onnx.spatial import SPATIAL
from topoplan_frontend_onnx.values import Activation, Constant, Value
from topoplan_operators import (
    Handle,
    attention,
    dense,
    experts,
    normalization,
    pointwise,
    products,
    recurrent,
    reductions,
    shaping,
    tokens,
)
from topoplan_operators.recurrent import GATES, Recurrence

__all__ = ["OPERATORS"]

#: ONNX's name -> kind of a function of one element.
_FUNCTIONS = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Sqrt": "sqrt",
    "Exp": "exp",
    "Erf": "erf",
    "Log": "log",
    "Neg": "neg",
    "Abs": "abs",
    "Gelu": "gelu",
    "Swish": "silu",
    "Dropout": "dropout",
    "Clip": "clip",
    "LeakyRelu": "leaky_relu",
    "Elu": "elu",
    "Selu": "selu",
    "HardSigmoid": "hard_sigmoid",
    "Mish": "mish",
    "HardSwish": "hard_swish",
    "Softplus": "softplus",
    "Reciprocal": "reciprocal",
    "Floor": "floor",
    "Ceil": "ceil",
    "Not": "not",
    "Sign": "sign",
    "Round": "round",
    "Sin": "sin",
    "Cos": "cos",
    "Softsign": "softsign",
}
#: Likewise, of two elements or more.
_ARITHMETIC = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Pow": "pow",
    "Where": "where",
    "Min": "minimum",
    "Max": "maximum",
    "Sum": "add",
    "Mean": "mean_of",
    "PRelu": "prelu",
    "Mod": "mod",
    "Equal": "equal",
    "Less": "less",
    "Greater": "greater",
    "And": "and",
    "Or": "or",
    "LessOrEqual": "less_or_equal",
    "GreaterOrEqual": "greater_or_equal",
    "Xor": "xor",
}
#: Values pass through these unchanged.
_UNCHANGED = ("Identity", "Cast", "CastLike")


def _unchanged(call: Call) -> Value:
    return call.activation(0)


def _function(call: Call) -> Value:
    x = call.activation(0)
    return call.emit(pointwise.elementwise(_FUNCTIONS[call.node.kind], [x.handle]), [x])


def _arithmetic(call: Call) -> Value:
    kind = _ARITHMETIC[call.node.kind]
    # Numbers are left out: they cost nothing, and are no parameters.
    xs = [x for x in call.inputs if isinstance(x, Activation) or (x is not None and not x.number)]
    if not any(isinstance(x, Activation) for x in xs):
        raise Unknown("constants of this size")
    value, *operands = xs
    for x in operands:
        value = _pair(call, kind, value, x)
    if not operands:
        if not isinstance(value, Activation):
            raise Unknown("a constant")
        value = call.emit(pointwise.elementwise(kind, [value.handle]), [value])
    return value


def _pair(call: Call, kind: str, x: Value, y: Value) -> Value:
    if isinstance(x, Constant) and isinstance(y, Constant):
        raise Unknown("constants of this size")
    activations = [each for each in (x, y) if isinstance(each, Activation)]
    weights = [each for each in (x, y) if isinstance(each, Constant) and each.source]
    # Computed constants, as masks are, come with the training data.
    masks = [
        Activation(Handle(each.shape, each.itemsize), -1, True)
        for each in (x, y)
        if isinstance(each, Constant) and not each.source
    ]
    if weights and weights[0].table:
        return _pair(call, kind, activations[0], call.emit(_rows(weights[0]), []))
    sources = [*activations, *masks]
    operator = pointwise.elementwise(kind, [each.handle for each in sources], [Handle(w.shape) for w in weights])
    return call.emit(operator, sources)


def _rows(table: Constant) -> Operator:
    """The first rows of a table of parameters, as positions have them."""
    *leading, channels = table.shape
    rows = math.prod(table.table) // channels
    return Operator(
        name="",
        kind="table_rows",
        dims=(
            *(Dimension(f"t{k}", size, Role.ATTRIBUTE) for k, size in enumerate(leading)),
            Dimension("d", channels, Role.PARAMETER),
        ),
        weights=(Tensor("table", (Axis(rows), Axis(channels, len(leading)))),),
        outputs=(Tensor("y", tuple(Axis(size, k) for k, size in enumerate(table.shape))),),
    )


def _global_pool(call: Call) -> Value:
    x = call.activation(0)
    axes = list(range(2, len(x.shape)))
    operator = reductions.reduced("mean", x.handle, axes, keep=True)
    return call.emit(operator if call.node.kind == "GlobalAveragePool" else _not_summed(operator, "maximum"), [x])


def _not_summed(operator: Operator, kind: str) -> Operator:
    """A reduction that is no sum: what it reduces cannot be cut."""
    dims = tuple(attrs.evolve(dim, role=None) if dim.role is Role.REDUCTION else dim for dim in operator.dims)
    return attrs.evolve(operator, kind=kind, dims=dims, linear_in=())


def _reduce(call: Call) -> Value:
    x = call.activation(0)
    axes = call.constant_integers(1) if call.present(1) else call.integers("axes")
    axes = axes or ([call.integer("axis", 0)] if call.node.kind in ("ArgMax", "ArgMin") else list(range(len(x.shape))))
    kind = call.node.kind.removeprefix("Reduce").lower()
    operator = reductions.reduced("sum", x.handle, axes, keep=bool(call.integer("keepdims", 1)))
    summed = attrs.evolve(operator, kind=kind) if kind in reductions.REDUCTIONS else _not_summed(operator, kind)
    return call.emit(summed, [x])


def _batch_norm(call: Call) -> Value:
    x = call.activation(0)
    return call.emit(normalization.batch_norm(x.handle), [x])


def _layer_norm(call: Call) -> Value:
    x = call.activation(0)
    axis = call.integer("axis", -1)
    normalized = -axis if axis < 0 else len(x.shape) - axis
    make = normalization.rms_norm if call.node.kind == "RMSNormalization" else normalization.layer_norm
    operator = make(x.handle, normalized)
    if not call.present(2):
        operator = attrs.evolve(operator, weights=operator.weights[:1])
    return call.emit(operator, [x])


def _lrn(call: Call) -> Value:
    x = call.activation(0)
    return call.emit(normalization.local_response_norm(x.handle, call.integer("size", 1)), [x])


def _softmax(call: Call) -> Value:
    x = call.activation(0)
    axis = call.axis("axis", -1 if call.opset >= 13 else 1, len(x.shape))
    return call.emit(pointwise.softmax(x.handle, axis, log=call.node.kind == "LogSoftmax"), [x])


def _gemm(call: Call) -> Value:
    x = call.activation(0)
    if call.integer("transA", 0) or len(x.shape) != 2:
        raise Unknown("a transposed first factor")
    if isinstance(call.inputs[1], Activation):
        y = call.activation(1)
        expression = "bi,oi->bo" if call.integer("transB", 0) else "bi,io->bo"
        factors = attrs.evolve(call, inputs=[x, y])
        product = factors.emit(products.einsum(expression, [x.handle, y.handle]), [x, y])
        bias = call.inputs[2] if call.present(2) else None
        return product if bias is None else _pair(attrs.evolve(call, inputs=[bias]), "add", product, bias)
    w = call.weight(1)
    out, channels = (w.shape if call.integer("transB", 0) else w.shape[::-1]) if len(w.shape) == 2 else (0, 0)
    if channels != x.shape[1]:
        raise TopoplanError(f"input {x.shape} and weight {w.shape} do not fit")
    return call.emit(dense.linear(x.handle, out, bias=call.present(2), activation=False), [x])


def _matmul(call: Call) -> Value:
    x, y = call.inputs[0], call.inputs[1]
    if isinstance(x, Activation) and isinstance(y, Constant) and len(y.shape) == 2 and len(x.shape) > 1:
        if y.shape[0] != x.shape[-1]:
            raise TopoplanError(f"factors {x.shape} and {y.shape} do not fit")
        bias = call.absorbed_bias(y.shape[1])
        return call.emit(dense.linear(x.handle, y.shape[1], bias=bias, activation=False), [x])
    if x is None or y is None:
        raise TopoplanError("a factor is missing")
    rank = max(len(x.shape), len(y.shape))
    if min(len(x.shape), len(y.shape)) < 2 or rank > 24 or not isinstance(x, Activation):
        raise Unknown("factors with one axis, or a constant first factor")
    if x.shape[-1] != y.shape[-2]:
        raise TopoplanError(f"factors {x.shape} and {y.shape} do not fit")
    letters = "abcdefghijklmnopqrstuvw"[: rank - 2]
    first, second = letters[rank - len(x.shape) :], letters[rank - len(y.shape) :]
    outer, of_second = x.shape[:-2], y.shape[:-2]
    if len(outer) < len(of_second) or outer[len(outer) - len(of_second) :] != of_second:
        raise Unknown("factors that are repeated along an axis")
    expression = f"{first}xy,{second}yz->{letters}xz"
    if isinstance(y, Constant):
        operator = products.einsum(expression, [x.handle], [Handle(y.shape)], sample=letters[:1] or "x", kind="matmul")
        return call.emit(operator, [x])
    operator = products.einsum(expression, [x.handle, y.handle], sample=letters[:1] or "x", kind="matmul")
    return call.emit(operator, [x, y])


def _einsum(call: Call) -> Value:
    """A sum of products of two factors that have each letter once."""
    x, y = call.activation(0), call.inputs[1] if call.present(1) else None
    terms, arrow, out = call.word("equation", "").replace(" ", "").partition("->")
    words = terms.split(",")
    if (
        not arrow
        or not re.fullmatch("[a-z]+,[a-z]+", terms)
        or y is None
        or any(len({*w}) != len(w) for w in (*words, out))
    ):
        raise Unknown("an equation of this form")
    if tuple(map(len, words)) != (len(x.shape), len(y.shape)):
        raise TopoplanError(f"equation {shown(terms)} does not fit factors {x.shape} and {y.shape}")
    computed = [each for each in (x, y) if isinstance(each, Activation)]
    weights = [Handle(y.shape)] if isinstance(y, Constant) else []
    sample = words[0][x.samples] if x.samples >= 0 else " "
    operator = products.einsum(f"{','.join(words)}->{out}", [each.handle for each in computed], weights, sample=sample)
    return call.emit(operator, computed)


def _attention(call: Call) -> Value:
    """Attention that was found in several nodes, or as opset 23 has it: without keys and values of the past."""
    q, k, v = (call.activation(place) for place in range(3))
    masks = [x for x in call.inputs[3:4] if x is not None]
    if any(not x.data if isinstance(x, Activation) else x.source for x in masks) or len(call.inputs) > 4:
        raise Unknown("a bias that is trained, or keys and values of the past")
    heads = None
    if len(q.shape) == 3:  # one head where the axis of samples has the heads, too
        heads_unsaid = int(call.node.kind == ATTENTION)
        heads = (call.integer("q_num_heads", heads_unsaid), call.integer("kv_num_heads", heads_unsaid))
    causal = bool(call.integer("is_causal", 0))
    operator = attention.scaled_dot_product(
        q.handle, k.handle, v.handle, heads=heads, heads_axis=2 if heads else 1, causal=causal
    )
    return call.emit(operator, [q, k, v])


def _gather(call: Call) -> Value:
    x, indices = call.inputs[0], call.inputs[1]
    if x is None or indices is None:
        raise TopoplanError("an input is missing")
    axis = call.axis("axis", 0, len(x.shape))
    if isinstance(x, Constant) and isinstance(indices, Activation):
        if axis != 0 or len(x.shape) != 2 or not indices.shape:
            raise Unknown("rows of a table of other than two axes")
        rows, dim = x.shape
        if len(indices.shape) == 2:
            return call.emit(dense.token_embedding(indices.handle, rows, dim), [indices])
        if len(indices.shape) == 1:
            column = attrs.evolve(indices, handle=attrs.evolve(indices.handle, shape=(*indices.shape, 1)))
            return call.emit(dense.embedding(column.handle, rows, dim, itemsize=4), [column])
        raise Unknown("indices of more than two axes")
    if not isinstance(x, Activation):
        raise Unknown("constants of this size")
    if isinstance(indices, Constant) and indices.number and not indices.shape and indices.value is not None:
        index = int(indices.value)
        if axis != x.samples and -x.shape[axis] <= index < x.shape[axis]:
            return call.emit(shaping.select(x.handle, axis, index % x.shape[axis], sample=x.samples), [x])
        raise Unknown("one sample of the batch")
    places = (
        indices if isinstance(indices, Activation) else Activation(Handle(indices.shape, indices.itemsize), -1, True)
    )
    return call.emit(tokens.gather(x.handle, places.handle, axis), [x, places])


def _gather_elements(call: Call) -> Value:
    x, indices = call.activation(0), call.inputs[1]
    axis = call.axis("axis", 0, len(x.shape))
    if not isinstance(indices, Activation) or axis == x.samples:
        raise Unknown("indices that the file has, or elements of other samples")
    return call.emit(tokens.gather_elements(x.handle, indices.handle, axis), [x, indices])


def _shaped(call: Call) -> Value:
    """Reshape, and what else changes axes and moves nothing."""
    x = call.activation(0)
    argument = call.inputs[1] if len(call.inputs) > 1 else None
    if isinstance(argument, Activation) or (argument is not None and argument.value is None):
        raise TopoplanError("its target depends on an input")
    values = None if argument is None else argument.value
    if call.node.kind == "Reshape":
        shape = call.planned(x, reshaped(call.node, call.traced(x), values))
    else:
        shape = reshaped(call.node, x.shape, values)
    return x if shape == x.shape else call.emit(shaping.view(x.handle, shape, sample=max(x.samples, 0)), [x])


def _transpose(call: Call) -> Value:
    x = call.activation(0)
    order = call.integers("perm") or list(range(len(x.shape)))[::-1]
    if sorted(order) != list(range(len(x.shape))):
        raise TopoplanError(f"perm {order} of {len(x.shape)} axes")
    return call.emit(shaping.permute(x.handle, order, sample=max(x.samples, 0), kind="transpose"), [x])


def _concat(call: Call) -> Value:
    sources = [x for x in call.inputs if isinstance(x, Activation)]
    if not sources:
        raise Unknown("constants alone")
    rank = len(sources[0].shape)
    axis = call.axis("axis", 1, rank)
    if axis == sources[0].samples:
        raise Unknown("one batch behind the other")
    parts = [x if isinstance(x, Activation) else call.repeated(x, sources[0]) for x in call.inputs if x is not None]
    return call.emit(pointwise.concat([x.handle for x in parts], axis, sample=sources[0].samples), parts)


def _split(call: Call) -> Sequence[Value]:
    x = call.activation(0)
    axis = call.axis("axis", 0, len(x.shape))
    sizes = call.constant_integers(1) if call.present(1) else call.integers("split")
    if not sizes:
        count = len(call.node.outputs)
        each = -(-x.shape[axis] // max(count, 1))
        sizes = [min(each, x.shape[axis] - k * each) for k in range(count)]
    if axis == x.samples:
        raise Unknown("parts of the batch")
    return call.emit_all(shaping.split(x.handle, sizes, axis), [x])


def _slice(call: Call) -> Value:
    x = call.activation(0)
    value = x
    for axis, key in call.slices(x):
        size = call.traced(value)[axis]
        start, stop, step = key.indices(size)
        if (start, stop, step) == (0, size, 1):
            continue
        if axis == x.samples or step < 1 or start >= stop:
            raise Unknown("part of the batch, elements in reverse order, or none")
        value = call.emit(shaping.sliced(value.handle, axis, start, stop, step), [value])
    return value


def _expand(call: Call) -> Value:
    x = call.activation(0)
    target = call.constant_integers(1)
    before = call.traced(x)
    rank = max(len(before), len(target))
    padded, extents = (1,) * (rank - len(before)) + before, [1] * (rank - len(target)) + list(target)
    shape = tuple(b if w == 1 else w for b, w in zip(padded, extents, strict=True))
    if any(b not in (1, size) for b, size in zip(padded, shape, strict=True)):
        raise TopoplanError(f"{before} cannot be repeated to {tuple(target)}")
    if shape == before:
        return x
    if x.samples >= 0:
        place = x.samples + rank - len(before)
        shape = tuple(x.shape[x.samples] if k == place else size for k, size in enumerate(shape))
    operator = pointwise.elementwise("expand", [x.handle, Handle(shape)])
    return call.emit(attrs.evolve(operator, inputs=operator.inputs[:1], work=(), linear_in=((0,),)), [x])


def _quantized(call: Call) -> Value:
    """Integers for real numbers, or these again, element by element."""
    x = call.activation(0)
    itemsize = 1 if call.node.kind == "QuantizeLinear" else 4
    operator = pointwise.elementwise(call.node.kind, [x.handle])
    output = attrs.evolve(operator.outputs[0], itemsize=itemsize)
    return call.emit(attrs.evolve(operator, outputs=(output,), linear_in=()), [x])


def _dynamically(call: Call) -> Sequence[Value]:
    """Integers for real numbers, with the scale and the zero that the largest and the smallest ask for."""
    scales = [Activation(Handle((), itemsize), -1, True) for itemsize in (4, 1)]
    return [_quantized(attrs.evolve(call, node=attrs.evolve(call.node, kind="QuantizeLinear"))), *scales]


def _on_integers(call: Call) -> Value:
    """A product or convolution of integers: as that of the numbers that they stand for.

    Source: ONNX's MatMulInteger and ConvInteger (factors first), QLinearMatMul and QLinearConv (each factor with its
    scale and zero).
    """
    is_linear = call.node.kind.startswith("QLinear")
    second = 3 if is_linear else 1
    factors = [call.inputs[0], call.inputs[second]]
    names = [call.node.inputs[0], call.node.inputs[second]]
    inputs = [
        attrs.evolve(x, source=name, value=None, trained=False) if isinstance(x, Constant) and not x.source else x
        for x, name in zip(factors, names, strict=True)
    ]
    kind = "Conv" if "Conv" in call.node.kind else "MatMul"
    if kind == "Conv" and is_linear and call.present(8):
        inputs.append(call.inputs[8])
    product = attrs.evolve(call, inputs=inputs, node=attrs.evolve(call.node, kind=kind))
    return OPERATORS[kind](product)  # type: ignore[return-value]


def _group_norm(call: Call) -> Value:
    """Group norm, and instance norm, in which every channel is a group."""
    x = call.activation(0)
    if len(x.shape) < 2:
        raise Unknown(f"an input of {len(x.shape)} axes")
    groups = x.shape[1] if call.node.kind == "InstanceNormalization" else call.integer("num_groups", 1)
    return call.emit(normalization.group_norm(x.handle, groups), [x])


def _recurrent(call: Call) -> Sequence[Value]:
    """LSTM, GRU or RNN: one layer in one direction or both, steps first (layout 0)."""
    x, w, r = call.activation(0), call.weight(1), call.weight(2)
    if call.integer("layout", 0) or len(x.shape) != 3 or any(call.present(k) for k in range(5, len(call.inputs))):
        raise Unknown("samples first, or states that are given")
    kind, (directions, rows, channels) = call.node.kind.lower(), w.shape
    sizes = Recurrence(kind=kind, channels=channels, hidden=r.shape[2], bias=call.present(3))
    operator = recurrent.recurrent(x.handle, sizes, sample=1)
    each = [Tensor(weight.name, (Axis(directions), *weight.axes)) for weight in operator.weights]
    if rows != GATES[kind] * r.shape[2]:
        raise TopoplanError(f"weights {w.shape} and {r.shape} do not fit")
    outer = operator.outputs[0].axes
    answers = Tensor("y", (outer[0], Axis(directions), *outer[1:]), x.handle.itemsize)
    lasts = [attrs.evolve(last, axes=(Axis(directions), *last.axes)) for last in operator.outputs[1:]]
    layer = attrs.evolve(
        operator,
        weights=tuple(each),
        outputs=(answers, *lasts),
        work=tuple(Term(directions * term.coefficient, term.dims) for term in operator.work),
        traffic=tuple(Term(directions * term.coefficient, term.dims) for term in operator.traffic),
    )
    return call.emit_all(layer, [x])


def _accumulated(call: Call) -> Value:
    x = call.activation(0)
    axis = call.constant_integers(1)[0]
    return call.emit(pointwise.accumulated("cumsum", x.handle, axis % len(x.shape)), [x])


def _top_k(call: Call) -> Sequence[Value]:
    x = call.activation(0)
    k = call.constant_integers(1)[0] if call.present(1) else call.integer("k", 1)
    if call.axis("axis", -1, len(x.shape)) != len(x.shape) - 1:
        raise Unknown("an axis that is not the last one")
    values, indices = call.emit_all(experts.top_k(x.handle, k), [x])
    return [values, indices]


#: Name in ONNX -> translation.
OPERATORS: Mapping[str, Callable[[Call], Value | Sequence[Value]]] = {
    **dict.fromkeys(_UNCHANGED, _unchanged),
    **dict.fromkeys(_FUNCTIONS, _function),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _shaped),
    **SPATIAL,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _layer_norm),
    **dict.fromkeys(
        (f"Reduce{word}" for word in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare")), _reduce
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduce),
    **dict.fromkeys((ATTENTION, "Attention"), _attention),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantized),
    **dict.fromkeys(("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"), _on_integers),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _group_norm),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "DynamicQuantizeLinear": _dynamically,
    "CumSum": _accumulated,
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "Einsum": _einsum,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Gemm": _gemm,
    "LRN": _lrn,
    "MatMul": _matmul,
    "Slice": _slice,
    "Split": _split,
    "TopK": _top_k,
    "Transpose": _transpose,
}
