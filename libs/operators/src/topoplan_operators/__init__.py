"""The kinds of operator a model is made of, and the builder that joins them to an operator graph.

`dense`, `products`, `spatial`, `pointwise`, `shaping`, `experts` and `losses` hold one pure function per
kind: from the shapes of its inputs to an `Operator` in the algebra of `topoplan.model.graph` (iteration space, axis
maps, linearity, FLOPs).
`GraphBuilder` names the operators, joins them by edges and restricts them to what a dialect may cut.
`with_preset` fills a frontend's options from a published configuration.

    frontend ─► GraphBuilder.linear(x, 1024) ─► dense.linear(x, 1024) ─► Operator, named and joined
"""

from __future__ import annotations

from topoplan_operators.builder import Dialect, GraphBuilder
from topoplan_operators.handle import Handle
from topoplan_operators.presets import with_preset

__all__ = ["Dialect", "GraphBuilder", "Handle", "with_preset"]
