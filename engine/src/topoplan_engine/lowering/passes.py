"""Which operators have a backward pass, and along which edges gradients go back: what of a task graph is left out.

Where all is trained nothing is left out, and task graphs are those of FlexNet.  Otherwise `without_gradients` takes the
tasks that no iteration has from one that `topoplan_engine.lowering.build` has made; other lowerings never add them.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np

from topoplan.model.graph import OperatorGraph
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.checkpoints import repeated_operators
from topoplan_engine.csr import indptr
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.training import gradient_flow

__all__ = ["BackwardPasses", "without_gradients"]


class BackwardPasses(NamedTuple):
    """What of a graph runs backward.

    Attributes:
        everything: whether all of it does.
        operators: (n_ops,) operators with a backward pass, or with a forward pass that runs again.
        edges: (m,) edges along which a gradient goes back.
    """

    everything: bool
    operators: np.ndarray
    edges: np.ndarray

    @classmethod
    def of(cls, graph: OperatorGraph) -> BackwardPasses:
        """Return the passes of a graph."""
        flow = gradient_flow(graph)
        return cls(flow.everything, np.array(flow.backward) | np.array(repeated_operators(graph)), flow.edges)


def without_gradients(taskgraph: TaskGraph, table: PartTable, passes: BackwardPasses) -> TaskGraph:
    """Return a task graph without the backward tasks and messages that do not exist.

    Args:
        taskgraph: one that `topoplan_engine.lowering.build.build_taskgraph` has made of ``table``; tasks may follow.
        table: its parts and pairs.
        passes: of the model.
    """
    parts, groups, edge = len(table.device), len(table.group_bytes), np.arange(len(passes.edges))
    edge_of_pair = np.repeat(edge, np.diff(table.edge_ptr))
    goes_back = passes.edges[edge_of_pair]
    mask = np.ones(taskgraph.n_tasks, dtype=np.bool_)
    mask[1 : 2 * parts : 2] = passes.operators[table.op]
    remote = ~table.local
    mask[2 * parts + groups + 1 : 2 * parts + groups + 2 * int(remote.sum()) : 2] = goes_back[remote]

    tail = np.repeat(np.arange(taskgraph.n_tasks), np.diff(taskgraph.succ_ptr))
    head = taskgraph.succ.astype(np.int64)
    # Of pairs on one device: from the consumer's backward task to the producer's.
    source = 2 * (table.op_base[table.edge_src_op][edge_of_pair] + table.src) + 1
    target = 2 * (table.op_base[table.edge_dst_op][edge_of_pair] + table.dst) + 1
    order = target.astype(np.int64) * taskgraph.n_tasks + source
    cut = np.setdiff1d(order[table.local & ~goes_back], order[table.local & goes_back])
    follows = mask[tail] & mask[head] & ~np.isin(tail * taskgraph.n_tasks + head, cut)
    number = np.cumsum(mask, dtype=np.int32) - 1
    columns = ("kind", "device", "seconds", "size", "src", "dst", "group", "op", "collective")
    return attrs.evolve(
        taskgraph,
        **{name: getattr(taskgraph, name)[mask] for name in columns},
        succ_ptr=indptr(np.bincount(number[tail[follows]], minlength=int(mask.sum()))),
        succ=number[head[follows]],
    )
