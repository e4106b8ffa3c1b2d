"""Weights that several operators use: who holds one, and who else computes a gradient of it.

Frontends make such a weight a weight of the first operator, and an input of the others, whose names the tag ``shared``
has (`topoplan_engine.training.shared_weights`): a head that has the table of the words, layers that are one layer.
The tag ``owner.NAME`` has the name of the first operator for the input of that name.
Where all run on the same devices that is all there is to say: the weight is in memory once, and gradients are added
before they are summed.  Where an operator runs elsewhere, its device has a copy, with all that belongs to a weight, and
the gradients of all copies are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.graph import Operator, OperatorGraph, Tensor
from topoplan.model.placement import Placement
from topoplan_engine.of_graphs import of_last_graphs
from topoplan_engine.partition import slice_bounds
from topoplan_engine.training import shared_weights

__all__ = ["TiedWeight", "copies_of", "holder_slices", "tied_weights"]


class TiedWeight(NamedTuple):
    """A weight that other operators use.

    Attributes:
        owner, weight: the operator that has it as a weight, and which one.
        users: each (operator, input) that uses it.
    """

    owner: int
    weight: int
    users: tuple[tuple[int, int], ...]


@of_last_graphs
def tied_weights(graph: OperatorGraph) -> tuple[TiedWeight, ...]:
    """Return the weights that several operators use, in the order of their owners.

    The owner is an earlier operator with a weight of the same sizes: the one that the tag ``owner.NAME`` names.  Where
    there is none, it is one of the same kind and name if there is one, as of layers that are one layer, and else the
    first.
    """
    users: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for index, op in enumerate(graph.operators):
        for argument in sorted(shared_weights(op)):
            owner = _owner(graph, index, op.inputs[argument])
            if owner is not None:
                users.setdefault(owner, []).append((index, argument))
    return tuple(TiedWeight(*owner, tuple(users[owner])) for owner in sorted(users))


def _owner(graph: OperatorGraph, user: int, tensor: Tensor) -> tuple[int, int] | None:
    """Return the operator and weight that an input of operator ``user`` is."""
    kind, sizes = graph.operators[user].kind, sorted(tensor.shape)
    owner = graph.operators[user].tags.get(f"owner.{tensor.name}")
    candidates = [
        (op.name != owner, op.kind != kind or weight.name != tensor.name, number, k)
        for number, op in enumerate(graph.operators[:user])
        for k, weight in enumerate(op.weights)
        if sorted(weight.shape) == sizes
    ]
    return min(candidates)[2:] if candidates else None


def holder_slices(graph: OperatorGraph, tied: TiedWeight, placements: Sequence[Placement]) -> list[I64]:
    """Return where the slices of the weight begin and end that the owner's parts have, and those of each user.

    Each is (2, P, axes), along the axes of the owner.
    """
    owner = graph.operators[tied.owner]
    weight = owner.weights[tied.weight]
    slices = [slice_bounds(owner, weight, placements[tied.owner].degrees)]
    for user, argument in tied.users:
        operator: Operator = graph.operators[user]
        tensor = operator.inputs[argument]
        bounds = slice_bounds(operator, tensor, placements[user].degrees)
        free, order = list(range(len(tensor.shape))), []
        for size in weight.shape:  # the same axes, perhaps in another order
            axis = next(k for k in free if tensor.shape[k] == size)
            free.remove(axis)
            order.append(axis)
        slices.append(bounds[:, :, order])
    return slices


def copies_of(graph: OperatorGraph, tied: TiedWeight, placements: Sequence[Placement]) -> list[F64]:
    """Return for each user the (P,) bytes of the weight that its parts hold beside what their devices hold anyway."""
    holders = {int(device) for device in placements[tied.owner].devices}
    itemsize = graph.operators[tied.owner].weights[tied.weight].itemsize
    copies = []
    for (user, _), (low, high) in zip(tied.users, holder_slices(graph, tied, placements)[1:], strict=True):
        nbytes = (high - low).prod(axis=1).astype(np.float64) * itemsize
        for part, device in enumerate(placements[user].devices.tolist()):
            if device in holders:
                nbytes[part] = 0.0
            holders.add(device)
        copies.append(nbytes)
    return copies
