"""Parts that several models are made of, and the builder that names them by their modules.

Tensors are (samples, positions, channels); heads lie in the channels, one behind the other, so that no view stands
between a projection and what works on its heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from topoplan import Operator, Tensor
from topoplan.model.graph import Axis
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

    def tied_linear(self, x: Handle, out: int, module: str, *, bias: bool = False) -> Handle:
        """Multiply the channels by a table that another operator has in memory and reduces; it is an input here."""
        operator = dense.linear(x, out, bias=bias, activation=False)
        table, *biases = operator.weights
        shared = attrs.evolve(
            operator,
            inputs=(*operator.inputs, attrs.evolve(table, name="table")),
            weights=tuple(biases),
            tags={**operator.tags, "shared": "table"},
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

    def apply(self, function: str, x: Handle, module: str) -> Handle:
        """Apply a function to every element."""
        return self.add(pointwise.elementwise(function, [x]), [x], module)[0]

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
    ) -> Handle:
        """Return the answers of attention: ``heads`` of queries, and of keys and values."""
        operator = attention.scaled_dot_product(q, k, v, heads=heads, causal=causal, window=window if causal else None)
        return self.add(operator, [q, k, v], module)[0]


def learned_positions(x: Handle, rows: int) -> Operator:
    """Add to each position of ``x`` (samples, positions, channels) its row of a table of ``rows``."""
    operator = pointwise.elementwise("add", [x])
    table = Tensor("table", (Axis(rows), Axis(x.shape[2], 2)))
    return attrs.evolve(operator, kind="learned_positions", weights=(table,), linear_in=((0, 1),))
