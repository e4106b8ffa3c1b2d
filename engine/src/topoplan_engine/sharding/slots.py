"""The dimension of each operator that counts slots of an expert: places for tokens, padded to a capacity.

How many slots an expert has is its even share of the tokens' choices, rounded up.  Tokens are divided among devices,
and slots with them, so that slices of slots need not be equal: what devices have is the mean.
"""

from __future__ import annotations

from topoplan.model.graph import OperatorGraph
from topoplan_engine.of_graphs import of_last_graphs
from topoplan_engine.sharding.signatures import routing_signature

__all__ = ["slot_dims"]

#: Axis of positions in a tensor of (samples, positions, channels).
_POSITIONS = 1


@of_last_graphs
def slot_dims(graph: OperatorGraph) -> tuple[int, ...]:
    """(n_ops) the dimension that counts slots of experts between the dispatch of tokens and their combination; or -1.

    Slots belong to the positions whose tokens fill them.
    """
    sources = {(v, k): (u, output) for u, output, v, k in graph.edges.reshape(-1, 4).tolist()}
    axis_of: dict[tuple[int, int], int] = {}
    dims = []
    for index, op in enumerate(graph.operators):
        routing, dim = routing_signature(op), -1
        if routing is not None and routing.outputs[0].axis != _POSITIONS:
            axis_of[index, 0] = routing.outputs[0].axis
            dim = routing.dim
        elif routing is not None:
            dim = op.inputs[0].axes[routing.inputs[0].axis].dim
        else:
            axes = [(tensor, axis_of.get(sources.get((index, k), (-1, 0)), -1)) for k, tensor in enumerate(op.inputs)]
            dim = next((tensor.axes[axis].dim for tensor, axis in axes if axis >= 0), -1)
            for output, tensor in enumerate(op.outputs):
                place = next((k for k, axis in enumerate(tensor.axes) if axis.dim == dim >= 0), -1)
                if place >= 0:
                    axis_of[index, output] = place
        dims.append(dim)
    return tuple(dims)
