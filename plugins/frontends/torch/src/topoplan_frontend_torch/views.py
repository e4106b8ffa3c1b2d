"""ATen operators that move no element: views, transposes, repetitions, parts, and what puts parts together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from topoplan_frontend_torch.calls import Call, UntranslatedError
from topoplan_frontend_torch.layouts import Layout
from topoplan_operators import pointwise, shaping

__all__ = ["VIEWS"]


def _view(call: Call) -> Sequence[Layout]:
    """Return another shape; where it cannot be looked at so, the tensor is put in order first."""
    x = call.view("self")
    looked_at = x.reshaped(call.shape)
    if looked_at is None:
        looked_at = call.made_plain(x).reshaped(call.shape)
    if looked_at is None:
        plain = call.made_plain(x)
        sample = -1 if plain.sample is None else plain.sample
        return call.emit(shaping.view(plain.handle, call.shape, sample=sample), [plain])
    return [looked_at]


def _transpose(call: Call) -> Sequence[Layout]:
    x = call.view("self")
    rank = len(x.shape)
    order = list(range(rank))
    first, second = (
        (0, rank - 1)
        if rank < 2
        else (call.axis(name, rank=rank, default=k) for k, name in enumerate(("dim0", "dim1")))
    )
    order[first], order[second] = order[second], order[first]
    return [x.permuted(order)]


def _permute(call: Call) -> Sequence[Layout]:
    x = call.view("self")
    rank = len(x.shape)
    return [x.permuted([axis % rank for axis in call.integers("dims", count=rank)])]


def _unsqueeze(call: Call) -> Sequence[Layout]:
    x = call.view("self")
    return [x.unsqueezed(call.axis("dim", rank=len(x.shape) + 1))]


def _expand(call: Call) -> Sequence[Layout]:
    return [call.view("self").expanded(call.shape)]


def _part(call: Call, x: Layout, axis: int, start: int, stop: int, step: int = 1) -> Layout:
    """Return elements of an axis from ``start`` to before ``stop``."""
    x = call.followed(x, axis)
    base = x.follows(axis)
    if base < 0:
        raise UntranslatedError("a part of an axis of size 1")
    operator = shaping.sliced(x.handle, base, start, stop, step)
    output = call.emit(operator, [x.base])[0]
    return x.on(output.handle, output.sample)


def _slice(call: Call) -> Sequence[Layout]:
    x = call.view("self")
    axis = call.axis("dim", rank=len(x.shape), default=0)
    size, step = x.shape[axis], call.integer("step", default=1)
    start, stop = (call.argument(name) for name in ("start", "end"))
    first, last, _ = slice(
        start if isinstance(start, int) else None, stop if isinstance(stop, int) else None, step
    ).indices(size)
    return [_part(call, x, axis, first, last, step)]


def _narrow(call: Call) -> Sequence[Layout]:
    x = call.view("self")
    axis, start = call.axis("dim", rank=len(x.shape)), call.integer("start")
    return [_part(call, x, axis, start, start + call.integer("length"))]


def _select(call: Call) -> Sequence[Layout]:
    x = call.view("self")
    axis = call.axis("dim", rank=len(x.shape))
    part = x if x.shape[axis] == 1 else _one(call, x, axis, call.integer("index") % x.shape[axis])
    dropped = part.reshaped(call.shape)
    return [dropped if dropped is not None else _must(call.made_plain(part).reshaped(call.shape))]


def _one(call: Call, x: Layout, axis: int, index: int) -> Layout:
    return _part(call, x, axis, index, index + 1)


def _must(layout: Layout | None) -> Layout:
    if layout is None:
        raise UntranslatedError("a view")
    return layout


def _split(call: Call) -> Sequence[Layout]:
    """Return parts side by side, equal or not."""
    x = call.view("self")
    axis = call.axis("dim", rank=len(x.shape), default=0)
    x = call.followed(x, axis)
    sizes = [shape[axis] for shape in call.shapes]
    if sum(sizes) != x.shape[axis]:
        raise UntranslatedError("parts that are not all of a tensor")
    operator = shaping.split(x.handle, sizes, x.follows(axis))
    return [x.on(output.handle, output.sample) for output in call.emit(operator, [x.base])]


def _unbind(call: Call) -> Sequence[Layout]:
    x = call.view("self")
    axis = call.axis("dim", rank=len(x.shape), default=0)
    x = call.followed(x, axis)
    operator = shaping.split(x.handle, [1] * x.shape[axis], x.follows(axis))
    output = call.emit(operator, [x.base])
    return [_must(x.on(each.handle, each.sample).reshaped(call.shape)) for each in output]


def _cat(call: Call) -> Sequence[Layout]:
    views = [view for view in call.views("tensors") if 0 not in view.shape]
    axis = call.axis("dim", rank=len(call.shape), default=0)
    if len(views) == 1:
        return views
    return _side_by_side(call, views, axis)


def _stack(call: Call) -> Sequence[Layout]:
    """Return tensors along a new axis: side by side along the one behind it, which is then looked at as two."""
    views = call.views("tensors")
    axis = call.axis("dim", rank=len(call.shape), default=0)
    if axis == len(call.shape) - 1:
        return _side_by_side(call, [view.unsqueezed(axis) for view in views], axis)
    joined = _side_by_side(call, [call.made_plain(view) for view in views], axis)[0]
    return [_must(joined.reshaped(call.shape))]


def _side_by_side(call: Call, views: Sequence[Layout], axis: int) -> Sequence[Layout]:
    tokens = [view for view in views if view.parameter]
    if (
        tokens
        and len(views) == 2
        and views[0].parameter
        and len(call.shape) == 3
        and axis == 1
        and views[0].shape[1] == 1
    ):
        x, token = call.made_plain(views[1]), call.made_plain(views[0].without_repeats())
        return call.emit(shaping.append_token(x.handle), [x], [token])
    if tokens:
        views = [call.made_plain(view) for view in views]
    views = call.in_one_order(views)
    base = views[0].follows(axis)
    if base < 0:  # parts of one element each
        views = [call.made_plain(view) for view in views]
        base = axis
    sample = next((view.sample for view in views if view.sample is not None), -1)
    operator = pointwise.concat([view.handle for view in views], base, sample=sample)
    output = call.emit(operator, [view.base for view in views])[0]
    return [views[0].on(output.handle, output.sample)]


VIEWS: Mapping[str, Callable[[Call], Sequence[Layout]]] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze"), _view),
    **dict.fromkeys(("transpose", "t", "swapaxes", "numpy_T"), _transpose),
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    "slice": _slice,
    "narrow": _narrow,
    "select": _select,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split"), _split),
    "unbind": _unbind,
    **dict.fromkeys(("cat", "concat", "topoplan.cat"), _cat),
    "stack": _stack,
}
