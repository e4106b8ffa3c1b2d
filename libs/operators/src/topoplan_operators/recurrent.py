"""Recurrent layers: LSTM, GRU and plain ones, a layer and direction at a time.

A step needs the one before, so that positions cannot be cut, and every step reads the recurrent weights again.  Gates
mix all hidden channels: these are not cut either, and samples alone are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_operators.handle import Handle

__all__ = ["GATES", "Recurrence", "cell", "recurrent"]

#: Kind of layer -> gates, each of which is a product of input and state.
GATES: Mapping[str, int] = MappingProxyType({"lstm": 4, "gru": 3, "rnn": 1})


@attrs.frozen(kw_only=True)
class Recurrence:
    """Sizes of a layer.

    Attributes:
        kind: of `GATES`.
        channels: of the input.
        hidden: channels of the state.
        projected: channels that an LSTM's answers are projected to (LSTMP: Sak et al., 2014); 0 for none.
        bias: whether both products have a bias.
    """

    kind: str
    channels: int
    hidden: int
    projected: int = 0
    bias: bool = True

    @property
    def answers(self) -> int:
        """Channels of an answer, which the next step reads."""
        return self.projected or self.hidden

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Weights in PyTorch's order: of the input, of the state, their biases, of the projection."""
        rows = GATES[self.kind] * self.hidden
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, self.channels), "weight_hh": (rows, self.answers)}
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.projected:
            shapes["weight_hr"] = (self.projected, self.hidden)
        return tuple(Tensor(name, tuple(map(Axis, shape))) for name, shape in shapes.items())

    @property
    def flops(self) -> int:
        """FLOPs of the products of a step of a sample."""
        gates = 2 * GATES[self.kind] * self.hidden * (self.channels + self.answers)
        return gates + 2 * self.hidden * self.projected


def recurrent(x: Handle, sizes: Recurrence, *, sample: int = 0, states: Sequence[Handle] = ()) -> Operator:
    """Return a layer in one direction: answers of all steps, the last answer, and the last cell of an LSTM.

    Dimensions: ``n`` samples, ``t`` steps.  FLOPs are those of the products alone.

    Args:
        x: (samples, steps, channels), or steps first.
        sizes: of the layer.
        sample: axis of the samples, 0 or 1.
        states: (layers, samples, channels) of the first step, where they are computed.

    >>> layer = recurrent(Handle((2, 5, 8)), Recurrence(kind="lstm", channels=8, hidden=16))
    >>> [tensor.shape for tensor in layer.outputs], sum(weight.elements for weight in layer.weights)
    ([(2, 5, 16), (2, 16), (2, 16)], 1664)
    """
    if len(x.shape) != 3 or x.shape[2] != sizes.channels:
        raise TopoplanError(f"{sizes.kind}: input of shape {x.shape} is not samples, steps and {sizes.channels}")
    samples, steps, n, t = x.shape[sample], x.shape[1 - sample], 0, 1
    outer = (Axis(samples, n), Axis(steps, t)) if sample == 0 else (Axis(steps, t), Axis(samples, n))
    rows = GATES[sizes.kind] * sizes.hidden
    hidden_weights = [weight for weight in sizes.weights if weight.name in ("weight_hh", "weight_hr")]
    last = {"h": sizes.answers} | ({"c": sizes.hidden} if sizes.kind == "lstm" else {})
    return Operator(
        name="",
        kind=sizes.kind,
        dims=(Dimension("n", samples, Role.SAMPLE), Dimension("t", steps)),
        inputs=(Tensor("x", (*outer, Axis(sizes.channels)), x.itemsize), *_states(states)),
        weights=sizes.weights,
        outputs=(
            Tensor("y", (*outer, Axis(sizes.answers)), x.itemsize),
            *(Tensor(name, (Axis(samples, n), Axis(size)), x.itemsize) for name, size in last.items()),
        ),
        work=(Term(sizes.flops, (n, t)),),
        traffic=(
            Term(x.itemsize * (sizes.channels + sizes.answers + 2 * rows), (n, t)),
            Term(sum(weight.nbytes for weight in sizes.weights[:1]), ()),
            Term(sum(weight.nbytes for weight in hidden_weights), (t,)),
        ),
        extras=(Tensor("gates", (*outer, Axis(rows)), x.itemsize),),
    )


def cell(x: Handle, sizes: Recurrence, *, states: Sequence[Handle] = ()) -> Operator:
    """Return one step: the answer, and the cell of an LSTM.

    Args:
        x: (samples, channels).
        sizes: of the layer.
        states: (samples, channels) of the step before, where they are computed.
    """
    if len(x.shape) != 2 or x.shape[1] != sizes.channels:
        raise TopoplanError(f"{sizes.kind}: input of shape {x.shape} is not samples and {sizes.channels}")
    last = {"h": sizes.hidden} | ({"c": sizes.hidden} if sizes.kind == "lstm" else {})
    samples, rows = x.shape[0], GATES[sizes.kind] * sizes.hidden
    return Operator(
        name="",
        kind=f"{sizes.kind}_cell",
        dims=(Dimension("n", samples, Role.SAMPLE),),
        inputs=(
            Tensor("x", (Axis(samples, 0), Axis(sizes.channels)), x.itemsize),
            *(
                Tensor(f"state{k}", (Axis(samples, 0), Axis(state.shape[1])), state.itemsize)
                for k, state in enumerate(states)
            ),
        ),
        weights=sizes.weights,
        outputs=tuple(Tensor(name, (Axis(samples, 0), Axis(size)), x.itemsize) for name, size in last.items()),
        work=(Term(sizes.flops, (0,)),),
        extras=(Tensor("gates", (Axis(samples, 0), Axis(rows)), x.itemsize),),
    )


def _states(states: Sequence[Handle]) -> list[Tensor]:
    return [
        Tensor(f"state{k}", (Axis(state.shape[0]), Axis(state.shape[1], 0), Axis(state.shape[2])), state.itemsize)
        for k, state in enumerate(states)
    ]
