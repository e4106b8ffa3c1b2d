"""ATen operators on one element at a time, and sums over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import attrs

from topoplan.model.graph import Dimension, Operator
from topoplan_frontend_torch.calls import Call, UntranslatedError
from topoplan_frontend_torch.layouts import Layout
from topoplan_operators import Handle, pointwise, reductions

__all__ = ["ELEMENTWISE"]

#: ATen's names of arithmetic -> the algebra's; of a tensor and a number, where that is another one.
_ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "rsub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "true_divide": "divide",
}
_WITH_NUMBER = {"add": "scalar_add", "subtract": "scalar_subtract"}
_FUNCTIONS = (
    "abs celu clamp clamp_max clamp_min cos dropout elu erf exp exp2 expm1 feature_dropout gelu hardsigmoid hardswish "
    "hardtanh leaky_relu log log1p logsigmoid masked_fill mish native_dropout neg pow reciprocal relu relu6 round "
    "rsqrt selu sigmoid silu sin softplus sqrt square tanh threshold where topoplan.gelu topoplan.silu"
)
#: Other functions of all elements along axes; what they need beside a sum is one number each.
_NORMS = ("linalg_vector_norm", "logsumexp", "norm", "prod", "std", "var")


def _function(call: Call) -> Sequence[Layout]:
    """Return a function of one computed tensor; constants beside it are not counted."""
    views = [view for view in _computed(call) if not view.parameter]
    if len(views) != 1 or views[0].shape != call.shape:
        return _arithmetic(call)
    return [_of_one(call, call.operator.removeprefix("topoplan."), views[0])]


def _of_one(call: Call, kind: str, x: Layout) -> Layout:
    """Apply a function to the tensor that a view shows, and look at the result in the same way."""
    x = call.made_plain(x) if x.repeats or x.split() is None else x
    output = call.emit(pointwise.elementwise(kind, [x.handle]), [x.base])[0]
    return x.on(output.handle, output.sample)


def _computed(call: Call) -> list[Layout]:
    """Return the operands that are computed or parameters."""
    views = [call.graph.layouts[name] for name in call.node.reads if name in call.graph.layouts]
    return [view for view in views if not view.constant]


def _arithmetic(call: Call) -> Sequence[Layout]:
    """Return arithmetic of two tensors, or of one and a number or constant."""
    kind = _ARITHMETIC.get(call.operator, call.operator.removeprefix("topoplan."))
    views = _computed(call)
    if len(views) == 1 and views[0].shape == call.shape and not views[0].parameter:
        return [_of_one(call, _WITH_NUMBER.get(kind, kind), views[0])]
    tensors = [view for view in views if not view.parameter]
    of_parameters = bool(views) and not tensors
    if of_parameters:  # a weight is computed, of weights alone
        tensors = views
    if not any(view.shape == call.shape for view in tensors) and len(views) == 1:  # a constant says how often to repeat
        views = tensors = [call.graph.layouts[name] for name in call.node.reads]
    if len(tensors) > 2 or not tensors:
        raise UntranslatedError(f"{len(tensors)} computed operands")
    if len(views) == 2 and len(tensors) == 2 and _alike(*views):
        output = call.emit(
            pointwise.elementwise(kind, [view.handle for view in views]),
            [view.base for view in views],
        )[0]
        return [views[0].on(output.handle, output.sample)]
    rank = len(call.shape)
    tensors = sorted(tensors, key=lambda view: view.shape != call.shape)
    inputs = call.in_one_order([_of_rank(view, rank) for view in tensors])
    places = [inputs[0].follows(axis) for axis in range(rank)]
    order = list(range(rank)) if -1 in places else sorted(range(rank), key=lambda axis: places[axis])
    weights = [
        call.made_plain(_of_rank(view, rank).without_repeats().permuted(order))
        for view in views
        if view.parameter and not of_parameters
    ]
    sizes = [max(axis) for axis in zip(*(view.handle.shape for view in (*inputs, *weights)), strict=True)]
    if tuple(sizes) != tuple(call.shape[k] for k in order):
        raise UntranslatedError(f"an operand that is repeated to {call.shape}")
    operator = pointwise.elementwise(kind, [view.handle for view in inputs], [view.handle for view in weights])
    output = call.emit(operator, [view.base for view in inputs], weights)[0]
    return [output.permuted([order.index(axis) for axis in range(rank)])]


def _of_rank(view: Layout, rank: int) -> Layout:
    """Return a view with leading axes of size 1."""
    return attrs.evolve(view, axes=((),) * (rank - len(view.axes)) + view.axes)


def _alike(first: Layout, second: Layout) -> bool:
    """Whether two views look at tensors of one shape in one way."""
    return (
        first.handle.shape == second.handle.shape
        and first.axes == second.axes
        and not first.repeats
        and first.split() is not None
    )


def _reduction(call: Call) -> Sequence[Layout]:
    """Return the mean, sum or largest element over axes."""
    x = call.plain("self", "input")
    rank = len(x.shape)
    dims = call.argument("dim")
    dims = tuple(range(rank)) if dims in (None, ()) else dims if isinstance(dims, tuple) else (dims,)
    axes = {dim % rank for dim in dims if isinstance(dim, int)}
    output = call.emit(_reduced(call.operator, x.handle, axes), [x])[0]
    shape = output.reshaped(call.shape)
    if shape is None:
        raise UntranslatedError(f"shape {call.shape}")
    return [shape]


def _reduced(kind: str, x: Handle, axes: set[int]) -> Operator:
    """Return a sum or mean of ``x`` over axes, or another function of them, which then cannot be cut."""
    if kind in reductions.REDUCTIONS:
        return reductions.reduced(kind, x, sorted(axes))
    operator = reductions.reduced("sum", x, sorted(axes))
    dims = tuple(Dimension(dim.name, dim.size) if k in axes else dim for k, dim in enumerate(operator.dims))
    return attrs.evolve(operator, kind=kind, dims=dims, linear_in=())


def _squared_error(call: Call) -> Sequence[Layout]:
    """Return the sum over all elements of what two tensors differ by."""
    x = call.plain("self")
    if math.prod(call.shape) != 1:
        return _arithmetic(call)
    return call.emit(_reduced(call.operator, x.handle, set(range(len(x.shape)))), [x])


ELEMENTWISE: Mapping[str, Callable[[Call], Sequence[Layout]]] = {
    **dict.fromkeys(_FUNCTIONS.split(), _function),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(("maximum", "minimum", "lerp", "addcmul"), _arithmetic),
    **dict.fromkeys(("mean", "sum", "amax", "amin", *_NORMS), _reduction),
    **dict.fromkeys(
        ("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
        _squared_error,
    ),
}
