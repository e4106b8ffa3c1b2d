"""Bytes of weights, of their gradients and of the optimizer's state, of the parts of an operator.

A table that is looked up has a gradient of the rows that samples name, one for each look-up, with its index of 8 bytes
(PyTorch, ``embedding_bag`` with ``sparse=True``: the gradient is a sparse tensor that is not coalesced).  Its rows are
updated in place: there is no state of its size, and in mixed precision no copy in fp32 (pytorch/FBGEMM rounds
stochastically instead, ``split_table_batched_embeddings_ops_training.py``).
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64
from topoplan.model.graph import Operator
from topoplan_engine.training import has_sparse_gradient
from topoplan_operator_times.work import PartWork

__all__ = ["state_bytes"]


def state_bytes(operator: Operator, work: PartWork, states: tuple[int, int, int]) -> F64:
    """Return (3, P) bytes of weights, of gradients of weights, and of the optimizer's state.

    Args:
        operator: whose parts they are.
        work: of the parts.
        states: multiples of the bytes of weights, see `topoplan_engine.precision.weight_states`.
    """
    if has_sparse_gradient(operator):
        return np.stack([work.weights, work.sparse_gradient, np.zeros(len(work.weights))])
    return np.array(states)[:, None] * np.stack([work.weights, work.trained, work.trained])
