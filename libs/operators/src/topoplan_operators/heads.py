"""Operators on heads that lie in one axis, one behind the other, as a linear layer makes them.

No view then stands between a projection and what works on its heads, and heads can still be cut.
"""

from __future__ import annotations

import attrs

from topoplan.model.graph import Axis, Operator, Tensor

__all__ = ["flat_heads"]


def flat_heads(operator: Operator) -> Operator:
    """Return an operator on (..., heads, channels) with heads and channels in one axis.

    Args:
        operator: each of its inputs and outputs ends in heads and channels, and channels stay together in every part.
    """

    def flat(tensor: Tensor) -> Tensor:
        *outer, heads, channels = tensor.axes
        axis = Axis(heads.size * channels.size, heads.dim, scale=channels.size, extent=channels.size)
        return attrs.evolve(tensor, axes=(*outer, axis))

    return attrs.evolve(operator, inputs=tuple(map(flat, operator.inputs)), outputs=tuple(map(flat, operator.outputs)))
