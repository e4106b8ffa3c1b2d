"""The kinds of operator a model is made of, and the builder that joins them to an operator graph.

`attention`, `dense`, `products`, `spatial`, `resampling`, `normalization`, `pointwise`, `reductions`, `shaping`,
`tokens`, `experts` and `losses` have one pure function per kind.  It takes the shapes of the inputs and returns an
`Operator` (iteration space, axis maps, linearity, FLOPs; see `topoplan.model.graph`).  `patterns` says axes that hold
several dimensions, and `heads` puts heads and channels into one axis.  `GraphBuilder` names the operators, joins them
by edges and removes cuts that a dialect does not allow.  `with_preset` fills a frontend's options from a published
configuration.

    frontend ─► GraphBuilder.linear(x, 1024) ─► dense.linear(x, 1024) ─► Operator, named and joined
"""

from __future__ import annotations

from topoplan_operators.builder import Dialect, GraphBuilder
from topoplan_operators.handle import Handle
from topoplan_operators.presets import with_preset

__all__ = ["Dialect", "GraphBuilder", "Handle", "with_preset"]
