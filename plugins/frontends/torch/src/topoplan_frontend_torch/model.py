"""A program to an operator graph: every call is translated, or planned as a whole where the algebra has nothing for it.

A call that is planned as a whole is *opaque*: only samples cut it, and only its bytes cost time.  One warning counts
these calls; with ``strict`` the first of them is an error.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection

import attrs

from topoplan import Operator, OperatorGraph, TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan.model.graph import Axis, Dimension, Role, Tensor
from topoplan_frontend_torch.calls import Call, Construction, UntranslatedError
from topoplan_frontend_torch.elementwise import ELEMENTWISE
from topoplan_frontend_torch.fusing import fuse
from topoplan_frontend_torch.layouts import Layout
from topoplan_frontend_torch.operators import TRANSLATIONS
from topoplan_frontend_torch.program import Program
from topoplan_frontend_torch.simplify import simplify
from topoplan_frontend_torch.views import VIEWS
from topoplan_frontend_torch.without_products import WITHOUT_PRODUCTS
from topoplan_operators import Handle

__all__ = ["graph_of"]

#: Operators that the warning names.
_NAMED = 5


def graph_of(program: Program, *, strict: bool) -> OperatorGraph:
    """Return the operator graph of a program.

    Args:
        program: as it was exported.
        strict: refuse a call that would be opaque.

    Raises:
        TopoplanError: nothing is computed, or ``strict`` and a call is opaque; the message names operator and place.
    """
    program = fuse(simplify(program))
    if not program.nodes:
        raise TopoplanError(
            f"frontend torch: model {program.name!r} returns nothing that depends on parameters or on floating inputs"
        )
    graph, opaque = _constructed(program, (), strict=strict)
    if graph.unheld:
        graph, opaque = _constructed(program, graph.unheld, strict=strict)
    if opaque:
        _warn(program, opaque)
    return graph.build()


def _constructed(program: Program, at_once: Collection[str], *, strict: bool) -> tuple[Construction, Counter[str]]:
    """Translate all calls; see `graph_of`, and `Construction` for ``at_once``; how many calls of each are opaque."""
    graph = Construction(program, _batch_size(program), at_once)
    opaque: Counter[str] = Counter()
    for node in program.nodes:
        call = Call(node, program, graph)
        try:
            translation = TRANSLATIONS.get(call.operator)
            if translation is None:
                raise UntranslatedError("the algebra has no such operator")
            outputs = translation(call)
        except (UntranslatedError, TopoplanError) as error:
            if strict:
                place = " in ".join(filter(None, (node.where, node.path)))
                raise TopoplanError(f"frontend torch: strict: {node.target} at {place or node.name}: {error}") from None
            opaque[call.operator] += 1
            outputs = _opaque(call)
        graph.look(node, outputs)
    return graph, opaque


def _batch_size(program: Program) -> int:
    """Return the samples: the first size of the first input that has axes."""
    shapes = [program.values[name].shape for name in program.inputs]
    return next((shape[0] for shape in shapes if shape), 1)


def _warn(program: Program, opaque: Counter[str]) -> None:
    words = [f"{count} x {name}" for name, count in opaque.most_common(_NAMED)]
    more = "" if len(opaque) <= _NAMED else f" and {len(opaque) - _NAMED} more"
    warnings.warn(
        TopoplanWarning(
            f"model {program.name!r}: {sum(opaque.values())} of {len(program.nodes)} calls are planned as a whole: cut "
            f"by samples alone, with no FLOPs ({', '.join(words)}{more}; -o strict=true refuses them)"
        ),
        stacklevel=2,
    )


def _opaque(call: Call) -> list[Layout]:
    """Add an operator that only samples cut, if it seems to keep them, and whose work is not known."""
    views = [call.graph.layouts[name] for name in dict.fromkeys(call.node.reads) if name in call.graph.layouts]
    views = [call.made_plain(view) for view in views if not view.constant]
    inputs, weights = [view for view in views if not view.parameter], [view for view in views if view.parameter]
    shapes = call.shapes
    samples = next((view.shape[0] for view in inputs if view.sample == 0), 0)
    cut = bool(samples) and all(shape and shape[0] == samples for shape in shapes)
    dims = (Dimension("n", samples, Role.SAMPLE),) if cut else ()

    def tensor(name: str, shape: tuple[int, ...], itemsize: int, follows: bool) -> Tensor:
        axes = tuple(Axis(size, 0 if follows and k == 0 else -1) for k, size in enumerate(shape))
        return Tensor(name, axes, itemsize)

    operator = Operator(
        name="",
        kind=call.operator.replace(".", "_"),
        dims=dims,
        tags={} if call.operator in (WITHOUT_PRODUCTS | {*ELEMENTWISE, *VIEWS}) else {"flops": "unknown"},
        inputs=tuple(tensor(f"x{k}", x.shape, x.handle.itemsize, cut and x.sample == 0) for k, x in enumerate(inputs)),
        weights=tuple(tensor(f"w{k}", x.shape, x.handle.itemsize, False) for k, x in enumerate(weights)),
        outputs=tuple(tensor(f"y{k}", shape, Handle(shape).itemsize, cut) for k, shape in enumerate(shapes)),
    )
    outputs = call.emit(operator, inputs, weights)
    return [attrs.evolve(layout, sample=0 if cut else None) for layout in outputs]
