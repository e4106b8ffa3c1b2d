"""Parts that several models are made of, and the builder that names them by their modules.

Tensors are (samples, positions, channels); heads lie in the channels, one behind the other, so that no view stands
between a projection and what works on its heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from topoplan import Operator, Tensor
from topoplan.model.graph import Axis
from topoplan_frontend_huggingface.sizes import Norms
from topoplan_operators import GraphBuilder, Handle, attention, dense, normalization, pointwise
from topoplan_operators.heads import flat_heads
from topoplan_operators.losses import cross_entropy

__all__ = ["INDEX", "Blocks", "cross_entropy", "learned_positions"]

#: Bytes of an index of a word or class.
INDEX = 8


@attrs.frozen
class Blocks:
    """Adds operators whose names begin with the path of a module."""

    builder: GraphBuilder
    path: str = ""

    def within(self, module: str) -> Blocks:
        """Return this for a module inside."""
        return Blocks(self.builder, self._name(module))

    def _name(self, module: str) -> str:
        return f"{self.path}.{module}" if self.path else module

    def add(self, operator: Operator, xs: Sequence[Handle], module: str) -> list[Handle]:
        """Add an operator on tensors, and return its outputs."""
        return self.builder.append(operator, xs, self._name(module))

    def linear(self, x: Handle, out: int, module: str, *, bias: bool = False) -> Handle:
        """Multiply the channels by a matrix."""
        return self.add(dense.linear(x, out, bias=bias, activation=False), [x], module)[0]

    def scores(self, x: Handle, experts: int, module: str, *, bias: bool, buffers: int) -> Handle:
        """Score the experts for each position, which no FLOPs a token count; buffers are numbers without gradient."""
        operator = dense.linear(x, experts, bias=bias, activation=False)
        tags = {"router": "yes"} | ({"buffers": str(buffers)} if buffers else {})
        return self.add(attrs.evolve(operator, tags={**operator.tags, **tags}), [x], module)[0]

    def tied_linear(self, x: Handle, out: int, module: str, *, bias: bool = False, of: str = "table") -> Handle:
        """Multiply the channels by a matrix that another operator has in memory and reduces; it is an input here.

        Args:
            x: the channels.
            out: channels of the answer.
            module: name of the operator.
            bias: whether it has a bias of its own.
            of: what the other operator calls the matrix: ``table`` of words, or ``kernel`` of a head.
        """
        return self._tied(dense.linear(x, out, bias=bias, activation=False), x, module, of)

    def tied_words(self, tokens: Handle, rows: int, width: int, module: str) -> Handle:
        """Look up a row for each position in a table that another operator has."""
        return self._tied(dense.token_embedding(tokens, rows, width), tokens, module, "table")

    def _tied(self, operator: Operator, x: Handle, module: str, of: str) -> Handle:
        """Add an operator whose first weight is that of another one."""
        table, *biases = operator.weights
        shared = attrs.evolve(
            operator,
            inputs=(*operator.inputs, attrs.evolve(table, name=of)),
            weights=tuple(biases),
            tags={**operator.tags, "shared": of},
        )
        return self.add(shared, [x], module)[0]

    def words(self, tokens: Handle, rows: int, width: int, module: str) -> Handle:
        """Look up a row of a table for each position."""
        return self.add(dense.token_embedding(tokens, rows, width), [tokens], module)[0]

    def rms_norm(self, x: Handle, module: str) -> Handle:
        """Give channels mean square 1."""
        return self.add(normalization.rms_norm(x), [x], module)[0]

    def layer_norm(self, x: Handle, module: str) -> Handle:
        """Give channels mean 0 and variance 1."""
        return self.add(normalization.layer_norm(x), [x], module)[0]

    def normalize(self, x: Handle, module: str, norms: Norms) -> Handle:
        """Give channels mean square 1, or mean 0 and variance 1, with the scale and the bias of a family."""
        if not norms.mean:
            return self.rms_norm(x, module)
        operator = normalization.layer_norm(x)
        parts = {"weight": norms.scale, "bias": norms.bias}
        weights = tuple(tensor for tensor in operator.weights if parts[tensor.name])
        return self.add(attrs.evolve(operator, weights=weights), [x], module)[0]

    def apply(self, function: str, x: Handle, module: str) -> Handle:
        """Apply a function to every element."""
        return self.add(pointwise.elementwise(function, [x]), [x], module)[0]

    def activate(self, activation: str, x: Handle, module: str) -> Handle:
        """Apply the activation of a feed-forward part; ``relu2`` squares what ReLU answers."""
        if activation != "relu2":
            return self.apply(activation, x, module)
        return self.apply("pow", self.apply("relu", x, module), f"{module}_square")

    def sum(self, x: Handle, y: Handle, module: str) -> Handle:
        """Add two tensors."""
        return self.add(pointwise.elementwise("add", [x, y]), [x, y], module)[0]

    def product(self, x: Handle, y: Handle, module: str) -> Handle:
        """Multiply two tensors element by element."""
        return self.add(pointwise.elementwise("multiply", [x, y]), [x, y], module)[0]

    def per_head(self, make: Callable[[Handle], Operator], x: Handle, channels: int, module: str) -> Handle:
        """Add what ``make`` returns for (samples, positions, heads, channels), on heads that lie in one axis."""
        samples, positions, width = x.shape
        operator = make(Handle((samples, positions, width // channels, channels), x.itemsize))
        return self.add(flat_heads(operator), [x], module)[0]

    def norm_of_heads(self, x: Handle, channels: int, module: str) -> Handle:
        """Give the channels of every head mean 0 and variance 1, with a scale of its own."""
        samples, positions, width = x.shape
        operator = flat_heads(normalization.layer_norm(Handle((samples, positions, width // channels, channels))))
        heads = next(axis for axis in operator.outputs[0].axes if axis.scale == channels)
        operator = attrs.evolve(operator, weights=(Tensor("weight", (heads,)),))
        return self.add(operator, [x], module)[0]

    def attend(
        self,
        q: Handle,
        k: Handle,
        v: Handle,
        heads: tuple[int, int],
        module: str,
        *,
        causal: bool = False,
        window: int | None = None,
        sinks: bool = False,
    ) -> Handle:
        """Return the answers of attention: ``heads`` of queries, and of keys and values; sinks are a score a head."""
        operator = attention.scaled_dot_product(q, k, v, heads=heads, causal=causal, window=window if causal else None)
        if sinks:
            group = heads[0] // heads[1]
            of_heads = next(number for number, dim in enumerate(operator.dims) if dim.name == "h")
            scores = Tensor("sinks", (Axis(heads[0], of_heads, scale=group, extent=group),))
            operator = attrs.evolve(operator, weights=(scores,))
        return self.add(operator, [q, k, v], module)[0]


def learned_positions(x: Handle, rows: int) -> Operator:
    """Add to each position of ``x`` (samples, positions, channels) its row of a table of ``rows``."""
    operator = pointwise.elementwise("add", [x])
    table = Tensor("table", (Axis(rows), Axis(x.shape[2], 2)))
    return attrs.evolve(operator, kind="learned_positions", weights=(table,), linear_in=((0, 1),))
