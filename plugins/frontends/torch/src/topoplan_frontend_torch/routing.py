"""Experts that tokens are sent to without padding: gather tokens by expert, multiply group by group, put them back.

transformers 5 sorts the tokens by their experts, and multiplies each group with the weights of its expert
(`grouped_mm`).  Which token goes where depends on data.  A plan assumes that every expert gets its even share, and that
each device routes its own samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_frontend_torch.calls import Call, UntranslatedError
from topoplan_frontend_torch.layouts import Layout
from topoplan_frontend_torch.program import Ref
from topoplan_frontend_torch.separating import GROUPED
from topoplan_operators import Handle, products
from topoplan_operators import tokens as routes

__all__ = ["ROUTING"]


def _index(call: Call) -> Sequence[Layout]:
    """Return elements that constant indices name: rows, as when tokens are sorted by expert, or elements of samples."""
    indices = call.argument("indices")
    if not isinstance(indices, tuple) or not all(item is None or isinstance(item, Ref) for item in indices):
        raise UntranslatedError("indices that are no values")
    views = [call.graph.layouts[item.name] if isinstance(item, Ref) else None for item in indices]
    if any(view is not None and not view.constant for view in views):
        raise UntranslatedError("computed indices")
    if len(views) == 1 and views[0] is not None:
        return _moved(call, call.plain("self"), views[0], "gather")
    return _picked(call, call.plain("self"), [axis for axis, view in enumerate(views) if view is not None])


def _picked(call: Call, x: Layout, axes: Sequence[int]) -> Sequence[Layout]:
    """Return elements that indices of adjacent ``axes`` name; the axes before and after stay as they are."""
    first, rank, after = axes[0], len(x.shape), len(x.shape) - len(axes) - axes[0]
    if list(axes) != list(range(first, first + len(axes))):
        raise UntranslatedError("indices of axes that are apart")
    axes_kept = [*range(first), *range(rank - after, rank)]
    places = [*range(first), *range(len(call.shape) - after, len(call.shape))]
    number = {axis: k for k, axis in enumerate(axes_kept)}
    target = {axis: k for k, axis in enumerate(places)}
    operator = Operator(
        name="",
        kind="gather",
        dims=tuple(Dimension(f"a{axis}", x.shape[axis], Role.ATTRIBUTE) for axis in axes_kept),
        inputs=(
            Tensor("x", tuple(Axis(size, number.get(k, -1)) for k, size in enumerate(x.shape)), x.handle.itemsize),
        ),
        outputs=(
            Tensor("y", tuple(Axis(size, target.get(k, -1)) for k, size in enumerate(call.shape)), x.handle.itemsize),
        ),
        linear_in=((0,),),
    )
    return call.emit(operator, [x])


def _index_select(call: Call) -> Sequence[Layout]:
    if call.integer("dim") != 0:
        raise UntranslatedError("indices of another axis than the first")
    return _moved(call, call.plain("self"), call.view("index"), "gather")


def _index_add(call: Call) -> Sequence[Layout]:
    """Return rows added up where constant indices say, in a tensor that was empty."""
    if call.argument("dim", default=0) != 0 or not call.view("self").constant:
        raise UntranslatedError("rows that are added to a computed tensor")
    return _moved(call, call.plain("source", "src"), call.view("index"), "scatter")


def _moved(call: Call, x: Layout, index: Layout, kind: str) -> Sequence[Layout]:
    rows, output_rows = x.shape[0], call.shape[0]
    if not index.constant or len(index.shape) != 1 or call.shape[1:] != x.shape[1:] or x.sample != 0:
        raise UntranslatedError("computed indices, or rows that are no samples")
    groups = math.gcd(rows, output_rows)
    dims = (
        Dimension("n", groups, Role.SAMPLE),
        *(Dimension(f"a{k}", size, Role.ATTRIBUTE) for k, size in enumerate(x.shape[1:], 1)),
    )

    def tensor(name: str, shape: Sequence[int]) -> Tensor:
        each = shape[0] // groups
        inner_axes = tuple(Axis(size, k) for k, size in enumerate(shape[1:], 1))
        return Tensor(name, (Axis(shape[0], 0, scale=each, extent=each), *inner_axes), x.handle.itemsize)

    operator = Operator(
        name="",
        kind=kind,
        dims=dims,
        inputs=(tensor("x", x.shape),),
        outputs=(tensor("y", call.shape),),
        linear_in=((0,),),
    )
    return call.emit(operator, [x])


def _dispatch(call: Call) -> Sequence[Layout]:
    """Return the tokens in the slots of their experts, as many for each as its even share."""
    x, chosen = call.view("self"), call.graph.chosen
    rows, channels = call.shape
    samples, experts = call.graph.batch_size, call.integer("experts")
    tokens = x.reshaped((samples, x.shape[0] // samples, channels)) if x.shape[0] % samples == 0 else None
    if tokens is None or not tokens.is_plain or rows % (samples * experts) or chosen is None:
        return _index(call)
    slots = rows // (samples * experts)
    operator = routes.dispatch(tokens.handle, chosen.handle, experts, slots)
    output = call.emit(operator, [tokens, chosen])[0].reshaped(call.shape)
    return [output] if output is not None else _index(call)


def _combine(call: Call) -> Sequence[Layout]:
    """Return for each token the sum of the answers of its experts, weighed."""
    answers, gates, chosen = call.view("self"), call.view("gates"), call.graph.chosen
    slots = _in_slots(answers)
    weights = None if chosen is None else gates.reshaped(chosen.shape)
    if chosen is None or slots is None or weights is None or not weights.is_plain:
        raise UntranslatedError("answers of experts that are in no slots")
    operator = routes.combine(slots.handle, weights.handle, chosen.handle)
    output = call.emit(operator, [slots, weights, chosen])[0].reshaped(call.shape)
    if output is None:
        raise UntranslatedError(f"tokens of shape {call.shape}")
    return [output]


def _in_slots(x: Layout) -> Layout | None:
    """Return the tensor (samples, experts, slots, channels) that rows are a view on, if they are."""
    view = x.reshaped(x.handle.shape) if len(x.handle.shape) == 4 else None
    return view if view is not None and view.is_plain else None


def _grouped_product(call: Call) -> Sequence[Layout]:
    slots = _in_slots(call.view("input", "self", "mat_a"))
    experts = call.view("weight", "mat2", "mat_b")
    if slots is not None and experts.parameter and len(experts.shape) == 3 and slots.shape[1] == experts.shape[0]:
        weight = call.made_plain(experts)
        operator = products.einsum("beci,eio->beco", [slots.handle], [weight.handle], sample="b", kind="expert_linear")
        output = call.emit(operator, [slots], [weight])[0].reshaped(call.shape)
        if output is not None:
            return [output]
    x, weight = call.plain("input", "self", "mat_a"), call.view("weight", "mat2", "mat_b")
    if not weight.parameter or len(weight.shape) != 3 or len(x.shape) != 2 or weight.shape[1] != x.shape[1]:
        raise UntranslatedError(f"a grouped product of {x.shape} and {weight.shape}")
    return call.emit(_grouped(x.handle, weight.shape[0], weight.shape[2]), [x], [call.made_plain(weight)])


def _grouped(x: Handle, experts: int, out: int) -> Operator:
    """Return each row of ``x`` (rows, channels) times the matrix of its expert.

    Dimensions: ``n`` rows, ``e`` experts, ``o`` output channels, ``i``.  A part with some experts has zeros in the rows
    of the others, so that experts are a reduction.
    """
    rows, channels = x.shape
    n, e, o, i = range(4)
    return Operator(
        name="",
        kind="grouped_linear",
        dims=(
            Dimension("n", rows, Role.SAMPLE),
            Dimension("e", experts, Role.REDUCTION),
            Dimension("o", out, Role.PARAMETER),
            Dimension("i", channels, Role.REDUCTION),
        ),
        inputs=(Tensor("x", (Axis(rows, n), Axis(channels, i)), x.itemsize),),
        weights=(Tensor("kernel", (Axis(experts, e), Axis(channels, i), Axis(out, o))),),
        outputs=(Tensor("y", (Axis(rows, n), Axis(out, o)), x.itemsize),),
        work=(Term(2 / experts, (n, e, o, i)),),
        linear_in=((0,), (1,)),
    )


ROUTING: Mapping[str, Callable[[Call], Sequence[Layout]]] = {
    "index": _index,
    "index_select": _index_select,
    "index_add": _index_add,
    "topoplan.dispatch": _dispatch,
    "topoplan.combine": _combine,
    **dict.fromkeys(GROUPED, _grouped_product),
}
