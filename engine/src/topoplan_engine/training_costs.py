"""Costs of what an iteration trains: what is frozen has no gradient, and what is checkpointed runs again.

Most cost functions price an operator as if all of it were trained (`topoplan.model.costs.CostFunction.knows_training`).
Of their prices the gradients that are not computed are taken away, with the bytes that belong to them: of seconds the
part that gradients of weights take (`topoplan.model.costs.PartCosts.weight_gradient`), or the other part where nothing
is trained before the operator.  To the backward pass of an operator that runs again (`topoplan_engine.checkpoints`) its
forward pass is added, whoever priced it.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import F64, f64
from topoplan.model.costs import CostFunction, PartCosts
from topoplan.model.graph import Operator, OperatorGraph
from topoplan_engine.cache import LruCache
from topoplan_engine.checkpoints import repeated_operators
from topoplan_engine.scaling import rewritten_costs
from topoplan_engine.training import gradient_flow, has_sparse_gradient, trained_bytes

__all__ = ["training_costs"]

#: Prices that are kept: estimators give the same object for equal operators, and so do these costs.
_ENTRIES = 4096


def training_costs(costs: CostFunction, graph: OperatorGraph) -> CostFunction:
    """Return the costs of what ``graph`` trains; ``costs`` themselves where that is everything, once.

    Args:
        costs: prices parts of the graph, as one estimator built them.
        graph: the model.
    """
    flow, repeated = gradient_flow(graph), repeated_operators(graph)
    if flow.everything and not any(repeated):
        return costs
    shares = None if costs.knows_training or flow.everything else [_shares(graph, op) for op in range(len(repeated))]
    prices: LruCache[object, tuple[PartCosts, PartCosts]] = LruCache(_ENTRIES)

    def rewrite(op: int, price: PartCosts) -> PartCosts:
        share = None if shares is None else shares[op]
        key = id(price), share, repeated[op], bool(graph.operators[op].weights)
        entry = prices.find(key)
        if entry is None or entry[0] is not price:
            entry = prices.put(key, (price, _rewritten(price, graph.operators[op], share, repeated[op])))
        return entry[1]

    return rewritten_costs(costs, rewrite)


def _rewritten(price: PartCosts, op: Operator, share: _Shares | None, repeated: bool) -> PartCosts:
    """Return the price of an operator of which a share is trained, or all that was priced (None)."""
    seconds = _weight_seconds(price, op)
    if share is not None:
        price = _trained(price, seconds, share)
    if not repeated:
        return price
    gradient = seconds if share is None else price.weight_gradient
    return attrs.evolve(price, backward=f64(price.backward + price.forward), weight_gradient=gradient)


def _weight_seconds(price: PartCosts, op: Operator) -> F64:
    """(P,) seconds of the backward pass that the gradients of all weights take."""
    if price.weight_gradient is not None:
        return price.weight_gradient
    return price.backward / 2 if op.weights else np.zeros(len(price.backward))


@attrs.frozen
class _Shares:
    """What an operator computes of a whole backward pass: gradients of weights, and the rest; and states that it keeps.

    ``states`` is the share of the bytes of its weights that is trained.
    """

    weights: bool
    inputs: bool
    states: float


def _shares(graph: OperatorGraph, op: int) -> _Shares:
    flow, operator = gradient_flow(graph), graph.operators[op]
    nbytes = sum(tensor.nbytes for tensor in operator.weights)
    # Of an operator that reads data alone, nothing but gradients of weights was priced.
    on_data = not any(flow.inputs[op]) and not any(op == v for v in graph.edges.reshape(-1, 4)[:, 2].tolist())
    return _Shares(
        weights=any(flow.weights[op]),
        inputs=flow.backward[op] and (any(flow.inputs[op]) or on_data),
        states=trained_bytes(graph, op) / nbytes if nbytes and not has_sparse_gradient(operator) else 1.0,
    )


def _trained(price: PartCosts, weight_gradient: F64, shares: _Shares) -> PartCosts:
    """Take away what is not computed, and the bytes that belong to it."""
    gradient = weight_gradient * shares.weights
    backward = gradient + (price.backward - weight_gradient) * shares.inputs
    if shares.states == 1.0 or price.states is None:
        return attrs.evolve(price, backward=f64(backward), weight_gradient=f64(gradient))
    states = price.states * np.array([1.0, shares.states, shares.states])[:, None]
    less = price.states.sum(axis=0) - states.sum(axis=0)
    return attrs.evolve(
        price,
        backward=f64(backward),
        weight_gradient=f64(gradient),
        memory=f64(price.memory - less),
        states=f64(states),
        kept=None if price.kept is None else f64(price.kept - less),
    )
