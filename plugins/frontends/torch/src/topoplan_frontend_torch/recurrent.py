"""Recurrent layers as ATen has them: all layers and directions in one call, and single steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from topoplan import Operator, Tensor
from topoplan.model.graph import Axis, Dimension, Role
from topoplan_frontend_torch.calls import Call, UntranslatedError
from topoplan_frontend_torch.layouts import Layout
from topoplan_operators import Handle, pointwise, recurrent
from topoplan_operators.recurrent import GATES, Recurrence

__all__ = ["RECURRENT"]


def _layers(call: Call) -> Sequence[Layout]:
    """Return the answers of the last layer, and the last states of all: an operator a layer and direction.

    Dropout between layers is left out: it costs what one pass over the answers does.
    """
    if call.node.target.endswith(".data"):
        raise UntranslatedError("packed sequences")
    kind = call.operator.split("_")[0]
    x, weights = call.plain("input"), call.views("params")
    if len(x.shape) != 3:
        raise UntranslatedError(f"an input of {len(x.shape)} axes")
    sample = 0 if call.argument("batch_first") else 1
    directions = 2 if call.argument("bidirectional") else 1
    count = call.integer("num_layers")
    bias = bool(call.argument("has_biases"))
    each = len(weights) // (count * directions)
    states = [state for state in _states(call) if not state.constant]
    lasts: list[list[Layout]] = []
    for layer in range(count):
        answers = []
        for direction in range(directions):
            first = (layer * directions + direction) * each
            layer_weights = weights[first : first + each]
            sizes = _sizes(kind, layer_weights, bias)
            operator = recurrent.recurrent(x.handle, sizes, sample=sample, states=[state.handle for state in states])
            answer, *last = call.emit(operator, [x, *states], layer_weights)
            answers.append(answer)
            lasts.append(last)
        x = answers[0] if directions == 1 else _side_by_side(call, answers)
    ends = [
        _stacked(call, states_of_one) if _is_read(call, name) else _unread(call, name)
        for name, states_of_one in zip(call.node.outputs[1:], zip(*lasts, strict=True), strict=True)
    ]
    return [x, *ends]


def _sizes(kind: str, weights: Sequence[Layout], bias: bool) -> Recurrence:
    """Return the sizes of a layer from its weights."""
    rows, channels = weights[0].shape
    projected = weights[-1].shape[0] if len(weights) > (4 if bias else 2) else 0
    return Recurrence(kind=kind, channels=channels, hidden=rows // GATES[kind], projected=projected, bias=bias)


def _states(call: Call) -> list[Layout]:
    """Return the first states: two for an LSTM, one for others."""
    states = call.views("hx") if isinstance(call.argument("hx"), tuple) else [call.view("hx")]
    return [state if state.constant else call.made_plain(state) for state in states]


def _side_by_side(call: Call, answers: Sequence[Layout]) -> Layout:
    sample = answers[0].sample
    operator = pointwise.concat([each.handle for each in answers], 2, sample=-1 if sample is None else sample)
    return call.emit(operator, answers)[0]


def _is_read(call: Call, name: str) -> bool:
    program = call.program
    return name in program.outputs or any(name in node.reads for node in program.nodes)


def _unread(call: Call, name: str) -> Layout:
    return Layout.of(Handle(call.program.values[name].shape), constant=True)


def _stacked(call: Call, states: Sequence[Layout]) -> Layout:
    """Return (layers and directions, samples, channels) of a tensor for each."""
    samples, channels = states[0].shape
    operator = Operator(
        name="",
        kind="stack",
        dims=(Dimension("n", samples, Role.SAMPLE), Dimension("c", channels, Role.ATTRIBUTE)),
        inputs=tuple(
            Tensor(f"x{k}", (Axis(samples, 0), Axis(channels, 1)), state.handle.itemsize)
            for k, state in enumerate(states)
        ),
        outputs=(Tensor("y", (Axis(len(states)), Axis(samples, 0), Axis(channels, 1)), states[0].handle.itemsize),),
        linear_in=(tuple(range(len(states))),),
    )
    return call.emit(operator, states)[0]


def _cell(call: Call) -> Sequence[Layout]:
    """Return one step."""
    kind = call.operator.split("_")[0]
    x, bias = call.plain("input"), call.has("b_ih")
    names = ("w_ih", "w_hh", *(("b_ih", "b_hh") if bias else ()))
    weights = [call.view(name) for name in names]
    states = [state for state in _states(call) if not state.constant]
    operator = recurrent.cell(x.handle, _sizes(kind, weights, bias), states=[state.handle for state in states])
    return call.emit(operator, [x, *states], weights)


RECURRENT: Mapping[str, Callable[[Call], Sequence[Layout]]] = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _layers),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _cell),
}
